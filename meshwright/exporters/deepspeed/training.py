"""What DeepSpeed's JSON says beside ZeRO and the batch: number formats, optimizer, recomputation; and keys of every section."""

from __future__ import annotations

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from meshwright.exporters.deepspeed.keys import FILLED, OPTIMIZER_PARAMS, OPTIMIZERS, SECTIONS
from meshwright.exporters.imported import make_optimizer
from meshwright.exporters.tree import Tree

_OPTIMIZER_KEYS = {
    "learning_rate": "optimizer.params.lr",
    "weight_decay": "optimizer.params.weight_decay",
    "betas": "optimizer.params.betas",
    "epsilon": "optimizer.params.eps",
    "momentum": "optimizer.params.momentum",
}


def check_sections(top: Tree) -> None:
    """Refuse keys that DeepSpeed does not read in a section that is read here, and an "auto" that nobody fills in.

    Raises:
        InputError: naming the key.
    """
    for name, keys in SECTIONS.items():
        top.sub(name).check_keys(keys, of="DeepSpeed key")
    sections = [top, *(top.sub(name) for name in (*SECTIONS, "zero_optimization"))]
    for section in sections:
        for key, value in section.content.items():
            if value == "auto" and section.name(key) not in FILLED:
                raise InputError(f"{section.name(key)} is 'auto', which nobody fills in; write the value")


def read_precision(top: Tree) -> str | None:
    """bf16, fp16 or fp32; None where it is left to be filled in."""
    both = [top.sub(name) for name in ("bf16", "bfloat16", "fp16")]
    on = [tree.path for tree in both if tree.switch("enabled")]
    if "fp16" in on and len(on) > 1:
        raise InputError(f"{' and '.join(on)} are both enabled; needed one of them")
    if any(tree.content.get("enabled") == "auto" for tree in both) and not on:
        return None
    return "fp16" if "fp16" in on else "bf16" if on else "fp32"


def read_optimizer(top: Tree, warnings: list[str]) -> OptimizerSpec:
    """The optimizer, or AdamW where the training script makes it."""
    clipping = top.number("gradient_clipping")
    norm = (
        None
        if clipping == 0 or (clipping is None and top.content.get("gradient_clipping") is None)
        else clipping or 1.0
    )
    if "optimizer" not in top:
        warnings.append("the optimizer is the training script's; predicted as AdamW with two 32-bit moments")
        return OptimizerSpec(max_grad_norm=norm)
    given = top.sub("optimizer")
    word, params = given.get("type"), given.sub("params")
    params.check_keys(OPTIMIZER_PARAMS, of="DeepSpeed key")
    if params.switch("amsgrad"):
        raise InputError("optimizer.params.amsgrad is true; its third moment is not predicted, needed false")
    if not isinstance(word, str) or word.lower() not in OPTIMIZERS:
        raise InputError(f"optimizer.type is {show_value(word)}; predicted are Adam, AdamW and SGD")
    name = OPTIMIZERS[word.lower()]
    betas = params.get("betas")
    if betas is not None and not (
        isinstance(betas, list)
        and len(betas) == 2
        and all(isinstance(b, float | int) and not isinstance(b, bool) for b in betas)
    ):
        raise InputError(f"optimizer.params.betas is {show_value(betas)}; needed two numbers")
    stated = {
        "learning_rate": params.number("lr"),
        "weight_decay": params.number("weight_decay"),
        "betas": tuple(betas) if betas else None,
        "epsilon": params.number("eps"),
        "momentum": params.number("momentum") if name == "sgd" else None,
    }
    kept = {key: value for key, value in stated.items() if value is not None}
    return make_optimizer(_OPTIMIZER_KEYS, name=name, max_grad_norm=norm, **kept)


def read_recompute(top: Tree, warnings: list[str]) -> str:
    """Full where the config counts checkpoints; DeepSpeed recomputes what the model's code gives it."""
    section = top.sub("activation_checkpointing")
    if section.whole("number_checkpoints", lowest=0):
        return "full"
    for name in ("partition_activations", "cpu_checkpointing"):
        if section.switch(name):
            warnings.append(f"{section.name(name)} is true; activations are predicted as whole ones on the device")
    warnings.append(
        "recomputation is the model's own code; predicted without (activation_checkpointing.number_checkpoints says full)"
    )
    return "none"
