"""First values of the weights: random by name, or read from a folder of safetensors.

Every value depends on (seed, fully qualified name, shape) alone, so all plans start from the same weights. A tensor is drawn
on the CPU in float32, in blocks of rows that each have their own generator, and a process draws only the blocks it holds
part of: no process ever holds the whole model.

The distribution is Hugging Face's: normal with the config's ``initializer_range`` (opt: ``init_std``) for matrices (divided by
sqrt(2 layers) for GPT-2's two projections onto the residual stream), ones for norms (gemma2's, which multiply by 1 + weight:
zeros), zeros for biases.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from costmodel.specs import InputError
from executor.sharding import Layout

_BLOCK_ELEMENTS = 1 << 22
_OTHER_NAMES = {"lm_head.weight": ("embed_out.weight",)}  # gpt_neox on disk; transformers renames it on loading


class WeightSource(Protocol):
    """Something that has a value for every element of every parameter."""

    def rows(self, name: str, shape: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
        """Rows ``start`` to ``stop`` (exclusive) along dim 0 of the whole tensor ``name``, on the CPU."""
        ...


class RandomWeights:
    """Seeded values by name and shape."""

    def __init__(self, seed: int, config: Any) -> None:
        self.seed = seed
        self.spread = float(config.init_std if config.model_type == "opt" else config.initializer_range)
        self.norm_weight = 0.0 if config.model_type == "gemma2" else 1.0
        self.residual_spread = self.spread
        if config.model_type == "gpt2":
            self.residual_spread = self.spread / math.sqrt(2 * config.num_hidden_layers)

    def rows(self, name: str, shape: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
        """See `WeightSource`."""
        if len(shape) == 1:
            return torch.full((stop - start,), 0.0 if name.endswith("bias") else self.norm_weight)
        result = torch.empty((stop - start, *shape[1:]))
        step = max(1, _BLOCK_ELEMENTS // math.prod(shape[1:]))
        for low in range(start // step * step, stop, step):
            high = min(low + step, shape[0])
            block = self._draw(f"{self.seed}:{name}:{low}", (high - low, *shape[1:]), name)
            first, last = max(low, start), min(high, stop)
            result[first - start : last - start] = block[first - low : last - low]
        return result

    def _draw(self, key: str, shape: tuple[int, ...], name: str) -> torch.Tensor:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
        spread = self.residual_spread if name.endswith("c_proj.weight") else self.spread
        return torch.empty(shape).normal_(0.0, spread, generator=generator)


class SafetensorsWeights:
    """Values read from ``*.safetensors`` in a model folder, only the rows that are asked for.

    Raises:
        InputError: when the folder has no such files, a tensor is missing, or its shape is not the model's.
    """

    def __init__(self, folder: str, *, base: str) -> None:
        self.folder, self.prefix = folder, f"{base.partition('.')[0]}."
        self._files: dict[str, Any] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            try:
                file = safe_open(path, framework="pt")
            except Exception as error:
                raise InputError(f"weights file {path} cannot be read: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))
        if not self._files:
            raise InputError(f"weights folder {folder} holds no *.safetensors file; give a folder that does")

    def rows(self, name: str, shape: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
        """See `WeightSource`. A checkpoint of the bare model lacks the base's prefix; both spellings are read."""
        spellings = (name, name.removeprefix(self.prefix), *_OTHER_NAMES.get(name, ()))
        found = next((key for key in spellings if key in self._files), None)
        if found is None:
            raise InputError(f"weights folder {self.folder} lacks the tensor {name}")
        part = self._files[found].get_slice(found)
        if tuple(part.get_shape()) != shape:
            raise InputError(f"weight {name} has shape {list(part.get_shape())}; the model needs {list(shape)}")
        values: torch.Tensor = part[start:stop]
        return values


@torch.no_grad()
def fill_parameters(parameters: Iterable[tuple[str, torch.Tensor]], source: WeightSource, layout: Layout) -> None:
    """Write this process's part of every named parameter from ``source``, in place."""
    for name, parameter in parameters:
        shape = tuple(parameter.shape)
        blocks = layout.blocks(name, parameter)
        for rows, same in groupby(blocks, key=lambda block: block.slices[0]):  # the blocks of a fused dim 1 share rows
            values = source.rows(name, shape, rows.start, rows.stop)
            for block in same:
                block.view.copy_(values[(slice(None), *block.slices[1:])])
