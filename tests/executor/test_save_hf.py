"""A Hugging Face folder trained under a plan and saved gives the logits of one process's training."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_harness import TOLERANCE, Pool
from executor_plans import make_plan
from safetensors.torch import load_file

from executor import save_hf

pytestmark = pytest.mark.distributed

TP_PP: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "pipeline_schedule": "1f1b",
    "micro_batch_size": 2,
    "sequence_parallel": True,
    "loss_parallel": True,
}
ZERO1: dict[str, Any] = {"data_parallel_shard_size": 2, "zero_stage": 1}
CASES: dict[str, dict[str, Any]] = {
    "tp2-pp2": {"model": "llama", **TP_PP},
    "tp2-zero3-gpt2-tied": {"model": "gpt2-63", "tensor_parallel_size": 2, **ZERO1, "zero_stage": 3},
    "tp2-pp2-tied": {"model": "llama-tied-63", **TP_PP},
    "zero3": {"model": "qwen3", "data_parallel_shard_size": 3, "zero_stage": 3, "batch": 6},
}
CLASSES = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "qwen3": "Qwen3ForCausalLM"}


def check(found: dict[str, Any], model: str) -> None:
    assert found["moved"] > 1e-3  # training changed the folder it started from
    assert found["stored"]
    assert found["dtypes"] == ["torch.float64"]
    assert found["weights"] <= TOLERANCE
    assert found["logits"] <= TOLERANCE
    assert found["class"] == CLASSES[model.split("-", maxsplit=1)[0]]
    assert {"config.json", "model.safetensors.index.json"} < set(found["files"])
    assert {"tokenizer.json", "generation_config.json"} < set(found["files"])  # from the folder it started from
    assert sum(name.endswith(".safetensors") for name in found["files"]) > 2


@pytest.mark.parametrize("name", CASES)
def test_a_trained_folder_equals_one_process(pool: Pool, tmp_path: Path, name: str) -> None:
    plan = make_plan(**CASES[name])
    job = {"kind": "export", "plan": plan.model_dump_json(), "folder": str(tmp_path)}
    check(pool.run(plan.num_devices_used, job), CASES[name]["model"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_trained_folder_equals_one_process_under_four_kinds_of_parallelism(
    large_pool: Pool, tmp_path: Path, model: str
) -> None:
    plan = make_plan(model, **{**TP_PP, **ZERO1})
    assert plan.num_devices_used == 8
    check(large_pool.run(8, {"kind": "export", "plan": plan.model_dump_json(), "folder": str(tmp_path)}), model)


def test_a_model_goes_beside_a_folder_that_was_filled_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / ("m" * 250)
    assert save_hf.free_folder(folder) == folder
    folder.mkdir()
    assert save_hf.free_folder(folder) == folder
    (folder / "config.json").touch()
    beside = save_hf.free_folder(folder)
    assert beside.parent == tmp_path
    assert beside.name.startswith("m" * 100)
    beside.mkdir()


def test_one_file_s_worth_is_held_at_a_time(tmp_path: Path) -> None:
    held: set[int] = set()
    most = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(12):
            tensor = torch.full((100,), float(number))
            held.add(number)
            weakref.finalize(tensor, held.discard, number)
            most.append(len(held))
            yield f"t{number}", tensor
            del tensor

    shapes = {f"t{number}": (100,) for number in range(12)}
    files = save_hf._split(shapes, 4, 1300)  # three tensors of 400 bytes
    assert [len(names) for names in files] == [3, 3, 3, 3]
    save_hf._write_weights(tensors(), files, tmp_path)
    assert max(most) == 3
    index = json.loads((tmp_path / save_hf.INDEX_FILE).read_text())
    assert index["metadata"] == {"total_size": 4800}
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], torch.full((100,), float(name[1:])))


def test_a_tensor_larger_than_a_file_has_one_of_its_own() -> None:
    assert save_hf._split({"a": (10,), "b": (1000,), "c": (10,)}, 4, 100) == [["a"], ["b"], ["c"]]


def test_another_format_is_a_rounding(pool: Pool, tmp_path: Path) -> None:
    plan = make_plan("llama", tensor_parallel_size=2, micro_batch_size=4)
    job = {"kind": "export", "plan": plan.model_dump_json(), "folder": str(tmp_path), "dtype": "bfloat16"}
    found = pool.run(2, job)
    assert found["dtypes"] == ["torch.bfloat16"]
    assert 0 < found["weights"] < 2**-7
