"""Cases about what memory consists of: what shrinks with devices, byte tables, phases, logits, tied embeddings."""

from __future__ import annotations

from typing import Any

import pytest
from practitioner_cases import case
from practitioner_worlds import GB, gpt, llama, made, predicted, term_bytes, torchtitan_of_2024

from costmodel.specs import Infeasible, InputError, Plan, Recommendation
from meshwright import estimate, load_runtime, plan

ACTIVATIONS = ("activations", "recompute_working_set", "backward_working_set", "logits")
GPT_J = gpt("gpt-j-6b", layers=28, hidden=4096, heads=16, vocab=50400)
LLAMA_1B = llama(
    "llama-3.2-1b", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocab=128256, tied=True
)  # fmt: skip


@case("ds4093", leaves_out="a sentence that says so: the terms of two estimates beside each other do")
def what_shrinks_with_data_parallel_devices() -> None:
    """ZeRO-3 of GPT-J: states halve from 2 to 4 devices, activations, logits and gathered layers stay."""
    two, four = (
        predicted(
            GPT_J, f"{devices}xA100-SXM-80GB", batch=devices, sequence=2048, runtime="deepspeed", precision="fp16",
            recompute="full", zero_stage=3, micro_batch_size=1,
        )
        for devices in (2, 4)
    )  # fmt: skip
    for name in ("parameters", "optimizer_state"):
        phase: Any = "optimizer"
        assert term_bytes(four, name, phase=phase) == pytest.approx(term_bytes(two, name, phase=phase) / 2, rel=1e-3)
    working = [sum(term_bytes(result, name) for name in ACTIVATIONS) for result in (two, four)]
    assert working[0] == working[1] > 0
    assert term_bytes(two, "gathered_parameters") == term_bytes(four, "gathered_parameters") > 0
    # Never the 0.77 GB of an estimate that knows sharded states alone.
    assert four.peak_memory_bytes.device > 13 * GB


# Parameter, gradient and optimizer bytes of one parameter without sharding: ZeRO's 2 + 2 + 12 (arXiv 1910.02054) under
# DeepSpeed, whose optimizer has a copy in fp32 training too; the gradient in fp32 as Megatron keeps it in bf16.
BYTES_OF_ADAMW = {
    ("megatron", "bf16"): (2, 4, 12),
    ("megatron", "fp32"): (4, 4, 8),
    ("torch", "bf16"): (4, 4, 8),
    ("torch", "fp32"): (4, 4, 8),
    ("deepspeed", "bf16"): (2, 2, 12),
    ("deepspeed", "fp32"): (4, 4, 12),
}


@case(
    "ds5102",
    leaves_out="explain prints the bytes of every state, not the bytes of one parameter",
)
def byte_table_of_every_stage() -> None:
    """Bytes per parameter by number format, optimizer and ZeRO stage 0 to 3, and a source for each table."""
    elements, devices = 6_738_415_616, 8
    for (name, precision), (parameter, gradient, state) in BYTES_OF_ADAMW.items():
        runtime = load_runtime(name)
        assert runtime.sources["precisions"]
        for stage in runtime.zero_stages:
            result = predicted(
                "llama-2-7b", f"{devices}xA100-SXM-80GB", batch=devices, sequence=2048, runtime=runtime,
                precision=precision, zero_stage=stage, micro_batch_size=1,
            )  # fmt: skip
            held = {term.name: term.bytes for term in result.memory[0].terms if term.phase == "optimizer"}
            shards = {
                "optimizer_state": devices if stage >= 1 else 1,
                # FSDP2 keeps its fp32 parameters, the master copy, sharded from stage 1 on.
                "parameters": devices if stage >= (1 if runtime.sharding == "fsdp2" else 3) else 1,
            }
            assert held["optimizer_state"] == pytest.approx(state * elements / shards["optimizer_state"], rel=2e-3)
            assert held["parameters"] == pytest.approx(parameter * elements / shards["parameters"], rel=2e-3)
            assert held["gradients"] <= 1.001 * gradient * elements


@case("ds1445")
def peaks_of_phases_are_apart() -> None:
    """Initialisation, step and optimizer are counted apart, and the peak says which one it is (BERT-Large's shape)."""
    result = predicted(
        "gpt2-medium", "2xV100-SXM-16GB", batch=2, sequence=512, runtime="deepspeed", precision="fp16",
        attention="unfused", recompute="full", zero_stage=3, micro_batch_size=1,
    )  # fmt: skip
    phases = {
        phase: sum(term.bytes for term in result.memory[0].terms if term.phase == phase)
        for phase in ("init", "forward_backward", "optimizer")
    }
    assert all(phases.values())
    assert len(set(phases.values())) == 3
    assert max(phases, key=phases.__getitem__) == result.peak_phase
    assert result.peak_memory_bytes.allocated == max(phases.values())


