"""What runtime ``megatron`` keeps for backward: fused kernels, 16-bit activations, in bytes per micro-batch.

Letters as in activation_memory.py. For GPT (f = 4 h, c = 2, a d = k d = h) with dropout these are the equations of
arXiv 2205.05198, whose masks hold one byte an element:

    (1) one device                                    s b h (34 + 5 a s / h)
    (2) tensor parallel                               s b h (10 + 24 / t + 5 a s / (h t))
    (4) tensor and sequence parallel                  s b h / t (34 + 5 a s / h)
    (5) all L layers, first pipeline stage            s b h L / t (34 + 5 a s / h)
    (6) selective recomputation                       34 s b h L / t
        full recomputation                            2 s b h L

The pieces, from which llama's gated layers and layers without dropout follow:

    (7) norms: their two inputs                       2 c z h
    (8) inputs of the first projections               2 c z h        (kept cut along the sequence, gathered again in backward)
    (9) attention: q, k, v, output                    c T d (2 a + 2 k) / t
   (10) scores, unfused: softmax, mask, dropped-out   T a s / t (c + 1 + c), without dropout c T a s / t
        scores, fused: log-sum-exp                    4 T a / t
   (11) feed-forward: activation input and output     c T f / t (2, or 3 gated)
   (12) dropout masks of the two residual branches    2 z h

Full recomputation keeps the layer's input, c z h. Backward needs the widest gradient beyond what is kept, and under
sequence parallelism the gathered input; attention comes after the feed-forward's tensors are freed:

   (13) feed-forward c T f / t (1, or 2 gated) + c T h; unfused attention c T a s / t + c T h - (11)

Head side: inputs of the final norm and the head 2 c z h, and the logits of V / t columns in float32, which become
probabilities and then their gradient in place, beside the logits or their gradient in c bytes:

   (14) kept 4 T V / t, and while the loss runs c T V / t

Sources: arXiv 2205.05198 sections 4 and 5; Megatron-LM megatron/core/tensor_parallel/{layers,cross_entropy}.py.
"""

from __future__ import annotations

import numpy as np

from costmodel.activation_memory import EndBytes, LayerBytes, Tokens, policy_outputs
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ceil_div
from costmodel.specs import BYTES_PER_ELEMENT, LayerGroup, ModelSpec, TrainingSpec


def megatron_layer_bytes(
    model: ModelSpec, group: LayerGroup, training: TrainingSpec, grid: Grid, *, dropout_masks: bool = False
) -> LayerBytes:
    """Equations (7) to (13) for one layer of ``group``; ``dropout_masks`` adds what published formulas include."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens, size = Tokens.of(training, grid), grid.tensor_parallel_size
    attention, scores = _attention_bytes(group, training, grid, dropout_masks=dropout_masks)
    gated = int(group.feed_forward.gated)
    wide = compute * ceil_div(tokens.whole * group.feed_forward.intermediate_size, size)
    hidden = tokens.between * model.hidden_size
    whole = compute * tokens.whole * model.hidden_size
    heads = ceil_div(tokens.whole * group.attention.num_attention_heads, size)
    unfused = training.attention_implementation == "unfused"
    masks = 2 * hidden * dropout_masks
    return LayerBytes(
        kept=4 * compute * hidden + attention + scores + (2 + gated) * wide + masks,
        attention_internals=scores,
        layer_input=compute * hidden,
        policy_outputs=policy_outputs(model, group, training, grid),
        backward=(1 + gated) * wide + whole,
        attention_backward=compute * heads * training.sequence_length * unfused + whole - (2 + gated) * wide,
    )


def megatron_end_bytes(model: ModelSpec, training: TrainingSpec, grid: Grid) -> EndBytes:
    """Inputs of the final norm and head, and equation (14)."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens = Tokens.of(training, grid)
    vocabulary = np.full_like(tokens.whole, model.padded_vocab_size)
    elements = tokens.whole * ceil_div(vocabulary, grid.tensor_parallel_size)
    return EndBytes(
        kept=2 * compute * tokens.between * model.hidden_size, probabilities=4 * elements, logits=compute * elements
    )


def _attention_bytes(
    group: LayerGroup, training: TrainingSpec, grid: Grid, *, dropout_masks: bool
) -> tuple[Column, Column]:
    """Equation (9), and (10)."""
    attention, compute = group.attention, BYTES_PER_ELEMENT[training.precision.compute]
    tokens = training.sequence_length * grid.micro_batch_size
    heads = ceil_div(tokens * attention.num_attention_heads, grid.tensor_parallel_size)
    key_heads = ceil_div(tokens * attention.num_key_value_heads, grid.tensor_parallel_size)
    kept = 2 * compute * attention.head_dim * (heads + key_heads)
    if training.attention_implementation == "fused":
        return kept, 4 * heads
    per_score = 2 * compute + 1 if dropout_masks else compute
    return kept, per_score * heads * training.sequence_length
