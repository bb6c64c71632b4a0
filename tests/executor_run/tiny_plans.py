"""Plans small enough to train in a test: a two-layer llama on processes of this machine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from costmodel.build import build_plan
from costmodel.models.loader import load_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import (
    AttentionSpec,
    ClusterSpec,
    DeviceSpec,
    FeedForwardSpec,
    GemmCurve,
    HostSpec,
    LayerGroup,
    LevelSpec,
    LinkSpec,
    ModelSpec,
    OptimizerSpec,
    ParallelConfig,
    Plan,
    Precision,
    TrainingSpec,
)

HIDDEN, FEED_FORWARD, LAYERS, VOCABULARY = 16, 24, 2, 256


def tiny_model(**overrides: Any) -> ModelSpec:
    group = LayerGroup(
        count=LAYERS,
        attention=AttentionSpec(num_attention_heads=4, num_key_value_heads=2, head_dim=4),
        feed_forward=FeedForwardSpec(gated=True, intermediate_size=FEED_FORWARD, activation="silu"),
    )
    vocab_size = overrides.get("vocab_size", VOCABULARY)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": vocab_size,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    fields: dict[str, Any] = {
        "name": "llama-test",
        "family": "llama",
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "vocab_size": vocab_size,
        "padded_vocab_size": vocab_size,
        "max_position_embeddings": 64,
        "learned_position_embeddings": False,
        "norm": "rmsnorm",
        "tie_word_embeddings": False,
        "layers": (group,),
        "hf_config": config,
    }
    return ModelSpec(**{**fields, **overrides})


def tiny_gpt2() -> ModelSpec:
    config = {"model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4, "n_positions": 64}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**config, "vocab_size": VOCABULARY, "activation_function": "gelu_new"}))
        return load_model(path)


def num_tiny_parameters() -> int:
    """By hand: embedding and head, and per layer q, k, v, o, gate, up, down and two norms, and the last norm."""
    key_value = 2 * 4
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * key_value + 3 * HIDDEN * FEED_FORWARD + 2 * HIDDEN
    return 2 * VOCABULARY * HIDDEN + LAYERS * layer + HIDDEN


def local_cluster(size: int, **device: Any) -> ClusterSpec:
    link = LinkSpec(name="loopback", nominal_bytes_per_second=1e9, efficiency=1, latency_seconds=1e-4)
    fields: dict[str, Any] = {
        "name": "cpu",
        "kind": "cpu",
        "vendor": "any",
        "architecture": "any",
        "peak_flops_per_second": {"fp32": 1e10, "fp64": 5e9, "bf16": 1e10},
        "memory_bytes": 2**31,
        "memory_bandwidth_bytes_per_second": 1e10,
        "memory_fraction": 1.0,
        "gemm": GemmCurve(max_fraction=1.0, half_flops=0),
        "attention_fraction": 0.5,
        "launch_seconds": 5e-6,
    }
    return ClusterSpec(
        name=f"{size}xcpu",
        device=DeviceSpec(**{**fields, **device}),
        levels=(LevelSpec(name="node", size=size, link=link),),
        host=HostSpec(
            memory_bytes=2**33, memory_bandwidth_bytes_per_second=1e10, flops_per_second=1e11, cores=size, pcie=link
        ),
    )


def tiny_plan(
    *,
    precision: Precision = "fp64",
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    global_batch_size: int = 8,
    sequence_length: int = 16,
    max_grad_norm: float | None = 1.0,
    **sizes: Any,
) -> Plan:
    """A plan for the torch runtime; ``sizes`` are ParallelConfig's, micro_batch_size 1 and as many as the batch needs."""
    runtime = load_runtime("torch")
    micro = sizes.setdefault("micro_batch_size", 1)
    replicas = sizes.get("data_parallel_replicate_size", 1) * sizes.get("data_parallel_shard_size", 1)
    sizes.setdefault("num_micro_batches", global_batch_size // (micro * replicas))
    parallel = ParallelConfig(**sizes)
    training = TrainingSpec(
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        precision=runtime.precisions[precision],
        optimizer=OptimizerSpec(max_grad_norm=max_grad_norm),
    )
    return build_plan(
        model or tiny_model(), cluster or local_cluster(parallel.num_devices), training, runtime, parallel
    )
