"""Cases of torchtitan's page with fp8 and context parallelism on H100 of 96 GB."""

from __future__ import annotations

import pytest
from practitioner_cases import case
from practitioner_worlds import GIB, predicted

from costmodel.specs import Estimate, Infeasible, InputError
from meshwright import plan

CARD = "H100-96GB-HBM2e"
_NO_CONTEXT = "context parallelism is not modelled"


@case(
    "tt-70b-2d",
    part="memory",
    leaves_out="fp8: with full recomputation layers keep their 16-bit input either way (table 1 of the same page: 77.0 GiB "
    "in bf16, 76.8 in fp8)",
    fails_because="runtime torchtitan counts 8 bytes a logit, its loop keeps the 16-bit logits beside them: 61.5 GiB, not 71.9",
)
def memory_of_70b_on_256_devices() -> None:
    """71.9 GiB reserved with TP 8 x FSDP 32 and 16 sequences of 8,192 tokens."""
    result = predicted(
        "llama-3-70b", f"32x8x{CARD}", batch=512, sequence=8192, runtime="torchtitan", recompute="full", zero_stage=3,
        tensor_parallel_size=8, sequence_parallel=True, loss_parallel=True, micro_batch_size=16,
    )  # fmt: skip
    assert result.peak_memory_bytes.reserved / GIB == pytest.approx(71.9, rel=0.12)


@case("tt-70b-2d", part="placement")
def tensor_parallel_stays_in_the_node() -> None:
    """8 key-value heads and nodes of 8: TP 16 is refused, and what is found stays inside a node."""
    stated = {"global_batch_size": 512, "sequence_length": 8192, "runtime": "torchtitan"}
    fixed = {"pipeline_parallel_size": 1, "recompute": "full", "zero_stage": 3}
    with pytest.raises(InputError, match="tensor_parallel_size 16 does not divide num_key_value_heads 8"):
        plan("llama-3-70b", f"32x8x{CARD}", fix={**fixed, "tensor_parallel_size": 16}, **stated)
    answer = plan("llama-3-70b", f"32x8x{CARD}", fix=fixed, **stated)
    assert not isinstance(answer, Infeasible)
    assert answer.best.parallel.tensor_parallel_size <= 8


def _8b(context: int) -> Estimate:
    """8 devices, one sequence of 32,768 tokens a device's share; all devices are one ZeRO group."""
    data = 8 // context
    return predicted(
        "llama-3-8b", f"8x{CARD}", batch=data, sequence=32768 * context, runtime="torchtitan", recompute="full",
        zero_stage=3, data_parallel_shard_size=data, micro_batch_size=1, context_parallel_size=context,
    )  # fmt: skip


@case("tt-8b-cp-262k", part="memory", fails_because=_NO_CONTEXT)
def memory_of_262144_tokens() -> None:
    """84.5 GiB reserved with 262,144 tokens on 8 devices, and no less with 32,768 tokens on each."""
    assert _8b(8).peak_memory_bytes.reserved / GIB == pytest.approx(84.5, rel=0.10)
    assert _8b(1).peak_memory_bytes.reserved / GIB == pytest.approx(83.9, rel=0.10)


@case("tt-8b-cp-262k", part="speed", fails_because=_NO_CONTEXT)
def speed_of_262144_tokens() -> None:
    """3,890 tokens/s a device at 32,768 tokens, 548 at 262,144: attention grows with the square, 7.1 times slower."""
    ratio = _8b(1).tokens_per_second_per_device / _8b(8).tokens_per_second_per_device
    assert ratio == pytest.approx(7.1, rel=0.30)


@case("tt-8b-cp-262k", part="advice", fails_because=_NO_CONTEXT)
def context_parallelism_for_262144_tokens() -> None:
    """All 8 devices hold a part of the one sequence."""
    answer = plan(
        "llama-3-8b", f"8x{CARD}", global_batch_size=1, sequence_length=262144, runtime="torchtitan",
        fix={"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
    )  # fmt: skip
    assert not isinstance(answer, Infeasible)
    assert answer.best.parallel.context_parallel_size == 8
