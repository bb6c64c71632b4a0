"""A launch script or argument list of Megatron-LM, read into the inputs of a plan."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from costmodel.specs import InputError
from hardware_profiles.errors import show_value
from meshwright.exporters.base import Files
from meshwright.exporters.imported import Imported
from meshwright.exporters.megatron import names
from meshwright.exporters.megatron.model import model_facts, whole
from meshwright.exporters.megatron.stages import Stages, read_stages
from meshwright.exporters.megatron.training import BF16_GRADIENTS, Values, decimal, read_optimizer, read_precision
from meshwright.exporters.shell import launches, perhaps
from meshwright.exporters.shell_words import find_unknown
from meshwright.exporters.torchrun_words import world_size

_TELLING = (names.TENSOR, names.PIPELINE, "--num-layers", "--num-attention-heads", names.MICRO_BATCH)
# Without effect on time and memory are all arguments that nothing here reads; these are read.
_READ = {
    *names.FIELDS.values(), *names.NOT_MODELLED, *names.ROUGHLY, names.LAYERS_PER_CHUNK, names.FIRST_LAYERS, names.LAST_LAYERS,
    names.COUNT_EMBEDDING, names.COUNT_LOSS, names.RECOMPUTE_METHOD, names.RECOMPUTE_LAYERS, names.RECOMPUTE_MODULES,
    names.RECOMPUTE_SELECTIVE, "--num-layers", "--hidden-size", "--num-attention-heads", "--ffn-hidden-size", "--kv-channels",
    "--vocab-size", "--num-query-groups", "--group-query-attention", "--swiglu", "--normalization", "--bf16", "--fp16",
    "--untie-embeddings-and-output-weights", "--fp8-format", "--fp8-recipe", "--attention-backend", "--optimizer", "--lr",
    "--weight-decay", "--adam-beta1", "--adam-beta2", "--adam-eps", "--sgd-momentum", "--clip-grad", "--num-experts",
    "--expert-model-parallel-size", BF16_GRADIENTS, "--make-vocab-size-divisible-by", "--attention-dropout", "--hidden-dropout",
}  # fmt: skip


def recognises(files: Files) -> bool:
    """Whether one of the files passes arguments that only Megatron-LM has."""
    return any(sum(name in text for name in _TELLING) >= 2 for text in files.values())


def read(files: Files) -> Imported:
    """What the script or argument list says.

    Raises:
        InputError: for an argument that Megatron-LM would refuse, a value that the file does not say, sizes that contradict
            one another, and what no plan can hold; the message names the argument.
    """
    words, launch, several = _command(files)
    values = _values(words)
    _refuse(values)
    sizes = _sizes(values)
    stages = read_stages(values, sizes["pipeline_parallel_size"])
    if sizes["pipeline_parallel_size"] > 1:
        sizes["pipeline_schedule"] = "interleaved_1f1b" if stages.num_model_chunks > 1 else "1f1b"
        sizes["num_model_chunks"] = stages.num_model_chunks
    recompute, warnings = _recompute(values, stages)
    num_devices = world_size(launch)
    return Imported(
        target="megatron",
        runtime="megatron",
        sizes=_sharding(values, sizes, num_devices),
        training=_training(values, sizes, num_devices),
        recompute=recompute,
        layers_per_stage=stages.layers,
        axis_order="data_outermost" if names.DATA_OUTERMOST in values else "pipeline_outermost",
        num_devices=num_devices,
        model=model_facts(values),
        warnings=(*several, *warnings, *_warnings(values)),
        ignored=tuple(sorted(set(values) - _READ)),
        keys=names.FIELDS,
    )


def _command(files: Files) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """The arguments of the training and of what launches it, and warnings."""
    found = []
    for text in files.values():
        if sum(name in text for name in _TELLING) < 2:
            continue
        script = f"pretrain_gpt.py {text}" if text.lstrip().startswith("--") else text  # a bare list of arguments
        for command in launches(script, ("torchrun", "python", "python3", "srun", "*.py")):
            place = next((at for at, word in enumerate(command.words) if word.split("/")[-1].endswith(".py")), None)
            if place is not None and any(word.startswith("--") for word in command.words[place + 1 :]):
                found.append((command.words[place + 1 :], command.words[:place]))
    if not found:
        raise InputError("no command passes arguments to a Python file; needed torchrun ... pretrain_gpt.py ARGUMENTS")
    trainings = {words for words, _ in found if sum(name in words for name in _TELLING) >= 2}
    several = (
        [f"{len(trainings)} different commands train; the one with most arguments is read"]
        if len(trainings) > 1
        else []
    )
    return *max(found, key=lambda pair: len(pair[0])), several


def _values(words: tuple[str, ...]) -> Values:
    """Argument -> its values, as argparse would read them; the last of two counts."""
    known, values, at, last = names.arguments(), Values(), 0, ""
    while at < len(words):
        word, at = words[at], at + 1
        if (what := find_unknown(word)) is not None and not word.startswith("--"):
            if _is_harmless(perhaps(what)):
                continue
            raise InputError(f"an argument is {what[:200]}, which the file does not say; write it out")
        name, equals, attached = word.partition("=")
        if not name.startswith("--"):
            behind = f" behind {last} {' '.join(values[last])}" if last else ""
            raise InputError(f"found {show_value(word)}{behind} where an argument was expected; needed --NAME")
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InputError(f"Megatron-LM {names.VERSION} has no argument {name}{hint}")
        taken = [attached] if equals else []
        count = known[name]
        limit = 1000 if isinstance(count, str) else count
        while at < len(words) and len(taken) < limit and not words[at].startswith("--"):
            taken.append(words[at])
            at += 1
        if len(taken) < (count if isinstance(count, int) else count == "+"):
            raise InputError(f"{name} has no value; the file may be cut off")
        values[name], last = taken, name
    return {name: _known(name, taken) if name in _READ else taken for name, taken in values.items()}


def _is_harmless(words: list[str]) -> bool:
    """Whether words that may be passed change neither time nor memory, whatever they say."""
    names_of = [word.strip("\"'").partition("=")[0] for word in words if word.strip("\"'").startswith("--")]
    return bool(names_of) and all(name in names.arguments() and name not in _READ for name in names_of)


def _known(name: str, taken: list[str]) -> list[str]:
    for text in taken:
        if (what := find_unknown(text)) is not None:
            raise InputError(f"{name} is {what}, which the file does not say; write it out")
    return taken


def _refuse(values: Values) -> None:
    """Arguments that Megatron-LM refuses or that no plan can hold."""
    for name, instead in names.DEAD.items():
        if name in values:
            raise InputError(f"{name} is no longer an argument of Megatron-LM; use {instead}")
    _check_experts(values)
    for name, harmless in names.NOT_MODELLED.items():
        if name in values and (harmless is None or values[name] != [harmless]):
            raise InputError(f"{name} is not modelled: plans of runtime megatron have no such thing; leave it out")


def _check_experts(values: Values) -> None:
    experts = whole("--num-experts", values, 0) if "--num-experts" in values else 0
    size = whole("--expert-model-parallel-size", values) if "--expert-model-parallel-size" in values else 1
    if size > 1 and (not experts or experts % size):
        raise InputError(
            f"--expert-model-parallel-size is {size}, which does not divide --num-experts {experts}; needed a divisor of it"
        )
    if experts:
        raise InputError(f"--num-experts is {experts}: mixtures of experts are not planned yet; needed a dense model")


def _sizes(values: Values) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        name: whole(names.FIELDS[name], values) if names.FIELDS[name] in values else 1
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
    }
    if sizes["context_parallel_size"] > 1:
        theirs = values.get(names.CONTEXT_METHOD, ["p2p"])
        ours = [method for method, word in names.CONTEXT_METHODS.items() if theirs == [word]]
        if not ours:
            valid = ", ".join(names.CONTEXT_METHODS.values())
            raise InputError(f"{names.CONTEXT_METHOD} is {' '.join(theirs)}; modelled: {valid}")
        sizes["context_parallel_method"] = ours[0]
    sizes["sequence_parallel"] = names.SEQUENCE_PARALLEL in values and sizes["tensor_parallel_size"] > 1
    if names.MICRO_BATCH not in values:
        raise InputError(f"{names.MICRO_BATCH} is missing, which Megatron-LM requires; the file may be cut off")
    sizes["micro_batch_size"] = whole(names.MICRO_BATCH, values)
    return sizes


def _data_parallel(sizes: dict[str, Any], num_devices: int | None) -> int | None:
    """The data-parallel size that the number of processes leaves."""
    if num_devices is None:
        return None
    split = sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"] * sizes["context_parallel_size"]
    if num_devices % split:
        raise InputError(
            f"{num_devices} processes cannot be split by {names.TENSOR} {sizes['tensor_parallel_size']} x {names.PIPELINE} "
            f"{sizes['pipeline_parallel_size']} x {names.CONTEXT} {sizes['context_parallel_size']}"
        )
    return int(num_devices // split)


def _sharding(values: Values, sizes: dict[str, Any], num_devices: int | None) -> dict[str, Any]:
    """ZeRO-1 where the distributed optimizer has somebody to share with."""
    data = _data_parallel(sizes, num_devices)
    sharded = names.DISTRIBUTED_OPTIMIZER in values
    if data is None:
        return {**sizes, "zero_stage": int(sharded), "data_parallel_replicate_size": 1 if sharded else None}
    stage = int(sharded and data * sizes["context_parallel_size"] > 1)
    pair = (1, data) if stage else (data, 1)
    return {**sizes, "zero_stage": stage, "data_parallel_replicate_size": pair[0], "data_parallel_shard_size": pair[1]}


def _recompute(values: Values, stages: Stages) -> tuple[str, list[str]]:
    """Recomputation in the words of `make_plan`, with what is counted otherwise."""
    selective = names.RECOMPUTE_SELECTIVE in values
    granularity = values.get(names.RECOMPUTE, ["selective" if selective else "none"])[0]
    method = values.get(names.RECOMPUTE_METHOD, [None])[0]
    if granularity == "none":
        if method is not None:
            raise InputError(f"{names.RECOMPUTE_METHOD} is {method}, but {names.RECOMPUTE} is missing")
        return "none", []
    if granularity == "selective":
        if method is not None:
            raise InputError(f"{names.RECOMPUTE} selective takes no {names.RECOMPUTE_METHOD}, found {method}")
        return _selective(values.get(names.RECOMPUTE_MODULES, ["core_attn"]))
    if granularity != "full":
        raise InputError(f"{names.RECOMPUTE} is {show_value(granularity)}; valid: full, selective")
    if method not in ("uniform", "block"):
        raise InputError(f"{names.RECOMPUTE} full needs {names.RECOMPUTE_METHOD}, uniform or block; found {method}")
    number = whole(names.RECOMPUTE_LAYERS, values) if names.RECOMPUTE_LAYERS in values else 1
    if method == "uniform":
        told = f"{names.RECOMPUTE_LAYERS} {number}: counted as if every layer kept its own input"
        return "full", [told] if number > 1 else []
    if stages.layers is None:  # as many in every stage, however many layers it has
        return (f"full:{number}", []) if stages.fewest is None or number < stages.fewest else ("full", [])
    return ",".join("full" if number >= layers else f"full:{number}" for layers in stages.layers), []


def _selective(modules: list[str]) -> tuple[str, list[str]]:
    others = [name for name in modules if name != "core_attn"]
    kind = "core_attention" if "core_attn" in modules else "none"
    told = f"{names.RECOMPUTE_MODULES}: recomputation of {', '.join(others)} is left out, so more memory is counted"
    return kind, [told] if others else []


def _training(values: Values, sizes: dict[str, Any], num_devices: int | None) -> dict[str, Any]:
    data = _data_parallel(sizes, num_devices)
    batch = whole(names.GLOBAL_BATCH, values) if names.GLOBAL_BATCH in values else None
    if batch is None and data is not None:  # Megatron-LM's own default
        batch = sizes["micro_batch_size"] * data
    if batch is not None and data is not None and batch % (sizes["micro_batch_size"] * data):
        raise InputError(
            f"{names.GLOBAL_BATCH} {batch} is no multiple of {names.MICRO_BATCH} {sizes['micro_batch_size']} x "
            f"data-parallel size {data}"
        )
    unfused = values.get("--attention-backend", ["auto"])[0].split(".")[-1] in ("unfused", "local")
    return {
        "global_batch_size": batch,
        "sequence_length": whole(names.SEQUENCE, values) if names.SEQUENCE in values else None,
        "precision": read_precision(values),
        "optimizer": read_optimizer(values),
        "attention": "unfused" if unfused else "fused",
    }


def _warnings(values: Values) -> list[str]:
    found = [f"{name}: not modelled, {what}" for name, what in names.ROUGHLY.items() if name in values]
    dropout = [name for name in ("--attention-dropout", "--hidden-dropout") if decimal(name, values, 0.1) != 0]
    if dropout:
        found.append(
            f"{' and '.join(dropout)}: counted as 0, so the masks of dropout are left out (the default is 0.1)"
        )
    rows = "--make-vocab-size-divisible-by"
    if rows in values and whole(rows, values) % 128:
        found.append(
            f"{rows} {values[rows][0]}: the rows of the embedding are counted as padded to 128 x {names.TENSOR}"
        )
    if names.SEQUENCE_PARALLEL in values and values.get(names.TENSOR, ["1"]) == ["1"]:
        found.append(f"{names.SEQUENCE_PARALLEL} does nothing without {names.TENSOR}; Megatron-LM turns it off")
    if names.DISTRIBUTED_OPTIMIZER not in values and "--overlap-param-gather" in values:
        raise InputError(f"--overlap-param-gather needs {names.DISTRIBUTED_OPTIMIZER}")
    return found
