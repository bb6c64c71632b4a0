"""What the files of another launcher say, in our words: the inputs of a plan, as far as they state them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from costmodel.specs import AxisOrder, InputError, OptimizerSpec
from hardware_profiles.errors import dotted, explain_problem

_WHOLE = re.compile(r"-?[0-9]{1,15}")


def whole_number(text: object) -> int | None:
    """The whole number that a text is, of at most 15 digits, or None."""
    return int(text) if isinstance(text, str) and _WHOLE.fullmatch(text) else None


def whole_numbers(variables: Mapping[str, str]) -> dict[str, int]:
    """Those variables of a script that are whole numbers."""
    return {name: number for name, text in variables.items() if (number := whole_number(text)) is not None}


def make_optimizer(keys: Mapping[str, str], **content: Any) -> OptimizerSpec:
    """The optimizer with these fields.

    Args:
        keys: field -> the file's spelling, of one of two betas "betas.0" and "betas.1".
        content: fields of `OptimizerSpec`.

    Raises:
        InputError: for a value that the field cannot have; the message names the key as the file spells it.
    """
    try:
        return OptimizerSpec.model_validate(content)
    except ValidationError as error:
        place = dotted(error.errors()[0]["loc"])
        key = keys.get(place) or keys.get(place.split(".")[0]) or place
        raise InputError(f"{key}: {explain_problem(error, OptimizerSpec).removeprefix(f'{place}: ')}") from None


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
    axis_order: AxisOrder = "pipeline_outermost"
    num_devices: int | None = None
    model: tuple[ModelFact, ...] = ()
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    keys: dict[str, str] = field(default_factory=dict)
