"""Predictions beside dry runs of the executor: memory, FLOP and communication of plans at full size, without any device.

python -m benchmarks.verify [NAME ...] [--write FILE]

`ACCEPTANCE`: 64 to 1,024 devices, minutes each. `MEMORY`: 12 plans of few layers at real widths, one for every ZeRO stage,
schedule, kind of recomputation and length of sequence; seconds each. `WINDOWS`: sliding windows shorter than the sequence.

A line tells the worst error of a pipeline rank's peak, the error of the FLOP, whether every collective and all state agree to
the byte, wall seconds and the largest resident set of a process.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import meshwright
from costmodel.models.loader import build_model, load_model
from costmodel.specs import Comparison, ModelSpec, Plan

GIB = 2**30
TENSOR = {"tensor_parallel_size": 8, "sequence_parallel": True, "loss_parallel": True}
PIPELINE = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b"}


def case(model: str, cluster: str, sequence: int, *, layers: int | None = None, **rest: Any) -> dict[str, Any]:
    """One plan: what `meshwright.make_plan` takes, ``layers`` instead of the model's own."""
    sizes = {"micro_batch_size": 1, "num_micro_batches": 1, **rest.pop("sizes")}
    return {"model": model, "cluster": cluster, "sequence": sequence, "layers": layers, "sizes": sizes, **rest}


def zero(stage: int, shards: int, micro_batches: int = 1, **sizes: Any) -> dict[str, Any]:
    """Sizes of a ZeRO plan."""
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "num_micro_batches": micro_batches, **sizes}


