"""The commands of a launch script as its shell would see them, without running anything.

Lines are read from top to bottom: assignments, arrays and defaults (``${NAME:-8}``) are followed, loops and conditions are not:
every line of theirs is read once. What only a running shell knows (``$(hostname)``, a variable that nobody sets) stays as it is
written, so that whoever needs its value can say so.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from costmodel.specs import InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_SEPARATORS = "\n;&|"
_MAX_LENGTH = 10**6
# Words that stand before a command without being one.
_KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "time", "exec", "!", "{", "}", "fi", "done", "export"}
)


def read_commands(text: str) -> list[list[str]]:
    """The commands of a script, each as its words; see `read_script`."""
    return read_script(text)[0]


def read_script(text: str) -> tuple[list[list[str]], dict[str, str]]:
    """The commands of a script and its variables.

    Args:
        text: of the script.

    Returns:
        Every simple command in order, as its words; variables that are set before it, and defaults, are filled in. Then the
        variables as the last line leaves them, arrays as one text.

    Raises:
        InputError: for a quote or bracket that is never closed, and for a text that is too long for a script.
    """
    if len(text) > _MAX_LENGTH:
        raise InputError(f"the script has {len(text)} characters; needed at most {_MAX_LENGTH}")
    reader = _Reader(text.replace("\r\n", "\n"))
    return reader.read(), {name: " ".join(value) for name, value in reader.variables.items()}


def unresolved(word: str) -> bool:
    """Whether a word holds something that only a running shell knows."""
    return "$" in word or "`" in word


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    variables: dict[str, list[str]] = field(default_factory=dict)

    def read(self) -> list[list[str]]:
        commands: list[list[str]] = []
        while self.at < len(self.text):
            command = self._command()
            while command and command[0] in _KEYWORDS:
                del command[0]
            if command:
                commands.append(command)
        return commands

    def _command(self) -> list[str]:
        """Words up to the next separator; assignments before the command are carried out."""
        words: list[str] = []
        while self._skip_blanks():
            if self.text[self.at] in _SEPARATORS:
                self.at += 1
                break
            if self.text[self.at] in "<>()":
                self.at += 1
                continue
            if (found := _ASSIGNMENT.match(self.text, self.at)) and all(word in _KEYWORDS for word in words):
                self.at = found.end()
                self._assign(found.group(1), append=bool(found.group(2)))
            else:
                words += self._word()
        return words

    def _skip_blanks(self) -> bool:
        """Past blanks, joined lines and comments; whether anything is left."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in " \t":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _assign(self, name: str, *, append: bool) -> None:
        value = self._array() if self.text.startswith("(", self.at) else [" ".join(self._scalar())]
        self.variables[name] = [*self.variables.get(name, []), *value] if append else value

    def _scalar(self) -> list[str]:
        starts = self.at < len(self.text) and self.text[self.at] not in " \t)" + _SEPARATORS
        return self._word() if starts else []

    def _array(self) -> list[str]:
        opened = self.at
        self.at += 1
        words: list[str] = []
        while self._skip_blanks():
            if self.text[self.at] == ")":
                self.at += 1
                return words
            if self.text[self.at] in "\n;&|<>(":
                self.at += 1
            else:
                words += self._word()
        raise self._unclosed("(", opened)

    def _word(self) -> list[str]:
        """One word of the text, which may become none or several."""
        done: list[str] = []
        current, quoted = "", False
        while self.at < len(self.text) and self.text[self.at] not in " \t<>()" + _SEPARATORS:
            character = self.text[self.at]
            if character == "'":
                current, quoted = current + self._until("'"), True
            elif character == '"':
                parts, quoted = self._double_quoted(), True
                done += [current + parts[0], *parts[1:-1]] if len(parts) > 1 else []
                current = parts[-1] if len(parts) > 1 else current + "".join(parts)
                quoted = bool(parts) or bool(current)
            elif character == "\\":
                current += self.text[self.at + 1 : self.at + 2].replace("\n", "")
                self.at += 2
            elif character == "$":
                parts = [word for part in self._dollar() for word in ([part] if unresolved(part) else part.split())]
                done += [current + parts[0], *parts[1:-1]] if len(parts) > 1 else []
                current = parts[-1] if len(parts) > 1 else current + "".join(parts)
            else:
                current, self.at = current + character, self.at + 1
        return [*done, current] if current or quoted else done

    def _until(self, end: str) -> str:
        opened = self.at
        close = self.text.find(end, self.at + 1)
        if close < 0:
            raise self._unclosed(end, opened)
        inside, self.at = self.text[self.at + 1 : close], close + 1
        return inside

    def _double_quoted(self) -> list[str]:
        """The words inside double quotes: one, or those of an array."""
        opened = self.at
        self.at += 1
        words: list[str] = [""]
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return words
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                words[-1] += self.text[self.at + 1].replace("\n", "")
                self.at += 2
            elif character == "$":
                parts = self._dollar()
                if parts:
                    words = [*words[:-1], words[-1] + parts[0], *parts[1:]]
                elif words == [""] and self.text.startswith('"', self.at):
                    words = []
            else:
                words[-1] += character
                self.at += 1
        raise self._unclosed('"', opened)

    def _dollar(self) -> list[str]:
        """What a ``$`` stands for; unknown things as they are written."""
        start = self.at
        if self.text.startswith("$((", start):
            return [self._arithmetic(self._bracketed(start + 1, "(", ")"), start)]
        if self.text.startswith("$(", start):
            self._bracketed(start + 1, "(", ")")
        elif self.text.startswith("${", start):
            return self._braced(self._bracketed(start + 1, "{", "}"), start)
        elif found := _NAME.match(self.text, start + 1):
            self.at = found.end()
            return self._value(found.group(), start)
        else:
            self.at = start + (2 if self.text[start + 1 : start + 2] in tuple("@*#?$!0123456789") else 1)
        return [self.text[start : self.at]]

    def _bracketed(self, start: int, opening: str, closing: str) -> str:
        depth = 0
        for index in range(start, len(self.text)):
            depth += (self.text[index] == opening) - (self.text[index] == closing)
            if depth == 0:
                self.at = index + 1
                return self.text[start + 1 : index]
        raise self._unclosed(opening, start)

    def _value(self, name: str, start: int) -> list[str]:
        return list(self.variables[name]) if name in self.variables else [self.text[start : self.at]]

    def _braced(self, inside: str, start: int) -> list[str]:
        found = _NAME.match(inside)
        if found is None:
            return [self.text[start : self.at]]
        name, rest = found.group(), inside[found.end() :]
        if rest in ("", "[@]", "[*]"):
            return self._value(name, start)
        if rest[:2] in (":-", ":="):
            if "".join(self.variables.get(name, [])):
                return list(self.variables[name])
            return ["".join(_Reader(f'"{rest[2:]}"', variables=self.variables)._double_quoted())]
        return [self.text[start : self.at]]

    def _arithmetic(self, inside: str, start: int) -> str:
        """Whole numbers, + - * / and names that are known; everything else as it is written."""
        text = inside.strip("()").replace("$", "")
        text = _NAME.sub(lambda found: "".join(self.variables.get(found.group(), [found.group()])), text)
        try:
            return str(_whole(ast.parse(text.replace("/", "//").strip(), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
            return self.text[start : self.at]

    def _unclosed(self, what: str, start: int) -> InputError:
        line = self.text.count("\n", 0, start) + 1
        return InputError(f"line {line} of the script opens {what}, which nothing closes")


def _whole(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv():
                return left // right
    raise ValueError("no whole number")
