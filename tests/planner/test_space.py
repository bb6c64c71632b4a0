"""The declared space: what is enumerated, what a statement may say, and what is refused at once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_worlds import make_cluster, make_model, make_training

from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES
from costmodel.runtimes.rules import obeys_rules
from costmodel.specs import InputError, ParallelConfig, PipelineSchedule, Recommendation
from planner.axes import AXES, AXIS_NAMES
from planner.enumeration import DEFAULT_SCHEDULES, micro_batch_values
from planner.search import search
from planner.space import Space, declare_space, describe_space, schedules_left_out


def declare(
    *, fix: dict[str, str] | None = None, allow: dict[str, Any] | None = None, runtime: str = "torch", **world: Any
) -> Space:
    sizes = {name: world.pop(name) for name in ("batch", "sequence", "precision") if name in world}
    model = make_model(**{name: world.pop(name) for name in ("layers", "heads", "key_values") if name in world})
    profile = load_runtime(runtime)
    return declare_space(model, make_cluster(**world), make_training(profile, **sizes), profile, fix=fix, allow=allow)


def rows_in_order(grid: Grid) -> list[tuple[Any, ...]]:
    return [(grid.parallel(row), grid.recompute_kind(row)) for row in range(len(grid))]


def rows_of(grid: Grid) -> set[tuple[Any, ...]]:
    return set(rows_in_order(grid))


def test_every_row_multiplies_and_is_unique() -> None:
    space = declare(nodes=2, batch=48)
    grid = space.grid
    assert len(grid) > 1000
    assert set(grid.num_devices) == {16}
    assert len({(*parts, grid.order(row)) for row, parts in enumerate(rows_in_order(grid))}) == len(grid)


@pytest.mark.parametrize("schedules", [DEFAULT_SCHEDULES, SCHEDULES], ids=["default", "all"])
def test_the_grid_holds_every_valid_configuration(schedules: tuple[PipelineSchedule, ...]) -> None:
    # Independent of the enumeration: all combinations of plain ranges, filtered by the rules alone.
    allow = {} if schedules == DEFAULT_SCHEDULES else {"pipeline_schedule": schedules}
    space = declare(per_node=4, layers=4, batch=4, allow=allow)
    ranges = (
        (1, 2, 4), (False, True), (False, True), (1, 2, 4), schedules, (1, 2, 4), (1, 2, 4), (1, 2, 4), (0, 1, 2, 3),
        (None, 2), (1, 2, 4), (1, 2, 4),
    )  # fmt: skip
    expected = set()
    for tp, sp, lp, pp, schedule, v, replicate, shard, zero, partition, micro, count in itertools.product(*ranges):
        if tp * pp * replicate * shard != 4 or lp != (tp > 1) or (schedule == "none") != (pp == 1):
            continue
        parallel = ParallelConfig(
            tensor_parallel_size=tp,
            sequence_parallel=sp,
            loss_parallel=lp,
            pipeline_parallel_size=pp,
            pipeline_schedule=schedule,
            num_model_chunks=v,
            data_parallel_replicate_size=replicate,
            data_parallel_shard_size=shard,
            zero_stage=zero,
            hierarchical_partition_size=partition,
            micro_batch_size=micro,
            num_micro_batches=count,
        )
        if partition is None and obeys_rules(space.context, Grid.from_parallel(parallel, "none"))[0]:
            expected |= {(parallel, kind) for kind in space.context.runtime.recompute_kinds}
    found = rows_of(space.grid.take(obeys_rules(space.context, space.grid)))
    assert found == expected
    assert len(expected) > 100


def test_defaults_stay_inside_the_node_and_the_layers() -> None:
    space = declare(nodes=4, layers=6, batch=64)
    grid = space.grid
    assert set(grid.tensor_parallel_size) == {1, 2, 4, 8}
    assert grid.pipeline_parallel_size.max() <= 6
    assert (grid.pipeline_parallel_size * grid.num_model_chunks).max() <= 6
    assert set(np.unique(grid.hierarchical_partition_size)) == {0, 8}
    wide = declare(nodes=4, layers=6, batch=64, allow={"tensor_parallel_size": "8,16"}, heads=16, key_values=16)
    assert set(wide.grid.tensor_parallel_size) == {8, 16}


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.sampled_from([1, 2, 3]),
    per_node=st.sampled_from([1, 2, 4, 6, 8]),
    batch=st.integers(1, 40),
    layers=st.integers(1, 9),
    runtime=st.sampled_from(["torch", "megatron"]),
)
def test_what_is_enumerated_uses_what_it_says(nodes: int, per_node: int, batch: int, layers: int, runtime: str) -> None:
    space = declare(nodes=nodes, per_node=per_node, batch=batch, layers=layers, runtime=runtime)
    (used,) = space.num_devices
    assert set(space.grid.num_devices) == {used}
    valid = space.grid.take(obeys_rules(space.context, space.grid))
    assert len(valid) > 0  # one device and micro batch 1 is always a candidate of some number of devices
    product = valid.micro_batch_size * valid.num_micro_batches * valid.data_parallel_size
    assert set(product) == {batch}


def test_devices_stay_idle_only_when_no_sizes_use_them_all() -> None:
    assert declare(per_node=8, batch=16).num_devices == (8,)
    # 7 devices, 4 layers, batch 16: 7 divides neither; 6 = tensor 2 x pipeline 3.
    assert declare(per_node=7, batch=16, layers=4).num_devices == (6,)
    assert declare(per_node=7, batch=14, layers=4).num_devices == (7,)
    assert declare(per_node=8, batch=16, fix={"num_devices_used": "4"}).num_devices == (4,)


def test_stated_values_are_the_only_ones_searched() -> None:
    space = declare(
        batch=32, fix={"tensor_parallel_size": "2"}, allow={"micro_batch_size": ["1", "2"], "recompute": "selective"}
    )
    assert set(space.grid.tensor_parallel_size) == {2}
    assert set(space.grid.micro_batch_size) == {1, 2}
    assert set(space.grid.recompute) == {RECOMPUTE_KINDS.index("core_attention")}
    described = {axis.axis: axis.values for axis in describe_space(space)}
    assert described["tensor_parallel_size"] == ("2",)
    assert described["recompute"] == ("core_attention",)
    assert described["layers_per_stage"] == (
        "all whose slowest stage is within 25% of the fastest split's",
        "even split (several chunks)",
    )
    assert described["recompute_layers"] == ("any number of every stage",)
    closed = {axis.axis: axis.values for axis in describe_space(declare(batch=32, fix={"layers_per_stage": "even"}))}
    assert closed["layers_per_stage"] == ("even split",)
    assert set(described) == set(AXIS_NAMES) - {"data_parallel_size"}


@pytest.mark.parametrize(("sequence", "most"), [(128, 512), (512, 128), (1024, 64), (4096, 64)])
def test_micro_batches_reach_64_sequences_or_65536_tokens(sequence: int, most: int) -> None:
    assert micro_batch_values(1024, sequence)[-1] == most


def test_micro_batches_may_be_stated_instead_of_their_size() -> None:
    space = declare(per_node=4, batch=24, fix={"num_micro_batches": "2", "data_parallel_size": "4"})
    assert set(space.grid.micro_batch_size) == {3}
    assert set(space.grid.data_parallel_size) == {4}


def test_zero_without_anything_to_shard_is_normalised() -> None:
    one = declare(per_node=1, fix={"zero_stage": "3"})
    assert set(one.grid.zero_stage) == {0}
    many = declare(per_node=4, fix={"zero_stage": "3"})
    valid = many.grid.take(obeys_rules(many.context, many.grid))
    assert set(valid.zero_stage[valid.data_parallel_shard_size > 1]) == {3}
    assert set(valid.zero_stage[valid.data_parallel_size == 1]) == {0}


def test_naive_pipelines_hold_the_whole_share_in_one_micro_batch() -> None:
    space = declare(per_node=4, batch=24, fix={"pipeline_schedule": "naive", "pipeline_parallel_size": "2"})
    valid = space.grid.take(obeys_rules(space.context, space.grid))
    assert set(valid.num_micro_batches) == {1}
    assert set(valid.micro_batch_size) == {12, 24}


BAD_STATEMENTS: list[tuple[dict[str, str], list[str]]] = [
    ({"tensor_parallel_size": "3"}, ["does not divide num_attention_heads 8", "1, 2, 4"]),
    ({"tensor_parallel_size": "0"}, ["'0'", "from 1 to 1,000,000,000"]),
    ({"tensor_parallel_size": "-2"}, ["'-2'", "from 1 to 1,000,000,000"]),
    ({"tensor_parallel_size": "nan"}, ["'nan'", "from 1 to 1,000,000,000"]),
    ({"tensor_parallel_size": "1e3"}, ["'1e3'", "from 1 to 1,000,000,000"]),
    ({"tensor_parallel_size": "9" * 40}, ["from 1 to 1,000,000,000"]),
    ({"tensor_parallel_size": "2,4"}, ["several values", "--allow"]),
    ({"tensor_parallel_size": "2,2,2"}, ["several values", "--allow"]),
    ({"tensor_parallel_size": ","}, ["no value"]),
    ({"tensor_parallel": "2"}, ["'tensor_parallel'", "tensor_parallel_size", "recompute"]),
    ({"context_parallel_size": "2"}, ["torch has no context parallelism", "found context_parallel_size 2", "valid: 1"]),
    ({"context_parallel_method": "ring"}, ["torch has no context parallelism"]),
    ({"context_parallel_method": "p2p"}, ["valid: none, ring, all_gather, all_to_all"]),
    ({"expert_parallel_size": "2"}, ["reserved"]),
    ({"pipeline_schedule": "zero_bubble"}, ["none, naive, gpipe, 1f1b, interleaved_1f1b"]),
    ({"pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": "3"}, ["num_model_chunks exactly 2, found 3"]),
    ({"pipeline_schedule": "dualpipe_v", "zero_stage": "3"}, ["with zero_stage 3", "valid zero_stage: 0, 1, 2"]),
    ({"recompute": "some"}, ["none, core_attention, op_policy, full"]),
    ({"sequence_parallel": "maybe"}, ["true, false"]),
    ({"zero_stage": "4"}, ["0, 1, 2, 3"]),
    ({"micro_batch_size": "3"}, ["global_batch_size 16", "1, 2, 4, 8, 16"]),
    ({"data_parallel_size": "3"}, ["global_batch_size 16"]),
    ({"pipeline_parallel_size": "5"}, ["4 layers"]),
    ({"num_model_chunks": "5"}, ["4 layers"]),
    ({"num_devices_used": "9"}, ["has 8 devices"]),
    ({"tensor_parallel_size": "4", "data_parallel_size": "4"}, ["multiply to 16 devices", "has 8"]),
    ({"data_parallel_size": "4", "data_parallel_shard_size": "8"}, ["data_parallel_size 4", "1, 2, 4"]),
    ({"data_parallel_size": "4", "data_parallel_shard_size": "2", "data_parallel_replicate_size": "1"}, ["4"]),
    ({"sequence_parallel": "true", "tensor_parallel_size": "1"}, ["at least 2"]),
    ({"pipeline_schedule": "1f1b", "pipeline_parallel_size": "1"}, ["'none' exactly when"]),
    ({"hierarchical_partition_size": "2", "zero_stage": "2"}, ["zero_stage 3"]),
    ({"layers_per_stage": "1,2"}, ["sums to 3", "has 4"]),
    ({"layers_per_stage": "1,x"}, ["layers_per_stage is '1,x'", "or the word even"]),
    ({"layers_per_stage": "2,2", "pipeline_parallel_size": "4", "num_model_chunks": "1"}, ["lists 2 stages"]),
    ({"layers_per_stage": "2,2", "pipeline_parallel_size": "4"}, ["lists 2 stages", "pipeline_parallel_size 4"]),
    ({"layers_per_stage": "2,2", "pipeline_parallel_size": "1"}, ["lists 2 stages", "pipeline_parallel_size 1"]),
    ({"layers_per_stage": "2,2", "pipeline_schedule": "none"}, ["lists 2 stages"]),
    ({"layers_per_stage": "1,1,2", "num_model_chunks": "2"}, ["lists 3 stages"]),
    ({"layers_per_stage": "4", "pipeline_parallel_size": "2"}, ["lists 1 stages"]),
    ({"num_model_chunks": "2", "pipeline_parallel_size": "1"}, ["none needs num_model_chunks exactly 1"]),
    ({"zero_stage": "3", "data_parallel_shard_size": "1"}, ["nothing to shard"]),
    ({"num_devices_used": "3", "data_parallel_size": "2"}, ["3 is not a multiple of data_parallel_size 2"]),
    ({"num_devices_used": "2", "tensor_parallel_size": "4"}, ["2 is not a multiple of tensor_parallel_size 4"]),
    (
        {
            "num_devices_used": "4",
            "tensor_parallel_size": "2",
            "pipeline_parallel_size": "1",
            "data_parallel_size": "1",
        },
        ["num_devices_used is 4", "= 2"],
    ),
    ({"tensor_parallel_size": "2_0"}, ["'2_0'"]),
    ({"tensor_parallel_size": "\uff12"}, ["\uff12"]),
    ({"micro_batch_size": "8", "num_micro_batches": "4"}, ["global_batch_size 16", "32"]),
]


@pytest.mark.parametrize(("fix", "words"), BAD_STATEMENTS, ids=[str(case[0]) for case in BAD_STATEMENTS])
def test_a_statement_that_breaks_a_rule_by_itself_is_bad_input(fix: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        declare(fix=fix)
    for word in words:
        assert word in str(error.value)


def test_a_statement_that_only_others_can_break_is_not() -> None:
    space = declare(fix={"pipeline_schedule": "1f1b", "sequence_parallel": "true", "zero_stage": "1"})
    assert obeys_rules(space.context, space.grid).any()


def test_allowed_values_are_judged_by_the_search() -> None:
    space = declare(allow={"tensor_parallel_size": "2,3"})
    assert set(space.grid.tensor_parallel_size) == {2}  # 3 does not multiply to 8 devices
    with pytest.raises(InputError, match="stated twice"):
        declare(fix={"zero_stage": "1"}, allow={"zero_stage": "1,2"})
    with pytest.raises(InputError, match="--fix layers_per_stage"):
        declare(allow={"layers_per_stage": "2,2"})
    with pytest.raises(InputError, match="--allow foo"):
        declare(allow={"foo": "1"})
    with pytest.raises(InputError, match=r"num_devices_used is 9, but .* has 8 devices"):
        declare(allow={"num_devices_used": "4,9"})


def test_layers_per_stage_agree_with_sizes_that_follow_from_them() -> None:
    for fix in ({"num_model_chunks": "2"}, {"pipeline_parallel_size": "2"}, {"pipeline_schedule": "interleaved_1f1b"}):
        space = declare(fix={"layers_per_stage": "1,1,1,1", **fix})
        assert obeys_rules(space.context, space.grid).any()


def test_what_the_context_breaks_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"does not support precision fp64"):
        declare(precision="fp64")
    with pytest.raises(InputError, match=r"supported: 0, 1"):
        declare(runtime="megatron", fix={"zero_stage": "3"})


def test_axes_read_back_what_they_show() -> None:
    for axis in AXES.values():
        for code in (1, 2, 3):
            if axis.name in {"sequence_parallel", "loss_parallel", "axis_order"} and code > 1:
                continue
            if axis.name == "recompute" and code > 2:
                continue
            assert axis.parse(axis.show(code)) == code
    assert AXES["hierarchical_partition_size"].parse("off") == 0


@pytest.mark.parametrize(("runtime", "left_out"), [("torch", set(SPLIT_BACKWARD_SCHEDULES)), ("megatron", set())])
def test_all_schedules_are_those_of_the_runtime_and_the_certificate_names_those_left_out(
    runtime: str, left_out: set[str]
) -> None:
    default = declare(runtime=runtime)
    assert set(schedules_left_out(default)) == left_out
    for words in ("all", "1f1b,all", ("ALL",)):
        everything = declare(runtime=runtime, allow={"pipeline_schedule": words})
        found = {SCHEDULES[code] for code in np.unique(everything.grid.pipeline_schedule)}
        assert found == {"none", *load_runtime(runtime).schedules}
        assert schedules_left_out(everything) == ()
    context = default.context
    answer = search(context.model, context.cluster, context.training, context.runtime, default)
    assert isinstance(answer, Recommendation)
    assert all(schedule in answer.certificate.statement for schedule in left_out)
    assert ("not searched" in answer.certificate.statement) == bool(left_out)
