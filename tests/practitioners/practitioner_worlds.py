"""Models, clusters and predictions in the words of practitioners' reports."""

from __future__ import annotations

from typing import Any

from costmodel.estimate import estimate
from costmodel.models.loader import build_model
from costmodel.runtimes.grid import RecomputeKind
from costmodel.specs import ClusterSpec, Estimate, ModelSpec, Phase, Plan, RuntimeProfile
from hardware_profiles.overrides import apply_overrides
from meshwright import load_cluster, load_model, load_runtime, make_plan

GIB = 2**30
GB = 1e9


def gpt(name: str, *, layers: int, hidden: int, heads: int, vocab: int = 50304, positions: int = 2048) -> ModelSpec:
    """A GPT with a feed-forward layer of 4 hidden sizes and a tied head."""
    config = {
        "model_type": "megatron-gpt", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": vocab,
        "max_position_embeddings": positions,
    }  # fmt: skip
    return build_model(config, name=name)


def llama(
    name: str, *, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, tied: bool = False
) -> ModelSpec:
    """A model of the llama family."""
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab,
        "tie_word_embeddings": tied, "max_position_embeddings": 131072,
    }  # fmt: skip
    return build_model(config, name=name)


def cluster_of(base: str, **changes: Any) -> ClusterSpec:
    """A named cluster with parts changed as in a cluster file."""
    return apply_overrides({"base": base, **changes}, origin="the report") if changes else load_cluster(base)


def made(
    model: ModelSpec | str,
    cluster: ClusterSpec | str,
    *,
    batch: int,
    sequence: int,
    runtime: RuntimeProfile | str = "torch",
    recompute: RecomputeKind = "none",
    layers: tuple[int, ...] | None = None,
    precision: str | None = None,
    attention: str = "fused",
    loss_chunks: int = 1,
    **sizes: Any,
) -> Plan:
    """A plan with its sizes stated."""
    return make_plan(
        load_model(model),
        load_cluster(cluster),
        global_batch_size=batch,
        sequence_length=sequence,
        sizes=sizes,
        recompute=recompute,
        layers_per_stage=layers,
        runtime=runtime,
        precision=precision,
        attention=attention,
        loss_chunks=loss_chunks,
    )


def predicted(model: ModelSpec | str, cluster: ClusterSpec | str, **stated: Any) -> Estimate:
    """The estimate of a stated plan, whether it fits or not; arguments as in `made`."""
    runtime = stated.get("runtime", "torch")
    profile = runtime if isinstance(runtime, RuntimeProfile) else load_runtime(runtime)
    return estimate(made(model, cluster, **stated), profile, ignore_memory=True)


def term_bytes(result: Estimate, name: str, *, rank: int = 0, phase: Phase = "forward_backward") -> int:
    """Bytes of one memory term of a pipeline rank."""
    return sum(term.bytes for term in result.memory[rank].terms if (term.name, term.phase) == (name, phase))


def torchtitan_of_2024(**changes: Any) -> RuntimeProfile:
    """torchtitan as its page of December 2024 ran it: the layers compiled, the loss not (train.py of that time)."""
    today = load_runtime("torchtitan")
    memory = today.memory.model_copy(update={"loss_bytes": None})
    return today.model_copy(update={"memory": memory, **changes})


def exposed_seconds(result: Estimate, name: str) -> float:
    """Seconds of one part of the step that nothing hides."""
    return sum(term.exposed_seconds for term in result.terms if term.name == name)


def seconds(result: Estimate) -> float:
    """The predicted step time."""
    return result.step_time_seconds.value
