"""The commands of a bash script, with every variable put in that the script itself sets. Nothing is executed.

Branches are taken where their condition follows from the text; where it does not, what they set is marked as unknown, and
is an error only where it decides something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from costmodel.specs import InputError
from meshwright.exporters.shell_tests import truth
from meshwright.exporters.shell_words import (
    OWN_ARGUMENTS,
    Token,
    as_written,
    check_size,
    expand,
    find_unknown,
    tokens,
    unknown,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_MAX_LENGTH = 200_000
_BEFORE = ("exec", "time", "!")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_SEPARATORS = ("\n", ";", "&", "&&", "||", "|", ";;")
_OPENING = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "{": "}"}


class _Mode(Enum):
    """Whether a part of the script is run, may be run, or is not."""

    RUN = "run"
    MAYBE = "maybe"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, expanded, and its line."""

    words: tuple[str, ...]
    line: int


@dataclass(slots=True)
class _Script:
    tokens: list[Token]
    unsure: _Mode = _Mode.MAYBE  # how a part is taken of which the text does not say whether it runs
    at: int = 0
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)


def commands(text: str, *, all_branches: bool = False) -> tuple[Command, ...]:
    """The commands that a script runs, or may run, in order; definitions of functions are left out.

    Args:
        text: of the script.
        all_branches: take parts of which the text does not say whether they run as if they did, one after the other, and keep
            ``$@``, which otherwise is nothing.

    Raises:
        InputError: when a quote, bracket or block is not closed, the message names the line; and for a text that is too long.
    """
    return tuple(_read(text, _Mode.RUN if all_branches else _Mode.MAYBE).commands)


def read_commands(text: str) -> list[list[str]]:
    """The commands of a script, each as its words; see `read_script`."""
    return read_script(text)[0]


def read_script(text: str) -> tuple[list[list[str]], dict[str, str]]:
    """The commands of a script and its variables.

    Args:
        text: of the script.

    Returns:
        Every command in order, as its words, those of all branches that the text does not decide among them; what only a running
        shell knows stays as it is written. Then the variables as the last line leaves them, arrays as one text.

    Raises:
        InputError: see `commands`.
    """
    script = _read(text, _Mode.RUN)
    words = [[as_written(word) for word in command.words] for command in script.commands]
    values = {name: value if isinstance(value, str) else " ".join(value) for name, value in script.variables.items()}
    return words, {name: as_written(value) for name, value in values.items()}


def unresolved(word: str) -> bool:
    """Whether a word of `read_script` holds something that only a running shell knows."""
    return "$" in word or "`" in word


def _read(text: str, unsure: _Mode) -> _Script:
    if len(text) > _MAX_LENGTH:
        raise InputError(f"the script has {len(text)} characters; needed at most {_MAX_LENGTH}")
    try:
        script = _Script(list(tokens(text.replace("\r\n", "\n"))), unsure=unsure)
        while script.at < len(script.tokens):
            _block(script, _Mode.RUN, ())
            if script.at < len(script.tokens):  # a closing word without its opening one
                script.at += 1
    except RecursionError:
        raise InputError("the script nests blocks or expansions too deeply; needed a launch script") from None
    return script


def _block(script: _Script, mode: _Mode, until: tuple[str, ...]) -> str | None:
    """Statements up to one of the words ``until``, which is passed and returned."""
    start = script.tokens[script.at].line if script.at < len(script.tokens) else 0
    current, status = mode, None
    while script.at < len(script.tokens):
        token = script.tokens[script.at]
        if token.kind == "operator":
            script.at += 1
            if token.text in ("&&", "||"):
                current = _after(script, mode, current, status, token.text)
            elif token.text in ("\n", ";", "&", "|", ";;"):
                current = mode
            continue
        if token.kind == "word" and token.text in until:
            script.at += 1
            return token.text
        status = _statement(script, current)
    if until:
        raise InputError(f"line {start}: {until[-1]} is missing; the file may be cut off")
    return None


