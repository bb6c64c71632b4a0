"""The parity matrix: combinations of every axis of a plan train exactly like one process.

In float64 loss, gradient norm and every weight agree within 1e-10 after 3 steps of the optimizer; in mixed precision as
`assert_mixed_parity` says. `parity_axes` has the axes, ``parity_matrix.csv`` the combinations.
"""

from __future__ import annotations

import pytest
from executor_harness import Pool, assert_mixed_parity, assert_parity
from parity_axes import Combination, plan_of, read_rows

pytestmark = pytest.mark.distributed

CI, SLOW = read_rows("ci"), read_rows("slow")


def train(pool: Pool, combination: Combination) -> None:
    check = assert_parity if combination["precision"] == "fp64" else assert_mixed_parity
    check(pool, plan_of(combination))


@pytest.mark.parametrize("name", CI)
def test_every_pair_of_kinds_trains_like_one_process(pool: Pool, large_pool: Pool, name: str) -> None:
    processes = plan_of(CI[name]).num_devices_used
    train(pool if processes <= pool.size else large_pool, CI[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_pair_of_values_trains_like_one_process(large_pool: Pool, name: str) -> None:
    train(large_pool, SLOW[name])
