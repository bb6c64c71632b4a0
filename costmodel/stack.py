"""The stack costs of a runtime that step time needs, by name, with what each means.

A runtime profile states every one of them under ``constants`` with its evidence and source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from costmodel.memo import Identical
from costmodel.specs import InputError, KernelFusion, RuntimeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Numbers of one software stack; no hardware here.

    *Accesses* are tensor elements read or written per element of the named tensor, forward and backward. *Operations* are
    what the host issues, in units of one plain eager operation: `DeviceSpec.launch_seconds` each.

    Attributes:
        sustained_rate: rate of kernels inside a training step over their rate in a benchmark of their own, on an
            asynchronous device: power limit, gaps between kernels, waiting for the slowest rank.
        elementwise_traffic: bytes that norms, activations and additions move over the count of their accesses.
        host_operations: host time of one operation in a training step over that of a plain eager one.
        data_parallel_overlap: share of data-parallel communication that hides behind computation, where it can.
        straggler_growth: growth of computation per doubling of the nodes: all wait for the slowest device.
        wide_group_growth: growth of a collective's time per byte per doubling of the nodes it spans.
        site_rate: rate of kernels at a site over the modelled one, of `costmodel.site`; 1 without a site.
        power_exponent: of the clock in the power limit, `costmodel.compute.power_fraction`.
        parameter_broadcast_seconds: per rank of the shard group, when ZeRO-1 and 2 send updated parameters as one
            broadcast from every rank.
        shard_rate: rate of ZeRO-3's gathers and reductions over that of the group's ring.
        gathers_per_tensor: 1 when ZeRO-3 gathers every tensor by itself, 0 when a layer at a time.
        fp8_rate: share of their peak that fp8 products reach over that of 16-bit ones.
        flash_version: of the fused attention kernels.
        flash_1_rate: rate of FlashAttention 1 over 2; also that of a CUDA kernel that takes a mask.
        masked_windows: 1 when fused attention gets a sliding window as a mask tensor and computes all scores.
        flash_3_rate: rate of FlashAttention 3 and cuDNN's attention over FlashAttention 2, on Hopper.
        rmsnorm_forward_accesses: per normalised element.
        rmsnorm_backward_accesses: the same backward.
        rmsnorm_least_bytes: bytes of one such access at least; 4 where the norm computes in fp32 kernel by kernel.
        rotary_forward_accesses: per element of query and key.
        rotary_backward_accesses: the same backward.
        gate_forward_accesses: per element of the gate, with its product with the up projection.
        gate_backward_accesses: the same backward.
        new_gelu_forward_accesses: per element of the activation that transformers calls gelu_new.
        new_gelu_backward_accesses: the same backward.
        score_traffic_bytes: bytes per score element that unfused attention moves forward, besides its two products.
        score_backward_ratio: backward over forward of ``score_traffic_bytes``.
        attention_backward_flops_ratio: FLOP of a fused attention backward over its forward.
        attention_backward_rate_ratio: rate of a fused attention backward over its forward.
        logits_forward_bytes: bytes per logit moved by the loss forward.
        logits_backward_bytes: the same backward.
        fused_projections: 1 when query, key, value (and gate, up) are one multiplication each, 0 when separate.
        fused_accumulation: 1 when weight-gradient multiplications add into the accumulated gradient themselves.
        forward_operations_llama: of one layer with rotary embeddings and a gate.
        backward_operations_llama: the same backward.
        forward_operations_gpt: of one layer without them.
        backward_operations_gpt: the same backward.
        forward_operations_gemma: of one layer with four norms and capped scores (gemma2).
        backward_operations_gemma: the same backward.
        forward_operations_phi: of one layer with fused projections, rotary embeddings and a gate (phi3).
        backward_operations_phi: the same backward.
        forward_operations_neox: of one layer with fused projections, rotary embeddings and layer norms (gpt_neox).
        backward_operations_neox: the same backward.
        forward_operations_opt: of one layer with separate projections and layer norms (opt).
        backward_operations_opt: the same backward.
        end_operations: of the embedding and of the head with the loss, each, forward and backward together.
        projection_operations: extra per projection, forward and backward together, under tensor parallelism.
        sequence_operations: extra per layer, forward and backward together, under sequence parallelism.
        recompute_operations: extra per recomputed layer, besides the forward that is repeated.
        sharding_operations: extra per layer, forward and backward together, of a layer wrapped for data parallelism.
        collective_operations: extra per parameter gather or gradient reduction of a layer.
        optimizer_operations: of the optimizer step per parameter tensor.
        launch_sharpness: exponent of the smooth maximum of device time and host time.
        collective_wait_seconds: that a tensor-parallel gather or reduce-scatter waits for its last rank, per doubling of the
            group; an all-reduce is both.
        tensor_parallel_forward_overlap: share of the forward tensor-parallel collectives hidden behind matmuls.
        tensor_parallel_backward_overlap: share of the backward tensor-parallel collectives hidden behind matmuls.
        recompute_early_stop: 1 when recomputation stops once backward has what it needs, before the last product of a layer and
            of unfused attention. Of the executed FLOP; times were fitted with the whole forward.
        sequence_parallel_extra_gathers: extra all-gathers per layer backward with sequence parallelism.
        message_rate: rate of pipeline messages over that of the link between the ranks.
        blocking_messages: 1 when a rank computes nothing while it sends.
        pipeline_scatter_gather: 1 when a pipeline message is cut over the tensor group and gathered on arrival.
        reduce_overlap: share of the gradient reduction that may hide behind the backward it follows.
        pipeline_reduce_overlap: the same under a pipeline schedule.
        gather_overlap: share of parameter gathers that may hide behind computation.
        optimizer_traffic_factor: bytes moved by the optimizer step over those of one fused kernel.
    """

    sustained_rate: float
    elementwise_traffic: float
    host_operations: float
    data_parallel_overlap: float
    straggler_growth: float
    wide_group_growth: float
    site_rate: float
    power_exponent: float
    parameter_broadcast_seconds: float
    shard_rate: float
    gathers_per_tensor: float
    fp8_rate: float
    flash_version: float
    masked_windows: float
    flash_1_rate: float
    flash_3_rate: float
    rmsnorm_forward_accesses: float
    rmsnorm_backward_accesses: float
    rmsnorm_least_bytes: float
    rotary_forward_accesses: float
    rotary_backward_accesses: float
    gate_forward_accesses: float
    gate_backward_accesses: float
    new_gelu_forward_accesses: float
    new_gelu_backward_accesses: float
    score_traffic_bytes: float
    score_backward_ratio: float
    attention_backward_flops_ratio: float
    attention_backward_rate_ratio: float
    logits_forward_bytes: float
    logits_backward_bytes: float
    fused_projections: float
    fused_accumulation: float
    forward_operations_llama: float
    backward_operations_llama: float
    forward_operations_gpt: float
    backward_operations_gpt: float
    forward_operations_gemma: float
    backward_operations_gemma: float
    forward_operations_phi: float
    backward_operations_phi: float
    forward_operations_neox: float
    backward_operations_neox: float
    forward_operations_opt: float
    backward_operations_opt: float
    end_operations: float
    projection_operations: float
    sequence_operations: float
    recompute_operations: float
    sharding_operations: float
    collective_operations: float
    optimizer_operations: float
    launch_sharpness: float
    collective_wait_seconds: float
    tensor_parallel_forward_overlap: float
    tensor_parallel_backward_overlap: float
    recompute_early_stop: float
    sequence_parallel_extra_gathers: float
    message_rate: float
    blocking_messages: float
    pipeline_scatter_gather: float
    reduce_overlap: float
    pipeline_reduce_overlap: float
    gather_overlap: float
    optimizer_traffic_factor: float

    def layer_operations(self, family: str) -> tuple[float, float]:
        """Operations of one layer of a model family, forward and backward."""
        return getattr(self, f"forward_operations_{family}"), getattr(self, f"backward_operations_{family}")


