"""How many processes a launching command starts: torchrun, torch.distributed.launch, or srun around them."""

from __future__ import annotations

from costmodel.specs import InputError
from hardware_profiles.errors import show_value
from meshwright.exporters.imported import whole_number
from meshwright.exporters.shell_words import find_unknown

_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--gpus-per-node")
_NODES = ("--nnodes", "-N", "--nodes")


def world_size(words: tuple[str, ...]) -> int | None:
    """Processes of all nodes, or None where the command does not say.

    Args:
        words: the launching command, up to the Python file.

    Raises:
        InputError: when a number is none.
    """
    per_node = _option(words, _PER_NODE)
    if per_node is None:
        return None
    nodes = _option(words, _NODES)
    if nodes is None and "--standalone" not in words and any(word.startswith(_NODES) for word in words):
        return None
    return per_node * (nodes or 1)


def _option(words: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    """The number behind an option; None where it is missing or the script does not say it."""
    for at, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name not in names:
            continue
        value = text if equals else words[at + 1] if at + 1 < len(words) else ""
        value = value.split(":")[-1]  # torchrun's MIN:MAX
        if find_unknown(value) is not None or value in ("auto", "gpu", "cpu"):
            return None
        if (number := whole_number(value)) is None or not 0 < number <= 10**7:
            raise InputError(f"{name} is {show_value(value)}; needed a whole number of at least 1")
        return number
    return None