@case("ds4132")
def the_optimizer_step_has_temporaries() -> None:
    """Megatron's step over fp16 gradients copies them to fp32; the phase is counted by itself."""
    stated: dict[str, Any] = {
        "batch": 8, "sequence": 2048, "runtime": "megatron", "recompute": "full", "micro_batch_size": 1,
    }  # fmt: skip
    result = predicted("megatron-gpt-1.7b", "8xV100-SXM-32GB", precision="fp16", attention="unfused", **stated)
    assert term_bytes(result, "optimizer_temporaries", phase="optimizer") >= 4 * 1.652e9


@case("mlm299")
def a_tied_embedding_is_on_both_ends() -> None:
    """First and last stage both hold V h / t parameters, gradients and optimizer state of a tied table."""
    model = gpt("gpt", layers=8, hidden=1024, heads=16, vocab=51200)
    stated: dict[str, Any] = {
        "batch": 8, "sequence": 512, "runtime": "megatron", "tensor_parallel_size": 2, "pipeline_parallel_size": 4,
        "micro_batch_size": 1,
    }  # fmt: skip
    result = predicted(model, "8xA100-SXM-80GB", **stated)
    table = 51200 * 1024 // 2
    norm, positions = 2 * 1024, 2048 * 1024
    for name, size in (("parameters", 2), ("gradients", 4), ("optimizer_state", 12)):
        inner = term_bytes(result, name, rank=1, phase="optimizer")
        assert term_bytes(result, name, rank=0, phase="optimizer") - inner == size * (table + positions)
        assert term_bytes(result, name, rank=3, phase="optimizer") - inner == size * (table + norm)
    # Both ends sum their gradients of the table, in fp32: a ring of two sends its size once.
    (tied,) = [traffic for traffic in result.communication if (traffic.axis, traffic.op) == ("pp", "all_reduce")]
    assert tied.bytes_per_rank == 4 * table


def _tied_pipeline(runtime: str) -> Recommendation | Infeasible:
    fixed = {"pipeline_parallel_size": 4, "micro_batch_size": 1}
    cluster = "8xA100-SXM-80GB"
    return plan("qwen3-0.6b", cluster, runtime=runtime, fix=fixed, global_batch_size=16, sequence_length=2048)


@case("olmo686", part="megatron")
def tied_embeddings_in_megatron_pipelines() -> None:
    """Megatron ties over the two ends of a pipeline and sums both gradients."""
    answer = _tied_pipeline("megatron")
    assert not isinstance(answer, Infeasible)
    assert answer.best.estimate is not None
    assert ("pp", "all_reduce") in {(traffic.axis, traffic.op) for traffic in answer.best.estimate.communication}


@case("olmo686", part="torchtitan")
def tied_embeddings_in_torchtitan_pipelines() -> None:
    """torchtitan refuses to tie weights over pipeline stages."""
    with pytest.raises(InputError, match="tie"):
        _tied_pipeline("torchtitan")


def _long(devices: int, tokens: int) -> dict[str, int]:
    result = predicted(
        LLAMA_1B, f"{devices}xA40" if devices > 1 else "A40", batch=devices, sequence=tokens, recompute="full",
        zero_stage=3 if devices > 1 else 0, micro_batch_size=1,
    )  # fmt: skip
    return {name: term_bytes(result, name) for name in ACTIVATIONS}


@case("cookbook785", part="terms")
def sharding_does_not_lengthen_sequences() -> None:
    """Activations and fp32 logits of a sequence do not shrink with FSDP."""
    for tokens in (6000, 50000):
        terms = [_long(devices, tokens) for devices in (1, 2, 8)]
        assert terms[0] == terms[1] == terms[2]
        assert terms[0]["logits"] >= 4 * tokens * 128256


