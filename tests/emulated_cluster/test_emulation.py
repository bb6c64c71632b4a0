"""The emulated nodes themselves: they cannot outlive a test, and say why they cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from emulation import Node, UnavailableError, two_nodes

SECONDS = 20
_KILLED = """
import sys, time
from pathlib import Path
from emulation import two_nodes

with two_nodes() as nodes:
    programs = [node.start(["sleep", "600"], seconds=600, log=Path("/dev/null")) for node in nodes]
    print(*(process.pid for process in [*(node.holder for node in nodes), *programs]), flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_killed_test(nodes: tuple[Node, Node]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", _KILLED], env=environment, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        processes = [int(word) for word in test.stdout.readline().split()]
        assert len(processes) == 4
        test.send_signal(signal.SIGKILL)
    assert _ended(processes)


def _ended(processes: Sequence[int]) -> bool:
    give_up = time.monotonic() + SECONDS
    while any(_runs(process) for process in processes):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def _runs(process: int) -> bool:
    """Whether a process is there and no zombie that nobody has asked for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_one_node_sends_the_other_is_counted(fresh_nodes: tuple[Node, Node], tmp_path: Path) -> None:
    nodes = fresh_nodes
    before = [node.sent_bytes() for node in nodes]
    log = tmp_path / "ping.log"
    program = nodes[0].start([sys.executable, "-c", _SEND, nodes[1].address, "100000"], seconds=SECONDS, log=log)
    assert program.wait() == 0, log.read_text()
    sent = [node.sent_bytes() - count for node, count in zip(nodes, before, strict=True)]
    datagrams, headers = 100, 14 + 20 + 8  # Ethernet, IP, UDP
    assert sent[0] >= 100_000 + datagrams * headers
    assert sent[0] < 1.02 * (100_000 + datagrams * headers)


# Until the receiver's hardware address is known, the kernel keeps only some of the datagrams.
_SEND = """
import socket, sys, time
from pathlib import Path
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    for _ in range(int(sys.argv[2]) // 1000):
        out.sendto(bytes(1000), (sys.argv[1], 9))
        while "0x2" not in Path("/proc/net/arp").read_text():
            time.sleep(0.01)
"""


def test_a_missing_tool_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else which(tool))
    with pytest.raises(UnavailableError, match="no tc on this machine"), two_nodes():
        pass
