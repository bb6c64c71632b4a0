"""Published runs beside the predictions, and the sustained rate that would fit them best.

python benchmarks/replay_anchors.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import ParallelConfig, Plan, RuntimeProfile, TrainingSpec
from hardware_profiles.loader import load_cluster

ANCHORS = Path(__file__).parent / "data" / "published_anchors.jsonl"


@dataclass(frozen=True, slots=True)
class Anchor:
    """One published run as a plan."""

    name: str
    plan: Plan
    runtime: RuntimeProfile
    published_seconds: float
    tolerance: float


def load_anchors() -> list[Anchor]:
    return [_anchor(json.loads(line)) for line in ANCHORS.read_text(encoding="utf-8").splitlines()]


def predicted_seconds(anchor: Anchor) -> float:
    return estimate(anchor.plan, anchor.runtime, ignore_memory=True).step_time_seconds.value


def _anchor(row: dict[str, Any]) -> Anchor:
    runtime = load_runtime(row["runtime"])
    length = row["sequence_length"]
    config = {**row["model"], "model_type": "megatron-gpt", "max_position_embeddings": length}
    training = TrainingSpec(
        global_batch_size=row["global_batch_size"],
        sequence_length=length,
        precision=runtime.precisions[row["precision"]],
        attention_implementation=row["attention_implementation"],
    )
    plan = build_plan(
        build_model(config, name=row["id"]),
        load_cluster(row["cluster"]),
        training,
        runtime,
        ParallelConfig(**row["parallel"]),
        recompute=row["recompute"],
    )
    return Anchor(row["id"], plan, runtime, row["published_seconds"], row["tolerance"])


def main() -> None:
    by_runtime: dict[str, list[float]] = defaultdict(list)
    print(f"{'run':52} {'published':>10} {'predicted':>10}  error")
    for anchor in load_anchors():
        seconds = predicted_seconds(anchor)
        ratio = seconds / anchor.published_seconds
        by_runtime[anchor.runtime.name].append(ratio)
        print(f"{anchor.name:52} {anchor.published_seconds:9.3f}s {seconds:9.3f}s {ratio - 1:+7.1%}")
    for name, ratios in by_runtime.items():
        logs = np.log(ratios)
        rate = load_runtime(name).constants["sustained_rate"].value
        print(
            f"{name}: {len(ratios)} runs, mean absolute error {np.abs(np.array(ratios) - 1).mean():.1%}, spread "
            f"{logs.std():.1%}; sustained_rate {rate} -> {rate * np.exp(logs.mean()):.3f} would centre them, if all time "
            f"scaled with it"
        )


if __name__ == "__main__":
    main()
