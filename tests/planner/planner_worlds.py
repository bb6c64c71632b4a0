"""Small, complete inputs for planner tests: models by dimensions, clusters by numbers."""

from __future__ import annotations

from typing import Any

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import (
    AttentionSpec,
    ClusterSpec,
    DeviceSpec,
    FeedForwardSpec,
    GemmCurve,
    HostSpec,
    Infeasible,
    LayerGroup,
    LevelSpec,
    LinkSpec,
    ModelSpec,
    OptimizerSpec,
    Recommendation,
    RuntimeProfile,
    TrainingSpec,
)
from planner.candidates import sift
from planner.inquiry import Inquiry
from planner.search import search
from planner.space import Space, declare_space

GIB = 2**30


def make_model(
    *,
    layers: int = 4,
    hidden: int = 256,
    heads: int = 8,
    key_values: int = 4,
    feed_forward: int = 768,
    vocab: int = 1024,
) -> ModelSpec:
    return ModelSpec(
        name=f"llama-{layers}x{hidden}",
        family="llama",
        model_type="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        padded_vocab_size=vocab,
        max_position_embeddings=4096,
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=False,
        layers=(
            LayerGroup(
                count=layers,
                attention=AttentionSpec(
                    num_attention_heads=heads, num_key_value_heads=key_values, head_dim=hidden // heads
                ),
                feed_forward=FeedForwardSpec(gated=True, intermediate_size=feed_forward, activation="silu"),
            ),
        ),
        hf_config={"model_type": "llama"},
    )


def make_link(name: str, rate: float, latency: float = 1e-5) -> LinkSpec:
    return LinkSpec(name=name, nominal_bytes_per_second=rate, efficiency=0.8, latency_seconds=latency)


def make_cluster(
    *,
    nodes: int = 1,
    per_node: int = 8,
    memory_bytes: int = 80 * GIB,
    inside: float = 200e9,
    between: float = 25e9,
    latency: float = 1e-5,
    flops: float = 300e12,
) -> ClusterSpec:
    device = DeviceSpec(
        name="TestGPU",
        kind="cuda",
        vendor="test",
        architecture="test",
        peak_flops_per_second={"bf16": flops, "fp16": flops, "fp32": flops / 2},
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_second=2e12,
        memory_fraction=0.8,
        gemm=GemmCurve(max_fraction=0.8, half_flops=1e9),
        attention_fraction=0.5,
        launch_seconds=5e-6,
    )
    levels = [LevelSpec(name="node", size=per_node, link=make_link("inside", inside, latency))]
    if nodes > 1:
        levels.append(
            LevelSpec(name="cluster", size=nodes, link=make_link("between", between, latency), ports=per_node)
        )
    return ClusterSpec(
        name=f"{nodes}x{per_node}xTestGPU",
        device=device,
        levels=tuple(levels),
        host=HostSpec(
            memory_bytes=10**12,
            memory_bandwidth_bytes_per_second=2e11,
            flops_per_second=3e12,
            cores=64,
            pcie=make_link("pcie", 25e9),
        ),
    )


def make_training(
    runtime: RuntimeProfile | None = None, *, batch: int = 16, sequence: int = 512, precision: str = "bf16"
) -> TrainingSpec:
    profile = runtime or load_runtime("torch")
    return TrainingSpec(
        global_batch_size=batch,
        sequence_length=sequence,
        precision=profile.precisions[precision],
        optimizer=OptimizerSpec(),
    )


def plan_space(
    *,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    batch: int = 16,
    sequence: int = 512,
    runtime: str = "torch",
    fix: dict[str, str] | None = None,
    allow: dict[str, str] | None = None,
) -> Space:
    """A declared space over small inputs."""
    profile = load_runtime(runtime)
    training = make_training(profile, batch=batch, sequence=sequence)
    return declare_space(model or make_model(), cluster or make_cluster(), training, profile, fix=fix, allow=allow)


def ask(
    *,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    batch: int = 16,
    sequence: int = 512,
    runtime: str = "torch",
    **stated: Any,
) -> Inquiry:
    """A question over small inputs; ``stated``: the other fields of an Inquiry."""
    profile = load_runtime(runtime)
    training = make_training(profile, batch=batch, sequence=sequence)
    place = cluster or make_cluster()
    return Inquiry(model=model or make_model(), cluster=place, training=training, runtime=profile, **stated)


def answer(space: Space, **options: Any) -> Recommendation | Infeasible:
    """Search a space."""
    context = space.context
    return search(context.model, context.cluster, context.training, context.runtime, space, **options)


def holds_plan(space: Space) -> bool:
    """Whether a search finds a plan that fits; spaces in which nothing can are not searched, to save the advice."""
    return bool(sift(space).fits.any()) and isinstance(answer(space), Recommendation)


def recommend(space: Space, **options: Any) -> Recommendation:
    """Search a space that holds a plan that fits."""
    found = answer(space, **options)
    assert isinstance(found, Recommendation)
    return found
