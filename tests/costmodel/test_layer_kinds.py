"""Layers are counted, priced and stored by kind: the same answers as group by group, from as many rows as there are kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory_worlds import llama, make_plan

from costmodel.estimate import estimate
from costmodel.layer_kinds import kind_of_layer, layer_kinds, layers_of_kinds, models_of_one_kind
from costmodel.models.loader import load_model
from costmodel.models.parameters import layer_tensors
from costmodel.runtimes.loader import load_runtime
from costmodel.shard_sizes import Cut, model_sizes
from costmodel.specs import Estimate, LayerGroup, ModelSpec, RecomputeSpec
from costmodel.stage_contents import plan_contents
from costmodel.state_memory import chunk_sizes

ALTERNATING = load_model("gemma-2-2b")
SCHEDULES = [
    {"num_micro_batches": 2, "data_parallel_shard_size": 4, "zero_stage": 3},
    {"num_micro_batches": 8, "pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "tensor_parallel_size": 2},
    {
        "num_micro_batches": 8,
        "pipeline_parallel_size": 4,
        "pipeline_schedule": "interleaved_1f1b",
        "num_model_chunks": 3,
        "data_parallel_shard_size": 2,
        "zero_stage": 2,
    },
    {"num_micro_batches": 4, "pipeline_parallel_size": 2, "pipeline_schedule": "gpipe", "tensor_parallel_size": 4},
    {
        "num_micro_batches": 8,
        "pipeline_parallel_size": 4,
        "pipeline_schedule": "zbv_zero_bubble",
        "num_model_chunks": 2,
        "data_parallel_shard_size": 2,
        "zero_stage": 1,
    },
]
RECOMPUTE = ["none", "core_attention", "full", "partly"]


def with_widths(*widths: int) -> ModelSpec:
    """A llama whose layers have feed-forwards of these widths, a group each."""
    model = llama(layers=1)
    (group,) = model.layers
    groups = (group.model_copy(update={"feed_forward": _wide(group, width)}) for width in widths)
    return model.model_copy(update={"layers": tuple(groups)})


def _wide(group: LayerGroup, width: int) -> Any:
    return group.feed_forward.model_copy(update={"intermediate_size": width})


def every_layer_a_kind(model: ModelSpec) -> ModelSpec:
    """The model with another cap on the scores in every layer, which neither time nor memory depends on."""
    groups = [
        group.model_copy(
            update={"attention": group.attention.model_copy(update={"attn_logit_softcapping": 50.0 + index})}
        )
        for index, group in enumerate(model.layers)
    ]
    return model.model_copy(update={"layers": tuple(groups)})


def test_gemma2_has_two_kinds_of_layers() -> None:
    model = load_model("gemma-2-27b")
    kinds = layer_kinds(model)
    assert len(model.layers) == 46
    assert [(kind.group.count, kind.group.attention.window, kind.first) for kind in kinds] == [
        (23, 4096, 0),
        (23, None, 1),
    ]


def test_a_model_of_equal_layers_has_one_kind_however_it_is_grouped() -> None:
    kinds = layer_kinds(with_widths(*[176] * 6))
    assert kinds == layer_kinds(llama(layers=6))
    assert kinds[0].group == llama(layers=6).layers[0]


@pytest.mark.parametrize("model", [ALTERNATING, with_widths(1, 1, 2, 3, 1, 3, 3, 2), llama(layers=5)])
def test_layers_are_counted_as_one_by_one(model: ModelSpec) -> None:
    kinds, depth = layer_kinds(model), model.num_hidden_layers
    starts, stops = np.array([(a, b) for a in range(depth + 1) for b in range(a, depth + 1)]).T
    counted = np.zeros((len(kinds), len(starts)), dtype=np.int64)
    for column, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        for index in range(start, stop):
            content = model.layer(index).model_copy(update={"count": 1})
            (kind,) = (
                number for number, each in enumerate(kinds) if each.group.model_copy(update={"count": 1}) == content
            )
            counted[kind, column] += 1
            assert kind_of_layer(model, np.array([index])) == kind
    assert np.array_equal(layers_of_kinds(model, starts, stops), counted)
    square = layers_of_kinds(model, starts.reshape(-1, 1), stops.reshape(-1, 1))
    assert np.array_equal(np.stack(square)[:, :, 0], counted)


@pytest.mark.parametrize("runtime", ["torch", "unknown"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("sizes", SCHEDULES, ids=lambda sizes: str(sizes.get("pipeline_schedule", "none")))
def test_two_kinds_answer_as_a_kind_for_every_layer(sizes: dict[str, Any], recompute: str, runtime: str) -> None:
    """Equal but for the order of summation; bytes, counts and traffic are integers and equal."""
    few, many = (
        _estimated(model, sizes, recompute, runtime) for model in (ALTERNATING, every_layer_a_kind(ALTERNATING))
    )
    seconds = few.step_time_seconds.value
    assert many.step_time_seconds.value == pytest.approx(seconds, rel=1e-12)
    assert many.flops.model == pytest.approx(few.flops.model, rel=1e-12)
    assert many.flops.hardware == pytest.approx(few.flops.hardware, rel=1e-12)
    for left, right in zip(few.terms, many.terms, strict=True):
        assert right.exposed_seconds == pytest.approx(left.exposed_seconds, abs=1e-12 * seconds)
        assert right.hidden_seconds == pytest.approx(left.hidden_seconds, abs=1e-12 * seconds)
    assert many.memory == few.memory
    assert many.rank_communication == few.rank_communication


def _estimated(model: ModelSpec, sizes: dict[str, Any], recompute: str, runtime: str) -> Estimate:
    partly = RecomputeSpec(kind="full", num_layers=1)
    plan = make_plan(
        model, runtime=runtime, sequence=8192, recompute=partly if recompute == "partly" else recompute, **sizes
    )
    return estimate(plan, load_runtime(runtime))


def test_the_last_layer_of_a_stage_is_of_its_own_kind() -> None:
    """A stage of widths 176, 500 and 176 ends with a narrow layer, although the wide kind comes later in the model."""
    plan = make_plan(
        with_widths(176, 500, 176, 500, 500, 176),
        num_micro_batches=2,
        pipeline_parallel_size=2,
        pipeline_schedule="gpipe",
    )
    sizes = model_sizes(plan.model, load_runtime("torch"), Cut(np.array([1]), np.array([1])))
    for rank, last in ((0, 2), (1, 5)):
        chunk = plan_contents(plan, [rank]).chunks
        elements = sum(tensor.num_elements for tensor in layer_tensors(plan.model, last))
        assert chunk_sizes(plan.model, sizes, chunk).last_layer.local == elements


def test_models_of_one_kind_differ_in_what_attention_sees_alone() -> None:
    found = models_of_one_kind(ALTERNATING)
    assert found is not None
    assert {model.layers[0].attention.window for model in found} == {4096, None}
    assert all(model.num_hidden_layers == ALTERNATING.num_hidden_layers for model in found)
    assert models_of_one_kind(with_widths(64, 128)) is None
