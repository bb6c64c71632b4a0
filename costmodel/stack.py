"""The stack costs of a runtime that step time needs, by name, with what each means.

A runtime profile states every one of them under ``constants`` with its evidence and source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from costmodel.specs import InputError, RuntimeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Numbers of one software stack; no hardware here.

    Attributes:
        sustained_rate: rate of kernels inside a training step over their rate in a benchmark of their own, on an
            asynchronous device: power limit, gaps between kernels, waiting for the slowest rank.
        elementwise_traffic_factor: bytes moved by residual, activation and rotary kernels over those of fused kernels.
        layernorm_traffic_factor: the same for layer norms.
        rmsnorm_traffic_factor: the same for RMS norms.
        score_traffic_bytes: bytes per score element that unfused attention moves forward, besides its two products.
        score_backward_ratio: backward over forward of ``score_traffic_bytes``.
        attention_backward_flops_ratio: FLOP of a fused attention backward over its forward.
        attention_backward_rate_ratio: rate of a fused attention backward over its forward.
        logits_forward_bytes: bytes per logit moved by the loss forward.
        logits_backward_bytes: the same backward.
        fused_accumulation: 1 when weight-gradient multiplications add into the accumulated gradient themselves.
        fused_projections: 1 when query, key, value (and gate, up) are one multiplication each, 0 when separate.
        kernels_forward: kernels (eager operations) of one layer forward.
        kernels_backward: the same backward.
        tensor_parallel_kernel_factor: kernels with tensor parallelism over without.
        sharding_kernels: extra kernels per layer and pass around a gather or a reduction of sharded parameters.
        launch_floor_forward_seconds: host time to issue one layer forward on an asynchronous device.
        launch_floor_backward_seconds: the same backward.
        launch_sharpness: exponent of the smooth maximum of device time and launch floor.
        tensor_parallel_backward_overlap: share of the backward tensor-parallel collectives hidden behind matmuls.
        sequence_parallel_extra_gathers: extra all-gathers per layer backward with sequence parallelism.
        pipeline_scatter_gather: 1 when a pipeline message is cut over the tensor group and gathered on arrival.
        reduce_overlap: share of the gradient reduction that may hide behind the backward it follows.
        pipeline_reduce_overlap: the same under a pipeline schedule.
        gather_overlap: share of parameter gathers that may hide behind computation.
        optimizer_traffic_factor: bytes moved by the optimizer step over those of one fused kernel.
    """

    sustained_rate: float
    elementwise_traffic_factor: float
    layernorm_traffic_factor: float
    rmsnorm_traffic_factor: float
    score_traffic_bytes: float
    score_backward_ratio: float
    attention_backward_flops_ratio: float
    attention_backward_rate_ratio: float
    logits_forward_bytes: float
    logits_backward_bytes: float
    fused_accumulation: float
    fused_projections: float
    kernels_forward: float
    kernels_backward: float
    tensor_parallel_kernel_factor: float
    sharding_kernels: float
    launch_floor_forward_seconds: float
    launch_floor_backward_seconds: float
    launch_sharpness: float
    tensor_parallel_backward_overlap: float
    sequence_parallel_extra_gathers: float
    pipeline_scatter_gather: float
    reduce_overlap: float
    pipeline_reduce_overlap: float
    gather_overlap: float
    optimizer_traffic_factor: float


STACK_CONSTANTS = tuple(field.name for field in fields(Stack))


def read_stack(runtime: RuntimeProfile) -> Stack:
    """The runtime's stack costs.

    Raises:
        InputError: when the profile lacks one.
    """
    missing = [name for name in STACK_CONSTANTS if name not in runtime.constants]
    if missing:
        raise InputError(
            f"runtime {runtime.name!r} states no constant {', '.join(missing)}; the step time needs: "
            f"{', '.join(STACK_CONSTANTS)}"
        )
    return Stack(**{name: runtime.constants[name].value for name in STACK_CONSTANTS})
