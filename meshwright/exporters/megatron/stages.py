"""Pipeline stages in Megatron-LM's four ways to state them: evenly, by chunks, by the first and last, by the layout of all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from costmodel.specs import InputError
from hardware_profiles.errors import show_value
from meshwright.exporters.megatron import names
from meshwright.exporters.megatron.model import whole

_REPEATED = re.compile(r"\(([^()]*)\)\*([0-9]{1,4})|([^()])\*([0-9]{1,4})")
_MAX_LAYOUT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Virtual stages: their layers, None where they are even, the chunks of a rank, and the layers of the smallest stage."""

    num_model_chunks: int = 1
    layers: tuple[int, ...] | None = None
    fewest: int | None = None


def read_stages(values: dict[str, list[str]], pipeline: int) -> Stages:
    """The stages that the arguments state.

    Args:
        values: argument -> its values.
        pipeline: the pipeline-parallel size.

    Raises:
        InputError: when they contradict one another, or do not sum to the layers of the model.
    """
    ways = [name for name in (names.LAYERS_PER_CHUNK, names.NUM_CHUNKS, names.LAYOUT) if name in values]
    if len(ways) > 1:
        raise InputError(f"{' and '.join(ways)} contradict one another; leave all but one of them out")
    layers = whole(names.NUM_LAYERS, values) if names.NUM_LAYERS in values else None
    if names.LAYOUT in values:
        return _layout(values[names.LAYOUT][0], pipeline, layers)
    if pipeline == 1:
        return Stages(fewest=layers)
    counts = _rank_layers(values, pipeline, layers)
    chunks = _chunks(values, pipeline, layers)
    if counts is None:
        return Stages(num_model_chunks=chunks, fewest=None if layers is None else layers // (pipeline * chunks))
    if any(count % chunks for count in counts):
        raise InputError(
            f"{ways[0] if ways else names.NUM_CHUNKS} {chunks} does not divide the layers of every rank, {counts}"
        )
    every = tuple(counts[rank] // chunks for _ in range(chunks) for rank in range(pipeline))
    return Stages(num_model_chunks=chunks, layers=every, fewest=min(every))


def _chunks(values: dict[str, list[str]], pipeline: int, layers: int | None) -> int:
    if names.NUM_CHUNKS in values:
        return whole(names.NUM_CHUNKS, values)
    if names.LAYERS_PER_CHUNK not in values:
        return 1
    size = whole(names.LAYERS_PER_CHUNK, values)
    if layers is None:
        raise InputError(f"{names.LAYERS_PER_CHUNK} is given without {names.NUM_LAYERS}; needed both")
    extra = sum(name in values for name in (names.COUNT_EMBEDDING, names.COUNT_LOSS))
    if (layers + extra) % (pipeline * size):
        raise InputError(
            f"{names.LAYERS_PER_CHUNK} {size} x {names.PIPELINE} {pipeline} does not divide {layers + extra} layers"
        )
    return (layers + extra) // (pipeline * size)


def _rank_layers(values: dict[str, list[str]], pipeline: int, layers: int | None) -> list[int] | None:
    """Layers of every rank where they are uneven; None where they are even or the file does not say how many there are."""
    ends = [whole(name, values) if name in values else None for name in (names.FIRST_LAYERS, names.LAST_LAYERS)]
    counted = [int(name in values) for name in (names.COUNT_EMBEDDING, names.COUNT_LOSS)]
    if layers is None:
        if any(end is not None for end in ends) or any(counted):
            raise InputError(f"uneven stages are stated without {names.NUM_LAYERS}; needed both")
        return None
    if all(end is None for end in ends):
        total = layers + sum(counted)
        if total % pipeline:
            raise InputError(f"{names.NUM_LAYERS} {layers} cannot be split evenly by {names.PIPELINE} {pipeline}")
        even = [total // pipeline] * pipeline
        return [even[0] - counted[0], *even[1:-1], even[-1] - counted[1]] if any(counted) else None
    rest = layers - sum(end or 0 for end in ends)
    inner = pipeline - sum(end is not None for end in ends)
    if inner < 0 or (inner == 0 and rest) or (inner and (rest % inner or rest <= 0)):
        raise InputError(
            f"{names.FIRST_LAYERS} and {names.LAST_LAYERS} leave {rest} layers, which {inner} other ranks cannot share evenly"
        )
    middle = rest // inner if inner else 0
    counts = [middle] * pipeline
    counts[0], counts[-1] = ends[0] or middle, ends[1] or middle
    return counts


def _layout(text: str, pipeline: int, layers: int | None) -> Stages:
    """``Et*16|t*16L``: E the embedding, t a layer, L the loss, | between stages; x*n and (...)*n repeat, commas mean nothing."""
    written = re.sub(r"[\s,]", "", text)
    while (found := _REPEATED.search(written)) is not None:
        part, times = (found[1], found[2]) if found[2] else (found[3], found[4])
        if len(written) + len(part) * int(times) > _MAX_LAYOUT:
            raise InputError(f"{names.LAYOUT} repeats too often")
        written = written[: found.start()] + part * int(times) + written[found.end() :]
    stages = written.split("|")
    if set(written) - set("EtL|") or not written.startswith("E") or not written.endswith("L"):
        raise InputError(f"{names.LAYOUT} is {show_value(text)}; needed stages of t such as Et*16|t*16L")
    if written.count("E") != 1 or written.count("L") != 1:
        raise InputError(f"{names.LAYOUT} {show_value(text)} needs one E and one L")
    if len(stages) % pipeline:
        raise InputError(f"{names.LAYOUT} has {len(stages)} stages, no multiple of {names.PIPELINE} {pipeline}")
    counts = tuple(stage.count("t") for stage in stages)
    if layers is not None and sum(counts) != layers:
        raise InputError(f"{names.LAYOUT} has {sum(counts)} layers, but {names.NUM_LAYERS} is {layers}")
    if min(counts) == 0:
        raise InputError(f"{names.LAYOUT} {show_value(text)} has a stage without layers; needed at least one t in each")
    if len(stages) == 1:
        return Stages(fewest=counts[0])
    return Stages(num_model_chunks=len(stages) // pipeline, layers=counts, fewest=min(counts))
