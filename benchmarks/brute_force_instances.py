"""Random small instances for the brute force: a model of a few small layers, 4 or 8 devices, and a part of the axes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import obeys_rules
from costmodel.specs import LayerGroup, ModelSpec
from meshwright.inputs import load_cluster, load_model, make_training
from planner.axes import AXES
from planner.candidates import device_bytes
from planner.space import Space, declare_space


def make_space(seed: int, *, cut: bool = False) -> Space:
    """A random instance in which some candidate obeys the rules; ``cut``: one in which sequences may be cut."""
    rng = random.Random(seed)
    while (space := _limited(rng, _draw_cut(rng) if cut else _draw(rng))) is None:
        pass
    return space


def _draw(rng: random.Random) -> Space:
    model = _make_model(rng, ["llama-3-8b", "llama-3-8b", "gemma-2-2b"])
    devices, nodes = rng.choice([(4, 1), (4, 2), (8, 2)])
    cluster = load_cluster(f"{nodes}x{devices // nodes}xA100-SXM-40GB" if nodes > 1 else f"{devices}xA100-SXM-40GB")
    runtime = load_runtime(rng.choice(["torch", "torch", "torch", "megatron"]) if model.family == "llama" else "torch")
    training = make_training(
        cluster,
        runtime,
        global_batch_size=rng.choice([2, 4, 6, 8, 16, 24]),
        sequence_length=rng.choice([512, 1024, 2048]),
    )
    schedules = ["none", "1f1b", "gpipe", "naive", "interleaved_1f1b"]
    if runtime.name == "torch":
        schedules += ["looped_bfs", "zbv_zero_bubble"]
    allow = {
        "pipeline_schedule": ",".join(["none", *rng.sample(schedules[1:], 2)]),
        "pipeline_parallel_size": rng.choice(["2,4", "2", "4"]),
        "tensor_parallel_size": rng.choice(["1", "1,2"]),
        "zero_stage": rng.choice(["0,1", "0,3" if runtime.name == "torch" else "0,1"]),
        "micro_batch_size": rng.choice(["1", "1,2"]),
        "num_model_chunks": "1,2",
        "axis_order": "pipeline_outermost,data_outermost",
        "recompute": rng.choice(["none,full", "full", "none", "none,core_attention"]),
    }
    return declare_space(model, cluster, training, runtime, allow=allow)


def _draw_cut(rng: random.Random) -> Space:
    runtime = load_runtime(rng.choice(["megatron", "megatron", "torchtitan", "deepspeed"]))
    piped = runtime.schedules != ("none",)
    model, nodes = _make_model(rng, ["llama-3-8b"]), rng.choice([1, 2])
    cluster = load_cluster(f"2x{8 // nodes}xA100-SXM-40GB" if nodes > 1 else "8xA100-SXM-40GB")
    batch, length = rng.choice([2, 4, 8, 12]), rng.choice([2048, 8192, 16384])
    training = make_training(cluster, runtime, global_batch_size=batch, sequence_length=length)
    allow = {
        "context_parallel_size": rng.choice(["1,2", "2", "2,4", "1,2,4"]),
        "context_parallel_method": ",".join(["none", *runtime.context_parallel_methods]),
        "pipeline_schedule": ",".join(rng.sample(runtime.schedules, min(3, len(runtime.schedules)))),
        "pipeline_parallel_size": rng.choice(["1,2", "2", "2,4"]) if piped else "1",
        "tensor_parallel_size": rng.choice(["1", "1,2"]),
        "zero_stage": ",".join(str(stage) for stage in rng.sample(runtime.zero_stages, 2)),
        "micro_batch_size": rng.choice(["1", "1,2"]),
        "num_model_chunks": "1,2",
        "recompute": ",".join(rng.sample(runtime.recompute_kinds, rng.choice([1, 2]))),
    }
    return declare_space(model, cluster, training, runtime, allow=allow)


def _limited(rng: random.Random, space: Space) -> Space | None:
    """The space on devices with a random memory."""
    memory, context = _memory(space, rng.choice([0.0, 0.02, 0.1, 0.25, 0.5, 1.0])), space.context
    if memory is None:
        return None
    device = context.cluster.device.model_copy(update={"memory_bytes": memory})
    cluster = context.cluster.model_copy(update={"device": device})
    allow = {axis: [AXES[axis].show(code) for code in codes] for axis, codes in space.declared.items()}
    return declare_space(context.model, cluster, context.training, context.runtime, allow=allow)


def _memory(space: Space, share: float) -> int | None:
    """Memory in which about this share of the candidates fits when split evenly; None where none obeys the rules."""
    grid = space.grid.take(np.flatnonzero(obeys_rules(space.context, space.grid)))
    if not len(grid):
        return None
    return int(0.995 * np.quantile(device_bytes(space.context, grid), share))


def _make_model(rng: random.Random, names: Sequence[str]) -> ModelSpec:
    """A llama, or a gemma2 with its two kinds of layer, cut to a few small layers."""
    name = rng.choice(names)
    model, layers = load_model(name), rng.choice([4, 5, 6, 7, 8])
    groups, left = [], layers
    for group in model.layers:
        count = min(group.count, left)
        left -= count
        if count:
            attention = group.attention.model_copy(
                update={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
            )
            feed_forward = group.feed_forward.model_copy(update={"intermediate_size": 3072})
            groups.append(LayerGroup(count=count, attention=attention, feed_forward=feed_forward))
    vocabulary = rng.choice([8_000, 32_000, 128_000])
    return model.model_copy(
        update={
            "name": f"{name}/{layers}",
            "layers": tuple(groups),
            "hidden_size": 1024,
            "vocab_size": vocabulary,
            "padded_vocab_size": vocabulary,
        }
    )
