"""What practitioners reported, held against the product: one check a case, or the written reason why there is none.

The cases and their sources: benchmarks/data/practitioner_cases.jsonl.
"""

import checks_long_context  # noqa: F401  the modules register their checks
import checks_memory_terms  # noqa: F401
import checks_networks  # noqa: F401
import checks_plans  # noqa: F401
import checks_published_memory  # noqa: F401
import checks_sizes  # noqa: F401
import pytest
from practitioner_cases import CHECKS, EXCLUDED, checked_cases, load_cases

CASES = load_cases()
# What a `hard` or `ranking` case may be excluded for; everything else must be checked.
NOT_MODELLED = {"LoRA", "8-bit", "MoE", "offload", "heterogeneous", "not a transformer"}
_PARAMETERS = [
    pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=check.fails_because) if check.fails_because else ())
    for name, check in CHECKS.items()
]


@pytest.mark.parametrize("name", _PARAMETERS)
def test_case(name):
    CHECKS[name].run()


def test_every_case_is_checked_or_excluded_with_a_reason():
    assert len(CASES) == 61
    assert not checked_cases() & {*EXCLUDED}
    assert checked_cases() | {*EXCLUDED} == {*CASES}


def test_only_what_is_not_modelled_is_excluded():
    strict = [name for name in EXCLUDED if CASES[name]["check_kind"] in ("hard", "ranking")]
    assert {EXCLUDED[name].kind for name in strict} <= NOT_MODELLED
    assert all(len(exclusion.reason.split()) >= 5 for exclusion in EXCLUDED.values())


def test_exclusions_agree_with_the_words_of_their_cases():
    """A case excluded for adapters, experts or offload names them."""
    words = {"LoRA": "lora", "MoE": "moe", "offload": "offload"}
    for name, exclusion in EXCLUDED.items():
        if exclusion.kind in words:
            assert words[exclusion.kind] in str(CASES[name]).casefold() or "experts" in str(CASES[name]), name
