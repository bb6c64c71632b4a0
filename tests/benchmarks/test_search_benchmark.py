"""What the benchmark of the search says of whole processes is what the certificate and the slope of a power law say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.search import exponent, layered_config, measure, plan_command, verdict
from meshwright import load_model, plan


def test_the_exponent_of_a_power_law_is_its_power() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3 * size**0.7 for size in sizes]) == pytest.approx(0.7)


def test_a_process_is_measured_with_the_certificate_of_its_answer() -> None:
    cost = measure(plan_command("gpt2", "2xH100-SXM", 8, 1024), 1)
    certificate = plan("gpt2", "2xH100-SXM", global_batch_size=8, sequence_length=1024).certificate
    assert (cost.candidates, cost.evaluated, cost.gap) == (
        certificate.candidates,
        certificate.evaluated,
        certificate.gap,
    )
    assert cost.cpu_seconds > 0
    assert cost.peak_bytes > 2**20


def test_a_process_that_finds_no_plan_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="exit code 3"):
        measure(plan_command("gpt3-175b", "1xH100-SXM", 1, 1024), 1)


def test_a_model_has_the_layers_that_were_asked_for(tmp_path: Path) -> None:
    assert load_model(str(layered_config(tmp_path, 12))).num_hidden_layers == 12


def test_a_verdict_names_both_sides_and_says_no_beyond_the_limit() -> None:
    assert verdict("CPU", 2.5, 2.0, " s").endswith("CPU 2.5 s, at most 2 s: NO")
    assert verdict("CPU", 2.0, 2.0, " s").endswith("yes")
    assert verdict("CPU", 2.0, None, " s") == ""
