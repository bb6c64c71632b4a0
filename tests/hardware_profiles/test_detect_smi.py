"""nvidia-smi -q of several drivers, and everything that can be wrong with it."""

import re
from typing import Any

import pytest
from machine_reports import published

from hardware_profiles.detect.report import Report
from hardware_profiles.detect.smi_query import parse_smi_query

MIB = 2**20
H100 = published("nvidia_smi/h100-sxm-8_driver-565.txt")


def edited(old: str, new: str, count: int = 1, report: Report = H100) -> Report:
    assert old in report.text
    return Report(report.name, report.text.replace(old, new, count))


@pytest.mark.parametrize(
    ("file", "driver", "count", "name", "memory", "watts", "generation"),
    [
        ("h100-sxm-8_driver-565", "565.57.01", 8, "NVIDIA H100 80GB HBM3", 81559 - 454, 700, 5),
        ("a100-sxm-80gb-4_driver-555", "555.42.02", 4, "NVIDIA A100-SXM4-80GB", 81920 - 763, 500, 4),
        ("h100-nvl-2_driver-550", "550.54.14", 2, "NVIDIA H100 NVL", 95830 - 594, 310, 5),
        ("rtx-4090-8_driver-550", "550.127.05", 8, "NVIDIA GeForce RTX 4090", 24564 - 354, 450, 4),
        ("a100-sxm-80gb-1_driver-525", "525.60.13", 1, "NVIDIA A100-SXM4-80GB", 81920 - 834, 400, 4),
    ],
)
def test_published_reports(
    file: str, driver: str, count: int, name: str, memory: int, watts: float, generation: int
) -> None:
    query = parse_smi_query(published(f"nvidia_smi/{file}.txt"))
    assert (query.driver_version, len(query.devices)) == (driver, count)
    assert {device.product_name for device in query.devices} == {name}
    assert query.devices[0].memory_bytes == memory * MIB
    assert {device.power_limit_watts for device in query.devices} == {watts}
    assert (query.devices[0].pcie_generation, query.devices[0].pcie_width) == (generation, 16)


def test_an_idle_device_s_slot_is_its_largest_generation_not_the_current_one() -> None:
    assert "Current                   : 1" in published("nvidia_smi/rtx-4090-8_driver-550.txt").text
    assert parse_smi_query(published("nvidia_smi/rtx-4090-8_driver-550.txt")).devices[0].pcie_generation == 4


def test_the_host_s_older_slot_limits_the_device() -> None:
    report = edited("Host Max                  : 5", "Host Max                  : 4", count=8)
    assert {device.pcie_generation for device in parse_smi_query(report).devices} == {4}


def test_the_wider_column_of_driver_580_reads_the_same() -> None:
    wide = re.sub(r"(?m)^( *[^:\n]+?)( +): (?=\S)", lambda found: f"{found[1]:<54} : ", H100.text)
    assert wide != H100.text
    assert parse_smi_query(Report(H100.name, wide)).devices == parse_smi_query(H100).devices


def test_terminal_codes_and_other_line_ends_do_not_matter() -> None:
    text = "\x1b[4m" + H100.text.replace("\n", "\x1b[0m\r\n")
    assert parse_smi_query(Report(H100.name, text)).devices == parse_smi_query(H100).devices


def test_one_described_of_eight_attached() -> None:
    query = parse_smi_query(published("nvidia_smi/a100-sxm-80gb-1_driver-525.txt"))
    assert query.num_undescribed == 7
    assert [str(note) for note in query.notes] == [
        "a100-sxm-80gb-1_driver-525.txt:8: 8 GPUs are attached and 1 described; the others are taken for the same"
    ]


def line_of(report: Report, text: str) -> int:
    return next(number for number, line in report.lines() if text in line)