ACCEPTANCE: dict[str, dict[str, Any]] = {
    "llama-3-70b-64": case("llama-3-70b", "8x8xH100-SXM", 4096, sizes={**TENSOR, **zero(3, 8, 4)}),
    "llama-3-70b-1024": case(
        "llama-3-70b", "128x8xH100-SXM", 8192, recompute="full", sizes={**TENSOR, **zero(3, 128, 4)}
    ),
    "gpt3-175b-512": case(
        "gpt3-175b", "64x8xA100-SXM-80GB", 2048, recompute="full", sizes={**TENSOR, **zero(2, 64, 8)}
    ),
    "llama-3-70b-tp-pp-zero": case("llama-3-70b", "8x8xH100-SXM", 4096, sizes={**TENSOR, **PIPELINE, **zero(2, 2, 16)}),
    "llama-3-70b-interleaved": case(
        "llama-3-70b",
        "4x8xH100-SXM",
        4096,
        sizes={
            **TENSOR,
            **PIPELINE,
            "pipeline_schedule": "interleaved_1f1b",
            "num_model_chunks": 2,
            "num_micro_batches": 16,
        },
    ),
}
_SMALL, _EIGHT = ("llama-3-70b", "8x8xH100-SXM"), ("llama-3-8b", "8xH100-SXM")
_TWO = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
_PAIR = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}
MEMORY: dict[str, dict[str, Any]] = {
    "zero0-replicate": case(*_EIGHT, 2048, layers=4, sizes={"data_parallel_replicate_size": 8, "num_micro_batches": 2}),
    "zero1-short": case(*_EIGHT, 512, layers=4, sizes=zero(1, 8, 4)),
    "zero2-accumulating": case(*_EIGHT, 4096, layers=4, sizes=zero(2, 8, 4)),
    "zero3-tp": case(*_SMALL, 4096, layers=4, sizes={**TENSOR, **zero(3, 8, 2)}),
    "zero3-long-full": case(*_EIGHT, 32768, layers=4, recompute="full", sizes=zero(3, 8)),
    "zero3-core-attention": case(*_EIGHT, 8192, layers=4, recompute="core_attention", sizes=zero(3, 8, 2)),
    "unfused-core-attention": case(
        *_EIGHT, 2048, layers=4, recompute="core_attention", attention="unfused", sizes=zero(3, 8, 2)
    ),
    "hybrid-shard": case(*_EIGHT, 4096, layers=4, sizes={**zero(2, 4, 2), "data_parallel_replicate_size": 2}),
    "1f1b-zero3": case(*_EIGHT, 4096, layers=4, sizes={**_PAIR, **zero(3, 4, 8)}),
    "gpipe-full": case(
        *_EIGHT,
        4096,
        layers=4,
        recompute="full",
        sizes={**_TWO, **_PAIR, **zero(1, 2, 6), "pipeline_schedule": "gpipe"},
    ),
    "interleaved": case(
        *_EIGHT,
        4096,
        layers=4,
        sizes={**_PAIR, **zero(2, 4, 6), "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2},
    ),
    "gpt-naive": case(
        "gpt2-xl", "8xH100-SXM", 1024, layers=8, sizes={**_PAIR, **zero(1, 4), "pipeline_schedule": "naive"}
    ),
}
WINDOWS: dict[str, dict[str, Any]] = {
    "mistral-window": case("mistral-7b-v0.1", "8xH100-SXM", 8192, layers=4, sizes={**_TWO, **zero(3, 4, 2)}),
    "mistral-window-1f1b-full": case(
        "mistral-7b-v0.1", "8xH100-SXM", 8192, layers=4, recompute="full", sizes={**_PAIR, **zero(1, 4, 4)}
    ),
    "phi3-window": case("phi-3-mini-4k", "8xH100-SXM", 4096, layers=4, sizes=zero(2, 8, 2)),
    "gemma2-window-full": case(
        "gemma-2-9b", "8xH100-SXM", 8192, layers=4, recompute="full", sizes={**_TWO, **zero(3, 4, 2)}
    ),
}
CASES = {**MEMORY, **WINDOWS, **ACCEPTANCE}


def plan_of(name: str) -> Plan:
    """The plan of one case."""
    given = CASES[name]
    sizes = given["sizes"]
    data = sizes.get("data_parallel_shard_size", 1) * sizes.get("data_parallel_replicate_size", 1)
    return meshwright.make_plan(
        _model(given["model"], given["layers"]),
        given["cluster"],
        global_batch_size=sizes["micro_batch_size"] * sizes["num_micro_batches"] * data,
        sequence_length=given["sequence"],
        sizes=sizes,
        recompute=given.get("recompute", "none"),
        attention=given.get("attention", "fused"),
    )


def _model(name: str, layers: int | None) -> ModelSpec:
    model = load_model(name)
    if layers is None:
        return model
    key = "n_layer" if "n_layer" in model.hf_config else "num_hidden_layers"
    return build_model({**model.hf_config, key: layers}, name=f"{name}, {layers} layers")


def measure(name: str) -> str:
    """Verify one case; a line of the table."""
    start = time.perf_counter()
    observation, comparison = meshwright.verify(plan_of(name), progress=True)
    seconds = time.perf_counter() - start
    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / GIB
    peaks = [field for field in comparison.fields if field.name.endswith("peak_bytes")]
    worst = max(peaks, key=lambda field: abs(field.relative_error or 0.0))
    flops = next(field for field in comparison.fields if field.name == "flops.hardware")
    return (
        f"| {name} | {observation.world_size} | {worst.predicted / GIB:.2f} | {worst.observed / GIB:.2f} | "
        f"{worst.relative_error:+.2%} | {flops.relative_error:+.3%} | {_exact(comparison)} | {seconds:.0f} | {resident:.2f} |"
    )


def _exact(comparison: Comparison) -> str:
    fields = [field for field in comparison.fields if field.tolerance == 0]
    off = [field.name for field in fields if not field.passed]
    return f"{len(fields)} equal" if not off else f"{len(off)} of {len(fields)} differ: {', '.join(off[:3])}"


HEADER = """\
| plan | ranks | peak predicted GiB | dry run GiB | error | FLOP | counts and bytes | wall s | RSS GiB |
|---|---:|---:|---:|---:|---:|---|---:|---:|"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all or the named cases."""
    parser = argparse.ArgumentParser(description="Predictions beside dry runs of the executor.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", type=Path, help="also write the table")
    options = parser.parse_args(arguments)
    lines = [HEADER]
    print(HEADER, flush=True)
    for name in options.names or CASES:
        lines.append(measure(name))
        print(lines[-1], flush=True)
    if options.write is not None:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
