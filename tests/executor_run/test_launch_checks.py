"""What is refused before any process is started."""

import socket
from pathlib import Path
from typing import Any

import pytest
from sample_documents import sample_estimate
from tiny_plans import local_cluster, tiny_model, tiny_plan

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import ExecutionError, InputError, Interval, Observation, Plan, RuntimeRef, with_hash
from executor import cores, launch
from executor.checks import notices
from executor.files import read_plan
from executor.launch import Nodes, run, torchrun_arguments, worker_environment
from executor.worker import default_timeout
from meshwright.files import check_output


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch.subprocess, "Popen", refuse)


def changed(plan: Plan, **update: Any) -> Plan:
    return with_hash(plan.model_copy(update=update))


def test_another_runtime_s_plan() -> None:
    plan = changed(tiny_plan(), runtime=RuntimeRef(name="megatron", version="core"))
    with pytest.raises(InputError, match="runtime 'megatron'; only plans for 'torch'"):
        run(plan, steps=1)


def test_fp16() -> None:
    plan = tiny_plan()
    training = plan.training.model_copy(update={"precision": load_runtime("torch").precisions["fp16"]})
    with pytest.raises(InputError, match="dynamic loss scaling"):
        run(changed(plan, training=training), steps=1)


def test_a_plan_that_breaks_a_rule() -> None:
    plan = tiny_plan(tensor_parallel_size=4)  # 2 key-value heads
    with pytest.raises(InputError, match=r"the plan cannot be run: .*4"):
        run(plan, steps=1)


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps(steps: int) -> None:
    with pytest.raises(InputError, match=f"steps is {steps}; needed: at least 1"):
        run(tiny_plan(), steps=steps)


def test_cuda_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    cluster = local_cluster(2, name="H100-SXM", kind="cuda")
    plan = tiny_plan(precision="fp32", cluster=cluster, data_parallel_replicate_size=2)
    with pytest.raises(InputError, match="plan is for H100-SXM and needs 2 CUDA devices on this node; found 1"):
        run(plan, steps=1)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"nnodes": 3}, "2 devices of the plan cannot be shared by 3 nodes"),
        ({"nnodes": 0}, "cannot be shared by 0 nodes"),
        ({"nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, "node_rank is 2; needed: 0 to 1"),
        ({"node_rank": 1}, "node_rank is 1; needed: 0, as there is one node"),
        ({"nnodes": 2}, "2 nodes need rdzv_endpoint"),
        ({"rdzv_endpoint": "here"}, "rdzv_endpoint is 'here'; needed HOST:PORT"),
        ({"nnodes": 2, "rdzv_endpoint": "node0"}, "rdzv_endpoint is 'node0'; needed HOST:PORT"),
        ({"nnodes": 2, "rdzv_endpoint": "node0:http"}, "needed HOST:PORT"),
        ({"nnodes": 2, "rdzv_endpoint": "node0:70000"}, "port from 1 to 65535"),
        ({"nnodes": 2, "rdzv_endpoint": "node0:0"}, "port from 1 to 65535"),
        ({"nnodes": 2, "rdzv_endpoint": "node0:29500"}, "host node0 cannot be found .Name or service not known"),
    ],
)
def test_nodes_that_do_not_fit(nodes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InputError, match=message):
        run(tiny_plan(data_parallel_replicate_size=2), steps=1, **nodes)


