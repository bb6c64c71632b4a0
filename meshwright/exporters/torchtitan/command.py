"""The torchtitan command in a script: its keys and their words, whoever wrote them.

tyro takes ``-`` and ``_`` alike, ``--key=value`` too, and ``--section.no-key`` for a switch that is off; subcommands come last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from costmodel.specs import InputError
from hardware_profiles.errors import show_value, unknown_name
from meshwright.exporters.base import Files
from meshwright.exporters.imported import whole_number
from meshwright.exporters.shell import read_script, unresolved

RECOMPUTE = "activation-checkpoint"
_ENTRIES = ("torchtitan.train", "run_train.sh")
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_TRAINING = (
    "local_batch_size global_batch_size seq_len max_norm steps enable_cpu_offload disable_cuda_graphs dtype gc_freq gc_debug "
    "mixed_precision_param mixed_precision_reduce num_tokens_per_microbatch_per_dp_rank num_tokens_per_train_step "
    "max_context_length"
)
_PARALLELISM = (
    "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward enable_fsdp_symm_mem "
    "tensor_parallel_degree enable_sequence_parallel spmd_backend pipeline_parallel_degree module_fqns_per_model_part "
    "pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage "
    "pipeline_parallel_schedule pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size num_pp_microbatches "
    "context_parallel_degree context_parallel_load_balancer context_parallel_ptrr_mask_key expert_parallel_degree"
)
_COMPILE = "enable enable_async_tensor_parallel components backend"
# Sections whose keys change neither time nor memory of a step; their names are not checked.
_OTHERS = (
    "profiler", "metrics", "tokenizer", "dataloader", "lr_scheduler", "checkpoint", "comm", "validator", "debug", "optimizer",
    "loss", "activation_checkpoint", "override",
)  # fmt: skip
KEYS = frozenset(
    [
        "module", "config", "hf_assets_path", "dump_folder",
        *(f"training.{key}" for key in _TRAINING.split()),
        *(f"parallelism.{key}" for key in _PARALLELISM.split()),
        *(f"compile.{key}" for key in _COMPILE.split()),
    ]
)  # fmt: skip


@dataclass(slots=True)
class Command:
    """One command. ``flags``: key -> words. ``recompute``: the subcommand's word, None where there is none."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    recompute: str | None = None
    num_devices: int | None = None
    read: set[str] = field(default_factory=set)

    def word(self, key: str) -> str | None:
        """The last word of a key, or None where it is not given."""
        self.read.add(key)
        words = self.flags.get(key)
        if words is None:
            return None
        if len(words) != 1:
            raise InputError(f"--{key} has {len(words)} values; needed one")
        if unresolved(words[0]):
            raise InputError(f"--{key} is {words[0]}, which only the running script knows; write the value there")
        return words[0]

    def whole(self, key: str, *, lowest: int = 1) -> int | None:
        """A whole number, or None where the key is not given."""
        word = self.word(key)
        if word is None:
            return None
        if not _WHOLE.fullmatch(word) or int(word) < lowest:
            raise InputError(f"--{key} is {show_value(word)}; needed a whole number of at least {lowest}")
        return int(word)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """One of the words allowed, or None where the key is not given."""
        word = self.word(key)
        if word is not None and word not in allowed:
            raise InputError(f"--{key} is {show_value(word)}; needed one of {', '.join(allowed)}")
        return word

    def switch(self, key: str, *, default: bool) -> bool:
        """A switch: the key alone, or with ``no-``."""
        self.read.add(key)
        section, _, name = key.rpartition(".")
        off = f"{section}.no_{name}"
        self.read.add(off)
        for given, value in ((key, True), (off, False)):
            if given in self.flags:
                if self.flags[given]:
                    raise InputError(f"--{given} takes no value, found {' '.join(self.flags[given])}")
                return value
        return default


def find_command(files: Files) -> Command | None:
    """The torchtitan command of the files, or None; of several the last one.

    Raises:
        InputError: for a script that cannot be read, and a key that torchtitan does not have.
    """
    for text in files.values():
        if not any(entry in text for entry in (*_ENTRIES, "--module")):
            continue
        commands, variables = read_script(text)
        for words in reversed(commands):
            if any(word.endswith(_ENTRIES) for word in words) or {"--module", "--config"} <= set(words):
                return _parse(words, variables)
    return None


def _parse(words: list[str], variables: dict[str, str]) -> Command:
    start = next((at + 1 for at, word in enumerate(words) if word.endswith(_ENTRIES)), 0)
    command = Command(num_devices=_num_devices(words[:start], variables))
    key: str | None = None
    for word in words[start:]:
        if word in ("$@", "$*"):
            continue
        if word.startswith(f"{RECOMPUTE}:"):
            command.recompute, key = word.partition(":")[2], None
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            key = name.replace("-", "_")
            command.flags[key] = [value] if equals else []
        elif key is not None:
            command.flags[key].append(word)
    for name, variable in (("module", "MODULE"), ("config", "CONFIG")):
        if name not in command.flags and variable in variables:
            command.flags[name] = [variables[variable]]
    _check_keys(command)
    return command


def _check_keys(command: Command) -> None:
    for key in command.flags:
        section, _, name = key.rpartition(".")
        plain = f"{section}.{name.removeprefix('no_')}" if section else key
        if plain not in KEYS and key.split(".")[0] not in _OTHERS:
            raise InputError(unknown_name("torchtitan argument", f"--{key}", [f"--{known}" for known in sorted(KEYS)]))


def _num_devices(launcher: list[str], variables: dict[str, str]) -> int | None:
    """Processes that the launcher starts: nodes x processes of a node."""
    sizes = {"nproc_per_node": variables.get("NGPU"), "nnodes": "1"}
    for at, word in enumerate(launcher):
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in sizes and word.startswith("--"):
            sizes[name] = value if equals else launcher[at + 1] if at + 1 < len(launcher) else None
    per_node, nodes = sizes["nproc_per_node"], sizes["nnodes"]
    counts = whole_number(per_node), whole_number(nodes)
    return counts[0] * counts[1] or None if counts[0] and counts[1] else None
