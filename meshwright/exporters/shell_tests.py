"""The tests of a bash script, ``[ ... ]`` and ``[[ ... ]]``, where their words are known."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.exporters.shell_words import find_unknown

_COMPARED: dict[str, Callable[[str, str], bool]] = {
    "-eq": lambda a, b: int(a) == int(b),
    "-ne": lambda a, b: int(a) != int(b),
    "-gt": lambda a, b: int(a) > int(b),
    "-ge": lambda a, b: int(a) >= int(b),
    "-lt": lambda a, b: int(a) < int(b),
    "-le": lambda a, b: int(a) <= int(b),
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def truth(words: list[str]) -> bool | None:
    """``[ ... ]`` or ``[[ ... ]]`` of known words; None: not known."""
    if len(words) < 3 or words[0] not in ("[", "[["):
        return True if words == ["true"] else False if words == ["false"] else None
    inner = words[1:-1]
    if inner[:1] == ["!"]:
        held = truth([words[0], *inner[1:], words[-1]])
        return None if held is None else not held
    if any(find_unknown(word) for word in inner):
        return None
    if len(inner) == 2 and inner[0] in ("-n", "-z"):
        return bool(inner[1]) == (inner[0] == "-n")
    if len(inner) == 3 and inner[1] in _COMPARED:
        try:
            return _COMPARED[inner[1]](inner[0], inner[2])
        except ValueError:
            return None
    return None