def test_more_processes_than_the_machine_keeps_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen a core, and the memory that an idle process holds."""
    plan = tiny_plan(cluster=local_cluster(64), data_parallel_replicate_size=8)
    monkeypatch.setattr(cores, "num_cores", lambda: 2)
    monkeypatch.setattr(cores, "available_memory_bytes", lambda: 5 * cores.PROCESS_BYTES + 1)
    with pytest.raises(InputError, match=r"8 processes .* 2 cores and 1.5 GiB .* at most 5"):
        run(plan, steps=1)
    monkeypatch.setattr(cores, "available_memory_bytes", lambda: 1000 * cores.PROCESS_BYTES)
    cores.check_processes(32)
    with pytest.raises(InputError, match="at most 32"):
        cores.check_processes(33)


def test_text_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("a" * 128)
    with pytest.raises(InputError, match=r"hold 128 tokens = 7 sequences of 16; .* 8 sequences = 129 tokens"):
        run(tiny_plan(), steps=1, data=path)


@pytest.mark.parametrize("data", ["missing.txt", "."])
def test_text_that_cannot_be_read(tmp_path: Path, data: str) -> None:
    with pytest.raises(InputError, match=r"data .* needed: one UTF-8 text file"):
        run(tiny_plan(), steps=1, data=tmp_path / data)


def test_an_existing_output_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "observation.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        run(tiny_plan(), steps=1, output=path)
    with pytest.raises(InputError, match="is a folder"):
        run(tiny_plan(), steps=1, output=tmp_path)
    assert path.read_text() == "mine"
    link = tmp_path / "link.json"
    link.symlink_to("not/there/yet.json")
    with pytest.raises(InputError, match="exists already"):
        run(tiny_plan(), steps=1, output=link)
    with pytest.raises(InputError, match="exists already"):
        check_output(link, force=False)


def test_an_output_that_somebody_made_during_the_run_is_kept_and_so_is_the_observation(tmp_path: Path) -> None:
    path, observation = tmp_path / f"{'o' * 245}.json", Observation(source="run", losses=(1.0,))
    path.write_text("mine")
    with pytest.raises(ExecutionError, match=r"was made by somebody else during this run; its observation is in .*o-"):
        launch.write_observation(observation, path, force=False)
    assert path.read_text() == "mine"
    (beside,) = (found for found in tmp_path.iterdir() if found != path)
    assert Observation.model_validate_json(beside.read_text()) == observation
    launch.write_observation(observation, path, force=True)
    assert Observation.model_validate_json(path.read_text()) == observation
    assert len(list(tmp_path.iterdir())) == 2


def test_dropout_is_noticed() -> None:
    model = tiny_model()
    assert notices(tiny_plan(model=model)) == ()
    config = {**model.hf_config, "attention_dropout": 0.1}
    assert notices(tiny_plan(model=tiny_model(hf_config=config))) == (
        "dropout is not supported yet: llama-test is trained with 0 instead of attention_dropout 0.1",
    )


def test_torchrun_on_one_node_and_on_several() -> None:
    plan = tiny_plan(data_parallel_replicate_size=4)
    assert torchrun_arguments(plan, Nodes()) == ["--standalone", "--nproc-per-node", "4"]
    arguments = torchrun_arguments(plan, Nodes(nnodes=2, node_rank=1, rdzv_endpoint="head:29400"))
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--rdzv-backend": "static",
        "--rdzv-endpoint": "head:29400",
        "--rdzv-id": plan.plan_hash[:16],
        "--rdzv-conf": "timeout=60",
        "--nproc-per-node": "2",
    }
    patient = Nodes(nnodes=2, rdzv_endpoint="head:29400", timeout_seconds=300)
    assert "timeout=300" in torchrun_arguments(plan, patient)


def test_a_timeout_that_is_none() -> None:
    with pytest.raises(InputError, match="timeout_seconds is 0; needed: at least 1"):
        run(tiny_plan(), steps=1, timeout_seconds=0)


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "num_cores", lambda: 16)
    threads = [worker_environment(processes)["OMP_NUM_THREADS"] for processes in (1, 4, 5, 64)]
    assert threads == ["16", "4", "3", "1"]


def test_a_plan_file_that_was_edited(tmp_path: Path) -> None:
    plan = tiny_plan()
    path = tmp_path / "plan.json"
    path.write_text(plan.model_dump_json())
    assert read_plan(path) == plan
    path.write_text(plan.model_dump_json().replace('"hidden_size":16', '"hidden_size":32', 1))
    with pytest.raises(InputError, match="hash does not match"):
        read_plan(path)
    for content, message in [("{", "not JSON"), ("[]", "not a plan"), ('{"schema_version": 2}', "not a plan")]:
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            read_plan(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "nowhere.json")


def test_a_process_waits_for_sixty_seconds_or_twenty_predicted_steps() -> None:
    plan = tiny_plan()
    assert default_timeout(plan) == 60

    def predicting(seconds: float) -> Plan:
        interval = Interval(value=seconds, low=seconds, high=1.5 * seconds)
        estimate = sample_estimate().model_copy(update={"step_time_seconds": interval})
        return plan.model_copy(update={"estimate": estimate})

    assert default_timeout(predicting(1.0)) == 60
    assert default_timeout(predicting(10.0)) == 300
