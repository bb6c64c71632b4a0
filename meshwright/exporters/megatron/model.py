"""The model in Megatron-LM's arguments, both ways.

A table of `ModelSpec` fields beside arguments cannot say all: a padded vocabulary is ``--make-vocab-size-divisible-by`` times the
tensor-parallel size, rotary positions have a base and perhaps llama3's scaling, and biases come all together or not at all.
"""

from __future__ import annotations

from typing import Any

from costmodel.specs import InputError, ModelSpec, Plan, Rejection
from hardware_profiles.errors import show_value
from meshwright.exporters.imported import ModelFact

_VOCABULARY_MULTIPLE = 128
# Our name of a fact -> argument, where the value is a number that stands behind it.
_NUMBERS = {
    "num_hidden_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "intermediate_size": "--ffn-hidden-size",
    "head_dim": "--kv-channels",
    "vocab_size": "--vocab-size",
}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


def model_arguments(plan: Plan) -> list[list[str]]:
    """The arguments of the model, one group a line of the script; `reject_model` said nothing against it."""
    model, first = plan.model, plan.model.layers[0]
    attention, feed_forward = first.attention, first.feed_forward
    lines = [[argument, str(_number(model, name))] for name, argument in _NUMBERS.items()]
    if attention.num_key_value_heads != attention.num_attention_heads:
        lines.append(["--group-query-attention", "--num-query-groups", str(attention.num_key_value_heads)])
    lines.append(["--make-vocab-size-divisible-by", str(_divisor(plan))])
    lines.append(["--normalization", _NORMS[model.norm], "--norm-epsilon", repr(_epsilon(model))])
    lines.append(_positions(plan))
    if feed_forward.gated:
        lines.append(["--swiglu"])
    if not _has_biases(model):
        lines.append(["--disable-bias-linear", *(["--add-qkv-bias"] if attention.qkv_bias else [])])
    if attention.qk_norm:
        lines.append(["--qk-layernorm"])
    if attention.window is not None:
        lines.append(["--window-size", f"{attention.window},0"])
    if not model.tie_word_embeddings:
        lines.append(["--untie-embeddings-and-output-weights"])
    lines.append(["--attention-dropout", "0.0", "--hidden-dropout", "0.0"])
    return lines


def _number(model: ModelSpec, name: str) -> int:
    first = model.layers[0]
    holder = next(part for part in (model, first.attention, first.feed_forward) if hasattr(part, name))
    value: int = getattr(holder, name)
    return value


def _divisor(plan: Plan) -> int:
    """The smallest multiple, 128 if it serves, that pads the vocabulary to the plan's table on every tensor-parallel rank."""
    rows, vocabulary, tensor = plan.model.padded_vocab_size, plan.model.vocab_size, plan.parallel.tensor_parallel_size
    shard = rows // tensor
    multiples: list[int] = [_VOCABULARY_MULTIPLE, *range(1, shard + 1)]
    return next(multiple for multiple in multiples if _padded(vocabulary, multiple * tensor) == rows)


