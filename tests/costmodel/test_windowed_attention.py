"""Sliding windows: what a stack computes, keeps and pays where its kernel skips by the window, and where it gets a mask."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from time_worlds import cluster, device, llama, setting, world

from costmodel.compute import roofline
from costmodel.estimate import estimate
from costmodel.flops import hardware_flops, model_flops
from costmodel.layers import layer_passes
from costmodel.memory import plan_memory
from costmodel.runtimes.loader import list_runtimes, load_runtime
from costmodel.specs import BYTES_PER_ELEMENT
from costmodel.stack import read_stack

LAYERS, HIDDEN, LENGTH = 8, 1024, 1024
MASKED, SKIPPED = ("torch", "deepspeed"), ("torchtitan", "nanotron", "composer-fsdp", "unknown", "megatron", "nemo")


def flops(runtime: str, window: int | None, **rest: Any) -> float:
    return hardware_flops(setting(*world(runtime=runtime, model=llama(window=window), **rest)))


@pytest.mark.parametrize("runtime", MASKED + SKIPPED)
def test_a_profile_says_whether_its_kernels_know_the_window(runtime: str) -> None:
    profile = load_runtime(runtime)
    assert profile.windowed_attention == ("full_scores" if runtime in MASKED else "window")
    assert "windowed_attention" in profile.sources


@pytest.mark.parametrize("runtime", list_runtimes())
def test_every_profile_has_a_source_for_it(runtime: str) -> None:
    assert load_runtime(runtime).sources["windowed_attention"]


@pytest.mark.parametrize("runtime", [*MASKED, "torchtitan", "megatron"])
@pytest.mark.parametrize("window", [1, 256, LENGTH - 1])
def test_executed_scores_under_a_window(runtime: str, window: int) -> None:
    """4 d FLOP per score and head forward, 2.5 times that backward, so 4 h L (1 + 2.5) per score of a sequence.

    A causal kernel makes s^2 / 2 scores. With a window w token i looks at min(i, w) keys before it: w^2 / 2 of the first w
    tokens, w of each other, w s - w^2 / 2 together. A mask tensor makes it s^2.
    """
    per_score = 4 * HIDDEN * LAYERS * 3.5
    causal = LENGTH**2 / 2
    scores = LENGTH**2 if runtime in MASKED else window * LENGTH - window**2 / 2
    assert flops(runtime, window) - flops(runtime, None) == pytest.approx(per_score * (scores - causal), rel=1e-9)


@pytest.mark.parametrize("runtime", MASKED + SKIPPED)
@pytest.mark.parametrize("window", [LENGTH, LENGTH + 1, 262_144])
def test_a_window_that_hides_nothing_is_no_window(runtime: str, window: int) -> None:
    plan, profile = world(runtime=runtime, model=llama(window=window))
    other, _ = world(runtime=runtime, model=llama())
    told, plain = estimate(plan, profile), estimate(other, profile)
    assert told.flops == plain.flops
    assert told.step_time_seconds == plain.step_time_seconds
    assert told.memory == plain.memory


@pytest.mark.parametrize("runtime", ["torch", "torchtitan"])
def test_useful_work_is_the_windows_whatever_is_executed(runtime: str) -> None:
    plan, profile = world(runtime=runtime, model=llama(window=256))
    other, _ = world(runtime=runtime, model=llama())
    hidden = LENGTH**2 / 2 - (256 * LENGTH - 256**2 / 2)
    less = 3 * plan.training.global_batch_size * LAYERS * 4 * HIDDEN * hidden
    assert model_flops(other.model, other.training) - model_flops(plan.model, plan.training) == pytest.approx(less)
    told = estimate(plan, profile)
    assert told.flops.model == model_flops(plan.model, plan.training)


@pytest.mark.parametrize(("kind", "precision"), [("cuda", "bf16"), ("cpu", "fp32")])
def test_a_masked_kernel_pays_for_all_scores_at_its_own_rate(kind: str, precision: str) -> None:
    """2 products of 2 s^2 h FLOP forward over the rate of attention, and s^2 (1 + e) bytes of masks.

    On CUDA the kernels that take a mask are as fast as FlashAttention 1; a CPU has one kernel.
    """
    model = llama(window=256)
    plan, runtime = world(runtime="torch", model=model, machine=cluster(of=device(kind=kind)), precision=precision)
    stack, ceiling, e = read_stack(runtime), roofline(plan.cluster.device, precision), BYTES_PER_ELEMENT[precision]
    forward, backward, core, _ = layer_passes(
        model, model.layers[0], plan.training, batch=setting(plan, runtime).batch, ceiling=ceiling, stack=stack
    )
    rate = ceiling.attention_flops_per_second * (stack.flash_1_rate if kind == "cuda" else 1.0)
    product = 2 * LENGTH**2 * HIDDEN / rate
    masks = LENGTH**2 * (1 + e) / ceiling.bytes_per_second
    assert float(forward.attention[0]) == float(core.attention[0]) == pytest.approx(2 * product + masks, rel=1e-12)
    slower = stack.attention_backward_flops_ratio / stack.attention_backward_rate_ratio
    assert float(backward.attention[0]) == pytest.approx(2 * product * slower, rel=1e-12)


def test_a_mask_makes_torch_slower_than_no_window_and_a_skipping_kernel_faster() -> None:
    def seconds(runtime: str, window: int | None) -> float:
        return estimate(*world(runtime=runtime, model=llama(window=window))).step_time_seconds.value

    assert seconds("torch", 1) == seconds("torch", 256) == seconds("torch", LENGTH - 1) > seconds("torch", None)
    assert seconds("torchtitan", 1) < seconds("torchtitan", 256) < seconds("torchtitan", None)


@pytest.mark.parametrize(("runtime", "masked"), [("torch", True), ("torchtitan", False)])
def test_masks_in_memory(runtime: str, masked: bool) -> None:
    """bf16 masks and 16 instead of 4 heads of keys and values of every layer, and one bool mask of the stage; else nothing."""
    with_window, without = (
        plan_memory(*world(runtime=runtime, model=llama(window=window), num_micro_batches=1))[0].peak_bytes
        for window in (256, None)
    )
    expanded = 2 * 2 * LENGTH * (16 - 4) * HIDDEN // 16
    expected = LENGTH**2 + LAYERS * (2 * LENGTH**2 + expanded)
    assert with_window - without == expected * masked


@given(windows=st.tuples(st.integers(1, 2 * LENGTH), st.integers(1, 2 * LENGTH)).map(sorted))
@pytest.mark.parametrize("runtime", ["torchtitan", "megatron"])
def test_a_longer_window_never_makes_a_step_faster(runtime: str, windows: list[int]) -> None:
    short, long = (
        estimate(*world(runtime=runtime, model=llama(window=window))).step_time_seconds.value for window in windows
    )
    assert short <= long
