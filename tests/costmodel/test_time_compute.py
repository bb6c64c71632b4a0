"""Roofline of one device: closed forms, and how a pass splits into parts."""

import numpy as np
import pytest
from time_worlds import cluster, device, gpt, llama, setting, with_constants, world

from costmodel.compute import (
    MISALIGNED_MATMUL_SLOWDOWN,
    batched_matmul_seconds,
    matmul_seconds,
    roofline,
    smooth_maximum,
    stream_seconds,
)
from costmodel.layers import projections
from costmodel.models.parameters import layer_tensors
from costmodel.specs import GemmCurve, InputError
from costmodel.tables import ATTENTION, GEMM, LAUNCH, MEMORY, RECOMPUTE, TENSOR

BARE = {
    "sustained_rate": 1.0,
    "elementwise_traffic": 1.0,
    "attention_backward_rate_ratio": 0.54,
    "straggler_growth": 0.0,
}


def column(*values: float) -> np.ndarray:
    return np.array(values)


def test_half_of_the_rate_at_half_flops():
    curve = GemmCurve(max_fraction=0.8, half_flops=2 * 64 * 64 * 64)
    machine = device(peak=1e9, bandwidth=1e30).model_copy(update={"gemm": curve})
    ceiling = roofline(machine, "bf16")
    seconds = matmul_seconds(ceiling, rows=column(64), inner=column(64), outer=column(64))
    assert curve.half_flops / seconds[0] == pytest.approx(0.8e9 / 2)


def test_a_thin_product_is_bound_by_the_bytes_of_its_weight():
    ceiling = roofline(device(peak=1e15, bandwidth=1e12), "bf16")
    seconds = matmul_seconds(ceiling, rows=column(1), inner=column(4096), outer=column(4096))
    assert seconds[0] == pytest.approx(2 * (4096 + 4096 * 4096 + 4096) / 1e12)
    more = matmul_seconds(ceiling, rows=column(1), inner=column(4096), outer=column(4096), extra_bytes=1e6)
    assert more[0] - seconds[0] == pytest.approx(1e6 / 1e12)


def test_operands_that_are_no_multiple_of_8_slow_tensor_cores_only():
    gpu, cpu = roofline(device(), "bf16"), roofline(device(kind="cpu"), "bf16")
    full = roofline(device(), "fp32")
    sizes = {"rows": column(4096, 4096), "inner": column(1024, 1024), "outer": column(50257, 50264)}
    odd, even = matmul_seconds(gpu, **sizes)
    assert odd / even == pytest.approx(MISALIGNED_MATMUL_SLOWDOWN, rel=1e-3)
    for ceiling in (cpu, full):
        odd, even = matmul_seconds(ceiling, **sizes)
        assert odd < even


def test_batched_products_of_a_short_head_are_bound_by_the_score_matrix():
    ceiling = roofline(device(peak=1e15, bandwidth=1e12), "bf16")
    seconds = batched_matmul_seconds(ceiling, batch=column(32), length=2048.0, head_dim=64)
    assert seconds[0] == pytest.approx(32 * 2 * (2 * 2048 * 64 + 2048 * 2048) / 1e12)


def test_a_step_sustains_less_than_a_benchmark_on_a_gpu_but_not_on_a_measured_cpu():
    for kind, rate in (("cuda", 0.9), ("cpu", 1.0)):
        alone, inside = roofline(device(kind=kind), "fp32"), roofline(device(kind=kind), "fp32", sustained_rate=0.9)
        assert inside.flops_per_second / alone.flops_per_second == pytest.approx(rate)
        assert stream_seconds(alone, column(1e9)) / stream_seconds(inside, column(1e9)) == pytest.approx(rate)


def test_smooth_maximum_lies_between_maximum_and_sum():
    first, second = column(0.0, 1.0, 1.0, 5.0), column(0.0, 0.0, 1.0, 1.0)
    smooth = smooth_maximum(first, second, 4.0)
    assert smooth == pytest.approx([0.0, 1.0, 2**0.25, (5**4 + 1) ** 0.25])


def test_an_unsupported_precision_names_the_supported_ones():
    machine = device().model_copy(update={"peak_flops_per_second": {"fp16": 1e14, "fp32": 1e13}})
    with pytest.raises(InputError, match="test-device cannot compute in bf16; it supports: fp16, fp32"):
        roofline(machine, "bf16")


@pytest.mark.parametrize("model", [gpt(), llama()])
@pytest.mark.parametrize("fused", [True, False])
def test_projections_hold_every_weight_that_tensor_parallelism_cuts(model, fused):
    for tensor in (1.0, 2.0, 4.0):
        sizes = projections(model, model.layers[0], column(tensor), fused=fused)
        held = sum(float(inner[0] * outer[0]) for inner, outer in sizes)
        weights = sum(tensor.num_elements for tensor in layer_tensors(model, 0) if len(tensor.shape) == 2)
        assert held * tensor == pytest.approx(weights)


