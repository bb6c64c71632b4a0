"""Sums over the model chunks of one pipeline rank, shared by the runtimes' memory models.

(1) activations in flight = sum over chunks of K_c A_c       A_c kept per micro-batch: layers, and the head side where it is;
    where the backward is split, + what is kept for gradients of weights that are due (split_in_flight.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.activation_memory import Tokens
from costmodel.in_flight import in_flight, in_flight_of_chunk
from costmodel.layer_backward import (
    LayerBackward,
    Modes,
    first_layer,
    largest_layer,
    layer_modes,
    part_kept,
    widest_backward,
)
from costmodel.layer_bytes import EndBytes, LayerBytes
from costmodel.layer_kinds import layer_kinds
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ModelSizes, Sizes, grid_model_sizes
from costmodel.specs import (
    BYTES_PER_ELEMENT,
    DeviceSpec,
    LayerGroup,
    MemoryAccounting,
    ModelSpec,
    Phase,
    RuntimeProfile,
    TrainingSpec,
    WindowedAttention,
)
from costmodel.split_in_flight import fill_split_counts, recomputes_whole, runs_first_whole, splits_backward
from costmodel.stage_contents import Chunks, RankContents
from costmodel.state_memory import ChunkSizes, chunk_sizes, gathered_elements, rank_sizes
from costmodel.unshards import MOST_GATHERED, gathered_at_peak, gathered_chunks

Terms = dict[str, Column]
PhaseTerms = dict[Phase, list[Terms]]
LayerModel = Callable[[ModelSpec, LayerGroup, TrainingSpec, Grid], LayerBytes]
EndModel = Callable[[ModelSpec, TrainingSpec, Grid], EndBytes]
_ELEMENTS = ("parameter", "compute", "reduce", "gradient", "state", "master")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One pipeline rank per row: terms of every phase at each instant that may be its largest, their largest sum, and the bytes
    that are reserved for other streams besides.
    """

    phases: PhaseTerms
    peak: Column
    pooled: Column

    @staticmethod
    def of(phases: PhaseTerms) -> RankMemory:
        """Without other streams."""
        peak = reduce(np.maximum, (total(terms) for instants in phases.values() for terms in instants))
        return RankMemory(phases, peak, np.zeros_like(peak))


