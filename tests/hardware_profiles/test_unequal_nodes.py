"""A cluster is one kind of node: whoever describes several kinds is told what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware_profiles.loader import load_cluster
from hardware_profiles.spec import InputError
from meshwright.cli.app import main

TWO = ["8xH100-SXM", "8xA100-SXM-80GB"]
NEEDED = "the nodes of a cluster must be equal: one kind of device, as many in every node, the same links"
INSTEAD = "or describe all nodes as the weakest of them (its devices, the fewest in a node, the slowest link)"
NAMED = "as a cluster of its own (8xH100-SXM and 8xA100-SXM-80GB)"
LEVELS = {"name": "x", "levels": [{"name": "node", "size": [8, 4]}, {"name": "cluster", "size": 2}]}
# What the file holds, what the message finds, whether it can name the kinds.
FILES: list[tuple[str, Any, str, bool]] = [
    (
        "a list of nodes",
        {"nodes": [{"base": TWO[0], "count": 2}, {"base": TWO[1]}]},
        "nodes: found [{'base': '8xH1",
        True,
    ),
    ("numbers of devices", {"base": "2x8xH100-SXM", "nodes": [8, 4]}, "nodes: found [8, 4]", False),
    ("named nodes", {"groups": {"fast": {"base": TWO[0]}, "slow": {"base": TWO[1]}}}, "groups: found {'fast'", True),
    ("two bases", {"base": TWO}, "base: found ['8xH100-SXM', '8xA100-SXM-80GB']", True),
    ("bases in one text", {"base": " + ".join(TWO)}, "base '8xH100-SXM + 8xA100-SXM-80GB': found 2 clusters", True),
    ("a base twice", f"base: {TWO[0]}\nbase: {TWO[1]}\n", "the key base stands twice", False),
    ("two documents", f"base: {TWO[0]}\n---\nbase: {TWO[1]}\n", "expected a single document", False),
    ("a list of clusters", [{"base": name} for name in TWO], "found a list of 2 clusters", True),
    ("two devices", {"base": "8xH100-SXM", "device": [{"name": "H100"}, {"name": "A100"}]}, "device: found [", False),
    ("sizes of a level", LEVELS, "levels.0.size: found [8, 4]", False),
    ("unequal counts", {"base": "8xH100-SXM", "devices_per_node": [8, 4]}, "devices_per_node: found [8, 4]", False),
]


@pytest.mark.parametrize(("content", "found", "named"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_a_file_of_unequal_nodes_is_refused(content: Any, found: str, named: bool, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(InputError) as refused:
        load_cluster(path)
    message = str(refused.value)
    assert message.startswith(f"cluster file {path}: ")
    for said in (found, NEEDED, INSTEAD):
        assert said in message
    assert (NAMED in message) == named
    assert "\n" not in message


@pytest.mark.parametrize("between", [",", " + ", ";", " and ", "&"])
def test_several_names_are_refused(between: str) -> None:
    with pytest.raises(InputError) as refused:
        load_cluster(between.join(TWO))
    assert NEEDED in str(refused.value)
    assert NAMED in str(refused.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        # Equal nodes, one node, a number of nodes and words that name no cluster are slips of another kind.
        ("nodes: [8, 8]\n", "unknown key 'nodes'"),
        ("nodes: [{base: 8xB200}]\n", "unknown key 'nodes'"),
        ("base: 8xB200\nnodes: 4\n", "unknown key 'nodes'; did you mean node or num_nodes"),
        ("base: 8xB200, fast\n", "unknown device"),
        ("base: [8xB200]\n", "base: found ['8xB200']; needed text"),
        ("base: 8xB200\nname: a\nname: b\n", "the key name stands twice"),
    ],
)
def test_other_slips_keep_their_own_message(content: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as refused:
        load_cluster(path)
    assert found in str(refused.value)
    assert "must be equal" not in str(refused.value)


def test_the_command_ends_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump({"nodes": [{"base": name} for name in TWO]}))
    words = ["plan", "--model", "gpt2", "--cluster", str(path), "--global-batch-size", "8", "--sequence-length", "128"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert NEEDED in " ".join(error.split())
    assert "Traceback" not in error
