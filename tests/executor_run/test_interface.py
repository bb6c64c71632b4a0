"""Which interface gloo is told to use."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from executor.interface import VARIABLE, addresses, interface_towards, set_gloo_interface

LOOPBACK = {"lo": "127.0.0.1"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="interfaces are asked of Linux")
def test_the_loopback_interface_is_among_this_machines() -> None:
    assert addresses()["lo"] == "127.0.0.1"


def test_the_interface_with_the_address_that_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    talks_from(monkeypatch, "10.1.0.7")
    interfaces = {**LOOPBACK, "eth0": "192.168.0.7", "ib0": "10.1.0.7"}
    assert interface_towards("node0", interfaces) == "ib0"
    assert interface_towards("node0", {"eth0": "192.168.0.7"}) is None


def test_a_node_whose_own_name_is_its_loopback_address() -> None:
    assert interface_towards("127.0.0.1", {**LOOPBACK, "eth0": "192.168.0.7"}) == "eth0"
    assert interface_towards("127.0.0.1", {**LOOPBACK, "eth0": "192.168.0.7", "docker0": "172.17.0.1"}) is None
    assert interface_towards("127.0.0.1", LOOPBACK) is None


def test_an_unknown_host_is_left_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert interface_towards("nowhere", LOOPBACK) is None


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.interface.addresses", lambda: {"eth7": "192.168.0.7"})
    monkeypatch.setenv(VARIABLE, "eth1")
    set_gloo_interface("127.0.0.1")
    assert os.environ[VARIABLE] == "eth1"
    monkeypatch.setenv(VARIABLE, "")
    set_gloo_interface("127.0.0.1")
    assert os.environ[VARIABLE] == "eth7"


def talks_from(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda _: (address, 40000))
