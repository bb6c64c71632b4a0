"""Process pools shared by the executor's tests: starting processes that have imported torch is the slow part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from executor_harness import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Up to 4 processes."""
    processes = Pool(4)
    yield processes
    processes.stop()


@pytest.fixture(scope="session")
def large_pool() -> Iterator[Pool]:
    """Up to 8 processes."""
    processes = Pool(8)
    yield processes
    processes.stop()
