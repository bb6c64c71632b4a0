"""Where a process stands among all, as torchrun tells it through the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.specs import InputError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAST_PORT = 65535
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Ranks count node by node: rank = node x local_size + local_rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def node(self) -> int:
        """Number of this process's node."""
        return self.rank // self.local_size

    @property
    def num_nodes(self) -> int:
        """Nodes of the run."""
        return self.size // self.local_size


def place_from_environment(environment: Mapping[str, str]) -> Place | None:
    """This process's place under torchrun; None where torchrun did not start it.

    Raises:
        InputError: when some of torchrun's variables are missing, or the nodes have different numbers of processes.
    """
    given = [name for name in ("RANK", "WORLD_SIZE") if name in environment]
    if not given:
        return None
    missing = [name for name in _TORCHRUN if name not in environment]
    if missing:
        raise InputError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set, but not {', '.join(missing)}; start it with "
            f"torchrun, or for this machine alone unset {' and '.join(given)}"
        )
    numbers = {name: environment[name] for name in _TORCHRUN[:4]}
    for name, text in numbers.items():
        if not _is_count(text):
            raise InputError(f"{name} is {text!r}; needed a whole number, as torchrun sets it")
    port = environment["MASTER_PORT"]
    if not _is_count(port) or int(port) > _LAST_PORT:
        raise InputError(f"MASTER_PORT is {port!r}; needed a port from 0 to {_LAST_PORT}, as torchrun sets it")
    rank, size, local_rank, local_size = (int(text) for text in numbers.values())
    if not (local_size >= 1 and size % local_size == 0 and rank < size and local_rank == rank % local_size):
        raise InputError(
            f"RANK {rank} of {size} and LOCAL_RANK {local_rank} of {local_size}; needed the same number of processes on "
            "every node, ranks node by node, as torchrun --nproc-per-node N gives them"
        )
    return Place(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
