"""Distributed checkpoints: weights and optimizer state that move between any two plans.

Every tensor is stored under its fully qualified name (``model.NAME``, ``optimizer.NAME.exp_avg``) in the order of a Hugging Face
checkpoint. A process writes the blocks that `Layout.blocks` says it holds, torch's planner lets one process write each block of
copies, and a process of another plan reads whatever overlaps its own blocks. Nobody gathers a whole tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from costmodel.specs import ExecutionError, InputError
from executor.checkpoint_record import COMPLETE_FILE, RECORD_FILE, Record, step_folder
from executor.files import write_atomically
from executor.optimizer import make_state
from executor.sharding import Block
from executor.training_run import TrainingRun


@dataclass(slots=True)
class Held:
    """This process's blocks of one tensor, and the whole tensor's shape."""

    shape: torch.Size
    blocks: list[Block]


def save_checkpoint(run: TrainingRun, folder: Path, record: Record, group: dist.ProcessGroup) -> Path:
    """Write one step's checkpoint; it is complete when this returns. All processes call it.

    Args:
        run: whose parameters and optimizer state are written.
        folder: of all steps; every process must see the same one.
        record: of this step.
        group: all processes, with a timeout that allows for a slow disk.

    Raises:
        ExecutionError: when a process cannot write; names the rank and the cause.
    """
    target = step_folder(folder, record.step)
    with _plain_failures(f"checkpoint {target} cannot be written"):
        if dist.get_rank() == 0:
            write_atomically(target / RECORD_FILE, record.model_dump_json(indent=2) + "\n")
        state: dict[str, Any] = held_state(run, copies=False)
        metadata = save(state, storage_writer=FileSystemWriter(target), planner=_SavePlanner(), process_group=group)
        if dist.get_rank() == 0:
            _check_shared(target, metadata)
    return target


def _check_shared(target: Path, metadata: Metadata) -> None:
    """Nodes that wrote to disks of their own would leave a checkpoint that nobody can read."""
    written = {info.relative_path for info in metadata.storage_data.values()}
    missing = sorted(name for name in written if not (target / name).is_file())
    if missing:
        (target / COMPLETE_FILE).unlink()
        raise ExecutionError(
            f"checkpoint {target} lacks {missing[0]} on rank 0's node; needed: a folder that all nodes share"
        )


def load_checkpoint(run: TrainingRun, checkpoint: Path, group: dist.ProcessGroup) -> None:
    """Fill parameters and optimizer state from one step's folder, saved under this plan or another. All call it.

    Raises:
        InputError: when a tensor is missing or has another shape.
        ExecutionError: when a process cannot read; names the rank and the cause.
    """
    make_state(run.optimizer)
    state: dict[str, Any] = held_state(run, copies=True)
    with _plain_failures(f"checkpoint {checkpoint} cannot be read"):
        reader = FileSystemReader(checkpoint)
        saved = reader.read_metadata().state_dict_metadata
        for key, held in state.items():
            shape = getattr(saved.get(key), "size", None)
            if shape != held.shape:
                found = "nothing" if shape is None else f"shape {list(shape)}"
                raise InputError(f"checkpoint {checkpoint} has {found} for {key}; needed: shape {list(held.shape)}")
        load(state, storage_reader=reader, planner=_LoadPlanner(), process_group=group)


def held_state(run: TrainingRun, *, copies: bool) -> dict[str, Held]:
    """Parameters and optimizer state of this process; ``copies`` as in `TrainingRun.named_parameters`."""
    state: dict[str, Held] = {}
    for name, parameter in run.named_parameters(copies=copies):
        tensors = {f"model.{name}": parameter}
        tensors |= {f"optimizer.{name}.{key}": value for key, value in run.optimizer.state[parameter].items()}
        for key, tensor in tensors.items():
            held = state.setdefault(key, Held(tensor.shape, []))
            held.blocks.extend(run.layout.blocks(name, tensor))
    return state


class _SavePlanner(DefaultSavePlanner):
    """Writes a `Held` block by block. The default global plan leaves each block to one of its holders."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([item for key, held in self.state_dict.items() for item in _write_items(key, held)])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None  # every item has one
        blocks = self.state_dict[index.fqn].blocks
        return next(block.view for block in blocks if block.offsets == tuple(index.offset))


def _write_items(key: str, held: Held) -> Iterator[WriteItem]:
    for block, chunk in zip(held.blocks, _chunks(held), strict=True):
        data = TensorWriteData(chunk=chunk, properties=TensorProperties(dtype=block.view.dtype), size=held.shape)
        yield WriteItem(index=MetadataIndex(key, block.offsets), type=WriteItemType.SHARD, tensor_data=data)


def _chunks(held: Held) -> list[ChunkStorageMetadata]:
    return [ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.sizes)) for block in held.blocks]


class _LoadPlanner(DefaultLoadPlanner):
    """Reads into the blocks of a `Held` whatever saved blocks overlap them."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for key, held in self.state_dict.items():
            saved = self.metadata.state_dict_metadata[key]
            assert isinstance(saved, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(key, saved, _chunks(held))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        assert index.index is not None  # the position in the list of chunks
        return self.state_dict[index.fqn].blocks[index.index].view


@contextlib.contextmanager
def _plain_failures(what: str) -> Iterator[None]:
    """Tell torch's collection of failures, or a file's, as one."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise ExecutionError(f"{what}: rank {rank}: {type(cause).__name__}: {cause}") from cause
    except OSError as error:
        raise ExecutionError(f"{what}: {error.strerror or error}") from error
