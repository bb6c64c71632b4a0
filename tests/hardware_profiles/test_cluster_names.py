"""The short names of clusters: DEVICE, NxDEVICE, MxNxDEVICE."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.grammar import parse_cluster_name
from hardware_profiles.loader import list_devices, load_cluster, load_network, load_node
from hardware_profiles.profiles import default_nodes
from hardware_profiles.spec import InputError

devices = st.sampled_from(list_devices())


def largest_node(device: str) -> int:
    return load_node(default_nodes(device)[-1]).size


@settings(deadline=None)
@given(device=devices, num_nodes=st.integers(1, 1000), data=st.data())
def test_a_name_gives_its_counts(device: str, num_nodes: int, data: st.DataObject) -> None:
    per_node = data.draw(st.integers(1, largest_node(device)))
    cluster = load_cluster(f"{num_nodes}x{per_node}x{device}")
    assert (cluster.device.name, cluster.num_nodes, cluster.devices_per_node) == (device, num_nodes, per_node)
    assert cluster.num_devices == num_nodes * per_node
    assert len(cluster.levels) == (1 if num_nodes == 1 else 2)


@settings(deadline=None)
@given(device=devices, num_nodes=st.integers(1, 50), data=st.data())
def test_the_canonical_name_reads_back_to_the_same_cluster(device: str, num_nodes: int, data: st.DataObject) -> None:
    per_node = data.draw(st.integers(1, largest_node(device)))
    cluster = load_cluster(f"{num_nodes}x{per_node}x{device}")
    assert load_cluster(cluster.name) == cluster


@settings(deadline=None)
@given(device=devices, data=st.data())
def test_case_spaces_and_the_times_sign_do_not_matter(device: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from([char.lower(), char.upper()])) for char in device)
    times = data.draw(st.sampled_from(["x", "X", " x ", "×", "*"]))
    assert parse_cluster_name(f" 2{times}1{times}{spelled} ")[:3] == (2, 1, device)


@settings(deadline=None)
@given(device=devices, excess=st.integers(1, 10_000))
def test_more_devices_than_a_node_holds_are_refused_with_a_name_that_works(device: str, excess: int) -> None:
    found = largest_node(device) + excess
    with pytest.raises(InputError, match=f"found {found} devices in one node") as refused:
        load_cluster(f"{found}x{device}")
    suggestion = str(refused.value).split("Did you mean ")[1].split(" ")[0].rstrip("?")
    assert 1 <= load_cluster(suggestion).num_devices <= found


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_gives_a_cluster_or_one_clear_error(text: str) -> None:
    message = ""
    try:
        assert load_cluster(text).num_devices >= 1
    except InputError as error:
        message = str(error)
    assert message == "" or message.startswith("cluster")
    assert "\n" not in message


def test_one_of_anything_needs_no_count() -> None:
    assert load_cluster("H100-SXM") == load_cluster("1xH100-SXM") == load_cluster("1x1xH100-SXM")
    assert load_cluster("1x8xH100-SXM") == load_cluster("8xH100-SXM")
    assert load_cluster("8xH100-SXM").name == "8xH100-SXM"


def test_sixteen_in_one_node_suggests_two_nodes_of_eight() -> None:
    with pytest.raises(InputError, match=r"at most 8, the size of a node of H100-SXM .* Did you mean 2x8xH100-SXM\?"):
        load_cluster("16xH100-SXM")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "found ''"),
        ("   ", "found '   '"),
        ("8x", "no device is named"),
        ("H100", "can be H100-96GB-HBM2e or H100-PCIe or H100-SXM; write the full name"),
        ("8xA100", "can be A100-PCIe-40GB or A100-PCIe-80GB or A100-SXM-40GB or A100-SXM-80GB"),
        ("8xH300-SXM", "unknown device 'H300-SXM'; did you mean H100-SXM"),
        (
            "8xMI300X",
            f"valid: {', '.join(list_devices())}",
        ),
        ("A100-SXM-80G", "did you mean A100-SXM-80GB"),
        ("0xB200", "found '0' as a count; needed a whole number from 1"),
        ("4x0xB200", "found '0' as a count"),
        ("-1xB200", "found '-1' as a count"),
        ("1.5xB200", "found '1.5' as a count"),
        ("1e3xB200", "found '1e3' as a count"),
        ("manyxB200", "found 'many' as a count"),
        ("nanxB200", "found 'nan' as a count"),
        ("٣xB200", "found '٣' as a count"),
        ("9" * 5000 + "xB200", "as a count; needed a whole number from 1 to 1000000"),
        ("2x2x2xB200", "found 3 counts"),
        ("B200x8", "the count comes first; did you mean 8xB200?"),
        ("4xB200x8", "the count comes first; did you mean 4x8xB200?"),
        ("65xcpu", "at most 64"),
        ("9xRTX-4090", "found 9 devices in one node"),
    ],
)
def test_bad_names_say_what_was_found_and_what_is_needed(source: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_cluster(source)
    assert said in str(refused.value)


@pytest.mark.parametrize("source", [None, 8, ["8xB200"], b"8xB200"])
def test_what_is_no_text_is_refused(source: object) -> None:
    with pytest.raises(InputError, match="cluster: found"):
        load_cluster(source)  # type: ignore[arg-type]


def test_the_smallest_default_node_that_holds_the_devices_is_chosen() -> None:
    one, four = load_cluster("RTX-4090"), load_cluster("4xRTX-4090")
    assert one.host.memory_bytes == load_node("one-gpu-box").host.memory_bytes
    assert four.host.memory_bytes == load_node("pcie-gen4-box").host.memory_bytes // 2


def test_a_partial_node_gets_its_share_of_the_host_and_the_nics() -> None:
    node = load_node("dgx-h100")
    half, whole = load_cluster("2x4xH100-SXM"), load_cluster("2x8xH100-SXM")
    assert [level.ports for level in whole.levels] == [1, 8]
    assert [level.ports for level in half.levels] == [1, 4]
    assert half.host.memory_bytes * 2 == whole.host.memory_bytes == node.host.memory_bytes
    assert half.host.cores * 2 == whole.host.cores == 112
    assert half.nvme is not None
    assert whole.nvme is not None
    assert half.nvme.read_bytes_per_second * 2 == whole.nvme.read_bytes_per_second
    assert half.host.pcie == whole.host.pcie
    assert half.levels[0].link == whole.levels[0].link == node.link


def test_a_node_keeps_one_nic_however_small_its_part() -> None:
    # A DGX-1 has 4 ports for 8 devices: one device gets a whole port, not half of one.
    assert [load_cluster(f"2x{n}xV100").levels[1].ports for n in (1, 2, 3, 4, 6, 8)] == [1, 1, 1, 2, 3, 4]


def test_published_node_rates() -> None:
    # 8 x 400 Gbit/s = 400 GB/s per DGX H100; 8 x 200 Gbit/s = 200 GB/s per DGX A100; 4 x 100 Gbit/s per DGX-1 and p4d.
    rates = {}
    for name, device in {"H100": "H100-SXM", "A100": "A100-SXM-80GB", "V100": "V100-SXM-32GB"}.items():
        level = load_cluster(f"2x8x{device}").levels[1]
        rates[name] = level.ports * level.link.nominal_bytes_per_second
    p4d = load_node("p4d.24xlarge")
    rates["p4d"] = p4d.ports * load_network(p4d.network).link.nominal_bytes_per_second
    assert rates == {"H100": 400e9, "A100": 200e9, "V100": 50e9, "p4d": 50e9}


def test_sources_of_a_cluster_name_levels_and_host() -> None:
    cluster = load_cluster("4x8xA100-SXM-80GB")
    assert "NVIDIA A100 datasheet" in cluster.sources["levels.0.link.nominal_bytes_per_second"]
    assert "IBTA" in cluster.sources["levels.1.link.nominal_bytes_per_second"]
    assert "levels.1.ports" in cluster.sources
    assert "host.memory_bytes" in cluster.sources
    assert cluster.device.sources
