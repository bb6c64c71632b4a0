"""The network interface through which gloo's processes on several nodes reach each other.

Left to itself gloo listens on the address that the machine's own name stands for. That is often 127.0.0.1 or 127.0.1.1,
where no other node finds it, and the run hangs until it times out. GLOO_SOCKET_IFNAME names the interface instead; where
the user has not set it, it is the one on the way to where the nodes meet.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys

VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NAME_BYTES = 15
_LOOPBACK = "127."


def set_gloo_interface(meeting_host: str) -> None:
    """Set `VARIABLE` for this process, before its first process group, unless it is set.

    Args:
        meeting_host: name or address of the node where all nodes meet (torchrun's MASTER_ADDR).
    """
    if not os.environ.get(VARIABLE):
        name = interface_towards(meeting_host, addresses())
        if name is not None:
            os.environ[VARIABLE] = name


def interface_towards(host: str, interfaces: dict[str, str]) -> str | None:
    """The interface whose address this machine uses to talk to a host.

    Args:
        host: name or address.
        interfaces: interface -> IPv4 address.

    Returns:
        None where it cannot be told. Where the host is this machine under a name of its own for 127.0.0.1, that address
        says nothing of the others': then the only other interface, if there is just one.
    """
    own = _own_address(host)
    if own is None:
        return None
    if own.startswith(_LOOPBACK):
        outward = [name for name, address in interfaces.items() if not address.startswith(_LOOPBACK)]
        return outward[0] if len(outward) == 1 else None
    return next((name for name, address in interfaces.items() if address == own), None)


def _own_address(host: str) -> str | None:
    """The address of this machine's end of a way to ``host``; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        return str(probe.getsockname()[0])
    return None


def addresses() -> dict[str, str]:
    """This machine's interfaces with their IPv4 addresses; empty off Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    import fcntl

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:_NAME_BYTES])
                found[name] = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return found
