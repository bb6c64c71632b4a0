"""torchtitan's command -> what it says; what a command leaves out is the config function's own (`presets`)."""

from __future__ import annotations

import re
from typing import Any

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from meshwright.exporters.base import Files
from meshwright.exporters.imported import Imported, ModelFact, make_optimizer
from meshwright.exporters.torchtitan import stages
from meshwright.exporters.torchtitan.batch import Batch, read_batch
from meshwright.exporters.torchtitan.command import RECOMPUTE, Command, find_command
from meshwright.exporters.torchtitan.flags import EAGER, OPTIMIZER, OWN_MODULE
from meshwright.exporters.torchtitan.flags import RECOMPUTE as RECOMPUTE_WORDS
from meshwright.exporters.torchtitan.presets import FLAVORS, PRESETS, Flavor, Preset

_P, _T = "parallelism.", "training."
_SINGLE = {"1F1B": "1f1b", "GPipe": "gpipe"}
_MULTI = {"Interleaved1F1B": "interleaved_1f1b", "LoopedBFS": "looped_bfs"}
_KINDS = {word: kind for kind, word in RECOMPUTE_WORDS.items()}
_OWN_FLAVOR = re.compile(
    r"from torchtitan\.models\.(\w+) import model_registry.*model_registry\(\"([^\"]+)\"\)", re.DOTALL
)
_OPTIMIZER_KEYS = {"learning_rate": "lr", "weight_decay": "weight_decay", "epsilon": "eps", "betas": "betas"}
_KEYS = {
    "tensor_parallel_size": "--parallelism.tensor_parallel_degree",
    "pipeline_parallel_size": "--parallelism.pipeline_parallel_degree",
    "context_parallel_size": "--parallelism.context_parallel_degree",
    "data_parallel_replicate_size": "--parallelism.data_parallel_replicate_degree",
    "data_parallel_shard_size": "--parallelism.data_parallel_shard_degree",
    "pipeline_schedule": "--parallelism.pipeline_parallel_schedule",
    "sequence_length": "--training.seq_len",
    "global_batch_size": "--training.global_batch_size",
    "num_devices": "--nproc-per-node x --nnodes",
}


def recognises(files: Files) -> bool:
    """Whether one of the files starts torchtitan."""
    return any(
        "torchtitan.train" in text or "run_train.sh" in text or ("--module" in text and "--config" in text)
        for text in files.values()
    )


def read(files: Files) -> Imported:
    """What a torchtitan command, with the config function that it names, says.

    Raises:
        InputError: for a key that torchtitan does not have or a value that it does not take, and for what cannot be run or
            is not predicted here.
    """
    command = find_command(files)
    if command is None:
        raise InputError(
            "no torchtitan command found; needed: torchrun ... -m torchtitan.train --module M --config C ..."
        )
    preset, flavor = _start(command, files)
    _refuse(command)
    piped = (command.whole(f"{_P}pipeline_parallel_degree") or 1) > 1
    batch = read_batch(command, preset, piped=piped)
    sizes = _sizes(command, preset)
    layers = _pipeline(command, flavor, batch, sizes)
    sizes["micro_batch_size"] = batch.micro_batch_size
    if batch.global_batch_size is None:
        sizes["num_micro_batches"] = batch.per_pass
    precision = _precision(command, preset)
    return Imported(
        target="torchtitan",
        runtime="torchtitan" if _compiles(command, preset) else EAGER,
        sizes=sizes,
        training={
            "global_batch_size": batch.global_batch_size,
            "sequence_length": batch.sequence_length,
            "precision": precision,
            "optimizer": _optimizer(command),
        },
        recompute=_recompute(command, preset),
        layers_per_stage=layers,
        num_devices=command.num_devices,
        model=_facts(flavor),
        warnings=_warnings(command, preset, batch, sizes),
        ignored=tuple(sorted(f"--{key}" for key in set(command.flags) - command.read)),
        keys=_KEYS,
    )


def _compiles(command: Command, preset: Preset | None) -> bool:
    return command.switch("compile.enable", default=preset is not None and preset.compiled)


def _start(command: Command, files: Files) -> tuple[Preset | None, Flavor | None]:
    module, config = command.word("module"), command.word("config")
    if module is None or config is None:
        missing = "--module" if module is None else "--config"
        raise InputError(f"{missing} is missing; torchtitan needs both --module and --config")
    if (preset := PRESETS.get((module, config))) is not None:
        return preset, FLAVORS[module, preset.flavor]
    if module == OWN_MODULE and (own := _OWN_FLAVOR.search(files.get(f"{OWN_MODULE}.py", ""))):
        return None, FLAVORS.get((own.group(1), own.group(2)))
    return None, None


