"""Variants of gemma2, phi3, gpt_neox and opt train exactly like one process, in float64.

Their plain forms are values of the parity matrix; here is what their configs can say besides.
"""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

pytestmark = pytest.mark.distributed

ZERO2: dict[str, Any] = {"zero_stage": 2, "data_parallel_shard_size": 2, "micro_batch_size": 1}
ZERO3: dict[str, Any] = {**ZERO2, "zero_stage": 3}
TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 4}
TP_SP: dict[str, Any] = {**TP, "sequence_parallel": True, "loss_parallel": True}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 2}
INTERLEAVED: dict[str, Any] = {**PP, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}

CASES: dict[str, dict[str, Any]] = {
    "gemma2-untied-tp-pp": {"model": "gemma2-untied", **TP_SP, **PP},
    "phi3-tied-tp-pp": {"model": "phi3-tied", **TP, **PP},
    "gpt-neox-tied-tp-interleaved": {"model": "gpt-neox-tied", **TP, **INTERLEAVED},
    "opt-untied-tp-pp": {"model": "opt-untied-63", **TP_SP, **PP},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero2": ZERO2,
    "zero3": ZERO3,
    "tp": TP,
    "tp-sp": TP_SP,
    "pp": PP,
    "interleaved": INTERLEAVED,
    "core-attention": {"micro_batch_size": 2, "recompute": "core_attention"},
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "gemma2-uncapped": ("tp-sp", "core-attention"),
    "gemma2-untied": ("tp", "zero2"),
    "phi3-longrope": ("tp-sp", "pp"),
    "phi3-tied": ("tp-sp", "interleaved"),
    "gpt-neox-sequential": ("tp-sp", "zero3"),
    "gpt-neox-tied": ("tp", "pp"),
    "opt-untied-63": ("tp", "zero3"),
    "opt-no-bias": ("tp-sp", "pp"),
}
SLOW = [(model, layout) for model, layouts in VARIANTS.items() for layout in layouts]


@pytest.mark.parametrize("name", CASES)
def test_parity_of_more_models(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layout"), SLOW)
def test_parity_of_more_models_slow(pool: Pool, model: str, layout: str) -> None:
    assert_parity(pool, make_plan(model, **LAYOUTS[layout]))
