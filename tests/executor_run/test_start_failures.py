"""What goes wrong at the start is told once, with the rank where there is one, and ends the command soon: the real command line.

`--timeout 4` stands for the 60 seconds that are the default: nothing here waits longer than that for what never comes.
"""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import meshwright, surroundings, write_plan
from safetensors.torch import save_file
from tiny_plans import local_cluster, tiny_model

from executor.launch import JOIN_TIMEOUT_SECONDS

pytestmark = pytest.mark.distributed
TWO = {"data_parallel_replicate_size": 2}


def error_of(done: Any, code: int) -> str:
    """The one line of stderr of a command that failed."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return str(done.stderr).removeprefix("error: ").strip()


def test_a_weights_folder_without_weights(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", model=tiny_model(weights_path=str(tmp_path)), **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", "--steps", 1), 2)
    assert said == f"weights folder {tmp_path} holds no *.safetensors file; give a folder that does"


def test_a_weights_folder_of_another_model(tmp_path: Path) -> None:
    import torch

    names = ("model.embed_tokens.weight", "lm_head.weight")
    save_file({name: torch.zeros(256, 17) for name in names}, tmp_path / "model.safetensors")
    write_plan(tmp_path / "plan.json", model=tiny_model(weights_path=str(tmp_path)), **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", "--steps", 1), 2)
    assert said == "weight model.embed_tokens.weight has shape [256, 17]; the model needs [256, 16]"


def test_a_tokenizer_of_another_vocabulary(tmp_path: Path) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 300}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "tokenizer")
    write_plan(tmp_path / "plan.json", model=tiny_model(tokenizer_path=str(tmp_path / "tokenizer")), **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", "--steps", 1), 2)
    assert "gives token id 300, but llama-test has a vocab_size of 256" in said


def test_a_token_file_of_another_vocabulary(tmp_path: Path) -> None:
    import numpy as np

    ids = np.zeros(1000, dtype=np.uint16)
    ids[640] = 50256
    np.save(tmp_path / "tokens.npy", ids)
    write_plan(tmp_path / "plan.json", **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", "--data", tmp_path / "tokens.npy"), 2)
    assert "the data hold token id 50256 at position 640, but the model's vocab_size is 256" in said


def test_data_shorter_than_a_batch(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a" * 100)
    write_plan(tmp_path / "plan.json", **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", "--data", tmp_path / "short.txt"), 2)
    assert "hold 100 tokens = 6 sequences of 16; one global batch needs 8 sequences = 129 tokens" in said


def test_a_plan_for_devices_that_are_not_here(tmp_path: Path) -> None:
    cluster = local_cluster(2, name="H100-SXM", kind="cuda")
    write_plan(tmp_path / "plan.json", precision="fp32", cluster=cluster, **TWO)
    said = error_of(meshwright("run", tmp_path / "plan.json", CUDA_VISIBLE_DEVICES=""), 2)
    assert "the plan is for H100-SXM and needs 2 CUDA devices on this node; found 0" in said


def test_fewer_processes_than_planned(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", **TWO)
    worker = ["-m", "executor.worker", "--plan", str(tmp_path / "plan.json"), "--steps", "1", "--output", str(tmp_path)]
    environment = {name: text for name, text in surroundings().items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, *worker], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "the plan uses 2 devices, one process each, but 1 processes were started: start 2 in all"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("os.kill(os.getpid(), 9)", "rank 1: the process was killed by SIGKILL (often: the machine ran out of memory)"),
        ("os._exit(3)", "rank 1: the process ended with exit code 3"),
        ("os._exit(0)", "rank 0: rank 1 of 2 did not join within 4 s: it ended, or its node is not there"),
    ],
    ids=["killed", "exit code", "ends in silence"],
)
def test_a_rank_that_dies_at_its_start(tmp_path: Path, fault: str, said: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f'import os\nif os.environ.get("RANK") == "1":\n    {fault}\n')
    write_plan(tmp_path / "plan.json", **TWO)
    done = meshwright("run", tmp_path / "plan.json", "--timeout", 4, code=str(tmp_path), timeout=60)
    assert error_of(done, 1) == said


def test_a_rank_that_dies_when_all_have_met(tmp_path: Path) -> None:
    fault = "import executor.data\n    executor.data.digest = lambda _: os.kill(os.getpid(), 9)"
    (tmp_path / "sitecustomize.py").write_text(f'import os\nif os.environ.get("RANK") == "1":\n    {fault}\n')
    write_plan(tmp_path / "plan.json", **TWO)
    done = meshwright("run", tmp_path / "plan.json", code=str(tmp_path), timeout=60)
    assert error_of(done, 1).startswith("rank 1: the process was killed by SIGKILL")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_whose_partner_never_comes(tmp_path: Path, node: int) -> None:
    write_plan(tmp_path / "plan.json", **TWO)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = ["--nnodes", 2, "--node-rank", node, "--rdzv-endpoint", endpoint, "--timeout", 4]
    done = meshwright("run", tmp_path / "plan.json", *nodes, timeout=60)
    assert done.returncode == 1
    waiting, error = done.stderr.splitlines()
    assert waiting == f"node {node} of 2 meets the others at {endpoint} ..."
    assert error.startswith(
        f"error: node {node} of 2 at {endpoint} waited in vain for the others: run the same on every node"
    )


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_measuring_with_a_peer_that_never_comes(tmp_path: Path, rank: int) -> None:
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    arguments = ["hardware", "measure", "--device", "cpu", "-o", tmp_path / "cpu.yaml", "--timeout", 4]
    done = meshwright(*arguments, timeout=60, MASTER_PORT=str(free_port()), **place)
    assert done.returncode == 1
    assert f"error: measuring failed on rank {rank} of 2: " in done.stderr
    assert "imed out" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "cpu.yaml").exists()


def test_nobody_waits_longer_than_a_minute_unasked() -> None:
    from executor.measure_process import TIMEOUT_SECONDS

    assert max(JOIN_TIMEOUT_SECONDS, TIMEOUT_SECONDS) <= 60