def _refuse(command: Command) -> None:
    """What torchtitan takes and nothing here predicts, or torchtitan takes and cannot run."""
    if command.switch(f"{_T}enable_cpu_offload", default=False):
        raise InputError(
            f"--{_T}enable_cpu_offload is not predicted yet; leave it out to predict training without offload"
        )
    experts = command.whole(f"{_P}expert_parallel_degree") or 1
    if experts > 1:
        sizes = [command.whole(f"{_P}{key}_degree", lowest=-1) or 1 for key in ("tensor_parallel", "context_parallel")]
        shard = command.whole(f"{_P}data_parallel_shard_degree", lowest=-1) or -1
        ranks = shard * sizes[0] * sizes[1]
        if shard > 0 and ranks % experts:
            raise InputError(
                f"--{_P}expert_parallel_degree {experts} does not divide {ranks} ranks (data_parallel_shard_degree {shard} x "
                f"context_parallel_degree {sizes[1]} x tensor_parallel_degree {sizes[0]}); torchtitan does not check it"
            )
        raise InputError(
            f"--{_P}expert_parallel_degree is {experts}; models with experts are not predicted yet, needed 1"
        )
    if command.word(f"{_P}pipeline_parallel_schedule_csv"):
        raise InputError(
            f"--{_P}pipeline_parallel_schedule_csv is not predicted; needed --{_P}pipeline_parallel_schedule"
        )


def _sizes(command: Command, preset: Preset | None) -> dict[str, Any]:
    tensor = command.whole(f"{_P}tensor_parallel_degree") or (preset.tensor_parallel_degree if preset else 1)
    shard = command.whole(f"{_P}data_parallel_shard_degree", lowest=-1)
    context = command.whole(f"{_P}context_parallel_degree") or 1
    piped = (command.whole(f"{_P}pipeline_parallel_degree") or 1) > 1
    policy = command.choice(f"{_P}fsdp_reshard_after_forward", ("default", "always", "never")) or "default"
    kept = policy == "never" or (policy == "default" and piped)
    sizes: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "sequence_parallel": command.switch(f"{_P}enable_sequence_parallel", default=True) and tensor > 1,
        "loss_parallel": tensor > 1,
        "context_parallel_size": context,
        "context_parallel_method": "all_gather" if context > 1 else None,
        "data_parallel_replicate_size": command.whole(f"{_P}data_parallel_replicate_degree") or 1,
        "zero_stage": 0 if shard == 1 and context == 1 else 2 if kept else 3,
    }
    if shard == 0:
        raise InputError(
            f"--{_P}data_parallel_shard_degree is 0; needed a whole number of at least 1, or -1 for the rest"
        )
    return sizes if shard in (None, -1) else sizes | {"data_parallel_shard_size": shard}


def _pipeline(command: Command, flavor: Flavor | None, batch: Batch, sizes: dict[str, Any]) -> tuple[int, ...] | None:
    """Fills in the pipeline's sizes; returns the layers of every stage, None where nothing is known of the model."""
    ranks = command.whole(f"{_P}pipeline_parallel_degree") or 1
    sizes["pipeline_parallel_size"] = ranks
    if ranks == 1:
        return None
    word = command.choice(f"{_P}pipeline_parallel_schedule", (*_SINGLE, *_MULTI)) or "1F1B"
    alone = word == "GPipe" and batch.per_pass == 1
    sizes["pipeline_schedule"] = "naive" if alone else (_SINGLE | _MULTI)[word]
    layers, count = _stages(command, flavor, ranks, multi=word in _MULTI)
    chunks, rest = divmod(count, ranks)
    if rest or (chunks == 1) != (word in _SINGLE):
        needed = "exactly one stage a rank" if word in _SINGLE else "at least two stages a rank"
        raise InputError(f"{count} stages on {ranks} ranks; --{_P}pipeline_parallel_schedule {word} needs {needed}")
    sizes["num_model_chunks"] = chunks
    return layers


