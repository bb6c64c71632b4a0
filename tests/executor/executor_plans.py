"""Small models and plans for the executor's tests."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.build import build_plan
from costmodel.models.loader import load_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import (
    AXIS_ORDERS,
    AxisOrder,
    ClusterSpec,
    DeviceSpec,
    GemmCurve,
    HostSpec,
    LevelSpec,
    LinkSpec,
    ModelSpec,
    OptimizerSpec,
    ParallelConfig,
    Plan,
    PrecisionSpec,
    RecomputeSpec,
    TrainingSpec,
    with_hash,
)

_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 64,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "activation_function": "gelu_new",
}
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_WIDE = {**_SIZES, "intermediate_size": 48, "initializer_range": 0.1}
# Caps and scaling far below the published ones, so that they matter for scores and logits of this size.
_GEMMA2 = {
    **_WIDE,
    "model_type": "gemma2",
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "sliding_window": 5,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
_PHI3 = {**_WIDE, "model_type": "phi3", "num_hidden_layers": 5, "num_key_value_heads": 2, "sliding_window": 6}
_NEOX = {**_WIDE, "model_type": "gpt_neox"}
_OPT = {**_SIZES, "model_type": "opt", "ffn_dim": 48, "init_std": 0.1}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": _GEMMA2,
    "gemma2-untied": {**_GEMMA2, "tie_word_embeddings": False, "attention_bias": True},
    "gemma2-uncapped": {**_GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "phi3": _PHI3,
    "phi3-tied": {**_PHI3, "tie_word_embeddings": True, "partial_rotary_factor": 0.5, "sliding_window": None},
    "phi3-longrope": {
        **_PHI3,
        "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.5] * 4},
    },
    "gpt-neox": _NEOX,
    "gpt-neox-sequential": {**_NEOX, "use_parallel_residual": False, "rotary_pct": 0.5},
    "gpt-neox-tied": {**_NEOX, "tie_word_embeddings": True},
    "opt": _OPT,
    "opt-untied-63": {**_OPT, "tie_word_embeddings": False, "vocab_size": 63},
    "opt-gelu": {**_OPT, "activation_function": "gelu"},
    "opt-no-bias": {**_OPT, "enable_bias": False},
    "llama": {**_LLAMA, "model_type": "llama"},
    "llama-tied": {**_LLAMA, "model_type": "llama", "tie_word_embeddings": True},
    "llama-63": {**_LLAMA, "model_type": "llama", "vocab_size": 63},
    "llama-tied-63": {**_LLAMA, "model_type": "llama", "vocab_size": 63, "tie_word_embeddings": True},
    "llama-10-layers": {**_LLAMA, "model_type": "llama", "num_hidden_layers": 10},
    "llama-tied-10-layers": {**_LLAMA, "model_type": "llama", "num_hidden_layers": 10, "tie_word_embeddings": True},
    "llama-mha": {**_LLAMA, "model_type": "llama", "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "mistral-window": {**_LLAMA, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**_LLAMA, "model_type": "qwen2"},
    "qwen2-mixed": {
        **_LLAMA,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 2,
    },
    "qwen3": {**_LLAMA, "model_type": "qwen3", "num_key_value_heads": 4},
    "qwen3-tied": {**_LLAMA, "model_type": "qwen3", "tie_word_embeddings": True},
    "gpt2": _GPT2,
    "gpt2-untied": {**_GPT2, "tie_word_embeddings": False},
    "gpt2-63": {**_GPT2, "vocab_size": 63},
    "megatron-gpt": {
        "model_type": "megatron-gpt",
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "vocab_size": 61,
        "padded_vocab_size": 64,
    },
}
PRECISIONS = {
    "fp64": PrecisionSpec(compute="fp64", parameter="fp64", gradient="fp64", reduce="fp64", state="fp64"),
    "fp32": PrecisionSpec(compute="fp32", parameter="fp32", gradient="fp32", reduce="fp32", state="fp32"),
    "bf16": PrecisionSpec(compute="bf16", parameter="fp32", gradient="fp32", reduce="fp32", state="fp32"),
    "fp16": PrecisionSpec(compute="fp16", parameter="fp32", gradient="fp32", reduce="fp32", state="fp32"),
}


def make_model(name: str, changes: Mapping[str, Any] | None = None) -> ModelSpec:
    """A model of `CONFIGS`, read the way a user's is; ``changes`` replace entries of its config."""
    config = {**CONFIGS[name], **(changes or {})}
    if "n_layer" in config and "num_hidden_layers" in config:
        config["n_layer"] = config.pop("num_hidden_layers")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return load_model(path).model_copy(update={"name": name})


def make_cluster(num_devices: int) -> ClusterSpec:
    """``num_devices`` CPU processes on one host."""
    link = LinkSpec(name="loopback", nominal_bytes_per_second=1e9, efficiency=0.8, latency_seconds=1e-5)
    device = DeviceSpec(
        name="cpu",
        kind="cpu",
        vendor="any",
        architecture="x86",
        peak_flops_per_second={"fp64": 1e10, "fp32": 2e10, "bf16": 2e10, "fp16": 2e10},
        memory_bytes=2**32,
        memory_bandwidth_bytes_per_second=1e10,
        memory_fraction=0.8,
        gemm=GemmCurve(max_fraction=0.9, half_flops=1e6),
        attention_fraction=0.3,
        launch_seconds=1e-6,
    )
    host = HostSpec(
        memory_bytes=2**34,
        memory_bandwidth_bytes_per_second=2e10,
        flops_per_second=1e11,
        cores=2,
        pcie=link,
    )
    return ClusterSpec(
        name=f"{num_devices}xcpu",
        device=device,
        levels=(LevelSpec(name="node", size=num_devices, link=link),),
        host=host,
    )


def make_plan(
    model: str = "llama",
    *,
    precision: str = "fp64",
    batch: int = 8,
    sequence: int = 16,
    optimizer: OptimizerSpec | None = None,
    recompute: Any = "none",
    layers_per_stage: tuple[int, ...] | None = None,
    attention: Any = "fused",
    changes: Mapping[str, Any] | None = None,
    axis_order: AxisOrder = "pipeline_outermost",
    **sizes: Any,
) -> Plan:
    """A plan of runtime torch; ``sizes`` are `ParallelConfig` fields, micro batches fill up the batch."""
    config = ParallelConfig.model_validate(sizes)
    if "num_micro_batches" not in sizes:
        count = batch // (config.micro_batch_size * config.data_parallel_size)
        config = config.model_copy(update={"num_micro_batches": count})
    return build_plan(
        make_model(model, changes),
        make_cluster(config.num_devices),
        TrainingSpec(
            global_batch_size=batch,
            sequence_length=sequence,
            precision=PRECISIONS[precision],
            optimizer=optimizer or OptimizerSpec(learning_rate=1e-2),
            attention_implementation=attention,
            seed=7,
        ),
        load_runtime("torch"),
        config,
        recompute=recompute,
        layers_per_stage=layers_per_stage,
        axis_order=AXIS_ORDERS[axis_order],
    )


def recompute_each(plan: Plan, kinds: tuple[Any, ...]) -> Plan:
    """The plan with another kind of recomputation on every stage, in turn."""
    stages = tuple(
        stage.model_copy(update={"recompute": RecomputeSpec(kind=kinds[index % len(kinds)])})
        for index, stage in enumerate(plan.stages)
    )
    return with_hash(plan.model_copy(update={"stages": stages}))
