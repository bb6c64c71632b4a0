"""Wrong input: exit code 2, one clear message on stderr, nothing on stdout, no file touched."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_documents import sample_comparison, sample_plan, sample_recommendation

from costmodel.specs import with_hash
from meshwright import make_plan, save_plan

BASE = {
    "--model": "llama-3-8b",
    "--cluster": "8xH100-SXM",
    "--global-batch-size": "64",
    "--sequence-length": "2048",
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}


# Nine aliases to nine aliases to nine ...: 9^9 values if anybody writes them out.
BOMB = "base: [&a0 [x], " + ", ".join(f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)) + "]\n"


def plan(*extra: str, **changes: str) -> list[str]:
    return ["plan", *_options(changes), *extra]


def estimate(*extra: str, **changes: str) -> list[str]:
    return ["estimate", *_options(changes), *extra]


def scale(*extra: str, **changes: str) -> list[str]:
    return ["scale", *_options(changes), *extra]


def _options(changes: dict[str, str]) -> list[str]:
    options = {**BASE, **{"--" + name.replace("_", "-"): value for name, value in changes.items()}}
    return [word for pair in options.items() for word in pair]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with every kind of file that may go wrong."""
    folder = tmp_path_factory.mktemp("files")
    made = sample_plan()
    save_plan(made, folder / "plan.json")
    sizes = {"global_batch_size": 8, "sequence_length": 128}
    save_plan(make_plan("llama-tiny-demo", "8xH100-SXM", runtime="megatron", **sizes), folder / "megatron.json")
    text = (folder / "plan.json").read_text()
    (folder / "edited.json").write_text(text.replace('"micro_batch_size": 1', '"micro_batch_size": 2'))
    (folder / "future.json").write_text(text.replace('"schema_version": 1', '"schema_version": 2'))
    (folder / "unhashed.json").write_text(text.replace(made.plan_hash, ""))
    (folder / "extra.json").write_text(text.replace('"tiling": null', '"tiling": null, "colour": 1'))
    (folder / "nan.json").write_text(text.replace('"learning_rate": 0.001', '"learning_rate": NaN'))
    (folder / "truncated.json").write_text(text[: len(text) // 2])
    (folder / "truncated.yaml").write_text("plan: [1, 2")
    (folder / "binary.json").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff\xfe")
    (folder / "empty.json").write_text("")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "comparison.json").write_text(sample_comparison().model_dump_json())
    _write_edited_plans(folder)
    broken = sample_recommendation().model_dump(mode="json")
    broken["best"]["parallel"]["zero_stage"] = 3
    (folder / "edited_recommendation.json").write_text(json.dumps(broken))
    inconsistent = made.model_copy(update={"num_devices_used": 12})
    save_plan(with_hash(inconsistent), folder / "inconsistent.json")
    (folder / "config_truncated.json").write_text(json.dumps(CONFIG)[:50])
    (folder / "config_text.json").write_text("hidden size: many")
    (folder / "config_lacking.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
    (folder / "config_bert.json").write_text(json.dumps({**CONFIG, "model_type": "bert"}))
    (folder / "config_negative.json").write_text(json.dumps({**CONFIG, "hidden_size": -64}))
    (folder / "config_heads.json").write_text(json.dumps({**CONFIG, "num_attention_heads": 3}))
    (folder / "config_twice.json").write_text(json.dumps(CONFIG)[:-1] + ', "hidden_size": 128}')
    (folder / "config_layers.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 10_000}))
    (folder / "config_experts.json").write_text(json.dumps({**CONFIG, "num_local_experts": 8}))
    (folder / "config_digits.json").write_text(json.dumps(CONFIG).replace("64", "6" * 5000, 1))
    (folder / "bomb.yaml").write_text(BOMB)
    (folder / "fast.yaml").write_text("base: 8xH100-SXM\ndevice: {memory_fraction: 5}\n")
    os.mkfifo(folder / "pipe.json")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "no_config").mkdir()
    (folder / "taken.json").write_text("precious")
    (folder / "taken.yaml").write_text("precious")
    _write_cpu_plans(folder)
    return folder


def _write_edited_plans(folder: Path) -> None:
    made = make_plan("llama-tiny-demo", "2xcpu", global_batch_size=4, sequence_length=32)
    edits: dict[str, tuple[str, object]] = {
        "hidden": ("model.hidden_size", 512),
        "long": ("training.sequence_length", 10**30),
        "betas": ("training.optimizer.betas", [5.0, -1.0]),
        "seed": ("training.seed", 10**18 * 100),
        "experts": ("model.layers.0.feed_forward.experts", 8),
    }
    for name, (place, value) in edits.items():
        content = made.model_dump(mode="json")
        *path, last = place.split(".")
        target: Any = content
        for key in path:
            target = target[int(key) if key.isdigit() else key]
        target[last] = value
        (folder / f"edit_{name}.json").write_text(json.dumps(content))


def _write_cpu_plans(folder: Path) -> None:
    inputs = {"global_batch_size": 4, "sequence_length": 32}
    save_plan(make_plan("llama-tiny-demo", "2xcpu", **inputs), folder / "cpu.json")
    fp16 = make_plan("llama-3-8b", "8xV100-SXM-32GB", precision="fp16", global_batch_size=8, sequence_length=128)
    save_plan(fp16, folder / "fp16.json")
    (folder / "short.txt").write_text("too short")


CASES: dict[str, tuple[list[str], str]] = {
    # the command line itself
    "unknown command": (["plot"], "No such command"),
    "unknown option": (plan("--colour", "red"), "No such option"),
    "missing option": (["plan", "--cluster", "8xH100-SXM"], "--model"),
    "unexpected argument": (plan("leftover"), "leftover"),
    # questions
    "unknown objective": (
        plan("--objective", "speed"),
        "unknown objective 'speed'; choose one of step-time, devices, cost, memory-headroom",
    ),
    "cost without a price": (
        plan("--objective", "cost"),
        "needs the price of a device-hour, and 8xH100-SXM has none; give --price 2.5, or price_per_device_hour: 2.5",
    ),
    "price of nothing": (plan("--objective", "cost", "--price", "0"), "price is '0'; needed a number above 0"),
    "price no number": (plan("--objective", "cost", "--price", "cheap"), "price is 'cheap'; needed a number above 0"),
    "price of another objective": (plan("--price", "2"), "price is for objective cost, found objective step-time"),
    "within of another objective": (plan("--within", "5%"), "within is for objective memory-headroom"),
    "within nothing": (
        plan("--objective", "memory-headroom", "--within", "0"),
        "within is '0'; needed a share above 0, such as 0.1 or 10%",
    ),
    "two questions": (
        plan("--minimum-devices", "--maximize", "micro_batch_size"),
        "--minimum-devices and --maximize micro_batch_size are two questions",
    ),
    "two objectives": (plan("--minimum-devices", "--objective", "step-time"), "two questions; ask one of them"),
    "maximum under an objective": (
        plan("--maximize", "micro_batch_size", "--objective", "devices"),
        "--maximize takes no --objective",
    ),
    "unknown quantity": (
        plan("--maximize", "tokens"),
        "choose one of sequence_length, micro_batch_size, global_batch_size",
    ),
    "maximized and stated": (
        plan("--maximize", "sequence_length"),
        "sequence_length 2048 is stated, and is what is maximized; leave one of them out",
    ),
    "maximized and fixed": (
        plan("--maximize", "micro_batch_size", "--fix", "micro_batch_size=2"),
        "leave out --fix micro_batch_size",
    ),
    "maximized without a batch": (
        ["plan", "--model", "gpt2", "--cluster", "8xH100-SXM", "--maximize", "sequence_length"],
        "maximizing sequence_length needs global_batch_size",
    ),
    "no length": (
        ["plan", "--model", "gpt2", "--cluster", "8xH100-SXM", "--global-batch-size", "8"],
        "missing: --sequence-length; only what --maximize asks for may be left out",
    ),
    "granularity of nothing": (plan("--granularity", "16"), "--granularity is for --maximize sequence_length"),
    "granularity of a batch": (
        plan("--maximize", "micro_batch_size", "--granularity", "16"),
        "granularity is for sequence_length, found micro_batch_size to maximize",
    ),
    # scale
    "no batch": (
        ["scale", "--model", "gpt2", "--cluster", "8xH100-SXM", "--sequence-length", "512"],
        "found neither of global_batch_size and batch_per_node; needed exactly one of them",
    ),
    "two batches": (scale("--batch-per-node", "4"), "found both of global_batch_size and batch_per_node"),
    "more nodes than there are": (
        scale("--nodes", "1,5", cluster="4x8xH100-SXM"),
        "nodes is 5, but 4x8xH100-SXM has 4 nodes; valid: 1, 2, 3, 4",
    ),
    "nodes no number": (scale("--nodes", "1,x"), "nodes is 'x'; needed a whole number of at least 1"),
    "no nodes": (scale("--nodes", "0"), "nodes is 0; needed a whole number of at least 1"),
    "negative price": (scale("--price=-2"), "price is '-2'; needed a number above 0"),
    "more than ideal": (
        scale("--marginal-efficiency", "2"),
        "marginal_efficiency is '2'; needed a share above 0 and up to 1",
    ),
    "devices of scale": (scale("--fix", "num_devices_used=4"), "scale decides num_devices_used; leave out --fix"),
    "batch beyond any": (
        [
            "scale",
            "--model",
            "gpt2",
            "--cluster",
            "2x8xH100-SXM",
            "--sequence-length",
            "512",
            "--batch-per-node",
            "900000",
        ],
        "global_batch_size is 1800000; needed a whole number from 1 to 1,000,000",
    ),
    # memory limit
    "fraction above one": (plan("--max-memory-fraction", "1.2"), "'1.2'; needed a share above 0 and up to 1"),
    "fraction of nothing": (plan("--max-memory-fraction", "0"), "needed a share above 0 and up to 1"),
    "fraction no number": (plan("--max-memory-fraction", "most"), "'most'; needed a share above 0"),
    "reserve without unit": (
        plan("--reserve-memory", "4"),
        "reserve_memory is '4', 4 bytes; needed 0 or at least 1 MiB",
    ),
    "reserve negative": (estimate("--reserve-memory=-4GiB"), "reserve_memory is '-4GiB'"),
    "reserve of unknown unit": (plan("--reserve-memory", "4Gib"), "did you mean GiB"),
    "reserve everything": (plan("--reserve-memory", "90GiB"), "leaves nothing for the plan; needed less than 79.1 GiB"),
    "missing subcommand": (["hardware", "measured"], "No such command"),
    # model
    "unknown model": (plan(model="llama-9-1b"), "llama-9"),
    "model file missing": (plan(model="no/such/config.json"), "no/such/config.json"),
    "config truncated": (plan(model="config_truncated.json"), "config_truncated.json"),
    "config not json": (plan(model="config_text.json"), "config_text.json"),
    "config lacks a field": (plan(model="config_lacking.json"), "hidden_size"),
    "unsupported architecture": (plan(model="config_bert.json"), "bert"),
    "config with negative size": (plan(model="config_negative.json"), "-64"),
    "heads do not divide": (plan(model="config_heads.json"), "num_attention_heads"),
    "folder without config": (plan(model="no_config"), "config.json"),
    "sequence beyond positions": (plan(model="gpt2", sequence_length="2048"), "1024"),
    "config states a field twice": (plan(model="config_twice.json"), "'hidden_size' stands twice"),
    "config of ten thousand layers": (plan(model="config_layers.json"), "from 1 to 1,024"),
    "config of experts": (plan(model="config_experts.json"), "mixture-of-experts"),
    "config with endless digits": (plan(model="config_digits.json"), "thousands of digits"),
    "config is a pipe": (plan(model="pipe.json"), "not a regular file"),
    "models show unknown": (["models", "show", "llama-9-1b"], "llama-9"),
    # cluster
    "unknown device": (plan(cluster="8xH200X"), "H200X"),
    "zero devices": (plan(cluster="0xH100-SXM"), "0"),
    "negative devices": (plan(cluster="-8xH100-SXM"), "-8"),
    "too many in a node": (plan(cluster="16xH100-SXM"), "2x8xH100-SXM"),
    "cluster file missing": (plan(cluster="nowhere.yaml"), "nowhere.yaml"),
    "cluster file is a folder": (plan(cluster="./no_config"), "directory"),
    "cluster is a plan": (plan(cluster="plan.json"), "plan.json"),
    "cluster of aliases that multiply": (plan(cluster="bomb.yaml"), "multiply to millions"),
    "cluster is a pipe": (plan(cluster="pipe.yaml"), "the file is empty"),
    "cluster faster than its peak": (plan(cluster="fast.yaml"), "memory_fraction: found 5; needed at most 1"),
    "node instead of devices": (plan(cluster="4xdgx-h100"), "4x8xH100-SXM"),
    "hardware show unknown": (["hardware", "show", "H200X"], "H200X"),
    "measure no processes": (["hardware", "measure", "--processes", "0", "-o", "new.yaml"], "0"),
    "measure a million processes": (
        ["hardware", "measure", "--processes", "1000000", "-o", "new.yaml"],
        "processes on this machine of",
    ),
    "measure wrong suffix": (["hardware", "measure", "--processes", "2", "-o", "new.txt"], ".yaml"),
    "measure existing file": (["hardware", "measure", "--processes", "2", "-o", "taken.yaml"], "--force"),
    # training
    "batch zero": (plan(global_batch_size="0"), "global-batch-size"),
    "batch negative": (plan(global_batch_size="-8"), "-8"),
    "batch nan": (plan(global_batch_size="nan"), "nan"),
    "batch in other digits": (plan(global_batch_size="\u0666\u0664"), "needed a whole number"),
    "batch fraction": (plan(global_batch_size="1.5"), "1.5"),
    "batch astronomical": (plan(global_batch_size="9" * 30), "1,000,000"),
    "sequence zero": (plan(sequence_length="0"), "sequence-length"),
    "sequence astronomical": (plan(sequence_length="9" * 30), "10,000,000"),
    "unknown runtime": (plan(runtime="fairscale"), "megatron"),
    "unknown precision": (plan(precision="int8"), "choose one of bf16, fp16, fp32"),
    "bf16 on V100": (plan(cluster="8xV100-SXM-32GB", precision="bf16"), "fp16"),
    "fp64 on a GPU": (plan(precision="fp64"), "fp64"),
    "unknown optimizer": (plan(optimizer="adafactor"), "adamw"),
    "unknown attention": (plan(attention="ring"), "unfused"),
    "chunks of the loss zero": (plan(loss_chunks="0"), "needed a whole number"),
    "runtime without a chunked loss": (plan(loss_chunks="4"), "runtime torch does not compute the loss in chunks"),
    "more chunks than tokens": (estimate(loss_chunks="9999999", runtime="deepspeed"), "loss_chunks to at most"),
    "unknown recompute": (estimate(recompute="sometimes"), "core_attention"),
    # axes
    "unknown axis": (plan(fix="tensor_size=2"), "tensor_parallel_size"),
    "axis without value": (plan(fix="tensor_parallel_size"), "axis=value"),
    "axis twice": (plan("--fix", "tensor_parallel_size=2", fix="tensor_parallel_size=4"), "twice"),
    "axis fixed and allowed": (plan(fix="zero_stage=1", allow="zero_stage=1,2"), "zero_stage"),
    "axis value zero": (plan(fix="tensor_parallel_size=0"), "tensor_parallel_size"),
    "axis value nan": (plan(fix="tensor_parallel_size=nan"), "nan"),
    "axis value list": (plan(fix="tensor_parallel_size=2,4"), "--allow"),
    "allow nothing": (plan(allow="zero_stage="), "zero_stage"),
    "unknown schedule": (plan(fix="pipeline_schedule=zigzag"), "1f1b"),
    "zero stage 4": (plan(fix="zero_stage=4"), "0, 1, 2, 3"),
    "reserved axis": (plan(fix="expert_parallel_size=2"), "expert_parallel_size"),
    "heads not divisible": (plan(fix="tensor_parallel_size=3"), "tensor_parallel_size"),
    "more devices than there are": (plan(fix="tensor_parallel_size=16"), "8"),
    "batch not divisible": (plan(global_batch_size="10", fix="data_parallel_size=4"), "global_batch_size"),
    "more stages than layers": (plan(cluster="8x8xH100-SXM", fix="pipeline_parallel_size=64"), "32"),
    "context parallelism of a runtime that has none": (plan(fix="context_parallel_size=2"), "valid: 1"),
    "a method of context parallelism that is none": (
        plan(allow="context_parallel_method=p2p"),
        "ring, all_gather, all_to_all",
    ),
    "more devices used than there are": (plan(allow="num_devices_used=4,16"), "num_devices_used is 16"),
    "devices used no multiple": (
        plan("--fix", "num_devices_used=6", fix="tensor_parallel_size=4"),
        "6 is not a multiple of tensor_parallel_size 4",
    ),
    "shards of one device": (
        plan("--fix", "zero_stage=3", fix="data_parallel_shard_size=1"),
        "zero_stage 3 has nothing to shard",
    ),
    "chunks without a pipeline": (
        plan("--fix", "num_model_chunks=2", fix="pipeline_parallel_size=1"),
        "num_model_chunks exactly 1",
    ),
    "stages that are not listed": (
        plan("--fix", "layers_per_stage=16,16", fix="pipeline_parallel_size=4"),
        "lists 2 stages",
    ),
    "axis value astronomical": (plan(fix="micro_batch_size=" + "9" * 30), "from 1 to 1,000,000,000"),
    "top zero": (plan(top="0"), "top"),
    "tokens not a number": (plan(tokens="lots"), "300B"),
    "tokens negative": (plan(tokens="-5"), "-5"),
    "tokens nan": (plan(tokens="nan"), "nan"),
    "tokens zero": (plan(tokens="0"), "tokens"),
    # output
    "output exists": (plan(output="taken.json"), "--force"),
    "output suffix": (plan(output="plan.txt"), ".json"),
    "output folder missing": (plan(output="nowhere/plan.json"), "nowhere"),
    "output is a folder": (plan(output="no_config"), "no suffix"),
    "output in a device": (plan(output="/dev/full"), "no suffix"),
    "output where nothing can be written": (plan(output="/proc/plan.json"), "cannot be written"),
    "output name too long": (plan(output="a" * 300 + ".json"), "too long"),
    # estimate
    "estimate nothing": (["estimate"], "--model"),
    "estimate half the inputs": (["estimate", "--model", "gpt2"], "--cluster"),
    "estimate file and sizes": (["estimate", "plan.json", "--tensor-parallel-size", "2"], "--tensor-parallel-size"),
    "estimate file and runtime": (["estimate", "plan.json", "--runtime", "megatron"], "--runtime"),
    "sizes do not multiply": (estimate(tensor_parallel_size="3"), "does not divide 8 devices"),
    "sizes beyond the cluster": (estimate(tensor_parallel_size="4", pipeline_parallel_size="4"), "16"),
    "estimate batch not divisible": (estimate(global_batch_size="12"), "global_batch_size 12"),
    "edits of no file": (estimate("--accept-edits"), "--accept-edits is for a plan file"),
    "size zero": (estimate(tensor_parallel_size="0"), "tensor-parallel-size"),
    "stage 3 of one device": (estimate(tensor_parallel_size="8", zero_stage="3"), "zero_stage"),
    "layers do not sum": (estimate(pipeline_parallel_size="2", layers_per_stage="10,10"), "32"),
    "layers not numbers": (estimate(pipeline_parallel_size="2", layers_per_stage="many"), "many"),
    "schedule without pipeline": (estimate(pipeline_schedule="1f1b"), "pipeline_schedule"),
    # plan files
    "plan missing": (["explain", "nowhere.json"], "does not exist"),
    "plan is a folder": (["explain", "no_config"], "folder"),
    "plan edited": (["explain", "edited.json"], "--accept-edits"),
    "plan without hash": (["explain", "unhashed.json"], "plan_hash none"),
    "plan of another version": (["explain", "future.json"], "schema_version 2"),
    "plan with unknown key": (["explain", "extra.json"], "colour"),
    "plan with nan": (["explain", "nan.json"], "NaN"),
    "plan truncated": (["explain", "truncated.json"], "not valid JSON"),
    "plan truncated yaml": (["explain", "truncated.yaml"], "not valid YAML"),
    "plan binary": (["explain", "binary.json"], "binary"),
    "plan empty": (["explain", "empty.json"], "empty"),
    "plan is a list": (["explain", "list.json"], "list"),
    "plan is a comparison": (["explain", "comparison.json"], "comparison"),
    "recommendation edited": (["explain", "edited_recommendation.json"], "--accept-edits"),
    "plan is a pipe": (["explain", "pipe.json"], "the file is empty"),
    "plan of aliases that multiply": (["explain", "bomb.yaml"], "multiply to millions"),
    "edited to another model": (
        ["estimate", "edit_hidden.json", "--accept-edits"],
        "hf_config describes a model with 256",
    ),
    "edited beyond 64 bits": (["estimate", "edit_long.json", "--accept-edits"], "needed a whole number below 9.2e+18"),
    "edited betas": (["estimate", "edit_betas.json", "--accept-edits"], "betas.0: found 5.0; needed a number below 1"),
    "edited seed": (["estimate", "edit_seed.json", "--accept-edits"], "training.seed: found 1"),
    "edited reserved field": (["estimate", "edit_experts.json", "--accept-edits"], "experts: found 8; needed 0"),
    "plan inconsistent": (["estimate", "inconsistent.json"], "12"),
    # export
    "unknown target": (["export", "plan.json", "--to", "slrum", "-o", "x"], "torchrun"),
    "export existing": (["export", "plan.json", "--to", "json", "-o", "taken.json"], "--force"),
    "export without a name": (["export", "plan.json", "--to", "json", "-o", ""], "the argument after -o is empty"),
    "export into a device": (
        ["export", "plan.json", "--to", "json", "-o", "/dev/full", "--force"],
        "a device or a pipe",
    ),
    "export into a pipe": (["export", "plan.json", "--to", "json", "-o", "pipe.json", "--force"], "a device or a pipe"),
    "export json as yaml": (["export", "plan.json", "--to", "json", "-o", "x.yaml"], "use --to yaml"),
    "export yaml as json": (["export", "plan.json", "--to", "yaml", "-o", "x.json"], "use --to json"),
    "export beside existing": (["export", "plan.json", "--to", "torchrun", "-o", "taken.json"], "is a file"),
    "export with a launcher": (
        ["export", "plan.json", "--to", "torchrun", "-o", "x", "--launcher", "torchrun"],
        "--launcher is for --to slurm",
    ),
    "export for an untested version": (
        ["export", "plan.json", "--to", "torchrun", "-o", "x", "--target-version", "torch 1"],
        "was not tested with version torch 1; tested: torch 2.13.0",
    ),
    # estimate --from
    "from without a model": (["estimate", "--from", "plan.json", "--cluster", "8xH100-SXM"], "missing: --model"),
    "from beside a size": (
        ["estimate", "--from", "x", "--model", "m", "--cluster", "c", "--zero-stage", "1"],
        "leave out --zero-stage",
    ),
    "from nowhere": (
        ["estimate", "--from", "nowhere", "--model", "llama-3-8b", "--cluster", "8xH100-SXM"],
        "config file nowhere does not exist",
    ),
    "a format without a file": (["estimate", "plan.json", "--format", "megatron"], "--format is for --from FILE"),
    "megatron plan to torchrun": (["export", "megatron.json", "--to", "torchrun", "-o", "x"], "--runtime torch"),
    # run
    "run no steps": (["run", "cpu.json", "--steps", "0"], "steps"),
    "run data missing": (["run", "cpu.json", "--data", "nowhere.txt"], "nowhere.txt"),
    "run data too short": (["run", "cpu.json", "--data", "short.txt"], "9 tokens"),
    "run data is a folder": (["run", "cpu.json", "--data", "no_config"], "no_config"),
    "run output exists": (["run", "cpu.json", "-o", "taken.json"], "--force"),
    "run on three nodes": (["run", "cpu.json", "--nnodes", "3"], "nnodes"),
    "run as node 5": (["run", "cpu.json", "--nnodes", "2", "--node-rank", "5"], "node_rank"),
    "run nodes without endpoint": (["run", "cpu.json", "--nnodes", "2"], "rdzv_endpoint"),
    "run as node 1 of 1": (["run", "cpu.json", "--node-rank", "1"], "as there is one node"),
    "run at no endpoint": (["run", "cpu.json", "--nnodes", "2", "--rdzv-endpoint", "node0"], "HOST:PORT"),
    "run data is a pipe": (["run", "cpu.json", "--data", "pipe.json"], "holds no text"),
    "run output nowhere": (["run", "cpu.json", "-o", "/proc/o.json"], "cannot be written"),
    "run fp16": (["run", "fp16.json"], "loss scaling"),
    "run megatron plan": (["run", "megatron.json"], "--runtime torch"),
}


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("arguments", "expected"), CASES.values(), ids=CASES.keys())
def test_one_message_and_nothing_touched(
    arguments: list[str],
    expected: str,
    cli: Callable[..., tuple[int, str, str]],
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(prepared)
    before = snapshot(prepared)
    code, out, err = cli(*arguments)
    assert code == 2, err
    assert out == ""
    messages = err.strip().splitlines()
    assert len(messages) == 1, err
    assert messages[0].startswith("error: ")
    assert expected in messages[0]
    assert "internal error" not in err
    assert "Traceback" not in err
    assert snapshot(prepared) == before


def test_there_are_more_than_a_hundred_cases() -> None:
    assert len(CASES) > 140
