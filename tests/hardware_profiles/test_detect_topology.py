"""nvidia-smi topo -m: matrices of drivers old and new, and what follows from them."""

import pytest
from machine_reports import published

from hardware_profiles.detect.links import joined_by_nvlink, network_cards, nvlink_link, pcie_link, pcie_port
from hardware_profiles.detect.report import Report
from hardware_profiles.detect.topology import Topology, parse_topology
from hardware_profiles.loader import load_node

DGX_A100 = published("topology/dgx-a100_mlx5-12.txt")
H100 = published("topology/h100-sxm-8_nic-1.txt")
RTX = published("topology/rtx-4090-8_nic-1.txt")


def matrix(rows: list[list[str]], cards: int = 0) -> Topology:
    """A matrix of GPUs (and cards) from its words."""
    size = len(rows)
    names = [f"GPU{index}" for index in range(size - cards)] + [f"NIC{index}" for index in range(cards)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    lines += ["\t".join([name, *row, "0-1", "0"]) for name, row in zip(names, rows, strict=True)]
    return parse_topology(Report("topo.txt", "\n".join(lines)))


def square(size: int, word: str) -> list[list[str]]:
    return [["X" if a == b else word for b in range(size)] for a in range(size)]


@pytest.mark.parametrize(
    ("report", "devices", "cards", "nvlink", "near"),
    [
        (DGX_A100, 8, 12, True, ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9")),
        (H100, 8, 1, True, ("mlx5_0",)),
        (RTX, 8, 1, False, ("mlx5_bond_0",)),
        (published("topology/mixed-5_spaces.txt"), 5, 0, False, ()),
    ],
)
def test_published_matrices(report: Report, devices: int, cards: int, nvlink: bool, near: tuple[str, ...]) -> None:
    found = parse_topology(report)
    assert (len(found.devices), len(found.cards), found.notes) == (devices, cards, ())
    assert joined_by_nvlink(found) is nvlink
    assert network_cards(found) == near


def test_words_between_devices_are_those_of_the_matrix() -> None:
    found = parse_topology(RTX)
    assert found.link["GPU0", "GPU3"] == "PIX"
    assert found.link["GPU0", "GPU4"] == found.link["GPU4", "GPU0"] == "SYS"
    assert found.link["GPU0", "NIC0"] == "PIX"
    assert parse_topology(DGX_A100).nvlinks("GPU0", "GPU7") == 12


@pytest.mark.parametrize(
    ("rows", "usual", "architecture", "rate", "said"),
    [
        (square(8, "NV18"), "dgx-h100", "Hopper", 450e9, ""),  # 18 links to a switch
        (square(8, "NV12"), "dgx-a100", "Ampere", 300e9, ""),
        (square(4, "NV4"), "dgx-a100", "Ampere", 300e9, ""),  # 4 devices, 3 x 4 links of their own (DGX Station A100)
        (square(8, "NV8"), "dgx-h100", "Hopper", 200e9, "8 NVLinks a device, 200 GB/s; the catalogue's node has 18"),
        (square(8, "NV18"), "dgx-b200", "Blackwell", 900e9, ""),
    ],
)
def test_nvlinks_to_rates(rows: list[list[str]], usual: str, architecture: str, rate: float, said: str) -> None:
    found = nvlink_link(matrix(rows), load_node(usual).link, architecture, "topo")
    assert found.link.nominal_bytes_per_second == pytest.approx(rate)
    assert found.remark == said
    assert (found.link.measured_bytes_per_second is None) is bool(said)


def test_a_cube_mesh_is_joined_and_pairs_are_not() -> None:
    # DGX-1 (V100): every device has NVLinks to four others.
    mesh = [
        "X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS", "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1", "NV2 SYS SYS SYS X NV1 NV1 NV2", "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2", "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ]  # fmt: skip
    assert joined_by_nvlink(matrix([row.split() for row in mesh]))
    pairs = [row.split() for row in ("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")]
    assert not joined_by_nvlink(matrix(pairs))
    found = pcie_link(matrix(pairs), load_node("pcie-gen4-box").link, generation=4, width=16, source="topo")
    assert found.remark.startswith("NVLink joins only some devices")
    assert joined_by_nvlink(matrix(square(2, "NV4")))


@pytest.mark.parametrize(
    ("word", "efficiency"), [("PIX", 0.76), ("PXB", 0.76), ("PHB", 0.40), ("NODE", 0.40), ("SYS", 0.40)]
)
def test_below_one_switch_pcie_reaches_more(word: str, efficiency: float) -> None:
    usual = load_node("pcie-gen4-box").link
    found = pcie_link(matrix(square(4, word)), usual, generation=4, width=16, source="topo")
    assert found.link.efficiency == pytest.approx(efficiency)
    assert found.remark == f"no NVLink; the longest path between two devices is {word}"


@pytest.mark.parametrize(
    ("generation", "width", "rate"), [(3, 16, 15.76e9), (4, 16, 31.5e9), (4, 8, 15.75e9), (5, 16, 63e9), (6, 16, 121e9)]
)
def test_pcie_rates_are_lanes_times_the_rate_of_one(generation: int, width: int, rate: float) -> None:
    link, _ = pcie_port(load_node("pcie-gen4-box").link, generation=generation, width=width)
    assert link.nominal_bytes_per_second == pytest.approx(rate, rel=2e-3)
    assert link.name == f"PCIe {generation} x{width}"


def test_an_unknown_slot_keeps_the_catalogue_s() -> None:
    usual = load_node("pcie-gen4-box").link
    assert pcie_port(usual, generation=None, width=None) == (usual, {})
    assert pcie_port(usual, generation=9, width=16) == (usual, {})


def test_cards_that_are_all_equally_far_all_count() -> None:
    rows = [["X", "NV12", "PHB", "PHB"], ["NV12", "X", "PHB", "PHB"], ["PHB", "PHB", "X", "PHB"], ["PHB"] * 3 + ["X"]]
    assert network_cards(matrix(rows, cards=2)) == ("NIC0", "NIC1")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("GPU3\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tSYS\t0-103\t0\t\tN/A\n", "", "no row of GPU3"),
        ("\tNV18\t X \tSYS\t104-207\t1\t\tN/A\nNIC0", "\nNIC0", "the row of GPU7 has 6 of 9 columns"),
        ("GPU0\t X \tNV18", "GPU0\t X \tFOO", "found 'FOO' between GPU0 and GPU1; needed NV#, PIX"),
        ("GPU0\t X \tNV18", "GPU0\t X \tNV" + "9" * 5000, "between GPU0 and GPU1; needed NV#, PIX"),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_used(old: str, new: str, said: str) -> None:
    assert old in H100.text, old
    found = parse_topology(Report("topo.txt", H100.text.replace(old, new, 1)))
    assert any(said in str(note) for note in found.notes), [str(note) for note in found.notes]
    assert len(found.devices) >= 7


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "the file is empty"), ("hello\nworld\n", "there is no heading of GPU0, GPU1 ...")],
)
def test_other_text_has_no_devices(text: str, said: str) -> None:
    found = parse_topology(Report("topo.txt", text))
    assert found.devices == ()
    assert said in str(found.notes[0])
    assert "needed the output of: nvidia-smi topo -m" in str(found.notes[0])


def test_topo_mp_cannot_tell_nvlink_and_says_so() -> None:
    text = "\n".join(line for line in RTX.text.splitlines() if "NV#" not in line)
    found = parse_topology(Report("topo.txt", text))
    assert not found.shows_nvlink
    assert "topo -mp shows PCIe alone; needed topo -m" in str(found.notes[0])
