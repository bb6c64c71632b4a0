"""Memory of one device under runtime ``megatron``, term by term, as columns over candidates.

Letters as in state_memory.py and rank_totals.py. Parameters, gradients and optimizer state are flat buffers that live from
initialisation on (state_memory.py, (10)). The peak of forward and backward is the larger of two instants:

    (1) loss: sum K_c A_c is kept and the head's logits live
    (2) first backward: sum K_c A_c, what recomputation makes again of one layer, and the widest gradients of its backward

Activations only shrink after (2) and gradients do not grow, so no later instant is larger. With 16-bit gradients the
optimizer step copies the gradient shard to fp32 (4 ceil(local / d) bytes).

Sources: Megatron-LM docs/source/api-guide/dist_optimizer.md; megatron/core/pipeline_parallel/schedules.py (an output's
memory is freed once it is sent, `deallocate_output_tensor`); arXiv 2205.05198 sections 4 and 5.
"""

from __future__ import annotations

import numpy as np

from costmodel.megatron_activation_memory import megatron_end_bytes, megatron_layer_bytes
from costmodel.rank_totals import Inputs, PhaseTerms, Terms, gather_inputs, largest, rank_totals
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import ceil_div
from costmodel.specs import DeviceSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.stage_contents import RankContents

MAIN_GRADIENT_BYTES = 4


def megatron_inputs(
    model: ModelSpec, training: TrainingSpec, runtime: RuntimeProfile, device: DeviceSpec, grid: Grid
) -> Inputs:
    """The tables of a grid."""
    return gather_inputs(
        model, training, runtime, device, grid, layer_model=megatron_layer_bytes, end_model=megatron_end_bytes
    )


def megatron_rank_memory(inputs: Inputs, contents: RankContents) -> PhaseTerms:
    """Terms of every phase for one pipeline rank per row; forward_backward at its larger instant."""
    totals = rank_totals(inputs, contents)
    local = totals.sizes.local
    shard = ceil_div(local, inputs.grid.data_parallel_shard_size)
    moments = inputs.training.optimizer.num_moments * inputs.bytes_of("state")
    state = {
        "parameters": local * inputs.bytes_of("parameter"),
        "gradients": local * inputs.bytes_of("gradient"),
        "optimizer_state": shard * (inputs.bytes_of("master") + moments),
    }
    loss: Terms = {"activations": totals.in_flight, "logits": totals.logits}
    backward: Terms = {
        "activations": totals.in_flight - totals.head_kept,
        "recompute_working_set": totals.recomputed,
        "backward_working_set": totals.backward,
    }
    copies = inputs.bytes_of("gradient") < MAIN_GRADIENT_BYTES and inputs.bytes_of("master") > 0
    temporaries = shard * MAIN_GRADIENT_BYTES if copies else np.zeros_like(shard)
    return {
        "init": {**state, "optimizer_state": shard * inputs.bytes_of("master")},
        "forward_backward": {**state, **largest([loss, backward])},
        "optimizer": {**state, "optimizer_temporaries": temporaries},
    }