_KERNELS = tuple(
    field.name for field in fields(Stack) if field.name.startswith(("rmsnorm", "rotary", "gate", "new_gelu"))
)
_FUSED_BY: dict[KernelFusion, tuple[str, ...]] = {
    "none": (),
    "norms": ("rmsnorm",),
    "full": ("rmsnorm", "rotary", "gate", "new_gelu"),
}
_DERIVED = ("flash_version", "masked_windows", "site_rate")
STACK_CONSTANTS = tuple(field.name for field in fields(Stack) if field.name not in _DERIVED)


def read_stack(runtime: RuntimeProfile) -> Stack:
    """The runtime's stack costs.

    Raises:
        InputError: when the profile lacks one.
    """
    return _read(Identical(runtime))


@lru_cache(maxsize=32)
def _read(profile: Identical[RuntimeProfile]) -> Stack:
    runtime = profile.value
    missing = [name for name in STACK_CONSTANTS if name not in runtime.constants]
    if missing:
        raise InputError(
            f"runtime {runtime.name!r} states no constant {', '.join(missing)}; the step time needs: "
            f"{', '.join(STACK_CONSTANTS)}"
        )
    value = {name: runtime.constants[name].value for name in STACK_CONSTANTS if name in runtime.constants}
    fused = _FUSED_BY[runtime.kernel_fusion]
    value |= {name: runtime.constants[f"fused_{name}"].value for name in _KERNELS if name.startswith(fused)}
    if runtime.unfused_softmax == "eager":
        value["score_traffic_bytes"] = runtime.constants["eager_score_traffic_bytes"].value
    value["flash_version"] = float(runtime.flash_attention_version)
    value["masked_windows"] = float(runtime.windowed_attention == "full_scores")
    value["site_rate"] = runtime.site_rate
    return Stack(**value)
