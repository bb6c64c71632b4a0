"""Two nodes on one machine: two network namespaces, joined by a shaped virtual Ethernet link.

A namespace is held by a process that waits for the end of its standard input, so it is gone as soon as whoever made it is,
killed or not, and what runs in it ends then too. Nothing else is joined to it: no traffic leaves the machine. What a
node sends inside itself goes through its own loopback and is not shaped. Each node has its own half of the cores.

Linux, root (CAP_NET_ADMIN and CAP_SYS_ADMIN), iproute2 and util-linux are needed; `UnavailableError` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INTERFACE = "eth0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
_TOOLS = ("ip", "nsenter", "setpriv", "taskset", "tc", "timeout", "unshare")
# The shell asks once more, after the signal is ordered: whoever was killed before that would never send it.
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
_START_SECONDS = 10


class UnavailableError(Exception):
    """Why this machine cannot be made into two nodes."""


@dataclass
class Node:
    """One node; ``holder`` keeps its namespace, ``cores`` are its share of the machine's."""

    holder: subprocess.Popen[bytes]
    address: str
    cores: Sequence[int]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, words: Sequence[str]) -> list[str]:
        """A command line that runs ``words`` on this node."""
        cores = ",".join(map(str, self.cores))
        return ["taskset", "--cpu-list", cores, "nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *words]

    def start(
        self, words: Sequence[str], *, seconds: float, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program, to be ended after ``seconds``; its output goes to ``log``."""
        with log.open("w") as output:
            process = subprocess.Popen(
                [*_ENDS_WITH_US, str(os.getpid()), "timeout", "--kill-after=5", f"{seconds:.0f}", *self.command(words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def sent_bytes(self) -> int:
        """Bytes that left this node until now, with Ethernet, IP and TCP headers (/proc/net/dev)."""
        for line in Path(f"/proc/{self.holder.pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == INTERFACE:
                return int(counters.split()[8])
        raise AssertionError(f"the node has no {INTERFACE}")

    def stop(self) -> None:
        """End what still runs here and let the namespace go."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.holder.communicate()


@contextlib.contextmanager
def two_nodes(*, rate: str = "100mbit", burst: str = "16kb") -> Iterator[tuple[Node, Node]]:
    """Two nodes; each may send ``rate`` to the other.

    Raises:
        UnavailableError: where namespaces or their tools are missing or forbidden.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise UnavailableError(f"no {', '.join(missing)} on this machine")
    with contextlib.ExitStack() as stack:
        nodes = []
        for index, address in enumerate(ADDRESSES):
            nodes.append(_new_node(address, _share_of_cores(index)))
            stack.callback(nodes[-1].stop)
        first, second = nodes
        _configure(first, second, rate=rate, burst=burst)
        yield first, second


def _share_of_cores(index: int) -> list[int]:
    """Half of the cores, so that no node computes on the other's; the one core for both where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[index :: len(ADDRESSES)] or cores


def _new_node(address: str, cores: Sequence[int]) -> Node:
    """A process in a new namespace; it says a word once it is there."""
    pipe = subprocess.PIPE
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        reason = holder.communicate()[1].decode(errors="replace").strip()
        raise UnavailableError(f"network namespaces are forbidden here ({reason})")
    return Node(holder, address, cores)


def _configure(first: Node, second: Node, *, rate: str, burst: str) -> None:
    ends = ["type", "veth", "peer", "name", INTERFACE, "netns", str(second.holder.pid)]
    _require("ip", "link", "add", INTERFACE, "netns", str(first.holder.pid), *ends)
    for node in (first, second):
        _require(*node.command(["ip", "addr", "add", f"{node.address}/24", "dev", INTERFACE]))
        # Every frame passes and is counted by itself, not tens of them as one with one header.
        _require(*node.command(["ip", "link", "set", INTERFACE, "gso_max_segs", "1"]))
        for device in ("lo", INTERFACE):
            _require(*node.command(["ip", "link", "set", device, "up"]))
        shape = ["rate", rate, "burst", burst, "latency", "50ms"]
        _require(*node.command(["tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *shape]))


def _require(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_START_SECONDS, check=False)
    if done.returncode:
        raise UnavailableError(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
