"""gemma2, phi3, gpt_neox and opt train under every kind of plan exactly like one process, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

pytestmark = pytest.mark.distributed

REPLICATE: dict[str, Any] = {"data_parallel_replicate_size": 2, "micro_batch_size": 2}
ZERO2: dict[str, Any] = {"zero_stage": 2, "data_parallel_shard_size": 2, "micro_batch_size": 1}
ZERO3: dict[str, Any] = {**ZERO2, "zero_stage": 3}
TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 4}
TP_SP: dict[str, Any] = {**TP, "sequence_parallel": True, "loss_parallel": True}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 2}
INTERLEAVED: dict[str, Any] = {**PP, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}
FULL: dict[str, Any] = {"recompute": "full"}
CORE: dict[str, Any] = {"recompute": "core_attention"}

CASES: dict[str, dict[str, Any]] = {
    "gemma2-zero2-core-attention": {"model": "gemma2", **ZERO2, **CORE},
    "gemma2-tp-sp": {"model": "gemma2", **TP_SP},
    "gemma2-untied-tp-pp": {"model": "gemma2-untied", **TP_SP, **PP},
    "phi3-zero3-full": {"model": "phi3", **ZERO3, **FULL},
    "phi3-tp-sp": {"model": "phi3", **TP_SP},
    "phi3-tied-tp-pp": {"model": "phi3-tied", **TP, **PP},
    "gpt-neox-zero2": {"model": "gpt-neox", **ZERO2},
    "gpt-neox-tp-sp": {"model": "gpt-neox", **TP_SP},
    "gpt-neox-tied-tp-interleaved": {"model": "gpt-neox-tied", **TP, **INTERLEAVED},
    "opt-zero3": {"model": "opt", **ZERO3},
    "opt-tp-sp": {"model": "opt", **TP_SP},
    "opt-untied-tp-pp": {"model": "opt-untied-63", **TP_SP, **PP},
    "opt-interleaved-zero-bubble": {"model": "opt", **INTERLEAVED, "pipeline_schedule": "interleaved_zero_bubble"},
    "opt-tp-sp-dualpipe-v": {
        "model": "opt",
        **TP_SP,
        **INTERLEAVED,
        "pipeline_schedule": "dualpipe_v",
        "micro_batch_size": 2,
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicate": REPLICATE,
    "zero2": ZERO2,
    "zero3": ZERO3,
    "tp": TP,
    "tp-loss-parallel": {**TP, "loss_parallel": True},
    "tp-sp": TP_SP,
    "pp": PP,
    "interleaved": INTERLEAVED,
    "full": {"micro_batch_size": 2, **FULL},
    "core-attention": {"micro_batch_size": 2, **CORE},
    "unfused": {"micro_batch_size": 2, "attention": "unfused"},
    "tp-zero3": {**TP_SP, **ZERO3},
    "tp-interleaved": {**TP_SP, **INTERLEAVED},
}
MODELS = ("gemma2", "phi3", "gpt-neox", "opt")
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
SLOW = [(model, layout) for model in MODELS for layout in LAYOUTS] + [
    (model, layout) for model, layouts in VARIANTS.items() for layout in layouts
]


@pytest.mark.parametrize("name", CASES)
def test_parity_of_more_models(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layout"), SLOW)
def test_parity_of_more_models_slow(pool: Pool, model: str, layout: str) -> None:
    assert_parity(pool, make_plan(model, **LAYOUTS[layout]))
