"""Fewer devices are planned for where more of them are slower, and left out where their computation alone excludes them."""

from __future__ import annotations

import pytest

from costmodel.specs import ClusterSpec, Recommendation
from meshwright.inputs import load_cluster, load_model, load_runtime, make_training
from planner.candidates import sift
from planner.fewer_devices import even_shares, fastest, least_device_seconds
from planner.inquiry import Inquiry


def ten_gigabit(nodes: int) -> ClusterSpec:
    """Nodes of 8 A100, each with one port of 10-gigabit Ethernet."""
    fast = load_cluster(f"{nodes}x8xA100-SXM-80GB")
    link = fast.levels[1].link.model_copy(update={"name": "Ethernet 10G", "nominal_bytes_per_second": 1.25e9})
    level = fast.levels[1].model_copy(update={"link": link, "ports": 1})
    return fast.model_copy(update={"name": f"{nodes}x8xA100 on 10 GbE", "levels": (fast.levels[0], level)})


def inquiry(model: str, cluster: ClusterSpec, *, batch: int, sequence: int = 1024, runtime: str = "torch") -> Inquiry:
    profile = load_runtime(runtime)
    training = make_training(cluster, profile, global_batch_size=batch, sequence_length=sequence)
    return Inquiry(model=load_model(model), cluster=cluster, training=training, runtime=profile)


@pytest.mark.parametrize("runtime", ["torch", "megatron", "deepspeed", "torchtitan"])
@pytest.mark.parametrize("model", ["gpt2-xl", "llama-3-8b"])
def test_computation_alone_is_below_every_candidate(runtime: str, model: str) -> None:
    if runtime == "torchtitan" and model == "gpt2-xl":
        model = "llama-3-8b"
    question = inquiry(model, ten_gigabit(2), batch=24, runtime=runtime)
    least = least_device_seconds(question.space().context, question.space().declared)
    assert least > 0
    for number in (1, 2, 4, 8, 16):
        bounds = sift(question.narrowed(num_devices_used=number)).bounds
        assert least / number <= bounds.min(initial=float("inf"))


def test_one_node_is_faster_than_two_behind_a_slow_network() -> None:
    """Equal to the fastest of the searches on every number by itself."""
    question = inquiry("gpt2", ten_gigabit(2), batch=16)
    answer = fastest(question)
    assert isinstance(answer, Recommendation)
    alone = {number: question.search(question.narrowed(num_devices_used=number)) for number in (1, 2, 4, 8, 16)}
    seconds = {n: each.certificate.upper_seconds for n, each in alone.items() if isinstance(each, Recommendation)}
    assert answer.best.num_devices_used == min(seconds, key=lambda n: seconds[n]) == 8
    assert answer.certificate.upper_seconds == seconds[8]
    objective = answer.objective
    assert objective is not None
    assert objective.name == "step-time"
    assert objective.value == seconds[8]
    assert objective.bound <= min(seconds.values())
    assert f"8 devices are faster than 16, which take {seconds[16] / seconds[8] - 1:.1%} longer" in objective.statement
    assert "8 of 16 devices stay idle: with 16 of them the step takes longer" in answer.warnings
    for trial in objective.trials:
        assert (trial.lower_seconds or 0.0) <= seconds[trial.value]


def test_where_the_network_is_fast_no_other_number_is_searched() -> None:
    answer = fastest(inquiry("llama-3-8b", load_cluster("2x8xH100-SXM"), batch=64, sequence=4096))
    assert isinstance(answer, Recommendation)
    assert answer.objective is None
    assert answer.best.num_devices_used == 16


def test_a_stated_number_is_not_changed() -> None:
    question = inquiry("gpt2", ten_gigabit(2), batch=16).changed(fix={"num_devices_used": "16"})
    answer = fastest(question)
    assert isinstance(answer, Recommendation)
    assert answer.best.num_devices_used == 16
    assert answer.objective is None


def test_even_shares_make_up_all_devices() -> None:
    assert even_shares(load_cluster("12x8xH100-SXM")) == [1, 2, 4, 8, 16, 24, 32, 48, 96]
