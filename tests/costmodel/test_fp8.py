"""8-bit projections: their rate, their casts, what they keep, and who refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from time_worlds import cluster, device, gpt, llama, setting, world

from costmodel.compute import roofline, training_roofline
from costmodel.estimate import estimate
from costmodel.fp8 import CAST_BYTES, RECIPES
from costmodel.megatron_activation_memory import megatron_layer_bytes
from costmodel.memory import plan_memory
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check
from costmodel.specs import DeviceSpec, InputError
from costmodel.tables import ATTENTION, GEMM, MEMORY
from executor.checks import check_runnable
from hardware_profiles.loader import load_cluster
from meshwright.inputs import make_training

MEGATRON = load_runtime("megatron")
RATE = MEGATRON.constants["fp8_rate"].value
WORDS = {"fp8": "delayed", "fp8-current": "current", "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"}
HIDDEN, LAYERS, LENGTH = 1024, 4, 2048
MODEL = gpt(layers=LAYERS, hidden=HIDDEN)


def fast(**more: Any) -> DeviceSpec:
    """A device whose fp8 peak is twice its bf16 peak."""
    spec = device(**more)
    return spec.model_copy(update={"peak_flops_per_second": {**spec.peak_flops_per_second, "fp8": 2e14}})


def in_format(precision: str, *, bandwidth: float = 1e15, **more: Any) -> Any:
    machine = cluster(of=fast(bandwidth=bandwidth))
    return world(**{"model": MODEL, "length": LENGTH, "machine": machine, "precision": precision, **more})


def layer(plan_and_runtime: Any) -> Any:
    table = setting(*plan_and_runtime).table
    return table.layer_forward[0, 0], table.layer_backward[0, 0, 0]


@pytest.mark.parametrize(("word", "recipe"), WORDS.items())
def test_projections_run_at_the_fp8_peak_and_nothing_else_does(word: str, recipe: str) -> None:
    assert MEGATRON.precisions[word].fp8_recipe == recipe
    for whole, fp8 in zip(layer(in_format("bf16")), layer(in_format(word)), strict=True):
        assert fp8[GEMM] == pytest.approx(whole[GEMM] / (2 * RATE * RECIPES[recipe].efficiency))  # type: ignore[index]
        assert fp8[ATTENTION] == whole[ATTENTION]
    tables = [setting(*in_format(name)).table for name in ("bf16", word)]
    np.testing.assert_array_equal(tables[0].head, tables[1].head)
    np.testing.assert_array_equal(tables[0].embedding, tables[1].embedding)


def test_the_ramp_of_a_product_takes_the_seconds_it_takes_in_16_bits() -> None:
    spec = fast()
    spec = spec.model_copy(update={"gemm": spec.gemm.model_copy(update={"half_flops": 1e9})})
    fp8 = training_roofline(spec, MEGATRON.precisions["fp8"]).of_projections
    bf16 = roofline(spec, "bf16")
    assert fp8.half_flops / fp8.flops_per_second == pytest.approx(bf16.half_flops / bf16.flops_per_second)
    assert training_roofline(spec, MEGATRON.precisions["bf16"]) == bf16


@pytest.mark.parametrize(("word", "bytes_per_element"), [("fp8", 4.0), ("mxfp8", 4.0), ("fp8-current", 6.0)])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_casts_of_inputs_weights_and_gradients(word: str, bytes_per_element: float, micro_batches: int) -> None:
    """Projections of a GPT: h -> 3h, h -> h, h -> 4h, 4h -> h. Weights are cast once per step, over its micro-batches."""
    bandwidth = 1e12
    sizes = {"num_micro_batches": micro_batches, "bandwidth": bandwidth}
    whole, fp8 = layer(in_format("bf16", **sizes)), layer(in_format(word, **sizes))
    rate = setting(*in_format(word, **sizes)).ceiling.bytes_per_second
    inputs, weights, outputs = 7 * LENGTH * HIDDEN, 12 * HIDDEN**2 / micro_batches, 9 * LENGTH * HIDDEN
    extra = [(b[MEMORY] - a[MEMORY]) * rate for a, b in zip(whole, fp8, strict=True)]
    assert extra[0] == pytest.approx(bytes_per_element * (inputs + weights))
    assert extra[1] == pytest.approx(bytes_per_element * outputs)
    assert CAST_BYTES == 4


def test_a_stack_that_shards_weights_casts_them_every_micro_batch() -> None:
    once = in_format("fp8", runtime="torchtitan", num_micro_batches=1)
    four = in_format("fp8", runtime="torchtitan", num_micro_batches=4)
    assert layer(once)[0][MEMORY] == pytest.approx(layer(four)[0][MEMORY])


def test_inputs_of_projections_are_kept_in_a_byte() -> None:
    """Equation (15), by hand: norms' outputs and the feed-forward's lose a byte, attention's output is kept once more."""
    model = llama(hidden=HIDDEN, heads=16, kv=4)
    grid = Grid.from_plan(in_format("bf16", model=model, micro_batch_size=2)[0])
    kept = []
    for word in ("bf16", "fp8"):
        plan, _ = in_format(word, model=model)
        kept.append(int(megatron_layer_bytes(model, model.layers[0], plan.training, grid).kept[0]))
    tokens = 2 * LENGTH
    assert kept[0] - kept[1] == tokens * (2 * HIDDEN + 3 * HIDDEN - HIDDEN)


