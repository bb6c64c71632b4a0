"""Where virtual stages live: which pipeline rank holds which stage of the model, by schedule.

p ranks, v chunks per rank, p v virtual stages in the order of the model.

    (1) loop   stage k is chunk k // p of rank k mod p
    (2) V      the same, but odd chunks run from the last rank back to the first: rank p - 1 - (k mod p). With 2 chunks rank r
               holds stages r and 2 p - 1 - r, so embedding and head are both on rank 0

Both are their own inverse: chunk c of rank r is stage c p + r, or c p + p - 1 - r.
Sources: arXiv 2104.04473, section 2.2 (loop); arXiv 2401.10241, section 6 (V); torch 2.13.0, `generate_stage_to_rank_mapping`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.specs import PipelineSchedule

Number = TypeVar("Number", int, NDArray[np.int64])

LOOPED_SCHEDULES: tuple[PipelineSchedule, ...] = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
"""Two or more chunks a rank, placed in a loop."""
V_SCHEDULES: tuple[PipelineSchedule, ...] = ("zbv_zero_bubble", "dualpipe_v")
"""Exactly two chunks a rank, placed in a V."""
SPLIT_BACKWARD_SCHEDULES: tuple[PipelineSchedule, ...] = ("interleaved_zero_bubble", *V_SCHEDULES)
"""Schedules that compute gradients of inputs and of weights as operations of their own."""
ROUND_SCHEDULES: tuple[PipelineSchedule, ...] = ("interleaved_1f1b", "interleaved_zero_bubble")
"""Schedules whose micro-batches pass through one chunk in rounds before the next chunk's turn."""


def place(schedule: PipelineSchedule, stage: int, num_ranks: int) -> tuple[int, int]:
    """Rank and chunk of virtual stage ``stage``."""
    chunk, offset = divmod(stage, num_ranks)
    return _mirrored(offset, chunk, num_ranks, int(schedule in V_SCHEDULES)), chunk


def virtual_stage(rank: Number, chunk: Number | int, num_ranks: Number, *, v_shaped: Number) -> Number:
    """Virtual stage of chunk ``chunk`` of ``rank``, columns for columns; ``v_shaped``: 1 for (2), 0 for (1)."""
    return chunk * num_ranks + _mirrored(rank, chunk, num_ranks, v_shaped)


@lru_cache(maxsize=1024)
def stages_of_ranks(schedule: PipelineSchedule, num_ranks: int, num_chunks: int) -> NDArray[np.int64]:
    """Virtual stages of every rank [p, v], read only."""
    ranks, shape = np.arange(num_ranks), np.array(int(schedule in V_SCHEDULES))
    sizes = np.full_like(ranks, num_ranks)
    held = np.stack([virtual_stage(ranks, chunk, sizes, v_shaped=shape) for chunk in range(num_chunks)], axis=1)
    held.setflags(write=False)
    return held


def _mirrored(offset: Number, chunk: Number | int, num_ranks: Number, v_shaped: Number) -> Number:
    return offset + v_shaped * (chunk % 2) * (num_ranks - 1 - 2 * offset)
