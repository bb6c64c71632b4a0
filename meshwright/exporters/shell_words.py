"""Words of a bash script: cut out of its text, and expanded as far as the text itself says what they are.

Nothing is executed. What only a machine could tell (the output of a command, a variable that the script does not set) becomes
a marker inside the word, and is an error only where that word decides something.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodel.specs import InputError

OPEN, CLOSE = "\ue000", "\ue001"
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = ("&&", "||", ";;", ">>", "<<", "<", ">", "&", "|", ";", "(", ")", "\n")
# ${4:-default} too: a script is read as it runs without options, so its own arguments are not set.
_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(:?[-=])(.*)", re.DOTALL)
_PARTS = re.compile(f"(?:{OPEN}.*?{CLOSE}|[^\\s])+", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]")
_NUMBER_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "%",
}  # fmt: skip

MAX_EXPANDED = 10**6
"""Characters of one word, or of one variable, that are put together at most: a text may double itself line by line."""

Variables = Mapping[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Token:
    """A word as it is written, an operator, or an array literal (``name``, ``words``)."""

    kind: str
    text: str
    line: int
    words: tuple[str, ...] = ()


def unknown(what: str) -> str:
    """A marker for text that the script does not say."""
    return f"{OPEN}{what}{CLOSE}"


def find_unknown(text: str) -> str | None:
    """What is not known in an expanded word, or None."""
    found = re.search(f"{OPEN}(.*?){CLOSE}", text, re.DOTALL)
    return found[1] if found else None


def as_written(text: str) -> str:
    """An expanded word with its markers as the script writes them."""
    return text.replace(OPEN, "").replace(CLOSE, "")


def tokens(text: str) -> Iterator[Token]:
    """The words and operators of a script, comments and here-documents left out.

    Raises:
        InputError: when a quote, a bracket or an array is not closed.
    """
    at, line, pending = 0, 1, list[str]()
    while at < len(text):
        character = text[at]
        if text.startswith("\\\n", at):
            at, line = at + 2, line + 1
        elif character in " \t\r":
            at += 1
        elif character == "#":
            at = _line_end(text, at)
        elif (operator := next((op for op in _OPERATORS if text.startswith(op, at)), None)) is not None:
            at += len(operator)
            if operator == "<<":
                at, delimiter = _here_delimiter(text, at)
                pending.append(delimiter)
                continue
            yield Token("operator", operator, line)
            if operator == "\n":
                line += 1
                at, skipped = _skip_here(text, at, pending)
                line, pending = line + skipped, []
        else:
            end = _word_end(text, at, line)
            word = text[at:end]
            if end < len(text) and text[end] == "(" and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\+?=", word):
                close = _closing(text, end, line)
                inner = tuple(token.text for token in tokens(text[end + 1 : close]) if token.kind == "word")
                yield Token("array", word, line, inner)
                end = close + 1
            elif not (word.isdigit() and text[end : end + 1] in ("<", ">")):  # else the stream that is redirected
                yield Token("word", word.replace("\\\n", ""), line)
            line += text.count("\n", at, end)
            at = end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _here_delimiter(text: str, at: int) -> tuple[int, str]:
    found = re.compile(r"-?[ \t]*['\"]?([A-Za-z0-9_]+)['\"]?").match(text, at)
    return (found.end(), found[1]) if found else (at, "")


def _skip_here(text: str, at: int, pending: list[str]) -> tuple[int, int]:
    """Past the bodies of the here-documents that a line began, with the lines passed."""
    start = at
    for delimiter in pending:
        while at < len(text):
            end = _line_end(text, at)
            body, at = text[at:end].strip(), min(end + 1, len(text))
            if body == delimiter:
                break
    return at, text.count("\n", start, at)


def _word_end(text: str, at: int, line: int) -> int:
    while at < len(text):
        character = text[at]
        if character in " \t\r\n;&|<>()":
            return at
        at = _past(text, at, line)
    return at


def _past(text: str, at: int, line: int) -> int:
    """The place behind what stands at ``at``: a character, or a quoted or bracketed part."""
    character, following = text[at], text[at + 1 : at + 2]
    if character == "\\":
        return at + 2
    if character in "'`":
        return _find(text, character, at + 1, line) + 1
    if character == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = _past(text, at, line) if text[at] in "\\$`" else at + 1
        if at >= len(text):
            raise _unclosed('"', line)
        return at + 1
    if character == "$" and following in ("(", "{"):
        return _closing(text, at + 1, line) + 1
    return at + 1


def _find(text: str, character: str, at: int, line: int) -> int:
    end = text.find(character, at)
    if end < 0:
        raise _unclosed(character, line)
    return end


def _closing(text: str, at: int, line: int) -> int:
    """The bracket that closes the one at ``at``."""
    opening, closing = text[at], {"(": ")", "{": "}"}[text[at]]
    start, depth = at, 0
    while at < len(text):
        character = text[at]
        if character == "#" and opening == "(" and text[at - 1] in " \t\n(" and text[start - 1 : start] == "=":
            at = _line_end(text, at)
            continue
        depth += (character == opening) - (character == closing)
        if depth == 0:
            return at
        at = at + 1 if character in "(){}" else _past(text, at, line)
    raise _unclosed(opening, line)


def _unclosed(what: str, line: int) -> InputError:
    return InputError(f"line {line} of the script opens {what}, which nothing closes; it may be cut off")


def expand(raw: str, variables: Variables) -> list[str]:
    """The fields that a word becomes: quotes removed, variables put in, arrays spread."""
    fields: list[str] = []
    current: str | None = None
    at = 0
    while at < len(raw):
        character = raw[at]
        end = _past(raw, at, 0)
        part = raw[at:end]
        if character == "'":
            current = (current or "") + part[1:-1]
        elif character == "\\":
            current = (current or "") + part[1:]
        elif character == '"':
            spread = _spread(part[1:-1], variables)
            if spread is None:
                current = (current or "") + _text(part[1:-1], variables)
            elif spread:
                fields += [(current or "") + spread[0], *spread[1:-1]] if len(spread) > 1 else []
                current = spread[-1] if len(spread) > 1 else (current or "") + spread[0]
        elif character in "$`":
            end = _variable_end(raw, at, end)
            spread = _spread(raw[at:end], variables)
            words = _text(raw[at:end], variables) if spread is None else " ".join(spread)
            split = _PARTS.findall(words)  # a marker holds blanks of its own
            if split:
                fields += [(current or "") + split[0], *split[1:-1]] if len(split) > 1 else []
                current = split[-1] if len(split) > 1 else (current or "") + split[0]
        else:
            current = (current or "") + part
        check_size(len(current or "") + sum(map(len, fields[-2:])) + len(fields))
        at = end
    return fields if current is None else [*fields, current]


def _variable_end(raw: str, at: int, end: int) -> int:
    if raw[at] != "$" or raw[at + 1 : at + 2] in ("(", "{"):
        return end
    name = _NAME.match(raw, at + 1)
    return name.end() if name else min(at + 2, len(raw))


def _spread(inner: str, variables: Variables) -> list[str] | None:
    """The elements, where a quoted part is one whole array or the script's own arguments."""
    if inner in OWN_ARGUMENTS:
        return [unknown(inner)]
    found = _ARRAY.fullmatch(inner[2:-1]) if inner.startswith("${") and inner.endswith("}") else None
    if found is None:
        return None
    value = variables.get(found[1])
    if value is None:
        return [unknown(f"${found[1]}")]
    return value if isinstance(value, list) else [value]


