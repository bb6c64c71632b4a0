"""What attention keeps for backward in `transformers`' modules, in bytes of one layer and micro-batch.

T tokens, s sequence length, a query heads, k key-value heads, d head size, t tensor-parallel size, c bytes of the compute
format, w = max(4, c), cp context-parallel size.

    (1) query and key norms (qwen3)                  T (a + k) / t (d (w + c) + w)
    (2) what attention is given: q, k, v             c T d (a + 2 k) / t
        phi3 and gpt_neox cut v out of the fused product, all of which it keeps, and rotate q and k into tensors of their own
                                                     c T d (a + k) / t + c T d (a + 2 k) / t
    (3) its output, the next projection's input      c T d a / t
    (4) fused attention keeps (2), the output as the kernel made it, where (3) is a copy of it (phi3, gpt_neox: their q
        lies head by head in memory, and the output as q), and the log-sum-exp w T a / t
        with a sliding window shorter than s, where the stack makes a mask of it: q, v and k expanded to a heads, and the
        mask in the compute format, of every layer its own: c s s
        besides, a stage keeps the mask that they are made of, of every window s s bytes (`stage_masks`)
    (5) unfused attention keeps q, expanded k and v in w bytes, and probabilities    w T (3 a d + a s) / t
    (6) capped scores (gemma2) keep q, expanded k and v, the tanh, the softmax in w bytes and, where c < w, in c bytes
                                                     c T 3 a d / t + T a s (c + w [+ c]) / t

Backward holds beside what is kept two matrices of scores in w bytes, gradients of the probabilities and of the scores, and the
gradient of the expanded values; after (6) less the probabilities in c bytes, which are freed before. ``core_attention``
recomputation keeps (2) and (3) alone.

All measured on transformers 5.24 and torch 2.13.0 with saved-tensor hooks (tests/costmodel/test_memory_activations.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.layer_kinds import layer_kinds
from costmodel.models.families import FAMILIES
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ceil_div
from costmodel.specs import BYTES_PER_ELEMENT, LayerGroup, ModelSpec, TrainingSpec, WindowedAttention
from costmodel.stage_contents import Chunks

WIDE_BYTES = 4


def stage_masks(model: ModelSpec, length: int, chunks: Chunks) -> Column:
    """Bytes of the bool masks [s, s] that the stages of a rank hold, one of each window shorter than the sequence."""
    windows: dict[int | None, list[int]] = {}
    for index, kind in enumerate(layer_kinds(model)):
        if kind.group.attention.slides_over(length):
            windows.setdefault(kind.group.attention.window, []).append(index)
    held = [np.any([chunks.layers[index] for index in kinds], axis=0).sum(axis=0) for kinds in windows.values()]
    return np.asarray(length**2 * sum(held, np.zeros_like(chunks.head[0])))


@dataclass(frozen=True)
class AttentionMemory:
    """The equations of the module for one group of layers; ``tokens`` are the T of each row, ``windows`` the stack's way."""

    model: ModelSpec
    group: LayerGroup
    training: TrainingSpec
    grid: Grid
    tokens: Column
    windows: WindowedAttention = "full_scores"

    @property
    def kept(self) -> Column:
        """Everything that is kept for backward, equations (1) to (6)."""
        return self.norms + self.internals + self.output

    @property
    def dropped(self) -> Column:
        """What core-attention recomputation drops of it."""
        return self.internals - self.inputs

    @cached_property
    def compute(self) -> int:
        """Bytes c."""
        return BYTES_PER_ELEMENT[self.training.precision.compute]

    @cached_property
    def wide(self) -> int:
        """Bytes w."""
        return max(WIDE_BYTES, self.compute)

    @cached_property
    def capped(self) -> bool:
        """Whether scores are capped."""
        return self.group.attention.attn_logit_softcapping is not None

    @cached_property
    def queries(self) -> Column:
        """T a / t."""
        return ceil_div(self.tokens * self.group.attention.num_attention_heads, self.grid.tensor_parallel_size)

    @cached_property
    def keys(self) -> Column:
        """T k / t."""
        return ceil_div(self.tokens * self.group.attention.num_key_value_heads, self.grid.tensor_parallel_size)

    @cached_property
    def cut_from_product(self) -> bool:
        """Whether v is a part of a fused product."""
        return FAMILIES[self.model.family].cut_from_product

    @property
    def norms(self) -> Column:
        """Equation (1)."""
        if not self.group.attention.qk_norm:
            return np.zeros_like(self.queries)
        head_dim = self.group.attention.head_dim
        return (self.queries + self.keys) * (head_dim * (self.wide + self.compute) + self.wide)

    @property
    def inputs(self) -> Column:
        """Equation (2)."""
        values = self.queries + 2 * self.keys if self.cut_from_product else self.keys
        return self.compute * self.group.attention.head_dim * (self.queries + self.keys + values)

    @property
    def output(self) -> Column:
        """Equation (3)."""
        return self.compute * self.group.attention.head_dim * self.queries

    @property
    def internals(self) -> Column:
        """Equations (4) to (6) without (3)."""
        expanded = 3 * self.group.attention.head_dim * self.queries
        if self.capped:
            return self.compute * expanded + self._scores(self.compute + self.wide + self._copied)
        if self.training.attention_implementation == "unfused":
            return self.wide * expanded + self._scores(self.wide)
        made = self.wide * self.queries + self.output * self.cut_from_product
        length = self.training.sequence_length
        if self.windows == "window" or not self.group.attention.slides_over(length):
            return self.inputs + made
        mask = np.full_like(self.queries, length**2)
        whole = self.group.attention.num_attention_heads == self.group.attention.num_key_value_heads
        return (self.inputs if whole else self.compute * expanded) + made + self.compute * mask

    @property
    def backward_scores(self) -> Column:
        """Matrices of scores, and the values' gradient, that backward holds beside what is kept; none with fused attention."""
        values = self.group.attention.head_dim * self.queries
        if self.capped:
            return self._scores(2 * self.wide - self._copied) + self.compute * values
        if self.training.attention_implementation == "unfused":
            return self._scores(2 * self.wide) + self.wide * values
        return np.zeros_like(self.queries)

    @property
    def has_scores(self) -> bool:
        """Whether matrices of scores exist."""
        return self.capped or self.training.attention_implementation == "unfused"

    @property
    def _copied(self) -> int:
        """Bytes of a capped score's probability in the compute format."""
        return self.compute if self.compute < self.wide else 0

    def _scores(self, element_bytes: int) -> Column:
        return element_bytes * self.training.sequence_length * self.queries
