"""What the files of another launcher say, in our words: the inputs of a plan, as far as they state them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFact:
    """A size of the model that a file states: ``key`` as the file spells it, ``name`` as `meshwright.importing` does."""

    key: str
    name: str
    value: int | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Files of another launcher, read.

    ``runtime``: whose plan it is. ``sizes``: the fields of `ParallelConfig` that are stated or follow from the target's
    defaults; what is left open follows from the cluster and the batch. ``training``: of global_batch_size, sequence_length,
    precision, optimizer, attention and loss_chunks those that are stated. ``recompute``: as `make_plan` takes it.
    ``layers_per_stage``: of every virtual stage; None: even. ``num_devices``: processes that are started, where stated.
    ``model``: sizes of the model, to be compared with the one that is named. ``warnings``: sentences on what is taken
    otherwise than written. ``ignored``: keys that change neither time nor memory (a learning rate, a path).
    ``keys``: our name -> the target's spelling, for errors.
    """

    target: str
    runtime: str
    sizes: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    recompute: str = "none"
    layers_per_stage: tuple[int, ...] | None = None
    num_devices: int | None = None
    model: tuple[ModelFact, ...] = ()
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    keys: dict[str, str] = field(default_factory=dict)
