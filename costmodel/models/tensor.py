"""One parameter tensor as transformers stores it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """Name, shape and how tensor parallelism cuts a parameter.

    ``tensor_parallel_dim`` is the dim that tensor parallelism cuts, None where every rank holds the whole tensor.
    ``parts`` are the sizes of the blocks along that dim that are each cut by themselves, empty for one block: a fused query,
    key and value has three, so that every rank gets whole heads of all of them.
    """

    name: str
    shape: tuple[int, ...]
    tensor_parallel_dim: int | None = None
    parts: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)
