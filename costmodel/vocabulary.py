"""How many rows the embedding table of a model has under a runtime: the vocabulary, padded.

    (1) rows = ceil(V / (multiple x t)) x multiple x t        t tensor-parallel size; no multiple: V, cut into uneven parts

V is the model's own ``padded_vocab_size``, so a padding that its config states is kept and at most grows. (1) depends on t,
which differs from row to row of a grid: whoever prices a grid prices the rows of each table size together, as `build_plan`
prices each plan, so that both see one model.

Source: Megatron-LM, megatron/training/tokenizer/tokenizer.py (`vocab_size_with_padding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.memo import Identical
from costmodel.runtimes.grid import Grid
from costmodel.specs import ModelSpec, RuntimeProfile


def padded_model(model: ModelSpec, runtime: RuntimeProfile, tensor_parallel_size: int) -> ModelSpec:
    """The model with the table that ``runtime`` allocates, equation (1)."""
    if runtime.vocabulary_multiple is None:
        return model
    multiple = runtime.vocabulary_multiple * tensor_parallel_size
    rows = -(-model.padded_vocab_size // multiple) * multiple
    return model if rows == model.padded_vocab_size else _with_rows(Identical(model), rows)


@lru_cache(maxsize=64)
def _with_rows(model: Identical[ModelSpec], rows: int) -> ModelSpec:
    """One model for every table, so that what is remembered of a model is found again."""
    return model.value.model_copy(update={"padded_vocab_size": rows})


def padded_models(
    model: ModelSpec, runtime: RuntimeProfile, grid: Grid
) -> Iterator[tuple[ModelSpec, NDArray[np.int64] | None]]:
    """Every padded model that a grid needs, with the rows that need it; None for the rows where one model serves all."""
    sizes, inverse = np.unique(grid.tensor_parallel_size, return_inverse=True)
    models = [padded_model(model, runtime, int(size)) for size in sizes]
    tables = np.array([each.padded_vocab_size for each in models], dtype=np.int64)
    if not len(tables):
        return
    if (tables == tables[0]).all():
        yield models[0], None
        return
    for table in np.unique(tables):
        first = int(np.argmax(tables == table))
        yield models[first], np.flatnonzero(tables[inverse] == table)
