"""Whether a ModelSpec is the model that its own ``hf_config`` describes."""

from __future__ import annotations

from typing import Any

from costmodel.models.loader import build_model
from costmodel.specs import InputError, ModelSpec
from hardware_profiles.errors import show_value

_FREE_FIELDS = {"name", "weights_path", "tokenizer_path", "hf_config", "vocab_size", "padded_vocab_size"}


def check_agreement(model: ModelSpec) -> None:
    """Refuse a spec at odds with its ``hf_config``: the one is priced, the other is trained.

    ``vocab_size`` may be smaller than the config's, which then is ``padded_vocab_size``; that may be larger than the config's,
    because runtimes pad it.

    Args:
        model: a spec that somebody changed by hand.

    Raises:
        InputError: with the first field that differs, or what is wrong with ``hf_config``.
    """
    described = build_model(model.hf_config, name=model.name, where="model.hf_config")
    different = _difference(model.model_dump(exclude=_FREE_FIELDS), described.model_dump(exclude=_FREE_FIELDS), "model")
    if different is not None:
        path, found, needed = different
        raise InputError(
            f"{path} is {show_value(found)}, but model.hf_config describes a model with {show_value(needed)}; make the "
            "plan again with the changed config.json as its --model"
        )
    if model.padded_vocab_size < described.padded_vocab_size:
        raise InputError(
            f"model.padded_vocab_size is {model.padded_vocab_size}, but model.hf_config describes a model with "
            f"{described.padded_vocab_size}; needed at least that"
        )
    if model.vocab_size > described.padded_vocab_size:
        raise InputError(
            f"model.vocab_size is {model.vocab_size}; needed at most the {described.padded_vocab_size} of model.hf_config"
        )


def _difference(found: Any, needed: Any, path: str) -> tuple[str, Any, Any] | None:
    """The first place, depth first, where two dumps differ: dotted path, value found, value needed."""
    if found == needed:
        return None
    if isinstance(found, dict) and isinstance(needed, dict):
        pairs = [(key, value, needed.get(key)) for key, value in found.items()]
    elif isinstance(found, tuple) and isinstance(needed, tuple) and len(found) == len(needed):
        pairs = [(str(index), one, other) for index, (one, other) in enumerate(zip(found, needed, strict=True))]
    else:
        return path, found, needed
    inner = (_difference(one, other, f"{path}.{key}") for key, one, other in pairs)
    return next((place for place in inner if place is not None), (path, found, needed))
