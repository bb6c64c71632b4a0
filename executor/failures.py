"""Failures of a run of several processes, told as one: which rank, and why.

One process fails first; the others then lose their connection to it, or are stopped. Every process
writes what happened to it into a common folder, the agent that started them adds the ones that died
without a word, and `root_cause` picks the one to tell.
"""

from __future__ import annotations

import json
import re
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from costmodel.specs import ExecutionError, InputError

NO_RANK = -1
Kind = Literal["input", "failure", "killed", "peer", "stopped"]

_LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "socket closed",
    "timed out", "timeout", "connectfullmesh", "pair is not connected", "remote process exited", "nccl remote",
    "failed to recv", "failed to send",
)  # fmt: skip

# Communication libraries put the place in their own source first: "[/…/gloo/transport/tcp/pair.cc:144] Connection closed".
_SOURCE_PLACE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\]\s*")


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended one process.

    ``peer``: it only lost another process or waited for it in vain. ``stopped``: it was asked to end, as the agent does
    with the processes that are left when one has failed.
    """

    rank: int
    kind: Kind
    cause: str
    details: str = ""
    time: float = 0.0

    def __str__(self) -> str:
        return self.cause if self.kind == "input" or self.rank == NO_RANK else f"rank {self.rank}: {self.cause}"


def describe(error: BaseException, rank: int) -> Failure:
    """The failure that an exception means."""
    details = "".join(traceback.format_exception(error))
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    message = _SOURCE_PLACE.sub("", lines[0]) if lines else ""
    if isinstance(error, InputError):
        return Failure(rank, "input", str(error), details, time.time())
    if isinstance(error, ExecutionError):  # says who and why already
        return Failure(rank, "failure", str(error), details, time.time())
    # The text of a lost connection comes from many layers, under RuntimeError as under torch's own classes.
    peer = isinstance(error, RuntimeError | OSError) and any(sign in str(error).lower() for sign in _LOST_PEER)
    cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if peer:
        return Failure(
            rank, "peer", f"another process was lost or kept it waiting too long ({cause})", details, time.time()
        )
    return Failure(rank, "failure", cause, details, time.time())


def describe_agent(error: Exception, meeting: str = "") -> Failure:
    """The failure of the process that starts the others, before it started any.

    ``meeting``: which node it is and where it waited for the others; empty on one node.
    """
    details = "".join(traceback.format_exception(error))
    inner = error.__cause__ or error
    message = (str(inner).strip().splitlines() or [type(inner).__name__])[0]
    cause = f"the processes could not be started: {_SOURCE_PLACE.sub('', message)}"
    if meeting and any(sign in message.lower() for sign in _LOST_PEER):
        cause = (
            f"{meeting} waited in vain for the others: run the same on every node within the time that --timeout gives "
            f"({_SOURCE_PLACE.sub('', message)})"
        )
    return Failure(NO_RANK, "failure", cause, details, time.time())


def describe_exit(rank: int, exit_code: int, when: float) -> Failure:
    """The failure of a process that ended without telling why."""
    if exit_code >= 0:
        return Failure(rank, "failure", f"the process ended with exit code {exit_code}", "", when)
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (often: the machine ran out of memory)" if name == "SIGKILL" else ""
    kind: Kind = "stopped" if name == "SIGTERM" else "killed"
    return Failure(rank, kind, f"the process was killed by {name}{hint}", "", when)


def save(failure: Failure, folder: Path) -> None:
    """Write one failure; the first of a rank stands."""
    path = folder / f"rank{failure.rank}.{failure.kind}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(failure)))
    temporary.replace(path)


def load(folder: Path) -> list[Failure]:
    """All failures written into a folder, earliest first."""
    found = [Failure(**json.loads(path.read_text())) for path in sorted(folder.glob("rank*.json"))]
    return sorted(found, key=lambda failure: failure.time)


def root_cause(failures: list[Failure]) -> Failure | None:
    """The failure to tell: the first that is not just the echo of another.

    The kinds of `Kind` in their order, and the earliest of a kind.
    """
    for kind in get_args(Kind):
        for failure in failures:
            if failure.kind == kind:
                return failure
    return None


def to_exception(failure: Failure) -> InputError | ExecutionError:
    """The exception of a failure; the process's own traceback is attached as a note."""
    error = InputError(str(failure)) if failure.kind == "input" else ExecutionError(str(failure))
    if failure.details:
        error.add_note(failure.details)
    return error