@case("cookbook785", part="advice")
def cutting_the_sequence_makes_it_fit() -> None:
    """50,000 tokens do not fit under FSDP alone, whatever else is recomputed; 8 devices that share a sequence hold it.

    The loop casts all logits to fp32, as torchtitan's did in 2024.
    """
    loop = torchtitan_of_2024()
    stated = {"global_batch_size": 8, "sequence_length": 50000, "runtime": loop}
    fixed = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    assert isinstance(plan(LLAMA_1B, "8xA40", fix={**fixed, "context_parallel_size": 1}, **stated), Infeasible)
    found = plan(LLAMA_1B, "8xA40", fix=fixed, **stated)
    assert not isinstance(found, Infeasible)
    assert found.best.parallel.context_parallel_size > 1
    shared = predicted(
        LLAMA_1B, "8xA40", batch=8, sequence=50000, runtime=loop, recompute="full", zero_stage=3,
        data_parallel_replicate_size=1, data_parallel_shard_size=1, micro_batch_size=1, context_parallel_size=8,
        context_parallel_method="all_gather",
    )  # fmt: skip
    assert shared.fits
    assert term_bytes(shared, "logits") * 8 == pytest.approx(_long(8, 50000)["logits"], rel=1e-6)


def _logits_of_8b() -> Plan:
    return made(
        "llama-3-8b", "8xA100-SXM-80GB", batch=8, sequence=8192, recompute="full", zero_stage=3, micro_batch_size=1
    )


@case(
    "longva19",
    part="logits",
    leaves_out="the 2 bytes of the bf16 logits: runtime torch frees them once they are cast to fp32, as measured peaks show "
    "(benchmarks/data/torch_peak_memory.jsonl); they live on only where a loop keeps them",
)
def logits_of_a_large_vocabulary() -> None:
    """fp32 logits and their log-probabilities are 4 + 4 bytes a token and word."""
    result = estimate(_logits_of_8b(), ignore_memory=True)
    assert 8 <= term_bytes(result, "logits") / (8192 * 128256) <= 10


@case(
    "longva19",
    part="chunks",
    leaves_out="runtime torch, whose executor has no chunked loss and whose rules say so: FSDP around the user's own model has; "
    "the 8 GB and 45% themselves, since the report names neither device nor sequence length",
)
def a_chunked_loss() -> None:
    """A loss over chunks of the sequence needs a part of the logits (43 GB became 8) and utilisation (57% became 45)."""
    stated: dict[str, Any] = {
        "batch": 8, "sequence": 8192, "recompute": "full", "zero_stage": 3, "micro_batch_size": 1, "runtime": "unknown",
    }  # fmt: skip
    whole, chunked = (predicted("llama-3-8b", "8xA100-SXM-80GB", **stated, loss_chunks=chunks) for chunks in (1, 8))
    logits = 8192 * 128256 * 4
    assert term_bytes(whole, "logits") == 2 * logits  # beside as many log-probabilities among the activations
    assert term_bytes(chunked, "logits") in (0, 3 * logits // 8)  # 0: the peak is no longer the loss's
    assert chunked.peak_memory_bytes.allocated <= whole.peak_memory_bytes.allocated - 1.5 * logits
    assert 0.75 < chunked.model_flops_utilization / whole.model_flops_utilization < 1
    with pytest.raises(InputError, match="runtime torch does not compute the loss in chunks"):
        made("llama-3-8b", "8xA100-SXM-80GB", **{**stated, "runtime": "torch"}, loss_chunks=8)


@case(
    "bridge3107",
    leaves_out="the 30-60% of runs that failed: which run of a borderline plan fails is not predicted",
)
def borderline_plans_say_so() -> None:
    """More chunks need less memory; a plan above 92% is called borderline and a safer one is offered."""
    stated: dict[str, Any] = {
        "batch": 128, "sequence": 4096, "runtime": "megatron", "recompute": "core_attention", "tensor_parallel_size": 4,
        "pipeline_parallel_size": 4, "sequence_parallel": True, "loss_parallel": True, "zero_stage": 1,
        "micro_batch_size": 1,
    }  # fmt: skip
    five, ten = (predicted("llama-3-70b", "4x8xH100-SXM", num_model_chunks=v, **stated) for v in (5, 10))
    assert term_bytes(ten, "activations") < term_bytes(five, "activations")
    fixed = {"tensor_parallel_size": 4, "pipeline_parallel_size": 4, "zero_stage": 1, "micro_batch_size": 1}
    shares = []
    for tokens in (3072, 3328, 3584, 3840):
        answer = plan(
            "llama-3-70b", "4x8xH100-SXM", global_batch_size=128, sequence_length=tokens, runtime="megatron",
            fix=fixed, allow={"num_model_chunks": [5, 10]},
        )  # fmt: skip
        assert not isinstance(answer, Infeasible)
        found = answer.best.estimate
        assert found is not None
        share = found.peak_memory_bytes.device / found.memory_capacity_bytes
        told = [warning for warning in answer.warnings if "borderline" in warning]
        assert bool(told) == (share > 0.92)
        assert all("safer: " in warning for warning in told)
        shares.append(share)
    assert max(shares) > 0.92, "no plan is borderline: nothing was checked"
