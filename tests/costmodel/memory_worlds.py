"""Models, devices and plans for the memory tests: dimensions and plans, nothing predicted."""

from __future__ import annotations

from typing import Any

from costmodel.build import build_plan
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
    ParallelConfig,
    Plan,
    TrainingSpec,
)
from costmodel.stages import Recomputation

GIB = 2**30


def gpt(*, hidden: int, layers: int, heads: int, vocab: int = 51200, sequence: int = 2048) -> ModelSpec:
    """A Megatron-style GPT: tied embedding, biases, four times wider feed-forward."""
    group = LayerGroup(
        count=layers,
        attention=AttentionSpec(
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden // heads,
            qkv_bias=True,
            output_bias=True,
        ),
        feed_forward=FeedForwardSpec(gated=False, intermediate_size=4 * hidden, activation="gelu", bias=True),
    )
    return ModelSpec(
        name="gpt",
        family="gpt",
        model_type="gpt2",
        hidden_size=hidden,
        vocab_size=vocab,
        padded_vocab_size=vocab,
        max_position_embeddings=sequence,
        learned_position_embeddings=True,
        norm="layernorm",
        tie_word_embeddings=True,
        layers=(group,),
        hf_config={},
    )


def llama(
    *,
    hidden: int = 64,
    layers: int = 6,
    heads: int = 8,
    key_heads: int = 4,
    width: int = 176,
    vocab: int = 131,
    tied: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    """A llama; the default is small with sizes that do not divide evenly."""
    group = LayerGroup(
        count=layers,
        attention=AttentionSpec(
            num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=hidden // heads, qk_norm=qk_norm
        ),
        feed_forward=FeedForwardSpec(gated=True, intermediate_size=width, activation="silu"),
    )
    return ModelSpec(
        name="llama",
        family="llama",
        model_type="qwen3" if qk_norm else "llama",
        hidden_size=hidden,
        vocab_size=vocab,
        padded_vocab_size=vocab,
        max_position_embeddings=8192,
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=tied,
        layers=(group,),
        hf_config={},
    )


def cluster(kind: str = "cuda", *, memory_bytes: int = 80 * GIB) -> ClusterSpec:
    """One node with made-up rates; memory only reads the device's kind."""
    link = LinkSpec(name="link", nominal_bytes_per_second=1e11, efficiency=0.8, latency_seconds=1e-6)
    device = DeviceSpec.model_validate(
        {
            "name": "device",
            "kind": kind,
            "vendor": "none",
            "architecture": "none",
            "peak_flops_per_second": {"fp64": 1e12, "fp32": 1e12, "bf16": 1e12, "fp16": 1e12},
            "memory_bytes": memory_bytes,
            "memory_bandwidth_bytes_per_second": 1e12,
            "memory_fraction": 0.8,
            "gemm": GemmCurve(max_fraction=0.8, half_flops=1e9),
            "attention_fraction": 0.5,
            "launch_seconds": 1e-6,
        }
    )
    return ClusterSpec(
        name="node",
        device=device,
        levels=(LevelSpec(name="node", size=8, link=link),),
        host=HostSpec(
            memory_bytes=GIB,
            memory_bandwidth_bytes_per_second=1e11,
            flops_per_second=1e12,
            cores=8,
            pcie=link,
        ),
    )


def make_plan(
    model: ModelSpec,
    *,
    runtime: str = "torch",
    precision: str = "bf16",
    sequence: int = 64,
    recompute: Recomputation = "none",
    layers_per_stage: tuple[int, ...] | None = None,
    device: str = "cuda",
    training: dict[str, Any] | None = None,
    **sizes: Any,
) -> Plan:
    """A plan whose global batch follows from its sizes."""
    profile, parallel = load_runtime(runtime), ParallelConfig(**sizes)
    batch = parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size
    return build_plan(
        model,
        cluster(device),
        TrainingSpec(
            global_batch_size=batch,
            sequence_length=sequence,
            precision=profile.precisions[precision],
            **(training or {}),
        ),
        profile,
        parallel,
        recompute=recompute,
        layers_per_stage=layers_per_stage,
    )