def _after(script: _Script, mode: _Mode, current: _Mode, status: bool | None, operator: str) -> _Mode:
    """How a command behind ``&&`` or ``||`` runs."""
    if mode is not _Mode.RUN or current is _Mode.MAYBE:
        return mode if mode is not _Mode.RUN else _Mode.MAYBE
    if status is None:
        return script.unsure
    return _Mode.RUN if status == (operator == "&&") else _Mode.SKIP


def _statement(script: _Script, mode: _Mode) -> bool | None:
    """One statement; returns its status where that is known."""
    token = script.tokens[script.at]
    if token.kind == "word" and token.text == "do":
        script.at += 1
        return None
    if token.kind == "word" and token.text == "if":
        script.at += 1
        _branches(script, mode)
        return None
    if token.kind == "word" and token.text in _OPENING:
        script.at += 1
        if token.text in ("for", "case"):
            _pass_head(script)
        inner = mode if token.text == "{" else _Mode.SKIP if mode is _Mode.SKIP else script.unsure
        _block(script, inner, (_OPENING[token.text],))
        return None
    if _is_function(script):
        _block(script, _Mode.SKIP, ("}",))
        return None
    return _simple(script, mode)


def _pass_head(script: _Script) -> None:
    """Past the rest of the line that a loop or ``case`` begins."""
    while script.at < len(script.tokens) and script.tokens[script.at].text not in ("\n", ";", "do"):
        script.at += 1


def _is_function(script: _Script) -> bool:
    """Whether a function is defined here; its opening brace is passed then."""
    texts = [token.text for token in script.tokens[script.at : script.at + 6]]
    for head in ([texts[0], "(", ")"], ["function", *texts[1:2]], ["function", *texts[1:2], "(", ")"]):
        rest = texts[len(head) :]
        breaks = next((count for count, text in enumerate(rest) if text != "\n"), len(rest))
        if texts[: len(head)] == head and rest[breaks : breaks + 1] == ["{"]:
            script.at += len(head) + breaks + 1
            return True
    return False


def _branches(script: _Script, mode: _Mode) -> None:
    """``if`` with its branches: the first whose condition holds, or all of them perhaps."""
    taken: bool | None = False
    word: str | None = "if"
    while word in ("if", "elif"):
        condition = _condition(script)
        chosen = mode
        if mode is _Mode.RUN:
            if taken or condition is False:
                chosen = _Mode.SKIP
            elif taken is None or condition is None:
                chosen = script.unsure
        taken = (
            True if taken or (taken is False and condition) else None if condition is None or taken is None else False
        )
        word = _block(script, chosen, ("elif", "else", "fi"))
    if word == "else":
        chosen = mode
        if mode is _Mode.RUN and taken is not False:
            chosen = _Mode.SKIP if taken else script.unsure
        _block(script, chosen, ("fi",))


def _condition(script: _Script) -> bool | None:
    """The condition up to ``then``."""
    found: list[Token] = []
    while script.at < len(script.tokens):
        token = script.tokens[script.at]
        script.at += 1
        if token.text == "then":
            return _tests(script, [part for part in found if part.text not in ("\n", ";")])
        found.append(token)
    raise InputError(f"line {found[0].line if found else 0}: then is missing; the file may be cut off")


def _tests(script: _Script, parts: list[Token]) -> bool | None:
    """Tests joined by ``&&`` and ``||``, from left to right; None: not known."""
    held, operator, test = None, "", list[Token]()
    for part in [*parts, Token("operator", "end", 0)]:
        if part.kind != "operator":
            test.append(part)
            continue
        if part.text not in ("&&", "||", "end") or not test:
            return None
        found = truth(_expanded(script, test))
        if operator == "&&":
            found = False if False in (held, found) else None if None in (held, found) else True
        elif operator == "||":
            found = True if True in (held, found) else None if None in (held, found) else False
        held, operator, test = found, part.text, []
    return held


