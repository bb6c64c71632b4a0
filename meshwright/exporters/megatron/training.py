"""Number formats and optimizer in Megatron-LM's arguments."""

from __future__ import annotations

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from meshwright.exporters.imported import make_optimizer

Values = dict[str, list[str]]
BF16_GRADIENTS = "--grad-reduce-in-bf16"
_FP8 = {
    "delayed": "fp8",
    "tensorwise": "fp8-current",
    "blockwise": "fp8-blockwise",
    "mxfp8": "mxfp8",
}
_OPTIMIZER_KEYS = {
    "learning_rate": "--lr",
    "weight_decay": "--weight-decay",
    "max_grad_norm": "--clip-grad",
    "momentum": "--sgd-momentum",
    "betas.0": "--adam-beta1",
    "betas.1": "--adam-beta2",
    "epsilon": "--adam-eps",
}


def read_precision(values: Values) -> str:
    """The name of the number formats, as runtime megatron has them."""
    both = [name for name in ("--bf16", "--fp16") if name in values]
    if len(both) > 1:
        raise InputError("--bf16 and --fp16 contradict each other; leave one of them out")
    low = BF16_GRADIENTS in values
    if "--fp8-format" not in values:
        word = both[0][2:] if both else "fp32"
        return "bf16-gradients" if word == "bf16" and low else word
    recipe = values.get("--fp8-recipe", ["delayed"])[0]
    if recipe not in _FP8:
        raise InputError(f"--fp8-recipe is {show_value(recipe)}; modelled: {', '.join(_FP8)}")
    if both != ["--bf16"]:
        raise InputError("--fp8-format needs --bf16, the format of everything that is not multiplied in fp8")
    return f"{_FP8[recipe]}-bf16-gradients" if low else _FP8[recipe]


def read_optimizer(values: Values) -> OptimizerSpec:
    """The optimizer; what a plan needs and the file leaves out has Megatron-LM's defaults."""
    name = values.get("--optimizer", ["adam"])[0]
    if name not in ("adam", "sgd"):
        raise InputError(f"--optimizer is {show_value(name)}; modelled: adam, sgd")
    clip = decimal("--clip-grad", values, 1.0)
    common = {
        "learning_rate": decimal("--lr", values, 1e-3) or 1e-3,
        "weight_decay": decimal("--weight-decay", values, 0.01),
        "max_grad_norm": clip or None,
    }
    if name == "sgd":
        return make_optimizer(_OPTIMIZER_KEYS, name="sgd", momentum=decimal("--sgd-momentum", values, 0.9), **common)
    betas = (decimal("--adam-beta1", values, 0.9), decimal("--adam-beta2", values, 0.999))
    return make_optimizer(
        _OPTIMIZER_KEYS, name="adamw", betas=betas, epsilon=decimal("--adam-eps", values, 1e-8), **common
    )


def decimal(name: str, values: Values, default: float) -> float:
    """The number behind an argument, or the default where it is not given."""
    text = values[name][0] if name in values else repr(default)
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} is {show_value(text)}; needed a number") from None
