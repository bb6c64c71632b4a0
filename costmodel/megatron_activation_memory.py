"""What Megatron-core and stacks like it keep for backward, in bytes per micro-batch.

Letters as in activation_memory.py. For GPT (f = 4 h, c = 2, a d = k d = h) with dropout these are the equations of
arXiv 2205.05198, whose masks hold one byte an element:

    (1) one device                                    s b h (34 + 5 a s / h)
    (2) tensor parallel                               s b h (10 + 24 / t + 5 a s / (h t))
    (4) tensor and sequence parallel                  s b h / t (34 + 5 a s / h)
    (5) all L layers, first pipeline stage            s b h L / t (34 + 5 a s / h)
    (6) selective recomputation                       34 s b h L / t
        full recomputation                            2 s b h L

The pieces, from which llama's gated layers and layers without dropout follow. Stacks differ in the words of
`MemoryAccounting`, printed in brackets, and in which element-wise operations are one kernel:

    (7) norms: their two inputs                       2 c z h       [made of single operations: 2 unfused_norm_bytes z h]
    (8) inputs of the first projections               2 c z h       (kept cut along the sequence, gathered again in backward)
                                                                    [gathered_inputs: 2 c T h]
    (9) attention: q, k, v, output                    c T d (2 a + 2 k) / t          [attention_copies: c T d a / t each]
   (10) scores, unfused: softmax                      T a s / t c                    [score_bytes instead of c]
        [dropout_masks: mask, dropped-out scores      T a s / t (1 + c)]
        scores, fused: log-sum-exp                    4 T a / t
   (11) feed-forward: activation input and output     c T f / t (2, or 3 gated)      [not one kernel: 4 gated, the
                                                                                     activation's output as well]
   (12) [dropout_masks of the two residual branches   2 z h]

Context parallelism cuts T and adds context_parallel.py, (6).

Full recomputation keeps the layer's input, c z h. Backward needs the widest gradient beyond what is kept, and under
sequence parallelism the gathered input; attention comes after the feed-forward's tensors are freed:

   (13) feed-forward c T f / t (1, or 2 gated) + c T h; unfused attention c T a s / t + c T h - (11)

Head side: inputs of the final norm and the head as (7) and (8), and the logits of V / t columns in float32, which become
probabilities and then their gradient in place, beside the logits or their gradient in c bytes:

   (14) kept 4 T V / t, and while the loss runs c T V / t       [loss_bytes instead of 4 + c, gathered_logits: V columns]

A loss over chunks of the sequence keeps nothing of them, and holds both of one chunk (activation_memory.py, (14)).

With fp8 projections Transformer Engine keeps their inputs as it cast them:

   (15) kept less 2 (c - 1) z h and (c - 1) T f / t, more T a d / t

Sources: arXiv 2205.05198 sections 4 and 5; Megatron-LM megatron/core/tensor_parallel/{layers,cross_entropy}.py.
"""

from __future__ import annotations

import numpy as np

from costmodel.activation_memory import Tokens, loss_bytes, policy_outputs
from costmodel.attention_memory import WIDE_BYTES
from costmodel.context_parallel import context_buffers
from costmodel.fp8 import FP8_BYTES
from costmodel.layer_bytes import EndBytes, LayerBytes, Point
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ceil_div
from costmodel.specs import BYTES_PER_ELEMENT, KernelFusion, LayerGroup, MemoryAccounting, ModelSpec, TrainingSpec

MEGATRON_CORE = MemoryAccounting()


