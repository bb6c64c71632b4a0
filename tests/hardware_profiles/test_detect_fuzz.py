"""Reports that were damaged in any way give a cluster or one input error, never anything else."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_reports import FOLDER, published

from hardware_profiles.detect.cluster import detect_cluster
from hardware_profiles.detect.report import Report
from hardware_profiles.spec import InputError

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.txt"))
SNIPPETS = ["", " ", "\t", "N/A", "nan", "-1", "0", "inf", "1e400", "NV99", "GPU0", "#", ":", "\x1b[4m", "é", "9" * 30]


def damage(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, length, snippet in edits:
        at = start % (len(text) + 1)
        text = text[:at] + snippet + text[at + length :]
    return text


def detect(kind: str, report: Report) -> None:
    reports = {
        "nvidia_smi": report if kind == "nvidia_smi" else None,
        "topology": report if kind == "topology" else None,
        "nccl_tests": [report] if kind == "nccl_tests" else [],
    }
    try:
        found = detect_cluster(**reports, num_nodes=2, device="H100-SXM")
    except InputError:
        return
    for level in found.cluster.levels:
        assert math.isfinite(level.link.measured_bytes_per_second or 1.0)
        assert level.link.latency_seconds >= 0


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=15, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 60), st.sampled_from(SNIPPETS)), max_size=6))
def test_damaged_reports(file: str, edits: list[tuple[int, int, str]]) -> None:
    report = published(file)
    detect(file.partition("/")[0], Report(report.name, damage(report.text, edits)))


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300), kind=st.sampled_from(["nvidia_smi", "topology", "nccl_tests"]))
def test_any_text(text: str, kind: str) -> None:
    detect(kind, Report("any.txt", text))
