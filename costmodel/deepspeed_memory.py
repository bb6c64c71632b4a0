"""Memory of one device under DeepSpeed, term by term, as columns over candidates: flat states around Hugging Face's modules.

Activations are those of runtime ``torch`` (activation_memory.py), states those of state_memory.py, (10): P parameter, G gradient,
M master and S state bytes per element, each sharded from its ZeRO stage on. C bytes of the compute format, r elements of the
reduction bucket: 5e8, or h^2 (`MemoryAccounting.hidden_squared_bucket`). The peak of forward and backward is the largest of

    (1) loss             everything kept, the head's logits; under ZeRO 0 to 2 gradients only of earlier micro-batches; over
                         chunks one chunk's logits, beside the head's gradient
    (2) head's backward  everything kept, one gradient of the logits, the head's gradient
    (3) first backward   everything kept less the head side's, what is recomputed, the widest gradients, the head's gradient
    (4) last backward    one layer, what is recomputed, the widest gradients; all gradients
    (5) last reduction   no activations; all gradients, and the embedding's whole

    (6) gathered, ZeRO 3: C per element. Every module is gathered by itself and stays while it is used again soon, up to
        ``max_live_parameters``; the layer of a backward stays whole. At (1) and (2) at least the head, at (5) the embedding
    (7) hpZ's second copy of all parameters, C / k per element
    (8) buffers: C r for gradients that wait for their reduction, from initialisation on under ZeRO 1 to 3, and at (3) to (5) a
        copy of what is being reduced: of a bucket, or of a larger tensor, which is reduced alone

The optimizer step has fp32 gradients of its shard, under ZeRO 3 of at most ``sub_group_size`` elements at a time.

Sources: DeepSpeed 0.16, runtime/zero/stage3.py (`ipg_bucket_flat_buffer`, `grad_partitions_flat_buffer`), stage_1_and_2.py,
partitioned_param_coordinator.py, runtime/comm/coalesced_collectives.py (`reduce_scatter_coalesced` concatenates its input),
runtime/zero/config.py (reduce_bucket_size 5e8, sub_group_size 1e9, stage3_max_live_parameters 1e9); arXiv 2306.10209 (hpZ).
"""

from __future__ import annotations

import numpy as np

from costmodel.rank_totals import Inputs, PhaseTerms, RankMemory, RankTotals, Terms, rank_totals
from costmodel.shard_sizes import Column, ceil_div
from costmodel.stage_contents import RankContents
from costmodel.state_memory import MAIN_GRADIENT_BYTES

REDUCE_BUCKET = 500_000_000
SUB_GROUP = 1_000_000_000
LOGIT_TENSORS = 2
"""Gradients of the whole vocabulary that the loss's backward holds at once (activation_memory.py, (12))."""
LIVE_PARAMETERS = 1_000_000_000


def deepspeed_rank_memory(inputs: Inputs, contents: RankContents) -> RankMemory:
    """Terms of every phase for one pipeline rank per row; forward_backward at instants (1) to (5)."""
    totals, stage = rank_totals(inputs, contents), inputs.grid.zero_stage
    shard = ceil_div(totals.sizes.local, inputs.grid.shard_group_size)
    moments = inputs.training.optimizer.num_moments * inputs.bytes_of("state")
    parameters: Terms = {
        "parameters": np.where(stage >= 3, shard, totals.sizes.local) * inputs.bytes_of("parameter"),
        "hierarchical_shards": _second_shards(inputs, totals),
        "communication_buffers": (stage >= 1) * _bucket_elements(inputs) * inputs.bytes_of("compute"),
    }
    held = _gradients(inputs, totals)
    step: Terms = {"optimizer_state": shard * (inputs.bytes_of("master") + moments)}
    converted = np.where(stage >= 3, np.minimum(shard, SUB_GROUP), shard) * MAIN_GRADIENT_BYTES
    phases: PhaseTerms = {
        "init": [{**parameters, "optimizer_state": shard * inputs.bytes_of("master")}],
        "forward_backward": [{**parameters, **step, **terms} for terms in _instants(inputs, totals, held)],
        "optimizer": [
            {
                **parameters,
                **step,
                "gradients": held,
                "optimizer_temporaries": converted * (inputs.bytes_of("gradient") < MAIN_GRADIENT_BYTES),
            }
        ],
    }
    return RankMemory.of(phases)


def _instants(inputs: Inputs, totals: RankTotals, held: Column) -> list[Terms]:
    """Equations (1) to (5)."""
    compute, last = inputs.bytes_of("compute"), totals.last
    early = np.where(inputs.grid.zero_stage >= 3, held, held * totals.earlier)
    head, embedding = (last.head_side + last.tied).local, last.root.local - last.head_side.local
    bucket = np.minimum(totals.sizes.local, _bucket_elements(inputs))
    live = np.minimum(totals.sizes.local, np.maximum(last.last_layer.local, LIVE_PARAMETERS))
    with_head = {"gathered_parameters": _gathered(inputs, np.maximum(live, head))}
    layer: Terms = {
        "recompute_working_set": totals.widest.recomputed,
        "backward_working_set": totals.widest.backward,
        "gathered_parameters": _gathered(inputs, live),
    }
    return [
        {
            "gradients": early + head * compute * (inputs.training.loss_chunks > 1),
            "activations": totals.in_flight,
            "logits": totals.logits,
            **with_head,
        },
        {
            "gradients": early + head * compute,
            "activations": totals.in_flight,
            "logits": totals.logits // LOGIT_TENSORS,
            **with_head,
        },
        {
            **layer,
            "gradients": early + head * compute,
            "activations": totals.in_flight - totals.head_kept - totals.widest.freed - totals.widest.behind,
            "reduced_gradients": _reduced(inputs, np.maximum(bucket, head)),
        },
        {**layer, "gradients": held, "activations": totals.layer, "reduced_gradients": _reduced(inputs, bucket)},
        {
            "gradients": held + embedding * compute,
            "gathered_parameters": _gathered(inputs, np.maximum(live, embedding)),
            "reduced_gradients": _reduced(inputs, np.maximum(bucket, embedding)),
        },
    ]


def _bucket_elements(inputs: Inputs) -> int:
    """Elements of the reduction bucket, r of equation (8)."""
    return inputs.model.hidden_size**2 if inputs.accounting.hidden_squared_bucket else REDUCE_BUCKET


def _gathered(inputs: Inputs, elements: Column) -> Column:
    """Equation (6)."""
    return np.where(inputs.grid.zero_stage >= 3, elements * inputs.bytes_of("compute"), 0)


def _gradients(inputs: Inputs, totals: RankTotals) -> Column:
    """All gradients of one device, sharded from ZeRO 2 on."""
    shard = ceil_div(totals.sizes.local, inputs.grid.shard_group_size)
    return np.where(inputs.grid.zero_stage >= 2, shard, totals.sizes.local) * inputs.bytes_of("gradient")


def _reduced(inputs: Inputs, elements: Column) -> Column:
    """Equation (8): the copy of what is being reduced, where there is somebody to reduce with."""
    alone = inputs.grid.data_parallel_size * inputs.grid.context_parallel_size == 1
    return np.where(alone, 0, elements * inputs.bytes_of("reduce"))


def _second_shards(inputs: Inputs, totals: RankTotals) -> Column:
    """Equation (7)."""
    size = inputs.grid.hierarchical_partition_size
    return ceil_div(totals.sizes.local, np.maximum(size, 1)) * inputs.bytes_of("compute") * (size > 0)
