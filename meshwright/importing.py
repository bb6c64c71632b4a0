"""Read what people already have: the files of another launcher, as a plan.

A file states the layout and, as a rule, the batch; the model and the cluster are named by whoever reads it. Sizes of the model
that the file states too must be the model's own. What neither states has the target's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.specs import ClusterSpec, InputError, ModelSpec, OptimizerSpec, Plan
from hardware_profiles.errors import unknown_name
from meshwright.exporters import EXPORTERS, READERS, Files
from meshwright.exporters.imported import Imported, ModelFact
from meshwright.exporters.tree import read_json_object
from meshwright.files import read_text, to_path
from meshwright.folders import folder_files
from meshwright.planning import make_plan

_TRAINING = ("global_batch_size", "sequence_length", "precision", "optimizer", "attention", "loss_chunks")
_SPLIT = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
_MAX_FILES = 100


def read_config(path: str | Path, *, target: str | None = None) -> Imported:
    """What a file, or the folder that an export wrote, says.

    Args:
        path: the file or folder.
        target: whose format it is, one of `meshwright.exporters.READERS`; None finds it out from the content.

    Raises:
        InputError: when it cannot be read, is no such file, or says something that cannot be; the message names the key.
    """
    path = to_path(path, what="config file")
    files = _texts(path)
    name = _recognise(path, files) if target is None else target
    if name not in READERS:
        raise InputError(unknown_name("format", name, READERS))
    read = EXPORTERS[name].read
    assert read is not None
    try:
        return read(files)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _texts(path: Path) -> dict[str, str]:
    needed = "a launch script or config file"
    if not path.is_dir():
        return {path.name: read_text(path, what="config file", needed=needed)}
    names = folder_files(path)[:_MAX_FILES]
    if not names:
        raise InputError(f"{path} is an empty folder; needed {needed}")
    return {name: text for name in names if (text := _try_text(path / name)) is not None}


def _try_text(path: Path) -> str | None:
    """The text of one file of a folder; what is no text is no config either."""
    try:
        return read_text(path, what="config file")
    except InputError:
        return None


def _recognise(path: Path, files: Files) -> str:
    found = [name for name in READERS if (test := EXPORTERS[name].recognises) is not None and test(files)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{path} may be of {' or '.join(found)}; say which with --format")
    for file, text in files.items():
        if text.lstrip().startswith("{"):
            read_json_object(text, f"{path}" if file == path.name else f"{path}: {file}")  # malformed: where, and why
    raise InputError(f"{path} is no config that is known here; name its format with --format: {', '.join(READERS)}")


def import_plan(
    source: Imported | str | Path,
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    runtime: str | None = None,
    command: str = "",
    **stated: Any,
) -> Plan:
    """The plan that a config describes, without an estimate.

    Args:
        source: the config, read or to be read.
        model: as in `meshwright.plan`.
        cluster: as in `meshwright.plan`.
        runtime: None takes the target's own.
        command: recorded in the plan's provenance.
        stated: global_batch_size, sequence_length, precision, optimizer, attention, loss_chunks: what the file leaves open.
            What it states too must agree.

    Raises:
        InputError: when file, model, cluster and what is stated contradict one another, something is missing, or the plan
            breaks a rule.
    """
    from meshwright.inputs import resolve_cluster, resolve_model

    read = source if isinstance(source, Imported) else read_config(source)
    found, place = resolve_model(model), resolve_cluster(cluster)
    _check_model(read, found)
    sizes = dict(read.sizes)
    if read.num_devices is not None:
        _check_devices(read, place)
        sizes = _data_parallel(read, sizes)
    training = _merge(read, stated, default_batch=_one_step(sizes, read.num_devices or place.num_devices))
    try:
        return make_plan(
            found,
            place,
            sizes=sizes,
            recompute=read.recompute,  # type: ignore[arg-type]  # words, as on the command line
            layers_per_stage=read.layers_per_stage,
            axis_order=read.axis_order,
            runtime=runtime or read.runtime,
            command=command,
            **training,
        )
    except InputError as error:
        raise InputError(f"{error}{_spelling(read, str(error))}") from None


def _spelling(read: Imported, message: str) -> str:
    """How the file calls the sizes that an error speaks of."""
    told = [f"{name} is {key}" for name, key in read.keys.items() if name in message and key not in message]
    return f" (in the file {', '.join(told)})" if told else ""


def _one_step(sizes: Mapping[str, Any], num_devices: int) -> int | None:
    """Samples of a step that takes so many micro-batches, where the file states those instead; None where it does not."""
    size, count = sizes.get("micro_batch_size"), sizes.get("num_micro_batches")
    if size is None or count is None:
        return None
    replicate, shard = sizes.get("data_parallel_replicate_size"), sizes.get("data_parallel_shard_size")
    if replicate and shard:
        return int(size * count * replicate * shard)
    split = 1
    for name in _SPLIT:
        split *= sizes.get(name) or 1
    return int(size * count * max(num_devices // split, 1))  # what does not divide is told when the sizes are completed


def _merge(read: Imported, stated: Mapping[str, Any], *, default_batch: int | None) -> dict[str, Any]:
    """What the file and the caller say of the training; both may speak only with one voice."""
    merged = {name: value for name, value in read.training.items() if value is not None}
    for name, value in stated.items():
        if name not in _TRAINING:
            raise InputError(unknown_name("input", name, _TRAINING))
        if value is None:
            continue
        found = merged.get(name, value)
        found = found.name if isinstance(found, OptimizerSpec) and isinstance(value, str) else found
        if found != value:
            key = read.keys.get(name, name)
            raise InputError(f"the file says {key} {found}, but {name} {value} is stated; leave one of them out")
        merged.setdefault(name, value)
    if default_batch is not None:
        merged.setdefault("global_batch_size", default_batch)
    for name in ("global_batch_size", "sequence_length"):
        if name not in merged:
            raise InputError(f"the file does not say {name}; state it with --{name.replace('_', '-')}")
    return merged


def _check_devices(read: Imported, cluster: ClusterSpec) -> None:
    key = read.keys.get("num_devices", "num_devices")
    if read.num_devices is not None and read.num_devices > cluster.num_devices:
        raise InputError(
            f"the file starts {read.num_devices} processes ({key}), but {cluster.name} has {cluster.num_devices} devices; "
            "name the cluster that it is for"
        )


def _data_parallel(read: Imported, sizes: dict[str, Any]) -> dict[str, Any]:
    """The data-parallel sizes that follow from the number of processes, where the file leaves them open."""
    replicate, shard = sizes.get("data_parallel_replicate_size"), sizes.get("data_parallel_shard_size")
    if read.num_devices is None:
        return sizes
    split = 1
    for name in _SPLIT:
        split *= sizes.get(name) or 1
    split *= (replicate or 1) * (shard or 1)
    rest, remainder = divmod(read.num_devices, split)
    key = read.keys.get("num_devices", "num_devices")
    if remainder or not rest:
        raise InputError(f"{key} is {read.num_devices}, which {_told(read, sizes)} ({split} together) do not divide")
    if replicate is not None and shard is not None:
        if rest != 1:
            raise InputError(f"{key} is {read.num_devices}, but {_told(read, sizes)} multiply to {split}")
        return sizes
    sharded = replicate is not None or (shard is None and (sizes.get("zero_stage") or 0) > 0)
    if sharded:
        return {**sizes, "data_parallel_replicate_size": replicate or 1, "data_parallel_shard_size": rest}
    return {**sizes, "data_parallel_replicate_size": rest, "data_parallel_shard_size": shard or 1}


def _told(read: Imported, sizes: Mapping[str, Any]) -> str:
    """The sizes that multiply to the devices, as the file spells them."""
    names = (*_SPLIT, "data_parallel_replicate_size", "data_parallel_shard_size")
    return ", ".join(f"{read.keys.get(name, name)} {sizes[name]}" for name in names if sizes.get(name))


def _check_model(read: Imported, model: ModelSpec) -> None:
    """Sizes of the model that the file states are the model's own."""
    for fact in read.model:
        known = model_fact(model, fact.name)
        if known is not None and known != fact.value:
            raise InputError(
                f"the file says {fact.key} {_shown(fact)}, but {model.name} has {fact.name} {known}; "
                "name the model that the file is for"
            )


def _shown(fact: ModelFact) -> str:
    return str(fact.value)


def model_fact(model: ModelSpec, name: str) -> int | bool | str | None:
    """A size of a model by the name that readers give it, of its first layer where layers differ; None: unknown here.

    Names: the scalar fields of `ModelSpec`, ``num_hidden_layers``, and those of its attention and feed-forward
    (``num_attention_heads``, ``num_key_value_heads``, ``head_dim``, ``intermediate_size``, ``gated``).
    """
    first = model.layers[0]
    for holder in (model, first.attention, first.feed_forward):
        if isinstance(value := getattr(holder, name, None), int | bool | str):
            return value
    return None
