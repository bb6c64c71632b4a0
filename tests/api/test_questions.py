"""The questions from Python: what they pass on, what they refuse, and that they agree with each other."""

from __future__ import annotations

import pytest

import meshwright
from costmodel.specs import Infeasible, InputError, Recommendation, Scaling

GIVEN = {"global_batch_size": 64, "sequence_length": 2048}


def recommended(answer: Recommendation | Infeasible) -> Recommendation:
    assert isinstance(answer, Recommendation)
    return answer


def test_questions_are_part_of_the_package() -> None:
    assert {"maximize", "scale", "Scaling"} <= set(meshwright.__all__)


def test_step_time_is_the_objective_unless_stated() -> None:
    plain = recommended(meshwright.plan("llama-3-8b", "8xH100-SXM", **GIVEN))
    stated = recommended(meshwright.plan("llama-3-8b", "8xH100-SXM", objective="step-time", **GIVEN))
    assert plain.best.plan_hash == stated.best.plan_hash
    assert plain.objective is None
    assert plain.maximum is None


def test_memory_headroom_is_less_memory_for_a_slower_plan() -> None:
    fastest = recommended(meshwright.plan("llama-3-8b", "8xH100-SXM", **GIVEN))
    spare = recommended(meshwright.plan("llama-3-8b", "8xH100-SXM", objective="memory-headroom", within="25%", **GIVEN))
    assert fastest.best.estimate is not None
    assert spare.best.estimate is not None
    assert spare.objective is not None
    assert spare.objective.fastest_seconds == fastest.certificate.upper_seconds
    assert spare.best.estimate.peak_memory_bytes.device < fastest.best.estimate.peak_memory_bytes.device
    slower = spare.best.estimate.step_time_seconds.value / fastest.best.estimate.step_time_seconds.value
    assert 1 <= slower <= 1.25


def test_progress_names_what_is_tried() -> None:
    told: list[str] = []
    found = recommended(
        meshwright.maximize(
            "micro_batch_size", "llama-3-8b", "8xH100-SXM", progress=told.append, command="by hand", **GIVEN
        )
    )
    assert told[0] == "trying micro_batch_size 64"
    assert found.best.provenance is not None
    assert found.best.provenance.command == "by hand"


def test_a_limit_of_memory_shortens_the_longest_sequence() -> None:
    lengths = []
    for fraction in (1.0, 0.5):
        found = recommended(
            meshwright.maximize(
                "sequence_length", "llama-3-8b", "8xH100-SXM", global_batch_size=8, max_memory_fraction=fraction
            )
        )
        assert found.maximum is not None
        lengths.append(found.maximum.value)
    assert lengths[1] < lengths[0]


def test_scale_takes_nodes_in_any_order_once() -> None:
    found = meshwright.scale("llama-3-8b", "4x8xH100-SXM", sequence_length=2048, batch_per_node=16, nodes=[3, 1, 3])
    assert isinstance(found, Scaling)
    assert [(point.num_nodes, point.global_batch_size) for point in found.points] == [(1, 16), (3, 48)]
    best = found.points[0].best
    assert best is not None
    assert best.cluster.name == "8xH100-SXM"


@pytest.mark.parametrize(
    ("nodes", "message"), [([], "nodes is empty"), ([1.5], "nodes is 1.5"), ([True], "nodes is true")]
)
def test_numbers_of_nodes_that_are_none_are_refused(nodes: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        meshwright.scale("llama-3-8b", "4x8xH100-SXM", sequence_length=2048, global_batch_size=64, nodes=nodes)
