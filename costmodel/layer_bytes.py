"""What the activation models of all runtimes say about one layer and about the head side, in bytes of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from costmodel.shard_sizes import Column


class Point(NamedTuple):
    """Bytes at one point of a layer's backward (columns).

    ``gradients``: of activations. ``freed``: of what was kept, no longer. ``formed``: gradients of the layer's weights, in the
    compute format. ``in_attention``: before it what core-attention recomputation drops is made again.
    """

    gradients: Column
    freed: Column | int = 0
    formed: Column | int = 0
    in_attention: bool = False


class WorkingSet(NamedTuple):
    """What backward recomputes, its gradients, those of weights that have formed, and what it has freed of the layer."""

    recomputed: Column
    gradients: Column
    formed: Column
    freed: Column

    @property
    def needed(self) -> Column:
        """All of it."""
        return self.recomputed + self.gradients + self.formed - self.freed


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer and micro-batch (columns).

    ``kept``: for backward when nothing is recomputed. ``attention_internals``: the part of it that core-attention
    recomputation drops. ``layer_input``: all that full recomputation keeps. ``policy_outputs``: what a per-operation policy
    keeps. ``points``: backward where it may need most, at the feed-forward, at the attention and at a norm.
    ``output_gradients``: what a split backward keeps until it has the weights' gradients.
    """

    kept: Column
    attention_internals: Column
    layer_input: Column
    policy_outputs: Column
    points: tuple[Point, ...]
    output_gradients: Column | int = 0

    def kept_under(self, recompute: Column) -> Column:
        """Bytes kept for each recompute kind (an index into `RECOMPUTE_KINDS`)."""
        return _by_kind(
            recompute, self.kept, self.kept - self.attention_internals, self.policy_outputs, self.layer_input
        )

    def working_set(self, recompute: Column) -> WorkingSet:
        """Where backward needs most beside what is kept for each recompute kind."""
        zero, policy, whole = np.zeros_like(self.kept), self.kept - self.policy_outputs, self.kept - self.layer_input
        elsewhere = _by_kind(recompute, zero, zero, policy, whole)
        in_attention = _by_kind(recompute, zero, self.attention_internals, policy, whole)
        sets = (
            WorkingSet(
                in_attention if point.in_attention else elsewhere,
                point.gradients,
                zero + point.formed,
                zero + point.freed,
            )
            for point in self.points
        )
        widest = reduce(_wider, sets)
        ended = np.minimum(widest.recomputed, widest.freed)
        return widest._replace(recomputed=widest.recomputed - ended, freed=widest.freed - ended)


def _by_kind(recompute: Column, *columns: Column) -> Column:
    """Of every row the one of four columns [n] that the recompute kind ([n], [v, n] or [1]) names."""
    return np.asarray(np.array(columns)[recompute, np.arange(len(columns[0]))])


def _wider(one: WorkingSet, other: WorkingSet) -> WorkingSet:
    """Row by row, the one that needs more."""
    wider = other.needed > one.needed
    return WorkingSet(*(np.where(wider, b, a) for a, b in zip(one, other, strict=True)))


@dataclass(frozen=True, slots=True)
class EndBytes:
    """Bytes per micro-batch on the stage with the head (columns).

    ``kept``: final norm and head input, for backward. ``probabilities``: kept by the loss. ``logits``: what the loss and
    its backward hold besides, of one micro-batch at a time. ``output_gradients``: what a split backward keeps until it has the
    weights' gradients, less the ``probabilities`` that have ended by then.
    """

    kept: Column
    probabilities: Column
    logits: Column
    output_gradients: Column | int = 0
