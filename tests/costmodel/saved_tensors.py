"""What autograd saves in the executor's one stage of a real `transformers` model."""

from __future__ import annotations

from typing import Any

import pytest
from memory_worlds import make_plan

from costmodel.models.loader import build_model
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import ParallelConfig, TrainingSpec

BATCH, SEQUENCE = 2, 64


def one_device(runtime: str, precision: str, *, attention: str = "fused", sequence: int = SEQUENCE) -> TrainingSpec:
    """Training of one micro-batch."""
    return TrainingSpec(
        global_batch_size=BATCH,
        sequence_length=sequence,
        precision=load_runtime(runtime).precisions[precision],
        attention_implementation=attention,
    )


def grid_of(**sizes: Any) -> Grid:
    """One candidate, nothing recomputed."""
    return Grid.from_parallel(ParallelConfig(**sizes), "none")


class Saved:
    """Bytes of distinct storages that autograd saves, by what was running; weights and buffers left out."""

    def __init__(self, model: Any) -> None:
        self.owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self.seen: dict[int, Any] = {}
        self.bytes: dict[str, int] = {}
        self.running = "start"

    def pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.owned and storage._cdata not in self.seen:
            self.seen[storage._cdata] = storage
            self.bytes[self.running] = self.bytes.get(self.running, 0) + storage.nbytes()
        return tensor


def run_transformers(
    config: dict[str, Any], precision: str, attention: str, *, recompute: Any = "none"
) -> dict[str, int]:
    """Forward and loss of the executor's one stage of a real model; bytes saved in layer 1 and after the last layer."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.autograd.graph import saved_tensors_hooks

    from executor.hf_models import DTYPES, Stage
    from executor.recompute import recompute_layers

    plan = make_plan(
        build_model(config, name="model"),
        precision="fp64" if precision == "fp64" else "fp32",
        sequence=SEQUENCE,
        micro_batch_size=BATCH,
        recompute=recompute,
        training={"attention_implementation": attention},
    )
    stage = Stage(plan, plan.stages[0])
    recompute_layers(stage.layers, stage.spec, attention)
    stage.materialise(torch.device("cpu"))
    stage = stage.to(DTYPES[precision])
    saved = Saved(stage)
    for index, layer in enumerate(stage.layers.values()):
        layer.register_forward_pre_hook(lambda *_, index=index: setattr(saved, "running", f"layer {index}"))
        layer.register_forward_hook(lambda *_: setattr(saved, "running", "after"))
    tokens = torch.randint(0, config["vocab_size"], (BATCH, SEQUENCE))
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        stage(tokens, tokens)
    return saved.bytes