def _stages(command: Command, flavor: Flavor | None, ranks: int, *, multi: bool) -> tuple[tuple[int, ...] | None, int]:
    """Layers of every stage, None where the model is unknown, and their number."""
    first_key, last_key, per_key, _ = stages.SPLIT_FLAGS
    weights = [command.whole(key, lowest=0) for key in (first_key, last_key)]
    first, last = (1 if weight is None else weight for weight in weights)
    per_stage = command.whole(per_key)
    command.read.add(stages.MODULES)
    if stages.MODULES in command.flags:
        layers = stages.read_modules(command.flags[stages.MODULES])
        return layers, len(layers)
    if flavor is None:
        if per_stage is not None:
            raise InputError(f"--{per_key} needs a model that is known here; name its modules with --{stages.MODULES}")
        return None, ranks * (2 if multi else 1)
    depth = flavor.num_hidden_layers
    count = stages.count_stages(depth, ranks, per_stage, multi=multi, first=first, last=last)
    dealt = stages.split(depth, count, first, last)
    if dealt is None:
        raise InputError(
            f"torchtitan cannot deal {depth} layers to {count} stages with --{first_key} {first} and --{last_key} {last}"
        )
    return dealt, count


def _precision(command: Command, preset: Preset | None) -> str:
    if command.choice(f"{_T}dtype", ("float32", "bfloat16")) == "bfloat16":
        raise InputError(
            f"--{_T}dtype bfloat16 keeps no 32-bit copy of the weights, which is not predicted; needed float32"
        )
    compute = command.choice(f"{_T}mixed_precision_param", ("bfloat16", "float32")) or "bfloat16"
    if preset is not None and preset.fp8:
        return "fp8-rowwise"
    return "bf16" if compute == "bfloat16" else "fp32"


def _recompute(command: Command, preset: Preset | None) -> str:
    if command.recompute is None:
        return preset.recompute if preset else "op_policy"
    if command.recompute not in _KINDS:
        raise InputError(f"{RECOMPUTE}:{command.recompute} is not predicted; needed one of {', '.join(_KINDS)}")
    return _KINDS[command.recompute]


def _optimizer(command: Command) -> OptimizerSpec:
    """AdamW with what is stated of it; torchtitan's own defaults otherwise (weight decay 0.1)."""

    def numbers(name: str, count: int) -> list[float] | None:
        key = f"{OPTIMIZER.replace('-', '_')}.{name}"
        command.read.add(key)
        words = command.flags.get(key)
        if words is None:
            return None
        try:
            found = [float(word) for word in words]
        except ValueError:
            found = []
        if len(found) != count:
            raise InputError(f"--{key} is {show_value(' '.join(words))}; needed {count} number{'s' * (count > 1)}")
        return found

    norm_word = command.word(f"{_T}max_norm")
    try:
        norm = 1.0 if norm_word is None else float(norm_word)
    except ValueError:
        raise InputError(f"--{_T}max_norm is {show_value(norm_word)}; needed a number") from None
    stated = {
        "learning_rate": numbers("lr", 1),
        "weight_decay": numbers("weight_decay", 1) or [0.1],
        "epsilon": numbers("eps", 1),
    }
    betas = numbers("betas", 2)
    keys = {name: f"--{OPTIMIZER}.{key}" for name, key in _OPTIMIZER_KEYS.items()}
    return make_optimizer(
        keys | {"max_grad_norm": f"--{_T}max_norm"},
        **{name: found[0] for name, found in stated.items() if found is not None},
        **({"betas": (betas[0], betas[1])} if betas else {}),
        max_grad_norm=None if norm == float("inf") else norm,
    )


def _facts(flavor: Flavor | None) -> tuple[ModelFact, ...]:
    if flavor is None:
        return ()
    names = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
        "vocab_size",
    )  # fmt: skip
    key = f"--module {flavor.module} ({flavor.name})"
    return tuple(ModelFact(key=f"{key} {name}", name=name, value=getattr(flavor, name)) for name in names)


def _warnings(command: Command, preset: Preset | None, batch: Batch, sizes: dict[str, Any]) -> tuple[str, ...]:
    found = []
    chunks = command.whole("loss.num_chunks") or 8
    if chunks > 1:
        found.append(
            f"the loss goes over {chunks} parts of the sequence (--loss.num_chunks); it is predicted in one, with more memory"
        )
    shard, total = sizes.get("data_parallel_shard_size"), batch.global_batch_size
    if batch.per_pass > 1 and shard is not None and total is not None:
        passes = total // (batch.per_pass * batch.micro_batch_size * shard * sizes["data_parallel_replicate_size"])
        if passes > 1:
            found.append(
                f"the pipeline drains after each of {passes} passes (--training.global_batch_size); predicted as one"
            )
    return tuple(found)
