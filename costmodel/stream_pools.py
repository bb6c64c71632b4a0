"""What torch's caching allocator holds for other streams than the computation's, as columns over candidates.

The allocator keeps one pool of segments a stream; what is freed in one pool is never used for another. FSDP2 makes the
outputs of its reductions, the gradients that the optimizer sees, in its reduce-scatter stream, and the flat buffers of its
all-gathers in its all-gather stream. So the *sum of the pools' largest sizes* is reserved, while the largest *sum* is allocated:

    (1) reserved, without waste = largest over instants of (all terms - their part in the two pools) + gradients + gather
    (2) gradients                = G padded                        gather = C x the largest group's gathered elements
    (3) pooled                   = (1) - what is allocated at the peak

With ``set_to_none`` gradients are free while the next forward runs, hence allocated at its peak never, but reserved.
When memory runs out the allocator gives free segments back and tries again, at the cost of that step's speed.

Sources: torch 2.13.0 torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (`foreach_reduce`, `foreach_all_gather`),
c10/cuda/CUDACachingAllocator.cpp (blocks are found by stream).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from costmodel.shard_sizes import Column


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant: bytes allocated in all, and those of them in the reduce-scatter and the all-gather stream's pools."""

    allocated: Column
    gradients: Column
    gather: Column


def pooled_bytes(instants: Sequence[Instant], *, gradients: Column, gather: Column) -> Column:
    """Equation (3); never negative where no instant holds more of a pool than the pool.

    Args:
        instants: every instant that may be the peak.
        gradients: largest size of the reduce-scatter stream's pool.
        gather: largest size of the all-gather stream's pool.
    """
    computation = [each.allocated - each.gradients - each.gather for each in instants]
    reserved = reduce(np.maximum, computation) + gradients + gather
    return reserved - reduce(np.maximum, (each.allocated for each in instants))
