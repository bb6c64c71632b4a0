"""The table that a runtime pads is the one that plans have, and the one that searches price."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from costmodel.bounds import step_time_column, step_time_lower_bound
from costmodel.estimate import estimate
from costmodel.memory import grid_peak_bytes
from costmodel.models.agreement import check_agreement
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import InputError, ModelSpec, Recommendation, TrainingSpec
from costmodel.vocabulary import padded_model, padded_models
from hardware_profiles.loader import load_cluster
from planner.candidates import row_plan, sift
from planner.search import search
from planner.space import declare_space

CLUSTER = load_cluster("8xA100-SXM-80GB")


def model(vocab: int = 50257) -> ModelSpec:
    config = {
        "model_type": "megatron-gpt", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "vocab_size": vocab, "max_position_embeddings": 2048,
    }  # fmt: skip
    return build_model(config, name="toy")


def training(runtime: str) -> TrainingSpec:
    precision = load_runtime(runtime).precisions["bf16"]
    return TrainingSpec(global_batch_size=16, sequence_length=1024, precision=precision)


@pytest.mark.parametrize(("tensor", "rows"), [(1, 50304), (2, 50432), (4, 50688), (8, 51200)])
def test_megatron_s_table(tensor: int, rows: int) -> None:
    """50,257 words in multiples of 128 x t; 51,200 rows at 8 ranks are arXiv 2104.04473's vocabulary."""
    padded = padded_model(model(), load_runtime("megatron"), tensor)
    assert (padded.vocab_size, padded.padded_vocab_size) == (50257, rows)


def test_a_table_stays_where_nothing_pads_it_or_it_is_whole() -> None:
    toy = model()
    assert padded_model(toy, load_runtime("torch"), 2) is toy
    assert padded_model(toy, load_runtime("nanotron"), 2).padded_vocab_size == 50258
    whole = model(51200)
    assert padded_model(whole, load_runtime("megatron"), 8) is whole


@pytest.mark.parametrize("runtime", ["megatron", "torch"])
def test_columns_of_a_search_equal_the_estimates_of_its_plans(runtime: str) -> None:
    """Every tensor-parallel size has a table of its own; time and memory of rows are those of their plans."""
    profile, toy = load_runtime(runtime), model()
    space = declare_space(toy, CLUSTER, training(runtime), profile, fix={"recompute": "none"})
    found = sift(space)
    rows = np.random.default_rng(0).choice(np.flatnonzero(found.fits), 24, replace=False)
    grid = found.grid.take(rows)
    assert len(set(grid.tensor_parallel_size)) >= 3
    inputs = (toy, CLUSTER, training(runtime), profile, grid)
    times, needed, bounds = step_time_column(*inputs), grid_peak_bytes(*inputs), step_time_lower_bound(*inputs)
    assert (bounds <= times).all()
    for index, row in enumerate(rows):
        plan = row_plan(found.context, found.grid, int(row))
        tensor = plan.parallel.tensor_parallel_size
        assert plan.model.padded_vocab_size == (
            ceil(50257 / (128 * tensor)) * 128 * tensor if runtime == "megatron" else 50257
        )
        predicted = estimate(plan, profile)
        assert times[index] == pytest.approx(predicted.step_time_seconds.value, rel=1e-9)
        assert needed[index] == pytest.approx(predicted.peak_memory_bytes.device, abs=2)


def test_padding_is_priced() -> None:
    """50,257 words cost under megatron what 50,304 do at one rank, more than an unpadded table would."""
    profile = load_runtime("megatron")
    bare = profile.model_copy(update={"vocabulary_multiple": None})
    space = declare_space(model(), CLUSTER, training("megatron"), profile, fix={"tensor_parallel_size": "1"})
    grid = space.grid.take(np.arange(4))
    padded, stated, plain = (
        grid_peak_bytes(each, CLUSTER, training("megatron"), runtime, grid)
        for each, runtime in ((model(), profile), (model(50304), profile), (model(), bare))
    )
    assert (padded == stated).all()
    assert (padded > plain).all()


def test_the_certificate_is_about_the_plan_that_is_returned() -> None:
    answer = search(
        model(), CLUSTER, training("megatron"), load_runtime("megatron"),
        declare_space(model(), CLUSTER, training("megatron"), load_runtime("megatron")),
    )  # fmt: skip
    assert isinstance(answer, Recommendation)
    assert answer.best.estimate is not None
    again = estimate(answer.best, load_runtime("megatron"))
    assert again.step_time_seconds.value == pytest.approx(answer.best.estimate.step_time_seconds.value, rel=1e-9)
    multiple = 128 * answer.best.parallel.tensor_parallel_size
    assert answer.best.model.padded_vocab_size % multiple == 0


def test_rows_that_share_a_table_are_priced_together() -> None:
    space = declare_space(model(), CLUSTER, training("megatron"), load_runtime("megatron"))
    parts = list(padded_models(model(), load_runtime("megatron"), space.grid))
    covered = np.sort(np.concatenate([rows for _, rows in parts if rows is not None]))
    assert (covered == np.arange(len(space.grid))).all()
    assert len({each.padded_vocab_size for each, _ in parts}) == len(parts) == 4
    ((only, rows),) = padded_models(model(51200), load_runtime("megatron"), space.grid)
    assert (only.padded_vocab_size, rows) == (51200, None)
    nothing = replace(space.grid.take(np.array([], dtype=np.int64)))
    assert list(padded_models(model(), load_runtime("megatron"), nothing)) == []


def test_a_padded_plan_agrees_with_its_config_and_a_smaller_table_does_not() -> None:
    check_agreement(padded_model(model(), load_runtime("megatron"), 8))
    with pytest.raises(InputError, match=r"padded_vocab_size is 50000, but .* 50257; needed at least that"):
        check_agreement(model().model_copy(update={"padded_vocab_size": 50000}))
    with pytest.raises(InputError, match="vocab_size is 50300; needed at most the 50257"):
        check_agreement(model().model_copy(update={"vocab_size": 50300, "padded_vocab_size": 50304}))