def _padded(vocabulary: int, multiple: int) -> int:
    return -(-vocabulary // multiple) * multiple


def _epsilon(model: ModelSpec) -> float:
    config = model.hf_config
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    found = next((config[name] for name in names if isinstance(config.get(name), int | float)), 1e-5)
    assert isinstance(found, int | float)
    return float(found)


def _positions(plan: Plan) -> list[str]:
    model, length = plan.model, plan.training.sequence_length
    longest = ["--max-position-embeddings", str(max(model.max_position_embeddings, length))]
    if model.learned_position_embeddings:
        return ["--position-embedding-type", "learned_absolute", *longest]
    base, scaling = rotary(model)
    words = ["--position-embedding-type", "rope", "--rotary-base", str(round(base)), *longest]
    if (share := model.layers[0].attention.partial_rotary_factor) != 1:
        words += ["--rotary-percent", str(share)]
    if scaling is not None:
        words += ["--use-rope-scaling", "--rope-scaling-factor", str(float(scaling["factor"]))]
    return words


def rotary(model: ModelSpec) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of rotary positions as the config states them, in its old spelling or the new."""
    config = model.hf_config
    parameters = config.get("rope_parameters") or {}
    assert isinstance(parameters, dict)
    scaling = config.get("rope_scaling") or parameters
    base = config.get("rope_theta", parameters.get("rope_theta", 10000.0))
    assert isinstance(scaling, dict)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return float(base) if isinstance(base, int | float) else 10000.0, None if kind == "default" else dict(scaling)


def _has_biases(model: ModelSpec) -> bool:
    first = model.layers[0]
    return first.attention.qkv_bias and first.attention.output_bias and first.feed_forward.bias


def reject_model(plan: Plan) -> Rejection | None:
    """What of the model no argument says, or None."""
    model = plan.model
    first = model.layers[0]
    attention, feed_forward = first.attention, first.feed_forward
    base, scaling = rotary(model)
    kinds = {(group.attention, group.feed_forward) for group in model.layers}
    partial = (attention.output_bias or feed_forward.bias) and not _has_biases(model)
    llama3 = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    reasons = {
        "layers": len(kinds) > 1 and "its layers are of more than one kind",
        "bias": partial and "some of its projections have biases and others not",
        "activation": _activation(feed_forward.gated, feed_forward.activation),
        "vocabulary": model.padded_vocab_size % plan.parallel.tensor_parallel_size != 0
        and f"its table of {model.padded_vocab_size} rows is no multiple of the tensor-parallel size",
        "rope_scaling": scaling is not None
        and (scaling.get("rope_type", scaling.get("type")) != "llama3" or not llama3 <= set(scaling))
        and f"its rotary positions are scaled by {scaling.get('rope_type', scaling.get('type'))}",
        "rotary_base": base != round(base) and f"the base of its rotary positions is {base}, no whole number",
        "parallel_residual": model.use_parallel_residual and "attention and feed-forward are added up side by side",
        "softcapping": (attention.attn_logit_softcapping or model.final_logit_softcapping) and "its scores are capped",
    }
    for name, reason in reasons.items():
        if reason:
            return Rejection(
                rule=f"export_megatron_{name}",
                message=f"--to megatron cannot express the model {model.name}: {reason}",
                numbers={"model": model.name},
                fix="export to another target",
            )
    return None


def _activation(gated: bool, activation: str) -> str | bool:
    known = ("silu", "swish") if gated else ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
    return activation not in known and f"its activation is {activation}; known: {', '.join(known)}"


def model_facts(values: dict[str, list[str]]) -> tuple[ModelFact, ...]:
    """What the arguments say of the model.

    Args:
        values: argument -> its values.

    Raises:
        InputError: when a size is no whole number.
    """
    facts = [
        ModelFact(key=argument, name=name, value=whole(argument, values))
        for name, argument in _NUMBERS.items()
        if argument in values
    ]
    if "--num-attention-heads" in values:
        grouped = "--group-query-attention" in values
        key = "--num-query-groups" if grouped else "--num-attention-heads"
        heads = whole(key, values) if key in values else 1
        facts.append(ModelFact(key=key, name="num_key_value_heads", value=heads))
    if "--num-layers" in values:  # the file is of a whole model, so what it leaves out says something too
        facts.append(ModelFact(key="--swiglu", name="gated", value="--swiglu" in values))
        tied = "--untie-embeddings-and-output-weights" not in values
        facts.append(ModelFact(key="--untie-embeddings-and-output-weights", name="tie_word_embeddings", value=tied))
        norm = values.get("--normalization", ["LayerNorm"])[0]
        ours = next((name for name, theirs in _NORMS.items() if theirs == norm), norm)
        facts.append(ModelFact(key="--normalization", name="norm", value=ours))
    return tuple(facts)


def whole(argument: str, values: dict[str, list[str]], lowest: int = 1) -> int:
    """The whole number behind an argument.

    Raises:
        InputError: when there is none.
    """
    text = values[argument][0] if values[argument] else ""
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or int(text) < lowest:
        raise InputError(f"{argument} is {show_value(text)}; needed a whole number of at least {lowest}")
    return int(text)
