"""What accelerate and transformers say of FSDP alike: their fsdp_config without its prefix, both ways.

The keys that accelerate 1.15.0 (commands/launch.py, utils/launch.py) and transformers 5.24.0 (training_args.py) read. Any other
key passes their parsers in silence, and is an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.specs import InputError, Plan
from hardware_profiles.errors import show_value
from meshwright.exporters.imported import whole_number
from meshwright.exporters.tree import Tree

_BOTH = (
    "version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type",
    "cpu_ram_efficient_loading", "activation_checkpointing", "forward_prefetch", "backward_prefetch", "use_orig_params",
    "sync_module_states",
)  # fmt: skip
ACCELERATE_KEYS = (
    *_BOTH,
    "sharding_strategy",
    "offload_params",
    "activation_checkpointing_offload",
    "ignored_modules",
)
TRANSFORMERS_KEYS = (
    *_BOTH,
    "cpu_offload",
    "limit_all_gathers",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_grad_ckpt",
    "xla_fsdp_settings",
)
# FSDP 1's words, and the numbers that torch gives them -> the stage of ZeRO; None: sharded in each node.
_STRATEGIES: dict[str, int | None] = {
    "full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": None, "hybrid_shard_zero2": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """``in_nodes``: states are sharded inside every node, the same in all of them. ``recompute``: None where nothing is said."""

    zero_stage: int
    in_nodes: bool
    recompute: str | None
    warnings: tuple[str, ...]


def write_fsdp(plan: Plan) -> dict[str, Any]:
    """fsdp_config of a plan, keys without prefix."""
    return {
        "version": 2,
        "reshard_after_forward": plan.parallel.zero_stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": plan.stages[0].recompute.kind == "full",
    }


def read_fsdp(given: Tree, *, known: tuple[str, ...], default_version: int, default_wrap: str) -> Sharding:
    """What an fsdp_config says.

    Args:
        given: the mapping; keys may have the prefix ``fsdp_``.
        known: `ACCELERATE_KEYS` or `TRANSFORMERS_KEYS`.
        default_version: of FSDP where none is stated.
        default_wrap: auto_wrap_policy where none is stated.

    Raises:
        InputError: for a key that is not read, a value that it cannot have, and offload.
    """
    for key in given.content:
        if str(key).removeprefix("fsdp_") not in known:
            given.check_keys([*known, *(f"fsdp_{name}" for name in known)], of="FSDP key")
    for key in given.content:
        if str(key).startswith("fsdp_") and str(key).removeprefix("fsdp_") in given.content:
            raise InputError(f"{given.path} has both {str(key).removeprefix('fsdp_')} and {key}; leave one of them out")
    tree = Tree({str(key).removeprefix("fsdp_"): value for key, value in given.content.items()}, given.path, words=True)
    for key in ("offload_params", "cpu_offload", "activation_checkpointing_offload"):
        if tree.switch(key):
            raise InputError(f"{given.path}.{key} is true; offload is not predicted yet, needed false")
    version = tree.whole("version") or default_version
    warnings = []
    if version == 1:
        warnings.append("FSDP 1 is predicted as FSDP 2, which gathers and reduces alike, tensor by tensor")
    if str(tree.get("auto_wrap_policy") or default_wrap).upper() == "NO_WRAP":
        warnings.append(
            "auto_wrap_policy NO_WRAP gathers the whole model at once; predicted layer by layer (TRANSFORMER_BASED_WRAP), with "
            "far less memory"
        )
    stage = _stage(tree, version)
    checkpointing = tree.switch("activation_checkpointing")
    recompute = None if checkpointing is None else "full" if checkpointing else "none"
    return Sharding(
        zero_stage=3 if stage is None else stage, in_nodes=stage is None, recompute=recompute, warnings=tuple(warnings)
    )


def _stage(tree: Tree, version: int) -> int | None:
    if version == 2:
        kept = tree.switch("reshard_after_forward") is False
        return 2 if kept else 3
    if version != 1:
        raise InputError(f"{tree.name('version')} is {version}; needed 1 or 2")
    key = "sharding_strategy" if "sharding_strategy" in tree else "reshard_after_forward"
    word = tree.get(key) or "full_shard"
    if (number := whole_number(str(word))) is not None and 1 <= number <= len(_STRATEGIES):
        word = list(_STRATEGIES)[number - 1]
    if not isinstance(word, str) or word.lower() not in _STRATEGIES:
        raise InputError(f"{tree.name(key)} is {show_value(word)}; needed one of {', '.join(_STRATEGIES).upper()}")
    return _STRATEGIES[word.lower()]