def test_forward_of_one_layer_by_hand():
    """One GPT layer, tensor parallel 1, on a machine with round numbers: every part in closed form."""
    plan, runtime = world(model=gpt(layers=1), num_micro_batches=1, micro_batch_size=2)
    table = setting(plan, with_constants(runtime, **BARE)).table
    forward = table.layer_forward[0, 0]
    tokens, hidden = 2048, 1024
    assert forward[GEMM] == pytest.approx(2 * tokens * 12 * hidden**2 / 1e14)
    assert forward[ATTENTION] == pytest.approx(2 * 2 * 1024**2 * hidden / (0.5 * 1e14))
    assert forward[MEMORY] == pytest.approx(2 * (4 + 6 + 2 * 4) * tokens * hidden / 1e12)
    assert forward[TENSOR] == forward[LAUNCH] == 0
    backward = table.layer_backward[0, 0, 0]
    assert backward[ATTENTION] == pytest.approx(forward[ATTENTION] * 2.5 / 0.54)
    biases = (
        3 + 1 + 4 + 1
    )  # outputs of query, key and value; attention; both feed-forward products, over h; then their gradients are joined
    assert backward[MEMORY] == pytest.approx(2 * (6 + 6 + 3 * 4 + biases + 2 * 3) * tokens * hidden / 1e12)
    assert backward[RECOMPUTE] == 0


def test_recomputation_adds_one_forward_or_its_attention():
    sizes = {"model": gpt(layers=1), "num_micro_batches": 1, "tensor_parallel_size": 2, "loss_parallel": True}
    plan, runtime = world(**sizes)
    table = setting(plan, runtime).table
    none, core, policy, full = table.layer_backward[0, 0, :, RECOMPUTE]
    assert none == 0
    assert core == pytest.approx(table.layer_forward[0, 0, ATTENTION])
    assert full == pytest.approx(table.layer_forward[0, 0].sum())
    assert table.layer_forward[0, 0, MEMORY] < policy < full - core
    assert table.layer_forward[0, 0, TENSOR] > 0


def test_host_time_bounds_small_layers_on_a_gpu_and_adds_up_on_a_cpu():
    """1.2 ms of host time per eager layer at 5 us an operation, however little the device has to do."""
    small = llama(layers=1, hidden=64, heads=4)
    for kind in ("cuda", "cpu"):
        machine = cluster(nodes=1, per_node=1, of=device(kind=kind, launch=5e-6))
        plan, runtime = world(
            runtime="torch", precision="fp32", model=small, num_micro_batches=1, length=16, machine=machine
        )
        table = setting(plan, runtime).table
        forward, backward = table.layer_forward[0, 0], table.layer_backward[0, 0, 0]
        issued = [runtime.constants[f"{name}_operations_llama"].value * 5e-6 for name in ("forward", "backward")]
        if kind == "cpu":
            assert [forward[LAUNCH], backward[LAUNCH]] == pytest.approx(issued)
        else:
            assert [forward.sum(), backward.sum()] == pytest.approx(issued, rel=1e-3)
        assert sum(issued) == pytest.approx(1.05e-3, rel=0.01)


def test_a_wrapped_or_distributed_layer_costs_the_host_more():
    """DTensor and fully_shard issue more operations per layer, in the order tensor parallel > zero 3 > zero 1 > plain."""
    machine = cluster(nodes=1, per_node=2, of=device(kind="cpu", launch=1e-5), latency=0.0)
    sizes = [
        {},
        {"data_parallel_shard_size": 2, "zero_stage": 1},
        {"data_parallel_shard_size": 2, "zero_stage": 3},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, "sequence_parallel": True},
    ]
    issued = []
    for size in sizes:
        plan, runtime = world(
            runtime="torch", precision="fp32", model=llama(layers=1), machine=machine, num_micro_batches=4, **size
        )
        table = setting(plan, runtime).table
        issued.append(table.layer_forward[0, 0, LAUNCH] + table.layer_backward[0, 0, 0, LAUNCH])
    assert issued == sorted(issued)
    assert len(set(issued)) == len(issued)


def test_fused_accumulation_hides_behind_a_large_weight_gradient_but_not_a_small_one():
    for length, hidden_by_matmul in ((2048, True), (2, False)):
        plan, runtime = world(model=gpt(layers=1, hidden=4096, heads=32), num_micro_batches=1, length=length)
        exact = with_constants(runtime, **BARE)
        fused = setting(plan, exact).table.layer_backward[0, 0, 0]
        apart = setting(plan, with_constants(exact, fused_accumulation=0.0)).table.layer_backward[0, 0, 0]
        accumulation = 2 * 4 * 12 * 4096**2 / 1e12
        assert apart[MEMORY] - fused[MEMORY] == pytest.approx(accumulation, rel=1e-2)
        assert fused[GEMM] - apart[GEMM] == pytest.approx(0.0 if hidden_by_matmul else accumulation, rel=1e-2)
