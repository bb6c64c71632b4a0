"""Models as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from costmodel.models.loader import CatalogueEntry
from costmodel.models.parameters import (
    ParameterTensor,
    embedding_tensors,
    head_tensors,
    layer_tensors,
    num_parameters,
)
from costmodel.specs import LayerGroup, ModelSpec
from meshwright import units
from meshwright.cli.render.tables import facts, heading, rows


def render_catalogue(console: Console, entries: Sequence[CatalogueEntry]) -> None:
    """Names, kinds and sizes."""
    body = [(entry.name, entry.model_type, f"{entry.num_parameters:,}", ", ".join(entry.aliases)) for entry in entries]
    columns = ("model", "type", "parameters", "also known as")
    shown = 4 if console.width >= 100 else 3  # long hub names would break every row
    rows(console, columns[:shown], [row[:shown] for row in body], left=("model", "type", "also known as"))


def render_model(console: Console, model: ModelSpec) -> None:
    """Shapes and parameter counts."""
    heading(console, model.name, model.model_type)
    padded = f", table padded to {model.padded_vocab_size:,}" if model.padded_vocab_size != model.vocab_size else ""
    positions = "learned" if model.learned_position_embeddings else "rotary"
    facts(
        console,
        [
            ("parameters", f"{num_parameters(model):,} ({units.count(num_parameters(model))})"),
            ("hidden size", f"{model.hidden_size:,}"),
            ("vocabulary", f"{model.vocab_size:,}{padded}"),
            ("positions", f"{model.max_position_embeddings:,}, {positions}"),
            ("norm", model.norm),
            ("head", "tied to the embedding" if model.tie_word_embeddings else "of its own"),
            ("weights", model.weights_path or ""),
            ("tokenizer", model.tokenizer_path or ""),
        ],
    )
    heading(console, "Layers")
    body, index = [], 0
    for group in model.layers:
        body.append((str(group.count), *_layer_cells(group), f"{_count(layer_tensors(model, index)):,}"))
        index += group.count
    rows(console, ("count", "attention", "feed-forward", "parameters each"), body, left=("attention", "feed-forward"))
    heading(console, "Parameters")
    layers = sum(_count(layer_tensors(model, index)) for index in range(model.num_hidden_layers))
    parts = (
        ("embedding", _count(embedding_tensors(model))),
        ("layers", layers),
        ("final norm and head", _count(head_tensors(model))),
    )
    rows(console, ("part", "parameters"), [(name, f"{count:,}") for name, count in parts], left=("part",))


def _layer_cells(group: LayerGroup) -> tuple[str, str]:
    attention, feed_forward = group.attention, group.feed_forward
    heads = f"{attention.num_attention_heads} heads"
    if attention.num_key_value_heads != attention.num_attention_heads:
        heads += f", {attention.num_key_value_heads} kv"
    window = f", window {attention.window}" if attention.window else ""
    gated = "gated " if feed_forward.gated else ""
    return (
        f"{heads} of {attention.head_dim}{window}",
        f"{gated}{feed_forward.activation} {feed_forward.intermediate_size:,}",
    )


def _count(tensors: Sequence[ParameterTensor]) -> int:
    return sum(tensor.num_elements for tensor in tensors)
