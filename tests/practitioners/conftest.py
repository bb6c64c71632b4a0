"""Assertions of the checks explain themselves as those of tests do."""

import pytest

pytest.register_assert_rewrite(
    "checks_long_context",
    "checks_memory_terms",
    "checks_networks",
    "checks_plans",
    "checks_published_memory",
    "checks_sizes",
)
