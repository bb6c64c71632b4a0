"""Bad cluster files: one sentence each, with the file, the dotted path, the value found and what is needed."""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from hardware_profiles.errors import explain_problem
from hardware_profiles.loader import load_cluster
from hardware_profiles.overrides import OVERRIDE_KEYS
from hardware_profiles.spec import InputError


def write(folder: Path, content: Any, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


WHOLE = {"levels": [], "name": "x"}
VALID = ", ".join(OVERRIDE_KEYS)
BAD_CONTENT: list[tuple[str, Any, str]] = [
    ("empty", "", "the file is empty"),
    ("only a comment", "# nothing\n", "the file is empty"),
    ("a list", "- 8xB200\n", "found ['8xB200']; needed a mapping"),
    ("bare text", "8xB200\n", "found '8xB200'; needed a mapping"),
    ("not YAML", "base: [8x", "not valid YAML at line "),
    ("a tab", "base: 8xB200\n\tname: x", "not valid YAML at line 2"),
    ("a custom tag", "base: !!python/object:os.system x", "not valid YAML"),
    ("a repeated key", "base: 8xB200\nbase: 4xB200", "the key base stands twice"),
    ("no base", "name: x", "nothing to start from; needed base: 8x8xH100-SXM"),
    ("unknown key", {"base": "8xB200", "bas": 1}, f"unknown key 'bas'; did you mean base? valid: {VALID}"),
    ("unknown base", {"base": "8xH300"}, "base '8xH300': unknown device 'H300'"),
    ("base of the wrong type", {"base": 8}, "base: found 8; needed text"),
    ("unknown node", {"base": "8xB200", "node": "dgx-b300"}, "unknown node 'dgx-b300'; did you mean dgx-b200"),
    ("unknown network", {"base": "2x8xB200", "network": "xdr"}, "unknown network 'xdr'"),
    ("network of one node", {"base": "8xB200", "network": "ib-hdr-200g"}, "network: there is one node"),
    ("too many per node", {"base": "8xB200", "devices_per_node": 16}, "found 16 devices in one node; needed at most 8"),
    ("too many for a node", {"base": "8xB200", "node": "one-gpu-box"}, "devices_per_node: found 8; needed at most 1"),
    ("zero nodes", {"base": "8xB200", "num_nodes": 0}, "num_nodes: found 0; needed a whole number from 1"),
    ("half a node", {"base": "8xB200", "num_nodes": 1.5}, "num_nodes: found 1.5; needed a whole number"),
    ("a true count", {"base": "8xB200", "num_nodes": True}, "num_nodes: found true"),
    (
        "unknown device key",
        {"base": "8xB200", "device": {"memory": 1}},
        "device: unknown key 'memory'; did you mean memory_bytes",
    ),
    ("sources of a device", {"base": "8xB200", "device": {"sources": {}}}, "device: unknown key 'sources'"),
    (
        "unknown precision",
        {"base": "8xB200", "device": {"peak_flops_per_second": {"int8": 1e15}}},
        "device.peak_flops_per_second: unknown key 'int8'; valid: fp64, fp32",
    ),
    (
        "unknown unit",
        {"base": "8xB200", "device": {"memory_bytes": "80 gigs"}},
        "memory_bytes: found '80 gigs': unknown unit 'gigs'",
    ),
    (
        "wrong dimension",
        {"base": "8xB200", "device": {"memory_bytes": "8 GB/s"}},
        "memory_bytes: found '8 GB/s': unknown unit 'GB/s'; did you mean",
    ),
    (
        "Gbps",
        {"base": "2x8xB200", "network": {"nominal_bytes_per_second": "400 Gbps"}},
        "network.nominal_bytes_per_second: found '400 Gbps': unknown unit 'Gbps'",
    ),
    (
        "zero bandwidth",
        {"base": "2x8xB200", "network": {"nominal_bytes_per_second": "0 GB/s"}},
        "network.nominal_bytes_per_second: found 0; needed a number of at least 1",
    ),
    (
        "negative bandwidth",
        {"base": "8xB200", "node_link": {"measured_bytes_per_second": -1}},
        "node_link.measured_bytes_per_second: found -1; needed a number of at least 1",
    ),
    (
        "a byte in centuries",
        {"base": "8xB200", "node_link": {"nominal_bytes_per_second": 5e-324}},
        "node_link.nominal_bytes_per_second: found 5e-324; needed a number of at least 1",
    ),
    (
        "nothing of the peak",
        {"base": "8xB200", "device": {"attention_fraction": 5e-324}},
        "device.attention_fraction: found 5e-324; needed a number of at least 1e-06",
    ),
    (
        "days of latency",
        {"base": "8xB200", "node_link": {"latency_seconds": 1e5}},
        "node_link.latency_seconds: found 100000.0; needed a number of at most 10000",
    ),
    (
        "NaN bandwidth",
        "base: 8xB200\nnode_link: {nominal_bytes_per_second: .nan}",
        "node_link.nominal_bytes_per_second: found nan",
    ),
    ("infinite memory", "base: 8xB200\nhost: {memory_bytes: .inf}", "host.memory_bytes: found inf"),
    ("overflowing memory", {"base": "8xB200", "host": {"memory_bytes": "1e999 GB"}}, "host.memory_bytes: found inf"),
    (
        "efficiency above 1",
        {"base": "8xB200", "host": {"pcie": {"efficiency": 1.2}}},
        "host.pcie.efficiency: found 1.2; needed a number of at most 1",
    ),
    (
        "efficiency with a unit",
        {"base": "8xB200", "host": {"pcie": {"efficiency": "80 %"}}},
        "host.pcie.efficiency: found '80 %'; needed a plain number without a unit",
    ),
    ("half a core", {"base": "8xB200", "host": {"cores": 0.5}}, "host.cores: found 0.5; needed a whole number"),
    ("host of the wrong type", {"base": "8xB200", "host": 3}, "host: found 3; needed a mapping"),
    (
        "a list of rates",
        {"base": "8xB200", "node_link": {"efficiency": [1]}},
        "node_link.efficiency: found [1]; needed a plain number",
    ),
    ("zero ports", {"base": "2x8xB200", "network": {"ports": 0}}, "network.ports: found 0; needed a number above 0"),
    (
        "part of an NVMe",
        {"base": "8xcpu", "nvme": {"bytes": "1 TB"}},
        "nvme.read_bytes_per_second: missing; it is required",
    ),
    (
        "negative price",
        {"base": "8xB200", "price_per_device_hour": -1},
        "price_per_device_hour: found -1; needed a number of at least 0",
    ),
    ("a name that is no text", {"base": "8xB200", "name": 7}, "name: found 7; needed text"),
    ("a whole cluster without levels", WHOLE, "device: missing; it is required"),
    ("levels of the wrong type", {**WHOLE, "levels": 3}, "levels: found 3; needed a list"),
    (
        "more than all of the bandwidth",
        {"base": "8xB200", "device": {"memory_fraction": 5}},
        "device.memory_fraction: found 5; needed at most 1",
    ),
    (
        "more than the peak in attention",
        {"base": "8xB200", "device": {"attention_fraction": 1.5}},
        "device.attention_fraction: found 1.5; needed at most 1",
    ),
    (
        "more than the peak in products",
        {"base": "8xB200", "device": {"gemm": {"max_fraction": 2}}},
        "device.gemm.max_fraction: found 2; needed at most 1",
    ),
    (
        "memory beyond 64 bits",
        {"base": "8xB200", "device": {"memory_bytes": 1e30}},
        "needed a whole number below 9.2e+18",
    ),
    (
        "no memory",
        {"base": "8xB200", "device": {"memory_bytes": None}},
        "device.memory_bytes: found null; needed a size",
    ),
    ("a date", "base: 2024-01-31", "base: found 2024-01-31; needed text"),
    ("two documents", "base: cpu\n---\nbase: cpu\n", "expected a single document in the stream, but found another"),
    ("a number of 5000 digits", "base: cpu\nnum_nodes: " + "9" * 5000, "it holds a number or date that cannot be read"),
    ("a node for a base", {"base": "2xdgx-h100"}, "dgx-h100 is a node, not a device; name its devices, up to 8 a node"),
    ("both kinds at once", {**WHOLE, "base": "8xB200"}, "unknown key 'base'"),
]


@pytest.mark.parametrize(("content", "said"), [case[1:] for case in BAD_CONTENT], ids=[case[0] for case in BAD_CONTENT])
def test_bad_files_name_the_file_the_path_the_value_and_what_is_needed(content: Any, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as refused:
        load_cluster(path)
    message = str(refused.value)
    assert message.startswith(f"cluster file {path}: ")
    assert said in message
    assert "\n" not in message
    assert "pydantic" not in message
    assert "Input should" not in message


def test_a_level_without_a_link_is_named_by_its_number(tmp_path: Path) -> None:
    content = load_cluster("2x8xB200").model_dump(mode="json")
    del content["levels"][1]["link"]["efficiency"]
    with pytest.raises(InputError, match=r"levels\.1\.link\.efficiency: missing; it is required"):
        load_cluster(write(tmp_path, content))


def test_what_must_be_absent_is_asked_for_as_null() -> None:
    class Reserved(BaseModel):
        later: None = None
        switch: Literal[None, "on"] = None

    for name, needed in (("later", "null"), ("switch", "one of null, 'on'")):
        with pytest.raises(ValidationError) as caught:
            Reserved.model_validate({name: 1})
        assert explain_problem(caught.value, Reserved) == f"{name}: found 1; needed {needed}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_cluster(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="there is no such file"):
        load_cluster("missing.yaml")
    with pytest.raises(InputError, match="this is a directory"):
        load_cluster(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\x7fELF\x00\x01")
    with pytest.raises(InputError, match="this is a binary file"):
        load_cluster(tmp_path / "binary.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: gr\xfcn".encode("latin-1"))
    with pytest.raises(InputError, match="byte 8 is not UTF-8"):
        load_cluster(tmp_path / "latin.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (5 * 2**20))
    with pytest.raises(InputError, match="larger than"):
        load_cluster(tmp_path / "large.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = write(tmp_path, {"base": "8xB200"})
    path.chmod(0)
    with pytest.raises(InputError, match="cannot read it: Permission denied"):
        load_cluster(path)


def test_a_self_referring_file_ends_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"an alias .* stands inside what it names"):
        load_cluster(write(tmp_path, "&a\nbase: 8xB200\nhost: *a\n"))


def test_aliases_that_multiply_are_refused_at_once(tmp_path: Path) -> None:
    """Nine aliases to nine aliases to nine ...: 9^9 values from 300 bytes, which a message must not write out."""
    levels = ["&a0 [x]", *(f"&a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10))]
    for content in (
        f"base: [{', '.join(levels)}]\n",
        "base: cpu\n" + "\n".join(f"k{i}: {v}" for i, v in enumerate(levels)),
    ):
        with pytest.raises(InputError, match=r"aliases .* multiply to millions of values"):
            load_cluster(write(tmp_path, content))


def test_an_alias_used_twice_is_fine(tmp_path: Path) -> None:
    cluster = load_cluster(
        write(
            tmp_path,
            "base: 8xB200\nhost: {memory_bytes: &size 1 TiB}\nnvme: {bytes: *size, "
            "read_bytes_per_second: 1e9, write_bytes_per_second: 1.5e9}\n",
        )
    )
    assert cluster.nvme is not None
    assert cluster.nvme.bytes == cluster.host.memory_bytes == 2**40
    assert cluster.nvme.write_bytes_per_second == 1.5e9


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_that_nobody_writes_to_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match="the file is empty"):
        load_cluster(tmp_path / "pipe.yaml")


def test_a_nested_bomb_ends_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bomb\.yaml"):
        load_cluster(write(tmp_path, "{a: " * 5000, "bomb.yaml"))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["5 GB", "1 us", "2x8xB200", "ib-hdr-200g", "", "0", "-1 GB/s", "1e400"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers(), st.none()), st.integers(), max_size=2),
)
PLACES = [
    "base", "name", "device", "node", "network", "num_nodes", "devices_per_node", "node_link", "host", "nvme", "levels",
    "price_per_device_hour", "device.profile", "device.name", "device.kind", "device.memory_bytes", "device.gemm",
    "device.gemm.max_fraction", "device.peak_flops_per_second", "device.peak_flops_per_second.bf16", "network.profile",
    "network.ports", "network.oversubscription", "network.nominal_bytes_per_second", "node_link.efficiency",
    "node_link.name", "node_link.measured_bytes_per_second", "host.pcie", "host.pcie.latency_seconds", "host.cores",
    "host.memory_bytes", "nvme.bytes",
]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(PLACES), JUNK, min_size=1, max_size=3))
def test_whatever_a_file_holds_gives_a_cluster_or_one_sentence(changes: dict[str, Any]) -> None:
    content: dict[str, Any] = {"base": "2x8xB200"}
    for place, value in changes.items():
        *outer, last = place.split(".")
        inner = content
        for key in outer:
            inner = inner[key] if isinstance(inner.get(key), dict) else inner.setdefault(key, {}) or {}
            if not isinstance(inner, dict):
                return
        inner[last] = value
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), content)
        message = ""
        try:
            assert load_cluster(path).num_devices >= 1
        except InputError as error:
            message = str(error)
    assert message == "" or message.startswith(f"cluster file {path}: ")
    assert "\n" not in message
