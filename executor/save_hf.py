"""A trained model as a Hugging Face folder, from any plan.

Tensor by tensor the processes send their blocks to rank 0, which writes a safetensors file as soon as its tensors are complete.
So rank 0 holds one file's worth at a time, and no other process more than its own part.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from costmodel.specs import ExecutionError, ModelSpec
from executor.hf_models import DTYPES, build_whole_model, original_config
from executor.sharding import Block
from executor.training_run import TrainingRun

MAX_FILE_BYTES = 5 * 10**9
INDEX_FILE = "model.safetensors.index.json"
COPIED_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""What else a model folder holds for those who use the model; copied where the plan's own folder has it."""


class Place(NamedTuple):
    """A block of a tensor and the rank that sends it."""

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def save_hf(
    run: TrainingRun,
    folder: Path,
    group: dist.ProcessGroup,
    *,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    replace: bool = True,
) -> None:
    """Write a folder that ``AutoModelForCausalLM.from_pretrained`` loads. All processes call it; rank 0 writes.

    The folder appears whole or, where it existed, gets its new files last; its old weights are removed.

    Args:
        run: whose weights are written.
        folder: on rank 0's node.
        group: all processes on gloo, with a timeout that allows for writing the whole model.
        dtype: of the saved weights; None keeps the parameters' own.
        max_file_bytes: a file holds less, unless one tensor is larger.
        replace: write over what a folder holds; else a full one is kept and the model goes beside it.

    Raises:
        ExecutionError: on rank 0, when the folder cannot be written or is kept.
    """
    dtype = dtype or DTYPES[run.plan.training.precision.parameter]
    whole = build_whole_model(run.plan.model, dtype)
    shapes = {name: tuple(parameter.shape) for name, parameter in whole.named_parameters()}
    files = _split(shapes, dtype.itemsize, max_file_bytes)
    tensors = _gathered(run, shapes, dtype, group)
    if dist.get_rank() != 0:
        for _ in tensors:
            pass
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".meshwright-") as name:
            partial = Path(name)
            _write_weights(tensors, files, partial)
            _write_config(run.plan.model, type(whole).__name__, dtype, partial)
            target = folder if replace else free_folder(folder)
            _publish(partial, target)
    except OSError as error:
        raise ExecutionError(f"the model cannot be saved to {folder}: {error.strerror or error}") from error
    if target != folder:
        raise ExecutionError(f"save_hf {folder} was filled by somebody else during this run; the model is in {target}")


def free_folder(folder: Path) -> Path:
    """The folder where it is empty or missing, else a new name beside it."""
    if folder.is_dir() and any(folder.iterdir()):
        return folder.with_name(f"{folder.name[:100]}-{secrets.token_hex(4)}")
    return folder


def _split(shapes: dict[str, tuple[int, ...]], itemsize: int, limit: int) -> list[list[str]]:
    """The names of each file, in the model's order."""
    files: list[list[str]] = []
    used = limit
    for name, shape in shapes.items():
        size = math.prod(shape) * itemsize
        if used + size > limit or not files:
            files.append([])
            used = 0
        files[-1].append(name)
        used += size
    return files


def _gathered(
    run: TrainingRun, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, group: dist.ProcessGroup
) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors on rank 0, one after the other; elsewhere empty ones, once this process's blocks are sent."""
    own = {name: run.layout.blocks(name, p) for name, p in run.named_parameters() if run.layout.owns(p)}
    places = _places(own, group)
    rank = dist.get_rank()
    for name, shape in shapes.items():
        target = torch.empty(shape if rank == 0 else 0, dtype=dtype)
        blocks = iter(own.get(name, ()))
        filled = 0
        for place in places.get(name, ()):
            filled += math.prod(place.sizes)
            if place.rank == rank:
                _deliver(next(blocks), target, dtype, group)
            elif rank == 0:
                received = torch.empty(place.sizes, dtype=dtype)
                dist.recv(received, src=place.rank, group=group)
                target[tuple(slice(o, o + n) for o, n in zip(place.offsets, place.sizes, strict=True))] = received
        assert filled == math.prod(shape), name  # each element is owned once
        yield name, target
        del target  # whoever took it may be done with it


def _places(own: dict[str, list[Block]], group: dist.ProcessGroup) -> dict[str, list[Place]]:
    """Who holds what: name -> the blocks of all processes, the same list on each."""
    rank = dist.get_rank()
    listed = {name: [Place(rank, block.offsets, block.sizes) for block in blocks] for name, blocks in own.items()}
    every: list[dict[str, list[Place]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, listed, group=group)
    places: dict[str, list[Place]] = {}
    for part in every:
        for name, held in part.items():
            places.setdefault(name, []).extend(held)
    return places


@torch.no_grad()
def _deliver(block: Block, target: torch.Tensor, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
    """Copy a block of this process into rank 0's tensor, here or by a message."""
    if dist.get_rank() == 0:
        target[block.slices] = block.view.to(device="cpu", dtype=dtype)
    else:
        dist.send(block.view.to(device="cpu", dtype=dtype).contiguous(), dst=0, group=group)


def _write_weights(tensors: Iterator[tuple[str, torch.Tensor]], files: list[list[str]], folder: Path) -> None:
    weight_map, total = dict[str, str](), 0
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        total += _write_file(tensors, names, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(tensors: Iterator[tuple[str, torch.Tensor]], names: list[str], path: Path) -> int:
    """Write the next tensors, which nothing holds any longer afterwards; their bytes."""
    held = dict(next(tensors) for _ in names)
    assert list(held) == names  # both follow the model's order
    save_file(held, path, metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in held.values())


def _write_config(model: ModelSpec, class_name: str, dtype: torch.dtype, folder: Path) -> None:
    config = original_config(model)
    config.architectures, config.dtype = [class_name], dtype
    config.save_pretrained(folder)
    for source in (model.weights_path, model.tokenizer_path):
        for name in COPIED_FILES:
            if source is not None and (path := Path(source) / name).is_file():
                shutil.copyfile(path, folder / name)


def _publish(partial: Path, folder: Path) -> None:
    """Move the finished files in place; the config last, as no one loads a folder without it."""
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.safetensors"), folder / INDEX_FILE, folder / "config.json"):
        old.unlink(missing_ok=True)
    for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
        shutil.copymode(partial / "config.json", path)  # safetensors writes files that only their owner can read
        os.replace(path, folder / path.name)
