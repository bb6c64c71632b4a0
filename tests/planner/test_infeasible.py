"""When nothing fits: the nearest miss adds up, and every fix that is offered really works."""

from __future__ import annotations

import re

import pytest
from planner_worlds import GIB, answer, make_cluster, make_model, make_training, plan_space

from costmodel.models.loader import load_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Infeasible, NearestMiss, Recommendation
from hardware_profiles.loader import load_cluster, load_device
from planner.candidates import gib_apart
from planner.infeasible import enlarged
from planner.search import search
from planner.space import Space, declare_space

LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def miss_of(space: Space) -> NearestMiss:
    found = answer(space)
    assert isinstance(found, Infeasible)
    assert found.nearest_miss is not None
    return found.nearest_miss


def fix_about(miss: NearestMiss, words: str) -> str:
    (fix,) = [fix for fix in miss.fixes if words in fix]
    return fix


def test_sizes_that_differ_are_never_written_alike() -> None:
    assert gib_apart(79.5 * GIB, 79.1 * GIB) == ("79.5", "79.1")
    assert gib_apart(79.11 * GIB, 79.14 * GIB) == ("79.11", "79.14")
    assert gib_apart(79.114 * GIB, 79.112 * GIB) == ("79.114", "79.112")


def test_terms_of_the_nearest_miss_add_up_and_exceed_the_device() -> None:
    miss = miss_of(plan_space(model=LARGE, cluster=make_cluster(per_node=2, memory_bytes=5 * GIB)))
    assert miss.needed_bytes > miss.capacity_bytes == 5 * GIB
    assert sum(term.bytes for term in miss.terms) == pytest.approx(miss.needed_bytes, abs=2)
    assert [term.bytes for term in miss.terms] == sorted((term.bytes for term in miss.terms), reverse=True)
    assert "contexts_and_communicators" in {term.name for term in miss.terms}


def test_more_devices_are_a_number_that_works() -> None:
    cluster = make_cluster(per_node=2, memory_bytes=5 * GIB)
    miss = miss_of(plan_space(model=LARGE, cluster=cluster))
    fix = fix_about(miss, "devices")
    devices, factor = map(int, re.findall(r"use (\d+) devices \((\d+) times", fix)[0])
    assert devices == 2 * factor
    assert isinstance(answer(plan_space(model=LARGE, cluster=enlarged(cluster, factor))), Recommendation)
    if factor > 2:
        assert isinstance(answer(plan_space(model=LARGE, cluster=enlarged(cluster, 2))), Infeasible)


def test_a_shorter_sequence_is_a_number_that_works() -> None:
    cluster = make_cluster(memory_bytes=int(5.0 * GIB))
    miss = miss_of(plan_space(model=LARGE, cluster=cluster, sequence=4096 * 8, batch=8))
    fix = fix_about(miss, "shorten sequence_length")
    length = int(re.findall(r"sequence_length to (\d+)", fix)[0])
    assert isinstance(answer(plan_space(model=LARGE, cluster=cluster, sequence=length, batch=8)), Recommendation)
    longer = plan_space(model=LARGE, cluster=cluster, sequence=2 * length, batch=8)
    assert isinstance(answer(longer), Infeasible)


def test_giving_up_what_was_stated_is_offered_when_it_helps() -> None:
    cluster = make_cluster(memory_bytes=int(5.2 * GIB))
    stated = {"zero_stage": "0", "tensor_parallel_size": "1", "pipeline_parallel_size": "1"}
    miss = miss_of(plan_space(model=LARGE, cluster=cluster, fix=stated))
    assert "pipeline_parallel_size, tensor_parallel_size, zero_stage free" in fix_about(miss, "leave")
    assert isinstance(answer(plan_space(model=LARGE, cluster=cluster)), Recommendation)
    nothing_stated = miss_of(plan_space(model=LARGE, cluster=make_cluster(per_node=2, memory_bytes=5 * GIB)))
    assert not any("leave" in fix for fix in nothing_stated.fixes)


def test_the_larger_device_is_the_smallest_that_holds_the_miss() -> None:
    miss = miss_of(plan_space(model=LARGE, cluster=make_cluster(per_node=1, memory_bytes=5 * GIB), batch=1))
    fix = fix_about(miss, "a device with at least")
    name = re.findall(r"above: (\S+) has", fix)[0]
    assert load_device(name).memory_bytes >= miss.needed_bytes


def test_a_space_whose_every_candidate_breaks_a_rule_has_no_nearest_miss() -> None:
    # 1F1B needs a pipeline, and one device has none.
    found = answer(plan_space(cluster=make_cluster(per_node=1), fix={"pipeline_schedule": "1f1b"}))
    assert isinstance(found, Infeasible)
    assert found.nearest_miss is None
    assert [rejection.rule for rejection in found.rejections] == ["statement", "schedule_matches_pipeline"]
    assert found.rejections[0].fix == "choose pipeline_schedule from none"
    assert sum(rejection.count for rejection in found.rejections) > 0


def test_gpt3_does_not_fit_on_eight_v100() -> None:
    # GPT-3 175B on 8 V100-32GB: 16 bytes x 175e9 / 8 = 350 GB of state alone on every device.
    profile = load_runtime("megatron")
    training = make_training(profile, batch=64, sequence=2048, precision="fp16")
    inputs = (load_model("gpt3-175b"), load_cluster("8xV100-SXM-32GB"), training, profile)
    found = search(*inputs, declare_space(*inputs))
    assert isinstance(found, Infeasible)
    miss = found.nearest_miss
    assert miss is not None
    assert miss.needed_bytes > 350e9
    assert {rejection.rule for rejection in found.rejections} >= {"memory"}
    fix = fix_about(miss, "devices")
    factor = int(re.findall(r"\((\d+) times", fix)[0])
    larger = (inputs[0], enlarged(inputs[1], factor), training, profile)
    assert isinstance(search(*larger, declare_space(*larger)), Recommendation)


@pytest.mark.parametrize(
    ("allow", "valid"),
    [
        ({"tensor_parallel_size": "3"}, {"tensor_parallel_size": (1, 2, 4)}),
        ({"data_parallel_size": "5"}, {"data_parallel_size": (1, 2, 4)}),
        ({"pipeline_parallel_size": "9"}, {"pipeline_parallel_size": (1, 2, 4)}),
        ({"data_parallel_shard_size": "3"}, {"data_parallel_shard_size": (1, 2, 4)}),
        ({"num_devices_used": "3", "tensor_parallel_size": "2"}, {"num_devices_used": (2, 4)}),
        ({"micro_batch_size": "3"}, {"micro_batch_size": (1, 2, 4)}),
        ({"sequence_parallel": "true", "tensor_parallel_size": "1"}, {"tensor_parallel_size": (2, 4)}),
    ],
)
def test_a_space_without_a_valid_plan_names_values_that_would_give_one(
    allow: dict[str, str], valid: dict[str, tuple[int, ...]]
) -> None:
    inputs = {"model": make_model(layers=4), "cluster": make_cluster(per_node=4)}
    found = answer(plan_space(**inputs, allow=allow))
    assert isinstance(found, Infeasible)
    assert found.nearest_miss is None
    why = found.rejections[0]
    assert (why.rule, why.count) == ("statement", 0)
    for name, value in allow.items():
        assert f"{name} {value}" in why.example
    for name, values in valid.items():
        assert re.search(rf"choose {name} from {', '.join(map(str, values))}\b", why.fix)
        for value in values:
            assert isinstance(answer(plan_space(**inputs, allow={**allow, name: str(value)})), Recommendation)