def _expanded(script: _Script, parts: list[Token]) -> list[str]:
    return [word for part in parts for word in (expand(part.text, script.variables) or [""])]


def _simple(script: _Script, mode: _Mode) -> bool | None:
    """Assignments and a command, up to the next separator."""
    parts: list[Token] = []
    while script.at < len(script.tokens):
        token = script.tokens[script.at]
        if token.kind == "operator" and token.text in (*_SEPARATORS, "(", ")"):
            break
        script.at += 1
        if token.kind == "operator":  # a redirection, into a file or onto another stream
            to_stream = script.at < len(script.tokens) and script.tokens[script.at].text == "&"
            script.at += 2 if to_stream else 1
            continue
        parts.append(token)
    if mode is _Mode.SKIP or not parts:
        if not parts:
            script.at += 1
        return None
    return _run(script, mode, parts)


def _run(script: _Script, mode: _Mode, parts: list[Token]) -> bool | None:
    rest = list(parts)
    while rest and rest[0].text in _BEFORE:
        rest.pop(0)
    declaring = bool(rest) and rest[0].text in _DECLARING
    rest = rest[1:] if declaring else rest
    while rest and (rest[0].kind == "array" or _ASSIGNMENT.fullmatch(rest[0].text) or (declaring and rest)):
        _assign(script, mode, rest.pop(0))
    if not rest:
        return True
    words = _expanded_command(script, rest)
    status = truth(words)
    if script.unsure is _Mode.MAYBE:
        words = [word for word in words if find_unknown(word) not in OWN_ARGUMENTS]
    if status is None and words:
        script.commands.append(Command(tuple(words), rest[0].line))
    return status


def _expanded_command(script: _Script, parts: list[Token]) -> list[str]:
    if parts[0].text in ("[", "[["):
        return _expanded(script, parts)
    return [word for part in parts for word in expand(part.text, script.variables)]


def _assign(script: _Script, mode: _Mode, token: Token) -> None:
    found = _ASSIGNMENT.fullmatch(token.text)
    if found is None:  # `export NAME`, `declare -a`
        return
    name, append = found[1], bool(found[2])
    if token.kind == "array":
        value: str | list[str] = [word for raw in token.words for word in expand(raw, script.variables)]
    else:
        value = " ".join(expand(found[3], script.variables))
    held = script.variables.get(name)
    if mode is _Mode.MAYBE:
        value = _perhaps(name, token.line, value, append=append, held=held)
        append = False
    if append and isinstance(held, list):
        value = [*held, *(value if isinstance(value, list) else [value])]
    elif append and isinstance(held, str) and isinstance(value, str):
        value = held + value
    check_size(len(value) if isinstance(value, str) else sum(len(word) + 1 for word in value))
    script.variables[name] = value


def _perhaps(
    name: str, line: int, value: str | list[str], *, append: bool, held: str | list[str] | None
) -> str | list[str]:
    """What a variable is that may have been set."""
    if value == held:
        return value
    shown = " ".join(value) if isinstance(value, list) else value
    marker = unknown(f"{name} at line {line}, which is set under a condition" + (f" to {shown}" if shown else ""))
    if append and isinstance(held, list):
        return [*held, marker]
    return [marker] if isinstance(value, list) else marker


def perhaps(what: str) -> list[str]:
    """The words that a part which may run adds, by what `find_unknown` found; none where it is something else."""
    return what.partition("which is set under a condition to ")[2].split()


def launches(text: str, programs: tuple[str, ...]) -> Iterator[Command]:
    """The commands that call one of the programs, from that word on; ``*.py`` stands for every Python file."""
    for command in commands(text):
        for place, word in enumerate(command.words):
            base = word.rsplit("/", 1)[-1]
            if base in programs or ("*.py" in programs and base.endswith(".py")):
                yield Command(command.words[place:], command.line)
                break
