"""Where the nodes of a run meet: HOST:PORT of node 0."""

from __future__ import annotations

import re
import socket

from costmodel.specs import InputError

_ENDPOINT = re.compile(r"(?P<host>[\w.-]+):(?P<port>[0-9]{1,5})", re.ASCII)


def check_endpoint(endpoint: str, *, resolve: bool) -> None:
    """Make sure that other nodes can be asked for at an endpoint; nobody has to answer yet.

    Args:
        endpoint: ``HOST:PORT``.
        resolve: also ask for the host's address.

    Raises:
        InputError: when it is no host and port, or nobody knows the host.
    """
    match = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InputError(
            f"rdzv_endpoint is {endpoint!r}; needed HOST:PORT of node 0 with a port from 1 to 65535, such as node0:29500"
        )
    if not resolve:
        return
    try:
        socket.getaddrinfo(match["host"], int(match["port"]))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"rdzv_endpoint {endpoint}: the host {match['host']} cannot be found ({reason}); needed a name or address of "
            "node 0 that every node knows"
        ) from error
