"""Cases of torchtitan's page with fp8 and context parallelism on H100 of 96 GB."""

from __future__ import annotations

import pytest
from practitioner_cases import case
from practitioner_worlds import GIB, predicted, torchtitan_of_2024

from costmodel.specs import Estimate, Infeasible, InputError
from meshwright import plan

CARD = "H100-96GB-HBM2e"


@case("tt-70b-2d", part="memory")
def memory_of_70b_on_256_devices() -> None:
    """71.9 GiB reserved with TP 8 x FSDP 32, fp8 and 16 sequences of 8,192 tokens."""
    result = predicted(
        "llama-3-70b", f"32x8x{CARD}", batch=512, sequence=8192, runtime=torchtitan_of_2024(), precision="fp8",
        recompute="full", zero_stage=3, tensor_parallel_size=8, sequence_parallel=True, loss_parallel=True,
        micro_batch_size=16,
    )  # fmt: skip
    assert result.peak_memory_bytes.reserved / GIB == pytest.approx(71.9, rel=0.12)


@case("tt-70b-2d", part="placement")
def tensor_parallel_stays_in_the_node() -> None:
    """8 key-value heads and nodes of 8: TP 16 is refused, and what is found stays inside a node."""
    stated = {"global_batch_size": 512, "sequence_length": 8192, "runtime": "torchtitan", "precision": "fp8"}
    fixed = {"pipeline_parallel_size": 1, "recompute": "full", "zero_stage": 3}
    with pytest.raises(InputError, match="tensor_parallel_size 16 does not divide num_key_value_heads 8"):
        plan("llama-3-70b", f"32x8x{CARD}", fix={**fixed, "tensor_parallel_size": 16}, **stated)
    answer = plan("llama-3-70b", f"32x8x{CARD}", fix=fixed, **stated)
    assert not isinstance(answer, Infeasible)
    assert answer.best.parallel.tensor_parallel_size <= 8


def _8b(context: int, *, tokens: int) -> Estimate:
    """Llama-3.1-8B on 8 devices in groups of ``context`` that share a sequence; all devices are one ZeRO group."""
    data = 8 // context
    return predicted(
        "llama-3-8b", f"8x{CARD}", batch=data, sequence=tokens, runtime=torchtitan_of_2024(), precision="fp8",
        recompute="full", zero_stage=3, data_parallel_replicate_size=1, data_parallel_shard_size=data,
        micro_batch_size=1, context_parallel_size=context,
        context_parallel_method="all_gather" if context > 1 else None,
    )  # fmt: skip


@case("tt-8b-cp-262k", part="memory")
def memory_of_262144_tokens() -> None:
    """84.5 GiB reserved with 262,144 tokens on 8 devices, and 83.9 with 32,768 tokens on each."""
    assert _8b(8, tokens=262144).peak_memory_bytes.reserved / GIB == pytest.approx(84.5, rel=0.10)
    assert _8b(1, tokens=32768).peak_memory_bytes.reserved / GIB == pytest.approx(83.9, rel=0.10)


@case("tt-8b-cp-262k", part="speed")
def speed_of_262144_tokens() -> None:
    """3,890 tokens/s a device at 32,768 tokens, 548 at 262,144: attention grows with the square, 7.1 times slower."""
    short, long = _8b(1, tokens=32768), _8b(8, tokens=262144)
    assert short.tokens_per_second_per_device / long.tokens_per_second_per_device == pytest.approx(7.1, rel=0.30)
    assert long.tokens_per_second_per_device == pytest.approx(548, rel=0.25)


@case("tt-8b-cp-262k", part="advice")
def context_parallelism_for_262144_tokens() -> None:
    """Tokens of a device decide: constant they need constant memory, and 262,144 fit with all 8 devices, not with 4; the search
    finds the layout that was run.
    """
    peaks = {context: _8b(context, tokens=32768 * context).peak_memory_bytes.allocated for context in (1, 2, 4, 8)}
    assert max(peaks.values()) <= 1.02 * min(peaks.values())
    assert _8b(8, tokens=262144).fits
    assert not _8b(4, tokens=262144).fits
    stated = {"global_batch_size": 1, "sequence_length": 262144, "runtime": torchtitan_of_2024(), "precision": "fp8"}
    answer = plan("llama-3-8b", f"8x{CARD}", **stated)
    assert not isinstance(answer, Infeasible)
    sizes = answer.best.parallel
    assert (sizes.context_parallel_size, sizes.zero_stage, sizes.tensor_parallel_size) == (8, 3, 1)
