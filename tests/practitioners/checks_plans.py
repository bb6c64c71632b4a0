"""Cases about which plan wins, and about what a planner must do: stages, bubbles, fallbacks, provenance."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from practitioner_cases import case
from practitioner_worlds import exposed_seconds, gpt, made, predicted, seconds

from costmodel.specs import Infeasible
from hardware_profiles.loader import list_devices, load_device
from meshwright import list_runtimes, load_runtime, plan


@case(
    "neox903",
    leaves_out="the factor of 5 between 33 and 170 TFLOP/s: the number of micro-batches is not stated",
)
def no_pipeline_where_none_is_needed() -> None:
    """20B on 128 devices with TP 2: without a pipeline faster than with 4 stages; the bubble is (p - 1) / (m + p - 1)."""
    model = gpt("gpt-20b", layers=44, hidden=6144, heads=64, vocab=50432, positions=4096)
    stated: dict[str, Any] = {
        "sequence": 4096, "runtime": "megatron-deepspeed", "precision": "fp16", "recompute": "full",
        "tensor_parallel_size": 2, "loss_parallel": True, "zero_stage": 1, "micro_batch_size": 1,
    }  # fmt: skip
    cluster = "16x8xA100-SXM-80GB"
    for count in (4, 16, 64):
        one, four = (
            predicted(model, cluster, batch=16 * count, pipeline_parallel_size=stages, **stated) for stages in (1, 4)
        )
        assert one.fits
        assert seconds(one) < seconds(four)
        # What follows the last backward is no part of the pipeline.
        after = sum(exposed_seconds(four, name) for name in ("zero_gather", "data_parallel_gradient", "optimizer"))
        assert exposed_seconds(four, "bubble") / (seconds(four) - after) == pytest.approx(3 / (count + 3), rel=0.10)


@case("mlm258")
def pipeline_or_tensor_parallel_in_a_node() -> None:
    """10B on one DGX A100: 8 stages win by more than 30% with many micro-batches, TP 8 wins with few."""
    model = gpt("bert-10b", layers=48, hidden=4096, heads=32, positions=512)
    stated: dict[str, Any] = {
        "sequence": 512, "runtime": "megatron", "precision": "fp16", "attention": "unfused", "micro_batch_size": 4,
    }  # fmt: skip

    def pipeline_over_tensor(count: int) -> float:
        pipeline = predicted(model, "8xA100-SXM-40GB", batch=4 * count, pipeline_parallel_size=8, **stated)
        tensor = predicted(
            model, "8xA100-SXM-40GB", batch=4 * count, tensor_parallel_size=8, loss_parallel=True, **stated
        )
        return pipeline.tokens_per_second / tensor.tokens_per_second

    for count in (64, 128, 256):
        assert pipeline_over_tensor(count) > 1.3, count
    for count in (1, 2, 4):
        assert pipeline_over_tensor(count) < 1, count


@case(
    "bridge5391",
    leaves_out="the layout as a string of Megatron-core's: configs/bridge5391 reads it, and the exporter writes such strings",
)
def a_layer_less_beside_the_head() -> None:
    """Et*2|(t*2|)*34,t*3|(t*2|)*3,tL instead of two layers everywhere: faster, with the same memory."""
    layout = (2, *(2,) * 34, 3, *(2,) * 3, 1)
    stated: dict[str, Any] = {
        "batch": 128, "sequence": 4096, "runtime": "megatron", "tensor_parallel_size": 4, "pipeline_parallel_size": 8,
        "num_model_chunks": 5, "sequence_parallel": True, "loss_parallel": True, "zero_stage": 1, "micro_batch_size": 1,
    }  # fmt: skip
    even, balanced = (predicted("llama-3-70b", "8x8xH100-SXM", layers=layers, **stated) for layers in (None, layout))
    assert [stage.num_layers for stage in made("llama-3-70b", "8x8xH100-SXM", layers=layout, **stated).stages] == [
        *layout
    ]
    assert seconds(balanced) < seconds(even)
    assert balanced.peak_memory_bytes.device == pytest.approx(even.peak_memory_bytes.device, rel=0.02)


@case(
    "nnscaler13",
    leaves_out="the message of a failing solver and CBC in the tests: no plan needs a solver",
)
def planning_needs_no_solver() -> None:
    """A plan is found where neither pulp nor highspy can be imported."""
    program = (
        "import sys; sys.modules['pulp'] = None; sys.modules['highspy'] = None\n"
        "from meshwright import plan\n"
        "answer = plan('llama-2-7b', '8xA100-SXM-80GB', global_batch_size=16, sequence_length=2048, "
        "fix={'recompute': 'full'})\n"
        "print(answer.certificate.gap)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0


@case("nnscaler30")
def idle_devices_are_named() -> None:
    """All devices are used, or the idle ones are named with the reason; every part of the cost says its formula."""
    for devices, batch in ((8, 16), (7, 16), (6, 8)):
        answer = plan(
            "llama-2-7b", f"{devices}xA100-SXM-80GB", global_batch_size=batch, sequence_length=2048,
            fix={"pipeline_parallel_size": 1},
        )  # fmt: skip
        assert not isinstance(answer, Infeasible)
        idle = devices - answer.best.num_devices_used
        told = [warning for warning in answer.warnings if "stay idle" in warning]
        assert told == [] if not idle else told[0].startswith(f"{idle} of {devices} devices stay idle: ")
        assert answer.best.estimate is not None
        assert all(term.formula for term in answer.best.estimate.terms)
        shown = sum(term.exposed_seconds for term in answer.best.estimate.terms)
        assert shown == pytest.approx(seconds(answer.best.estimate), rel=1e-9)


@case("galv70")
def every_constant_says_where_it_is_from() -> None:
    """Constants of runtimes and numbers of devices carry a source."""
    for name in list_runtimes():
        runtime = load_runtime(name)
        assert runtime.constants
        for constant, stated in runtime.constants.items():
            assert len(stated.source) > 5, f"{name}: {constant}"
    for name in list_devices():
        device = load_device(name)
        numbers = {"memory_bytes", "memory_bandwidth_bytes_per_second", "memory_fraction", "attention_fraction"}
        numbers |= {f"peak_flops_per_second.{word}" for word in device.peak_flops_per_second} | {"launch_seconds"}
        assert numbers <= {*device.sources}, f"{name}: {sorted(numbers - {*device.sources})}"
