"""Small, complete inputs for step-time tests: models by dimensions, clusters by numbers."""

from __future__ import annotations

from typing import Any

from costmodel.build import build_plan
from costmodel.runtimes.grid import Grid, RecomputeKind
from costmodel.runtimes.loader import load_runtime
from costmodel.setting import Problem, Setting, plan_contents, prepare
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
    RuntimeProfile,
    TrainingSpec,
)


def gpt(*, layers: int = 8, hidden: int = 1024, heads: int = 16, vocab: int = 51200, tied: bool = True) -> ModelSpec:
    attention = AttentionSpec(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        qkv_bias=True,
        output_bias=True,
    )
    feed_forward = FeedForwardSpec(gated=False, intermediate_size=4 * hidden, activation="gelu", bias=True)
    return ModelSpec(
        name=f"gpt-{layers}x{hidden}",
        family="gpt",
        model_type="gpt2",
        hidden_size=hidden,
        vocab_size=vocab,
        padded_vocab_size=vocab,
        max_position_embeddings=4096,
        learned_position_embeddings=True,
        norm="layernorm",
        tie_word_embeddings=tied,
        layers=(LayerGroup(count=layers, attention=attention, feed_forward=feed_forward),),
        hf_config={"model_type": "gpt2"},
    )


def llama(
    *, layers: int = 8, hidden: int = 1024, heads: int = 16, kv: int = 4, vocab: int = 32000, window: int | None = None
) -> ModelSpec:
    attention = AttentionSpec(
        num_attention_heads=heads, num_key_value_heads=kv, head_dim=hidden // heads, window=window
    )
    feed_forward = FeedForwardSpec(gated=True, intermediate_size=3 * hidden, activation="silu")
    return gpt(layers=layers, hidden=hidden, heads=heads, vocab=vocab, tied=False).model_copy(
        update={
            "name": f"llama-{layers}x{hidden}",
            "family": "llama",
            "model_type": "llama",
            "learned_position_embeddings": False,
            "norm": "rmsnorm",
            "layers": (LayerGroup(count=layers, attention=attention, feed_forward=feed_forward),),
        }
    )


def link(rate: float, *, latency: float = 0.0, measured: float | None = None) -> LinkSpec:
    return LinkSpec(
        name=f"link-{rate:.0f}",
        nominal_bytes_per_second=rate,
        measured_bytes_per_second=measured,
        efficiency=1.0,
        latency_seconds=latency,
    )


def device(*, kind: str = "cuda", peak: float = 1e14, bandwidth: float = 1e12, launch: float = 0.0) -> DeviceSpec:
    return DeviceSpec.model_validate(
        {
            "name": "test-device",
            "kind": kind,
            "vendor": "test",
            "architecture": "test",
            "peak_flops_per_second": {"fp64": peak / 4, "fp32": peak / 2, "bf16": peak, "fp16": peak},
            "memory_bytes": 80 * 2**30,
            "memory_bandwidth_bytes_per_second": bandwidth,
            "memory_fraction": 1.0,
            "gemm": GemmCurve(max_fraction=1.0, half_flops=0.0),
            "attention_fraction": 0.5,
            "launch_seconds": launch,
        }
    )


def cluster(
    *,
    nodes: int = 4,
    per_node: int = 8,
    inside: float = 1e11,
    across: float = 1e10,
    ports: int | None = None,
    latency: float = 1e-5,
    of: DeviceSpec | None = None,
) -> ClusterSpec:
    inner = LevelSpec(name="node", size=per_node, link=link(inside, latency=latency))
    outer = LevelSpec(name="cluster", size=nodes, link=link(across, latency=latency), ports=ports or per_node)
    host = HostSpec(
        memory_bytes=2**40,
        memory_bandwidth_bytes_per_second=1e11,
        flops_per_second=1e12,
        cores=64,
        pcie=link(3e10),
    )
    levels = (inner, outer) if nodes > 1 else (inner,)
    return ClusterSpec(name="test-cluster", device=of or device(), levels=levels, host=host)


def training(
    runtime: RuntimeProfile, *, batch: int, length: int = 1024, precision: str = "bf16", **more: Any
) -> TrainingSpec:
    return TrainingSpec(
        global_batch_size=batch, sequence_length=length, precision=runtime.precisions[precision], **more
    )


def world(
    *,
    runtime: str = "megatron",
    model: ModelSpec | None = None,
    machine: ClusterSpec | None = None,
    recompute: RecomputeKind = "none",
    layers_per_stage: tuple[int, ...] | None = None,
    length: int = 1024,
    precision: str = "bf16",
    attention: str = "fused",
    clip: bool = True,
    **sizes: Any,
) -> tuple[Plan, RuntimeProfile]:
    """A plan from its sizes; the global batch follows from them."""
    profile = load_runtime(runtime)
    parallel = ParallelConfig(**sizes)
    batch = parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size
    optimizer = OptimizerSpec(max_grad_norm=1.0 if clip else None)
    spec = training(
        profile,
        batch=batch,
        length=length,
        precision=precision,
        attention_implementation=attention,
        optimizer=optimizer,
    )
    plan = build_plan(
        model or gpt(),
        machine or cluster(),
        spec,
        profile,
        parallel,
        recompute=recompute,
        layers_per_stage=layers_per_stage,
    )
    return plan, profile


def setting(plan: Plan, runtime: RuntimeProfile) -> Setting:
    """What step time prepares for one plan."""
    problem = Problem(model=plan.model, cluster=plan.cluster, training=plan.training, runtime=runtime)
    return prepare(problem, Grid.from_plan(plan), plan_contents(plan.model, plan.stages))


def with_constants(runtime: RuntimeProfile, **values: float) -> RuntimeProfile:
    """The profile with other stack costs."""
    constants = dict(runtime.constants)
    for name, value in values.items():
        constants[name] = constants[name].model_copy(update={"value": value})
    return runtime.model_copy(update={"constants": constants})
