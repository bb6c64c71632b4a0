"""Two emulated nodes for the tests of this folder; where this machine cannot have them the tests are skipped, saying why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulation import Node, UnavailableError, two_nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes, 100 Mbit/s from one to the other."""
    yield from _two_nodes()


@pytest.fixture
def fresh_nodes() -> Iterator[tuple[Node, Node]]:
    """Two more, over which nothing was sent yet: no earlier connection is still being closed."""
    yield from _two_nodes()


def _two_nodes() -> Iterator[tuple[Node, Node]]:
    try:
        emulated = two_nodes()
        pair = emulated.__enter__()
    except UnavailableError as error:
        pytest.skip(f"two nodes cannot be emulated: {error}")
    try:
        yield pair
    finally:
        emulated.__exit__(None, None, None)
