"""Load a model: a catalogue name, a config.json or a folder that holds one. transformers is not needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import JsonValue, ValidationError

from costmodel.models.catalogue import KnownModel, find_model, known_models
from costmodel.models.config_file import read_config
from costmodel.models.config_reader import ConfigReader, show
from costmodel.models.gemma_family import build_gemma2
from costmodel.models.gpt_family import build_gpt2, build_megatron_gpt
from costmodel.models.llama_family import MODEL_TYPES, build_llama_family
from costmodel.models.neox_family import build_gpt_neox
from costmodel.models.opt_family import build_opt
from costmodel.models.parameters import num_parameters
from costmodel.models.phi_family import build_phi3
from costmodel.specs import InputError, ModelSpec, Spec
from hardware_profiles.errors import close_matches, explain_validation_error, show_value

_BUILDERS: dict[str, Callable[..., ModelSpec]] = {
    "gemma2": build_gemma2,
    "gpt2": build_gpt2,
    "gpt_neox": build_gpt_neox,
    "megatron-gpt": build_megatron_gpt,
    "opt": build_opt,
    "phi3": build_phi3,
    **{name: partial(build_llama_family, model_type=name) for name in MODEL_TYPES},
}
# Fields that turn a supported model_type into another model.
_EXPERTS = "mixture-of-experts layers are not supported; give the config.json of a dense model"
_FOREIGN_FIELDS = {
    "quantization_config": "quantised weights are not supported; give the config.json of the unquantised model",
    "per_layer_config": "layers that differ by per_layer_config are not supported",
    "vision_config": "models with a vision tower are not supported; only decoder-only language models are",
    "audio_config": "models with an audio tower are not supported; only decoder-only language models are",
    "num_local_experts": _EXPERTS,
    "num_experts": _EXPERTS,
    "n_routed_experts": _EXPERTS,
    "text_config": "composite models are not supported; give the config.json of the language model alone",
}


class CatalogueEntry(Spec):
    """What ``list_models`` knows of one model."""

    name: str
    aliases: tuple[str, ...]
    source: str
    model_type: str
    num_parameters: int


def list_models() -> tuple[str, ...]:
    """Names of the catalogue, family by family, small to large."""
    return tuple(known_models())


def describe_models() -> tuple[CatalogueEntry, ...]:
    """The catalogue with sources and parameter counts, in the order of `list_models`."""
    return tuple(_describe(known) for known in known_models().values())


def supported_model_types() -> tuple[str, ...]:
    """Values of ``model_type`` that a config.json may have."""
    return tuple(sorted(_BUILDERS))


def load_model(source: str | Path) -> ModelSpec:
    """A model by name or from a file.

    Args:
        source: a name or alias of the catalogue (case does not matter); the path of a config.json; or a folder
            with a config.json, whose ``*.safetensors`` and tokenizer files, if any, are noted in the spec. A name
            wins over a file of the same name (write ``./gpt2``); a hub name with a slash gives way to a folder.

    Raises:
        InputError: when there is no such model, the file cannot be read, or the config.json is not one of a
            supported model.
    """
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"model is {show_value(source)}; needed a catalogue name, a config.json or a folder")
    path = _expand(source)
    if isinstance(source, str) and not ("/" in source and _exists(path)):
        known = find_model(source.strip())
        if known is not None:
            return build_model(known.config, name=known.name, where=f"catalogue model {known.name}")
    if not str(source).strip() or not _exists(path):
        raise InputError(_unknown(source))
    return _load_folder(path) if path.is_dir() else _load_file(path)


def build_model(config: Mapping[str, JsonValue], *, name: str, where: str = "config") -> ModelSpec:
    """The ModelSpec of the fields of a config.json.

    Args:
        config: the fields.
        name: the name the model gets.
        where: what the fields were read from, for messages.

    Raises:
        InputError: when the model is not supported or a field is missing, wrong or at odds with another one.
    """
    reader = ConfigReader(config, where)
    supported = ", ".join(supported_model_types())
    if "model_type" not in config:
        fields = ", ".join(sorted(config)) or "none"
        raise InputError(f"{where} lacks the field 'model_type' (supported: {supported}); fields found: {fields}")
    model_type = config["model_type"]
    if not isinstance(model_type, str) or model_type not in _BUILDERS:
        raise InputError(f"{where}: model_type {show(model_type)} is not supported; supported: {supported}")
    for field, reason in _FOREIGN_FIELDS.items():
        if config.get(field) not in (None, 0):
            raise InputError(f"{where}: {field} is set: {reason}; supported: {supported}")
    if config.get("is_encoder_decoder"):
        raise InputError(f"{where}: is_encoder_decoder is set: only decoder-only models are supported: {supported}")
    try:
        return _BUILDERS[model_type](reader, name=name)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, where, ModelSpec)) from error


def _load_file(path: Path) -> ModelSpec:
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    return build_model(read_config(path), name=stem or "model", where=str(path))


def _load_folder(folder: Path) -> ModelSpec:
    try:
        files = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error
    if "config.json" not in files:
        shown = ", ".join(files[:10]) or "nothing"
        raise InputError(f"the folder {folder} has no config.json; found: {shown}{', ...' if len(files) > 10 else ''}")
    model = _load_file(folder / "config.json")
    here = str(folder.resolve())
    has_weights = any(name.endswith(".safetensors") for name in files)
    has_tokenizer = "tokenizer.json" in files or "tokenizer_config.json" in files
    return model.model_copy(
        update={
            "weights_path": here if has_weights else None,
            "tokenizer_path": here if has_tokenizer else None,
        }
    )


def _expand(source: str | Path) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~name of a user that does not exist
        return Path(source)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise InputError(f"cannot read {str(path)[:200]}: {error.strerror}") from error


def _unknown(source: str | Path) -> str:
    names = list_models()
    closest = close_matches(Path(source).name, names)
    hint = f"did you mean {' or '.join(closest)}? Else give" if closest else "give"
    return (
        f"unknown model {str(source)[:200]!r}: no such name in the catalogue, and no such file or folder; {hint}"
        f" the path of a config.json or of a folder that holds one, or one of: {', '.join(names)}"
    )


def _describe(known: KnownModel) -> CatalogueEntry:
    model = load_model(known.name)
    return CatalogueEntry(
        name=known.name,
        aliases=known.aliases,
        source=known.source,
        model_type=str(known.config["model_type"]),
        num_parameters=num_parameters(model),
    )