@pytest.mark.parametrize(
    ("old", "new", "said", "usable"),
    [
        ("    Product Name                          : NVIDIA H100 80GB HBM3\n", "", "has no Product Name; left out", 7),
        (": NVIDIA H100 80GB HBM3", ": N/A", "has no Product Name; left out", 7),
        (
            "Current                           : Disabled",
            "Current                           : Enabled",
            "is divided (MIG mode is enabled), which is not modelled; left out",
            7,
        ),
        (": 81559 MiB", ": N/A", "found the memory 'N/A'; needed a number of MiB. The catalogue's memory is taken", 8),
        (": 81559 MiB", ": nan MiB", "found the memory 'nan MiB'", 8),
        (": 81559 MiB", ": 0 MiB", "found the memory '0 MiB'", 8),
        (": 81559 MiB", f": {'9' * 300} MiB", "found the memory '999", 8),
        (": 81559 MiB", ": 81559 Mio", "found the memory '81559 Mio'", 8),
        ("FB Memory Usage", "Framebuffer", "has no section FB Memory Usage; the catalogue's memory is taken", 8),
        ("Current Power Limit               : 700.00 W", "Current Power Limit               : -1 W", "'-1 W'", 8),
        (
            "Attached GPUs                             : 8",
            "Attached GPUs                             : 2",
            "taken: 8",
            8,
        ),
    ],
)
def test_what_is_wrong_is_told_by_line_and_the_rest_used(old: str, new: str, said: str, usable: int) -> None:
    query = parse_smi_query(edited(old, new))
    assert len(query.devices) == usable
    (note,) = query.notes
    assert said in str(note)
    assert note.line > 0


def test_the_line_that_is_told_is_the_wrong_one() -> None:
    report = edited("81559 MiB", "NaN MiB")
    (note,) = parse_smi_query(report).notes
    assert note.line == line_of(report, "NaN MiB")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("bonjour\nle monde\n", "this is not nvidia-smi's report in English"),
        ("Nom du produit : NVIDIA H100\nMémoire : 80 Go\n", "this is not nvidia-smi's report in English"),
        ("| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14 |\n", "this is the table of plain nvidia-smi"),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n", "this is nvidia-smi -L"),
        ('<?xml version="1.0" ?>\n<nvidia_smi_log>\n', "this is nvidia-smi -q -x"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "could not reach its driver"),
        ("==============NVSMI LOG==============\n\nDriver Version : 550\n", "the report names no GPU"),
    ],
)
def test_text_of_another_program_has_no_devices_and_says_what_was_needed(text: str, said: str) -> None:
    query = parse_smi_query(Report("smi.txt", text))
    assert query.devices == ()
    (note,) = query.notes
    assert str(note).startswith("smi.txt: ")
    assert said in str(note)
    assert "needed the output of: nvidia-smi -q" in str(note)


@pytest.mark.parametrize("lines", range(0, 100, 7))
def test_a_report_that_was_cut_off_anywhere_never_fails(lines: int) -> None:
    text = "\n".join(H100.text.splitlines()[:lines])
    query = parse_smi_query(Report("cut.txt", text))
    whole = parse_smi_query(H100)
    assert [device.product_name for device in query.devices] == ["NVIDIA H100 80GB HBM3"] * len(query.devices)
    assert len(query.devices) <= len(whole.devices)
    assert query.notes


def test_fields_are_those_of_their_own_device() -> None:
    values: dict[str, Any] = {device.bus_id: device.memory_bytes for device in parse_smi_query(H100).devices}
    report = edited("Reserved                          : 454 MiB", "Reserved                          : 1454 MiB")
    changed = {device.bus_id: device.memory_bytes for device in parse_smi_query(report).devices}
    first = next(iter(values))
    assert changed.pop(first) == values.pop(first) - 1000 * MIB
    assert changed == values


def test_a_slot_of_thousands_of_digits_is_not_read() -> None:
    report = published("nvidia_smi/h100-sxm-8_driver-565.txt")
    query = parse_smi_query(Report("smi.txt", re.sub(r"(Device Max +: )\d", r"\g<1>" + "9" * 5000, report.text)))
    assert len(query.devices) == 8
    assert {device.pcie_generation for device in query.devices} == {5}