def megatron_layer_bytes(
    model: ModelSpec,
    group: LayerGroup,
    training: TrainingSpec,
    grid: Grid,
    *,
    accounting: MemoryAccounting = MEGATRON_CORE,
    fusion: KernelFusion = "full",
) -> LayerBytes:
    """Equations (7) to (13) for one layer of ``group``."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens, size = Tokens.of(training, grid), grid.tensor_parallel_size
    attention, scores = _attention_bytes(group, training, grid, accounting)
    gated = int(group.feed_forward.gated)
    wide = compute * ceil_div(tokens.whole * group.feed_forward.intermediate_size, size)
    feed_forward = (2 + gated * (1 if fusion == "full" else 2)) * wide
    hidden = tokens.between * model.hidden_size
    whole = compute * tokens.whole * model.hidden_size
    heads = ceil_div(tokens.whole * group.attention.num_attention_heads, size)
    saved_inputs, saved_wide = _fp8_savings(model, group, training, grid)
    copies, buffers = context_buffers(group.attention, training, grid)
    unfused = training.attention_implementation == "unfused"
    masks = 2 * hidden * accounting.dropout_masks
    norms_and_inputs = 2 * _norm_and_input_bytes(model, training, grid, accounting, fusion)
    return LayerBytes(
        kept=norms_and_inputs + attention + copies + scores + feed_forward + masks - saved_inputs - saved_wide,
        attention_internals=scores,
        layer_input=compute * hidden,
        policy_outputs=policy_outputs(model, group, training, grid, tokens),
        points=(
            Point((1 + gated) * wide + whole),
            Point(
                compute * heads * training.sequence_length * unfused + whole + buffers,
                freed=feed_forward - saved_wide,
                in_attention=True,
            ),
        ),
    )


def _fp8_savings(model: ModelSpec, group: LayerGroup, training: TrainingSpec, grid: Grid) -> tuple[Column, Column]:
    """Bytes that inputs of projections save when they are kept in 8 bits, without and of the feed-forward's last one.

    (15): the norms' outputs and the feed-forward's input of its second projection lose c - 1 bytes an element;
    attention's output is kept once more, as attention's backward needs it in c bytes.
    """
    tokens, size = Tokens.of(training, grid), grid.tensor_parallel_size
    if training.precision.fp8_recipe is None:
        return np.zeros_like(tokens.whole), np.zeros_like(tokens.whole)
    narrower = BYTES_PER_ELEMENT[training.precision.compute] - FP8_BYTES
    outputs = group.attention.num_attention_heads * group.attention.head_dim
    inputs = 2 * narrower * tokens.between * model.hidden_size
    wide = narrower * ceil_div(tokens.whole * group.feed_forward.intermediate_size, size)
    return np.asarray(inputs - FP8_BYTES * ceil_div(tokens.whole * outputs, size)), np.asarray(wide)


def megatron_end_bytes(
    model: ModelSpec,
    training: TrainingSpec,
    grid: Grid,
    *,
    accounting: MemoryAccounting = MEGATRON_CORE,
    fusion: KernelFusion = "full",
) -> EndBytes:
    """Inputs of the final norm and head, and equation (14)."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    vocabulary = np.full_like(grid.micro_batch_size, model.padded_vocab_size)
    columns = 1 if accounting.gathered_logits else grid.tensor_parallel_size
    width = ceil_div(vocabulary, columns)
    beside = compute if accounting.loss_bytes is None else accounting.loss_bytes - WIDE_BYTES
    probabilities, logits = loss_bytes(training, grid, kept=WIDE_BYTES * width, beside=beside * width)
    return EndBytes(
        kept=_norm_and_input_bytes(model, training, grid, accounting, fusion),
        probabilities=probabilities,
        logits=logits,
    )


def _norm_and_input_bytes(
    model: ModelSpec, training: TrainingSpec, grid: Grid, accounting: MemoryAccounting, fusion: KernelFusion
) -> Column:
    """One norm and the input of the projection behind it, half of equations (7) and (8)."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens = Tokens.of(training, grid)
    norm = accounting.unfused_norm_bytes if fusion == "none" else compute
    inputs = tokens.whole if accounting.gathered_inputs else tokens.between
    return model.hidden_size * (norm * tokens.between + compute * inputs)


def _attention_bytes(
    group: LayerGroup, training: TrainingSpec, grid: Grid, accounting: MemoryAccounting
) -> tuple[Column, Column]:
    """Equation (9), and (10)."""
    attention, compute = group.attention, BYTES_PER_ELEMENT[training.precision.compute]
    tokens = Tokens.of(training, grid).whole
    heads = ceil_div(tokens * attention.num_attention_heads, grid.tensor_parallel_size)
    key_heads = ceil_div(tokens * attention.num_key_value_heads, grid.tensor_parallel_size)
    kept = compute * attention.head_dim * ((2 + accounting.attention_copies) * heads + 2 * key_heads)
    if training.attention_implementation == "fused":
        return kept, WIDE_BYTES * heads
    per_score = compute if accounting.score_bytes is None else accounting.score_bytes
    per_score += (compute + 1) * accounting.dropout_masks
    return kept, per_score * heads * training.sequence_length