@dataclass(frozen=True)
class Inputs:
    """What all pipeline ranks of a grid share: element sizes of the fullest device and bytes of activations.

    ``bound``: what a rank gathers again under ZeRO 3, for which its order is walked, may be left out.
    """

    model: ModelSpec
    training: TrainingSpec
    device: DeviceSpec
    grid: Grid
    sizes: ModelSizes
    layers: tuple[LayerBytes, ...]
    end: EndBytes
    accounting: MemoryAccounting
    windows: WindowedAttention
    bound: bool = False

    def bytes_of(self, use: str) -> int:
        """Bytes per element of one of the precision's formats; 0 when there is no such copy."""
        return self._element_bytes[use]

    @cached_property
    def _element_bytes(self) -> dict[str, int]:
        named = {use: getattr(self.training.precision, use) for use in _ELEMENTS}
        return {use: BYTES_PER_ELEMENT[name] if name else 0 for use, name in named.items()}


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One pipeline rank per row.

    ``sizes``: of everything it holds, ``layer_sizes``: of the layers; ``last``: of the chunk whose backward comes first,
    ``first``: of the one whose comes last.
    ``gathered``: elements of the chunks that torch's schedules have gathered then, or of the first chunk, if it has more;
    ``regathered``: under ZeRO 3 with several chunks, with one, two and all layers of the chunk whose backward it is, else none;
    ``forward_gathered``: likewise at the end of a forward.
    ``in_flight``: equation (1); ``split``: what a split backward holds beyond it once it has an input's gradients;
    ``micro_batch``: A_c of the last chunk. ``layer``: kept by one layer (the largest) under its recomputation. ``widest``: the
    layer whose backward needs most beside what its chunk still keeps then, ``first_layer``: like it, of the first part of the
    chunk whose backward comes last. ``head_kept``: the head side's part of A_c, which
    backward frees first; ``logits``: of one micro-batch's loss. ``received`` and ``sent``: chunks that receive their input from
    another stage and that send their output; ``.._in_flight``: such tensors of the micro-batches in flight, ``.._waiting``: of
    those whose weights' gradients are due, ``received_kept``: those in flight that a layer recomputed as a whole keeps.
    ``whole``: chunks with such layers. ``earlier``: 1 where a backward has finished when the peak is reached.
    """

    rank: Column
    sizes: Sizes
    layer_sizes: Sizes
    last: ChunkSizes
    gathered: Column
    regathered: Column
    forward_gathered: Column
    first: ChunkSizes
    in_flight: Column
    split: Column
    micro_batch: Column
    layer: Column
    widest: LayerBackward
    first_layer: LayerBackward
    head_kept: Column
    logits: Column
    received: Column
    sent: Column
    received_in_flight: Column
    sent_in_flight: Column
    received_waiting: Column
    received_kept: Column
    whole: Column
    earlier: Column


def gather_inputs(
    model: ModelSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    device: DeviceSpec,
    grid: Grid,
    *,
    layer_model: LayerModel,
    end_model: EndModel,
) -> Inputs:
    """The tables for a grid."""
    return Inputs(
        model=model,
        training=training,
        device=device,
        grid=grid,
        sizes=grid_model_sizes(model, runtime, grid),
        layers=tuple(layer_model(model, group, training, grid) for group, _ in layer_kinds(model)),
        end=end_model(model, training, grid),
        accounting=runtime.memory,
        windows=runtime.windowed_attention,
    )


def rank_totals(inputs: Inputs, contents: RankContents) -> RankTotals:
    """Add up the chunks of a rank."""
    grid, chunks = inputs.grid, contents.chunks
    sizes, layer_sizes = rank_sizes(inputs.model, inputs.sizes, chunks)
    modes = layer_modes(inputs.layers, chunks)
    kept = _kept(inputs, chunks, modes)
    held = _held(inputs, contents, kept)
    received, sent = chunks.exists * (1 - chunks.embedding), chunks.exists * (1 - chunks.head)
    last, again = grid.num_model_chunks - 1, _regathered(inputs, contents)
    sizes_of_last, several = chunk_sizes(inputs.model, inputs.sizes, chunks.pick(last)), len(chunks.exists) > 1
    first = chunks.pick(np.zeros_like(last))
    head = chunks.head.max(axis=0)
    return RankTotals(
        rank=contents.rank,
        sizes=sizes,
        layer_sizes=layer_sizes,
        last=sizes_of_last,
        gathered=_gathered(inputs, contents, sizes.gathered),
        regathered=again[:3],
        forward_gathered=again[3],
        first=chunk_sizes(inputs.model, inputs.sizes, first) if several else sizes_of_last,
        in_flight=held.in_flight,
        split=held.split,
        micro_batch=kept[last, np.arange(len(last))],
        layer=largest_layer(chunks, modes),
        widest=widest_backward(chunks, modes),
        first_layer=first_layer(chunks, modes),
        head_kept=(inputs.end.kept + inputs.end.probabilities) * head,
        logits=inputs.end.logits * head,
        received=received.sum(axis=0),
        sent=sent.sum(axis=0),
        received_in_flight=(held.counts * received).sum(axis=0),
        sent_in_flight=(held.counts * sent).sum(axis=0),
        received_waiting=(held.waiting * received).sum(axis=0),
        received_kept=(held.counts * received * runs_first_whole(chunks)).sum(axis=0),
        whole=recomputes_whole(chunks).sum(axis=0),
        earlier=(grid.num_micro_batches * grid.num_model_chunks > held.counts.sum(axis=0)).astype(np.int64),
    )


def _gathered(inputs: Inputs, contents: RankContents, everything: Column) -> Column:
    """`RankTotals.gathered`, from ``everything`` that the rank holds."""
    if (inputs.grid.num_model_chunks <= MOST_GATHERED).all():
        return everything
    chunks = gathered_elements(inputs.model, inputs.sizes, contents.chunks)
    return np.asarray(np.maximum((gathered_chunks(inputs.grid, contents.rank).T * chunks).sum(axis=0), chunks[0]))


def reshards_chunks(grid: Grid) -> NDArray[np.bool_]:
    """Where several chunks are freed after their forward, unless hpZ keeps them whole, [n]; none where a backward is split."""
    several = (grid.zero_stage == 3) & (grid.num_model_chunks > 1) & ~splits_backward(grid)
    return np.asarray(several & (grid.hierarchical_partition_size != 1))


def _regathered(inputs: Inputs, contents: RankContents) -> Column:
    """`RankTotals.regathered` and ``forward_gathered``; a forward's last gather lives in its flat buffer too."""
    found = np.zeros((4, len(inputs.grid)), dtype=np.int64)
    rows = np.flatnonzero(reshards_chunks(inputs.grid))
    if inputs.bound or not len(rows):
        return found
    chunks = chunk_sizes(inputs.model, inputs.sizes, contents.chunks)
    root, one, layers = (
        np.broadcast_to(sizes.gathered, contents.chunks.exists.shape)[:, rows]
        for sizes in (chunks.root, chunks.last_layer, chunks.layers)
    )
    found[:, rows] = gathered_at_peak(
        inputs.grid.take(rows),
        contents.rank[rows],
        whole=root + layers,
        begun=(root + one, root + np.minimum(2 * one, layers), root + layers),
        ended=root + 2 * one,
    )
    return found