def _text(inner: str, variables: Variables) -> str:
    """Text inside double quotes, or one bare expansion, as one string."""
    out, at = "", 0
    while at < len(inner):
        end = _past(inner, at, 0) if inner[at] in "\\$`" else at + 1
        part = inner[at:end]
        if inner[at] == "\\":
            out += part[1:] if part[1:] in ('"', "$", "`", "\\") else part
        elif inner[at] == "`":
            out += unknown(part)
        elif inner[at] == "$":
            end = _variable_end(inner, at, end)
            out += _value(inner[at:end], variables)
        else:
            out += part
        check_size(len(out))
        at = end
    return out


def check_size(characters: int) -> None:
    """Refuse a word or variable that grows beyond any launch script.

    Raises:
        InputError: above `MAX_EXPANDED`.
    """
    if characters > MAX_EXPANDED:
        raise InputError(f"a variable of the script grows beyond {MAX_EXPANDED:,} characters; needed a launch script")


def _value(part: str, variables: Variables) -> str:
    """What ``$NAME``, ``${NAME}``, ``${NAME:-default}`` or ``$((sum))`` is."""
    if part == "$":
        return part
    if part.startswith("$((") and part.endswith("))"):
        return _arithmetic(part[3:-2], variables)
    if part.startswith("${"):
        name = part[2:-1]
        default = _DEFAULT.fullmatch(name)
        if default is not None:
            held = variables.get(default[1])
            if held is None or (held == "" and default[2].startswith(":")):
                return " ".join(expand(default[3], variables))
            name = default[1]
    else:
        name = part[1:]
    held = variables.get(name) if _NAME.fullmatch(name) else None
    if isinstance(held, list):
        return held[0] if held else ""
    return unknown(part) if held is None else held


def _arithmetic(text: str, variables: Variables) -> str:
    """A sum of whole numbers and variables."""
    written = _text(text, variables)
    filled = _NAME.sub(lambda found: str(variables.get(found[0], found[0])), written)
    try:
        return str(_number(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return unknown(f"$(({text}))")


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 2**63:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _NUMBER_OPERATORS:
        left, right = _number(node.left), _number(node.right)
        sign = _NUMBER_OPERATORS[type(node.op)]
        if sign in "/%":
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if sign == "/" else left - quotient * right
        return {"+": left + right, "-": left - right, "*": left * right}[sign]
    raise ValueError