def test_megatron_keeps_8_bit_weights_and_their_transposes() -> None:
    plan, runtime = in_format("fp8")
    (stage,) = plan_memory(plan, runtime)
    copies = {term.bytes for term in stage.terms if term.name == "fp8_weights"}
    layer_parameters = 12 * HIDDEN**2 + 13 * HIDDEN
    assert copies == {2 * LAYERS * layer_parameters}


@pytest.mark.parametrize(("recipe", "alone"), [("delayed", True), ("current", True), ("mxfp8", False)])
def test_weights_of_nemo_are_kept_in_8_bits_alone_where_its_recipes_gather_them_so(recipe: str, alone: bool) -> None:
    """Without their copies in bf16: 2 bytes a parameter of the layers less."""
    plan, runtime = in_format("fp8", runtime="nemo")
    precision = plan.training.precision.model_copy(update={"fp8_recipe": recipe})
    plan = plan.model_copy(update={"training": plan.training.model_copy(update={"precision": precision})})
    (stage,) = plan_memory(plan, runtime)
    (other,) = plan_memory(plan, runtime.model_copy(update={"memory": MEGATRON.memory}))
    layer_parameters = 12 * HIDDEN**2 + 13 * HIDDEN
    saved = 2 * LAYERS * layer_parameters * alone
    assert other.peak_bytes - stage.peak_bytes == saved
    held = [{term.bytes for term in each.terms if term.name == "parameters"} for each in (stage, other)]
    assert max(held[1]) - max(held[0]) == saved


def test_a_step_in_fp8_is_faster_by_less_than_two() -> None:
    seconds = [estimate(*in_format(word), ignore_memory=True).step_time_seconds.value for word in ("bf16", "fp8")]
    assert 1 < seconds[0] / seconds[1] < 2


def test_a_device_without_fp8_is_named() -> None:
    with pytest.raises(InputError, match="test-device cannot multiply in fp8; it supports: fp64, fp32, bf16, fp16"):
        training_roofline(device(), MEGATRON.precisions["fp8"])
    plan, runtime = in_format("fp8", machine=cluster())
    (broken,) = check(plan, runtime)
    assert broken.rule == "device_precision"
    assert "does not support precision fp8; use bf16" in broken.message


def test_the_word_fp8_is_offered_where_runtime_and_device_have_it() -> None:
    sizes = {"global_batch_size": 8, "sequence_length": 128}
    hopper, ampere = load_cluster("8xH100-SXM"), load_cluster("8xA100-SXM-80GB")
    training = make_training(hopper, MEGATRON, precision="fp8", **sizes)  # type: ignore[arg-type]
    assert training.precision == MEGATRON.precisions["fp8"]
    assert make_training(hopper, MEGATRON, **sizes).precision == MEGATRON.precisions["bf16"]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="A100-SXM-80GB does not support fp8 training; choose one of bf16"):
        make_training(ampere, MEGATRON, precision="fp8", **sizes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="precision 'fp8' is not supported by runtime torch"):
        make_training(hopper, load_runtime("torch"), precision="fp8", **sizes)  # type: ignore[arg-type]


def test_the_executor_refuses_fp8() -> None:
    plan, _ = world(runtime="torch", model=llama())
    precision = plan.training.precision.model_copy(update={"fp8_recipe": "current"})
    plan = plan.model_copy(update={"training": plan.training.model_copy(update={"precision": precision})})
    with pytest.raises(InputError, match=r"fp8 training .* cannot be run yet: use bf16 or fp32"):
        check_runnable(plan)
    assert "runtime_precision" in {found.rule for found in check(plan)}
