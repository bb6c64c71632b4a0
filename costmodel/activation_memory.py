"""What runtime ``torch`` keeps for backward: Hugging Face's modules under autograd, in bytes per micro-batch.

One layer, one micro-batch of b sequences of s tokens. T = s b / cp tokens (cp context parallel size); z = tokens per rank
between modules (T / t under sequence parallelism, else T); t tensor-parallel size; c bytes of the compute format and
w = max(4, c), because norms and the unfused softmax work in float32 at least; h hidden, a query heads, k key-value heads,
d head size, f feed-forward size.

    (1) RMSNorm: its input in w bytes, the normalised tensor, 1 / rms                  z h (w + c) + w z
        gemma2's keeps the normalised tensor in w bytes and 1 + weight                 2 w z h + w z + w h
    (2) LayerNorm: its input, mean and 1 / deviation                                   z h c + 2 z c
        two norms a layer, gemma2 four; in a parallel residual both keep the same input
    (3) gathered inputs of the first attention and feed-forward projections            2 T h c
    (4) to (6) attention                                                               attention_memory.py
    (7) feed-forward: the activation's g saved tensors, its output among them          g c T f / t
        g = 2 for one kernel that needs its input (silu, gelu), 1 for one that needs its output (relu), more for
        formulas in elementary operations (gelu_new: 5)
    (8) gated feed-forward, besides: the other branch and the product                  2 c T f / t
        gate and up in one product (phi3): that keeps the gate with any function     c T f / t for relu and others
        context parallel: copied keys and values, and backward's buffers               context_parallel.py, (6)
    (9) the layer's input, all that full recomputation keeps                           c z h

Backward needs, beyond what is kept, the gradients of the widest point of the layer; unfused attention comes after the
feed-forward's tensors are freed:

    (10) gated: the product's, then those of activation and up                         c (2 T f / t + T h)
         not gated: 1 of one kernel that needs its input, 2 of one that needs its      c (2 T f / t + T h)
         output, which the product does not free, and of most elementary operations
         attention without a fused kernel: its scores (attention_memory.py)            + c T h - (7) - (8) - all that
         the norms but the first, the feed-forward's input and the output projection have kept, + its values' gradient

    (16) a norm in float32, in elementary operations, and the residual's gradient     z h (4 w + c)
         before the feed-forward, (7), (8) and the input (3) being freed; gemma2 has one behind it, before anything is
    (17) gradients of weights that have formed by then                                 c h f / t at (10)
         of all of the feed-forward's at (16), but none behind it; with the output projection's at the attention

A split backward keeps, from the gradients of a layer's inputs to those of its weights, the gradients of all its outputs:

    (15) products, norms, query and key norms          c (T (d (2 k + a) + u f) / t + 2 T h + n z h) + c T d (a + k) / t
         u = 2 gated, else 1; n norms, gemma2's in w bytes; the last product's is the stage's received gradient, and in a
         parallel residual both blocks' is, unless sequence parallelism gathers it
         head side: the head's and the final norm's     c (T V + z h), where the table (11) has ended

Head side: the final norm as (1) or (2), its gathered output c T h, and the logits of V columns (V / t in a parallel loss):

    (11) log-probabilities, kept for backward, float32 at least                        w T V
         capped logits (gemma2): their tanh besides                                    c T V
    (12) their gradient and the logits' (one more in a parallel loss)                  2 w T V, 3 w T V / t
    (13) a loss in one kernel keeps the logits and writes their gradient, none in fp32 c T V, max(c, loss_bytes - c) T V
    (14) a loss over n > 1 chunks of the sequence keeps none of the table, and holds   (11) + (12) or (13) of T / n
         one chunk's at a time, in forward and again in backward: ceil(s / (cp n)) b tokens

(14) is a head and loss that recompute every chunk (NeMo AutoModel, components/loss/chunked_ce.py; LongVA pull request 19: peak
43 to 8 GB, MFU 57 to 45%). Liger-Kernel's fused linear cross entropy and torchtitan's ChunkedCELoss have each chunk's gradients
at once, without the second product; torchtune's CEWithChunkedOutputLoss has whole logits and casts them in chunks.

All measured on transformers 5.24 and torch 2.13.0 with saved-tensor hooks (tests/costmodel/test_memory_activations.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.attention_memory import WIDE_BYTES, AttentionMemory
from costmodel.context_parallel import context_buffers
from costmodel.layer_bytes import EndBytes, LayerBytes, Point
from costmodel.models.families import FAMILIES
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, ceil_div
from costmodel.specs import (
    BYTES_PER_ELEMENT,
    KernelFusion,
    LayerGroup,
    MemoryAccounting,
    ModelSpec,
    TrainingSpec,
    WindowedAttention,
)

# g of equation (7); functions that are not listed save their input and their output.
ACTIVATION_TENSORS = {
    "relu": 1,
    "sigmoid": 1,
    "tanh": 1,
    "linear": 1,
    "quick_gelu": 3,
    "gelu_python": 4,
    "gelu_accurate": 5,
    "gelu_new": 5,
    "gelu_python_tanh": 5,
    "gelu_fast": 8,
}
# Gradients and kept tensors at the widest point of backward, less those kept; functions that are not listed have 1.
GRADIENT_TENSORS = {
    "relu": 2,
    "relu2": 3,
    "sigmoid": 2,
    "tanh": 2,
    "quick_gelu": 2,
    "gelu_python": 4,
    "gelu_accurate": 2,
    "gelu_new": 2,
    "gelu_python_tanh": 2,
    "gelu_fast": 2,
}
DROP_INPUT = ("relu", "relu2", "sigmoid", "tanh", "gelu_python")  # their backward needs other tensors than their input
ONE_KERNEL_TENSORS = 2
GATE_TENSORS = 2
UNCOMPILED = MemoryAccounting()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one micro-batch on one device (columns): in all, and between modules (cut by sequence parallelism)."""

    whole: Column
    between: Column

    @staticmethod
    def of(training: TrainingSpec, grid: Grid) -> Tokens:
        """The columns of a grid."""
        length = -(-training.sequence_length // grid.context_parallel_size)
        share = ceil_div(length, np.where(grid.sequence_parallel == 1, grid.tensor_parallel_size, 1))
        return Tokens(length * grid.micro_batch_size, share * grid.micro_batch_size)


def loss_tokens(training: TrainingSpec, grid: Grid) -> Column:
    """Tokens whose logits exist at once, equation (14); without chunks those of the micro-batch."""
    chunks = grid.context_parallel_size * training.loss_chunks
    return np.asarray(-(-training.sequence_length // chunks) * grid.micro_batch_size)


def loss_bytes(training: TrainingSpec, grid: Grid, *, kept: Column, beside: Column) -> tuple[Column, Column]:
    """Bytes of the loss from ``kept`` and ``beside`` per token: those kept for backward, and those held while it runs."""
    tokens = loss_tokens(training, grid)
    if training.loss_chunks == 1:
        return kept * tokens, beside * tokens
    return np.zeros_like(tokens), (kept + beside) * tokens


def torch_layer_bytes(
    model: ModelSpec,
    group: LayerGroup,
    training: TrainingSpec,
    grid: Grid,
    *,
    fusion: KernelFusion = "none",
    windows: WindowedAttention = "full_scores",
) -> LayerBytes:
    """Equations (1) to (10) for one layer of ``group``."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens, size = Tokens.of(training, grid), grid.tensor_parallel_size
    width, tensors, transient = group.feed_forward.intermediate_size, *_feed_forward_tensors(model, group)
    attention = AttentionMemory(model, group, training, grid, tokens.whole, windows)
    inputs = 2 * tokens.whole * model.hidden_size * compute
    wide = compute * ceil_div(tokens.whole * width, size)
    hidden = compute * tokens.whole * model.hidden_size
    copies, buffers = context_buffers(group.attention, training, grid)
    norms = _layer_norms(model, compute, tokens.between)
    second, feed_forward, projection = _formed(model, group, compute, grid)
    behind_attention = tensors * wide
    if attention.has_scores:
        first_norm = _norm_bytes(model, compute, tokens.between)
        behind_attention = behind_attention + hidden + norms - first_norm + attention.output
    last_norm = FAMILIES[model.family].wide_norm
    points = (
        Point(transient * wide + hidden, formed=second),
        Point(attention.backward_scores + hidden + buffers, behind_attention, projection, in_attention=True),
        Point(
            norm_gradients(model, compute, tokens.between),
            0 * hidden if last_norm else tensors * wide + hidden,
            0 * hidden if last_norm else feed_forward,
        ),
    )
    return LayerBytes(
        kept=norms + inputs + attention.kept + copies + tensors * wide,
        attention_internals=attention.dropped,
        layer_input=compute * tokens.between * model.hidden_size,
        policy_outputs=policy_outputs(model, group, training, grid, tokens, fusion=fusion),
        points=points,
        output_gradients=_output_gradients(model, group, training, grid, tokens),
    )


def _output_gradients(
    model: ModelSpec, group: LayerGroup, training: TrainingSpec, grid: Grid, tokens: Tokens
) -> Column:
    """Equation (15) of one layer."""
    attention, feed_forward = group.attention, group.feed_forward
    heads, key_heads = attention.num_attention_heads, attention.num_key_value_heads
    cut = (heads + 2 * key_heads + (heads + key_heads) * attention.qk_norm) * attention.head_dim
    cut += feed_forward.intermediate_size * (2 if feed_forward.gated else 1)
    family, compute = FAMILIES[model.family], BYTES_PER_ELEMENT[training.precision.compute]
    norms = family.num_norms * (max(WIDE_BYTES, compute) if family.wide_norm else compute) * tokens.between
    outputs = compute * (2 - (grid.sequence_parallel == 0) * model.use_parallel_residual) * tokens.whole
    return np.asarray(
        compute * ceil_div(tokens.whole * cut, grid.tensor_parallel_size) + model.hidden_size * (outputs + norms)
    )


def policy_outputs(
    model: ModelSpec,
    group: LayerGroup,
    training: TrainingSpec,
    grid: Grid,
    tokens: Tokens,
    *,
    fusion: KernelFusion = "none",
) -> Column:
    """What per-operation recomputation keeps of a layer.

    Its input, the outputs of attention and of every second product: query, value, gate (or up), down (torchtitan,
    distributed/activation_checkpoint.py). A compiled layer drops the last one, which no backward needs.
    """
    compute, attention = BYTES_PER_ELEMENT[training.precision.compute], group.attention
    heads = 2 * attention.num_attention_heads + attention.num_key_value_heads
    cut = heads * attention.head_dim + group.feed_forward.intermediate_size
    hidden = (1 if fusion == "full" else 2) * tokens.between * model.hidden_size
    kept = compute * (ceil_div(tokens.whole * cut, grid.tensor_parallel_size) + hidden)
    return np.asarray(
        kept + WIDE_BYTES * ceil_div(tokens.whole * attention.num_attention_heads, grid.tensor_parallel_size)
    )


def torch_end_bytes(
    model: ModelSpec,
    training: TrainingSpec,
    grid: Grid,
    *,
    accounting: MemoryAccounting = UNCOMPILED,
    fusion: KernelFusion = "none",
) -> EndBytes:
    """Final norm, head input and equations (11) to (14)."""
    compute = BYTES_PER_ELEMENT[training.precision.compute]
    tokens = Tokens.of(training, grid)
    parallel = np.where(grid.loss_parallel == 1, grid.tensor_parallel_size, 1)
    columns = ceil_div(np.full_like(parallel, model.padded_vocab_size), parallel)
    wide = np.full_like(parallel, max(WIDE_BYTES, compute))
    kept, gradients = wide, np.where(parallel > 1, 3, 2) * wide
    if accounting.loss_bytes is not None and (accounting.fused_loss or fusion == "full"):
        kept = np.where(parallel > 1, kept, compute)
        gradients = np.where(parallel > 1, gradients, max(compute, accounting.loss_bytes - compute))
    if model.final_logit_softcapping is not None:
        kept = kept + compute
    probabilities, logits = loss_bytes(training, grid, kept=kept * columns, beside=gradients * columns)
    return EndBytes(
        kept=_norm_bytes(model, compute, tokens.between) + compute * tokens.whole * model.hidden_size,
        probabilities=probabilities,
        logits=logits,
        output_gradients=compute * (tokens.whole * columns + tokens.between * model.hidden_size) - probabilities,
    )


def _layer_norms(model: ModelSpec, compute: int, tokens: Column) -> Column:
    """All norms of a layer, equations (1) and (2)."""
    norms = FAMILIES[model.family].num_norms * _norm_bytes(model, compute, tokens)
    return norms - compute * model.hidden_size * tokens * model.use_parallel_residual


def _norm_bytes(model: ModelSpec, compute: int, tokens: Column) -> Column:
    """One norm, equations (1) and (2), without its output."""
    wide = max(WIDE_BYTES, compute)
    if model.norm == "layernorm":
        return tokens * compute * (model.hidden_size + 2)
    if FAMILIES[model.family].wide_norm:
        return tokens * (2 * wide * model.hidden_size + wide) + wide * model.hidden_size
    return tokens * (model.hidden_size * (wide + compute) + wide)


def norm_gradients(model: ModelSpec, compute: int, tokens: Column) -> Column:
    """Equation (16): the widest gradients of one norm's backward; a LayerNorm's one kernel holds none."""
    if model.norm == "layernorm":
        return np.zeros_like(tokens)
    return tokens * model.hidden_size * (4 * max(WIDE_BYTES, compute) + compute)


def _formed(model: ModelSpec, group: LayerGroup, compute: int, grid: Grid) -> tuple[Column, Column, Column]:
    """Equation (17): when the feed-forward's second product, all of it, and attention's output projection are over."""
    feed_forward, attention, size = group.feed_forward, group.attention, grid.tensor_parallel_size
    matrix = compute * model.hidden_size * ceil_div(np.full_like(size, feed_forward.intermediate_size), size)
    heads = np.full_like(size, attention.num_attention_heads * attention.head_dim)
    whole = matrix * (3 if feed_forward.gated else 2)
    return matrix, whole, whole + compute * model.hidden_size * ceil_div(heads, size)


def _feed_forward_tensors(model: ModelSpec, group: LayerGroup) -> tuple[int, int]:
    """Kept and transient tensors of T f / t elements, equations (7), (8) and (10)."""
    feed_forward = group.feed_forward
    tensors = ACTIVATION_TENSORS.get(feed_forward.activation, ONE_KERNEL_TENSORS)
    if feed_forward.gated:
        gate = FAMILIES[model.family].fused_gate and feed_forward.activation in DROP_INPUT
        return tensors + GATE_TENSORS + gate, 2
    return tensors, GRADIENT_TENSORS.get(feed_forward.activation, 1)