class _Held(NamedTuple):
    """Micro-batches of every chunk at the peak [v, n], those of them whose weights' gradients are due, and the bytes [n]."""

    counts: Column
    waiting: Column
    in_flight: Column
    split: Column


def _held(inputs: Inputs, contents: RankContents, kept: Column) -> _Held:
    """Equation (1)."""
    grid, chunks = inputs.grid, contents.chunks
    running = in_flight(grid, contents.rank)
    counts = np.array(in_flight_of_chunk(grid, running, np.arange(len(kept))[:, None]))
    waiting = np.zeros_like(counts)
    if not splits_backward(grid).any():
        return _Held(counts, waiting, (counts * kept).sum(axis=0), waiting[0])
    gradients = _output_gradients(inputs, chunks)
    more = fill_split_counts(grid, contents, kept=kept, output_gradients=gradients, counts=counts, waiting=waiting)
    return _Held(counts, waiting, (counts * kept + waiting * gradients).sum(axis=0), more)


def _output_gradients(inputs: Inputs, chunks: Chunks) -> Column:
    """What one micro-batch of every chunk keeps between the gradients of its inputs and those of its weights [v, n]."""
    layers = (layer.output_gradients * count for layer, count in zip(inputs.layers, chunks.layers, strict=True))
    tokens = Tokens.of(inputs.training, inputs.grid).between * (inputs.grid.sequence_parallel == 0)
    received = tokens * inputs.model.hidden_size * inputs.bytes_of("compute") * (1 - chunks.head)
    return np.asarray(reduce(np.add, layers) + inputs.end.output_gradients * chunks.head - received * chunks.exists)


def pick(index: Column, columns: Sequence[Column]) -> Column:
    """Row by row, the column that ``index`` names."""
    if len(index) and (index == index[0]).all():
        return np.broadcast_to(columns[int(index[0])], index.shape)
    stacked = np.stack(np.broadcast_arrays(*columns))
    return np.asarray(stacked[index, np.arange(stacked.shape[1])])


def total(terms: Terms) -> Column:
    """Sum of all terms."""
    return reduce(np.add, terms.values())


def largest(instants: Sequence[Terms]) -> Terms:
    """The terms of the instant with the largest sum, row by row; a term that an instant lacks is 0 there."""
    sums = np.stack([total(terms) for terms in instants])
    winner = np.argmax(sums, axis=0)
    names = dict.fromkeys(name for terms in instants for name in terms)
    zero = np.zeros_like(sums[0])
    return {name: pick(winner, [terms.get(name, zero) for terms in instants]) for name in names}


def _kept(inputs: Inputs, chunks: Chunks, modes: Modes) -> Column:
    """A_c of equation (1) [v, n]."""
    layers = [part_kept(part, modes) for part in chunks.parts]
    return reduce(np.add, layers) + (inputs.end.kept + inputs.end.probabilities) * chunks.head
