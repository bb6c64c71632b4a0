"""The interval of a prediction follows from what its runtime and its hardware were measured on."""

import pytest

from costmodel.runtimes.loader import list_runtimes, load_runtime
from costmodel.uncertainty import error_band
from hardware_profiles.loader import load_device

A100, L4 = load_device("A100-SXM-80GB"), load_device("L4")


def test_hardware_that_no_run_of_the_runtime_used_widens_the_band() -> None:
    nemo = load_runtime("nemo")
    narrow = nemo.model_copy(update={"error_band": 0.1, "error_band_elsewhere": 0.3, "measured_on": ("Ampere",)})
    assert error_band(narrow, A100) == 0.1
    assert error_band(narrow, L4) == 0.3
    assert error_band(narrow.model_copy(update={"error_band": 0.5}), L4) == 0.5
    assert error_band(narrow.model_copy(update={"error_band_elsewhere": None}), L4) == 0.1


@pytest.mark.parametrize("name", [name for name in list_runtimes() if load_runtime(name).measured_on])
def test_a_measured_runtime_is_surer_than_an_unknown_one(name: str) -> None:
    runtime, unknown = load_runtime(name), load_runtime("unknown")
    assert error_band(runtime, A100) <= error_band(unknown, A100)
