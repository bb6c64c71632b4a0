"""Memory of one device under Megatron-core and stacks like it, term by term, as columns over candidates.

Letters as in state_memory.py and rank_totals.py. Parameters, gradients and optimizer state are flat buffers that live from
initialisation on (state_memory.py, (10)). The peak of forward and backward is the larger of two instants:

    (1) loss: sum K_c A_c is kept and the head's logits live
    (2) first backward: sum K_c A_c, what recomputation makes again of one layer, and the widest gradients of its backward

Activations only shrink after (2) and gradients do not grow, so no later instant is larger. A stack that holds the outputs it
sent (`MemoryAccounting.sent_outputs`) keeps c z h more per micro-batch in flight. With 16-bit gradients the optimizer step
copies the gradient shard to fp32 (4 ceil(local / d) bytes), d = dp_shard x cp. Under ZeRO 3 the widest layer and the one
after it are gathered. With fp8 projections their weights are kept in 8 bits twice (FP8_COPIES), beside those in the parameters'
format or instead of them (`MemoryAccounting.fp8_primary_weights`).

Sources: Megatron-LM docs/source/api-guide/dist_optimizer.md; megatron/core/pipeline_parallel/schedules.py (an output's
memory is freed once it is sent, `deallocate_output_tensor`); arXiv 2205.05198 sections 4 and 5; arXiv 1910.02054 (ZeRO).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from costmodel.fp8 import FP8_BYTES
from costmodel.megatron_activation_memory import megatron_end_bytes, megatron_layer_bytes
from costmodel.rank_totals import Inputs, PhaseTerms, RankMemory, RankTotals, Terms, gather_inputs, rank_totals
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ceil_div
from costmodel.specs import DeviceSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.stage_contents import RankContents
from costmodel.state_memory import MAIN_GRADIENT_BYTES

GATHERED_LAYERS = 2
FP8_COPIES = 2
"""A projection's weight and its transpose, kept over the step's micro-batches (Transformer Engine, module/base.py,
get_weight_workspace; Megatron-LM without --fp8-param-gather)."""


def megatron_inputs(
    model: ModelSpec, training: TrainingSpec, runtime: RuntimeProfile, device: DeviceSpec, grid: Grid
) -> Inputs:
    """The tables of a grid."""
    accounting, fusion = runtime.memory, runtime.kernel_fusion
    return gather_inputs(
        model,
        training,
        runtime,
        device,
        grid,
        layer_model=partial(megatron_layer_bytes, accounting=accounting, fusion=fusion),
        end_model=partial(megatron_end_bytes, accounting=accounting, fusion=fusion),
    )


def megatron_rank_memory(inputs: Inputs, contents: RankContents) -> RankMemory:
    """Terms of every phase for one pipeline rank per row; forward_backward at instants (1) and (2)."""
    totals = rank_totals(inputs, contents)
    state, shard = _state(inputs, totals), ceil_div(totals.sizes.local, inputs.grid.shard_group_size)
    kept = totals.in_flight + inputs.accounting.sent_outputs * totals.sent_in_flight * inputs.layers[0].layer_input
    loss: Terms = {"activations": kept, "logits": totals.logits}
    backward: Terms = {
        "activations": kept - totals.head_kept - totals.widest.freed - totals.widest.behind,
        "recompute_working_set": totals.widest.recomputed,
        "backward_working_set": totals.widest.backward,
    }
    gathered = _gathered(inputs, totals)
    copies = inputs.bytes_of("gradient") < MAIN_GRADIENT_BYTES and inputs.bytes_of("master") > 0
    temporaries = shard * MAIN_GRADIENT_BYTES if copies else np.zeros_like(shard)
    phases: PhaseTerms = {
        "init": [{**state, "optimizer_state": shard * inputs.bytes_of("master")}],
        "forward_backward": [{**state, "gathered_parameters": gathered, **terms} for terms in (loss, backward)],
        "optimizer": [{**state, "optimizer_temporaries": temporaries}],
    }
    return RankMemory.of(phases)


def _state(inputs: Inputs, totals: RankTotals) -> Terms:
    """state_memory.py, equation (10), and what the stack holds beyond it."""
    local, stage = totals.sizes.local, inputs.grid.zero_stage
    shard = ceil_div(local, inputs.grid.shard_group_size)
    moments = inputs.training.optimizer.num_moments * inputs.bytes_of("state")
    more = inputs.accounting.state_bytes.get(inputs.training.precision.compute, 0)
    recipe = inputs.training.precision.fp8_recipe
    eight_bit, alone = FP8_COPIES * FP8_BYTES * (recipe is not None), recipe in inputs.accounting.fp8_primary_weights
    whole = local - totals.layer_sizes.local * alone
    return {
        "parameters": np.where(stage >= 3, shard, whole) * inputs.bytes_of("parameter"),
        "gradients": np.where(stage >= 2, shard, local) * (inputs.bytes_of("gradient") + more),
        "optimizer_state": shard * (inputs.bytes_of("master") + moments),
        "fp8_weights": totals.layer_sizes.local * eight_bit,
    }


def _gathered(inputs: Inputs, totals: RankTotals) -> Column:
    """Layers whose parameters ZeRO 3 gathers at once: the current and the prefetched one."""
    layers = np.minimum(GATHERED_LAYERS * totals.last.last_layer.local, totals.layer_sizes.local)
    return (layers + totals.last.root.local) * inputs.bytes_of("compute") * (inputs.grid.zero_stage >= 3)
