"""Arguments as keys of `functools.lru_cache`, where the arguments themselves cannot be hashed, or not fast."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

Argument = TypeVar("Argument")


class Identical(Generic[Argument]):
    """A spec as a key that is found by identity: copies of a model share its parts, and hashing many specs takes long."""

    def __init__(self, value: Argument) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identical) and self.value is other.value


class Content:
    """Columns as a key that is found by what they hold."""

    def __init__(self, *columns: NDArray[Any]) -> None:
        self.columns = columns
        self._bytes = tuple((column.shape, column.dtype.char, column.tobytes()) for column in columns)

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._bytes == other._bytes
