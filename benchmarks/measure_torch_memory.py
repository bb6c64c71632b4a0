"""Measure the peak of live tensors of small runs on this machine's CPU, for the memory model's test.

Runs every case with the executor and writes `benchmarks/data/torch_peak_memory.jsonl`; takes some minutes and up to four
processes. Storages are counted, so the figures do not depend on the machine.

Usage: python benchmarks/measure_torch_memory.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from costmodel.build import build_plan
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Observation, ParallelConfig, Plan, TrainingSpec
from executor.launch import run
from hardware_profiles.loader import load_cluster

OUTPUT = Path(__file__).parent / "data" / "torch_peak_memory.jsonl"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 259,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 8,
    "n_positions": 256,
    "vocab_size": 259,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 6,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 16}
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 259,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GATED = {**SIZES, "intermediate_size": 176, "num_key_value_heads": 4}
MODELS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "qwen3": QWEN3,
    "mistral": MISTRAL,
    "gemma2": {
        **GATED,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 8,
        "sliding_window": 64,
    },
    "phi3": {**GATED, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},
    "gpt_neox": {
        **SIZES,
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "intermediate_size": 256,
    },
    "opt": {**SIZES, "model_type": "opt", "architectures": ["OPTForCausalLM"], "ffn_dim": 256},
}

TP = {"tensor_parallel_size": 2}
TP_SP = {**TP, "sequence_parallel": True, "loss_parallel": True}
PP = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "num_micro_batches": 4}
GPIPE = {**PP, "pipeline_schedule": "gpipe"}
LOOPED_BFS = {**PP, "pipeline_schedule": "looped_bfs", "num_model_chunks": 2}
ZERO_BUBBLE = {**PP, "pipeline_schedule": "interleaved_zero_bubble", "num_model_chunks": 2}
ZBV = {**PP, "pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": 2}
DUALPIPE = {**PP, "pipeline_schedule": "dualpipe_v", "num_model_chunks": 2}
INTERLEAVED = {**PP, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}


def zero(stage: int, *, shards: int = 2, micro_batches: int = 2) -> dict[str, Any]:
    """Sizes of a ZeRO plan."""
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "num_micro_batches": micro_batches}


CASES: list[dict[str, Any]] = [
    {"model": "llama"},
    {"model": "llama", "precision": "fp32", "sequence_length": 256, "parallel": {"micro_batch_size": 4}},
    {"model": "gpt2", "sequence_length": 256, "parallel": {"micro_batch_size": 4}},
    {"model": "gpt2", "sequence_length": 256, "recompute": "full", "parallel": {"micro_batch_size": 4}},
    {"model": "llama", "sequence_length": 256, "attention": "unfused", "parallel": {"num_micro_batches": 2}},
    {"model": "llama", "sequence_length": 256, "attention": "unfused", "recompute": "core_attention"},
    {"model": "mistral", "sequence_length": 128, "parallel": {"num_micro_batches": 2}},
    {"model": "llama", "parallel": {"data_parallel_replicate_size": 2, "num_micro_batches": 2}},
    {"model": "gpt2", "precision": "fp32", "parallel": {"data_parallel_replicate_size": 2}},
    {"model": "llama", "parallel": zero(1)},
    {"model": "llama", "parallel": zero(2, micro_batches=1)},
    {"model": "llama", "parallel": zero(3, shards=3)},
    {"model": "llama", "sequence_length": 256, "recompute": "full", "parallel": {**zero(2), "micro_batch_size": 4}},
    {"model": "gpt2", "precision": "fp32", "parallel": zero(3)},
    {"model": "llama", "parallel": {**zero(3, shards=4), "hierarchical_partition_size": 2}},
    {"model": "llama", "parallel": {**zero(3), "data_parallel_replicate_size": 2}},
    {"model": "llama", "sequence_length": 256, "parallel": {**TP_SP, "micro_batch_size": 2}},
    {"model": "gpt2", "sequence_length": 256, "parallel": {**TP_SP, "micro_batch_size": 2, "num_micro_batches": 2}},
    {"model": "llama", "precision": "fp32", "sequence_length": 256, "recompute": "full", "parallel": TP},
    {"model": "llama", "parallel": {**TP, **zero(3)}},
    {"model": "llama", "sequence_length": 256, "parallel": {**PP, "micro_batch_size": 2}},
    {"model": "llama", "sequence_length": 256, "recompute": "full", "parallel": {**GPIPE, "micro_batch_size": 2}},
    {"model": "gpt2", "parallel": GPIPE},
    {"model": "llama", "precision": "fp32", "parallel": {**PP, "pipeline_schedule": "naive", "num_micro_batches": 1}},
    {"model": "llama", "parallel": {**PP, **zero(2), "num_micro_batches": 4}},
    {"model": "llama", "parallel": {**PP, **zero(3), "num_micro_batches": 4}},
    {"model": "qwen3", "sequence_length": 256, "parallel": {**INTERLEAVED, "num_model_chunks": 3}},
    {"model": "llama", "parallel": {**INTERLEAVED, "num_micro_batches": 2}},
    {"model": "llama", "parallel": {**TP_SP, **PP}},
    {"model": "llama", "sequence_length": 256, "parallel": {**LOOPED_BFS, "micro_batch_size": 2}},
    {"model": "llama", "parallel": {**LOOPED_BFS, **zero(3, micro_batches=4)}},
    {"model": "llama", "sequence_length": 256, "parallel": {**ZERO_BUBBLE, "micro_batch_size": 2}},
    {"model": "qwen3", "precision": "fp32", "sequence_length": 256, "parallel": {**ZERO_BUBBLE, "num_model_chunks": 3}},
    {"model": "llama", "sequence_length": 256, "parallel": {**ZBV, "micro_batch_size": 2, "num_micro_batches": 6}},
    {"model": "gpt2", "precision": "fp32", "sequence_length": 256, "parallel": ZBV},
    {"model": "llama", "sequence_length": 256, "recompute": "full", "parallel": {**ZBV, "micro_batch_size": 2}},
    {"model": "llama", "sequence_length": 256, "parallel": {**TP_SP, **ZBV}},
    {"model": "llama", "sequence_length": 256, "parallel": {**DUALPIPE, "micro_batch_size": 2, "num_micro_batches": 6}},
    {"model": "llama", "parallel": {**DUALPIPE, **zero(2, micro_batches=4)}},
    *(
        {"model": name, "sequence_length": 256, **case}
        for name in ("gemma2", "phi3", "gpt_neox", "opt")
        for case in (
            {"recompute": "core_attention", "parallel": {"micro_batch_size": 4}},
            {"recompute": "full", "parallel": {"micro_batch_size": 4}},
            {"parallel": {**zero(2), "micro_batch_size": 4}},
        )
    ),
]


def case_plan(case: dict[str, Any]) -> Plan:
    """The plan of one case; keys that are absent take the first case's values."""
    runtime = load_runtime("torch")
    parallel = ParallelConfig(**case.get("parallel", {}))
    training = TrainingSpec(
        global_batch_size=parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size,
        sequence_length=case.get("sequence_length", 32),
        precision=runtime.precisions[case.get("precision", "bf16")],
        attention_implementation=case.get("attention", "fused"),
    )
    return build_plan(
        build_model(MODELS[case["model"]], name=case["model"]),
        load_cluster(f"{parallel.num_devices}xcpu"),
        training,
        runtime,
        parallel,
        recompute=case.get("recompute", "none"),
    )


def peaks_by_pipeline_rank(plan: Plan, observation: Observation) -> list[int]:
    """The fullest process of every pipeline rank; pp is the outermost axis."""
    ranks_per_stage = plan.num_devices_used // plan.parallel.pipeline_parallel_size
    peaks = [0] * plan.parallel.pipeline_parallel_size
    for peak in observation.peaks:
        stage = peak.rank // ranks_per_stage
        peaks[stage] = max(peaks[stage], peak.tensor_bytes)
    return peaks


def main() -> None:
    """Measure all cases and write the file."""
    lines = []
    for case in CASES:
        plan = case_plan(case)
        peaks = peaks_by_pipeline_rank(plan, run(plan, steps=2, progress=False))
        lines.append(json.dumps({**case, "peak_tensor_bytes": peaks}))
        print(lines[-1], flush=True)
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
