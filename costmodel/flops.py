"""FLOP of one step on all devices.

    (1) model FLOP = 3 x forward FLOP of every layer and the head, causal attention at half, nothing recomputed
    (2) hardware FLOP = what the kernels execute: unfused attention computes all scores, recomputation repeats forwards, a loss
        over chunks the head's product

With all scores counted and L layers, (1) is 72 B L s h^2 (1 + s/(6h) + V/(12 h L)) for a GPT (arXiv 2205.05198, equation 7),
and (2) with full recomputation 96 B s L h^2 (1 + s/(6h) + V/(16 L h)) (arXiv 2104.04473, equation 3).
"""

from __future__ import annotations

import numpy as np

from costmodel.layer_kinds import layer_kinds
from costmodel.layers import causal_scores
from costmodel.setting import Setting
from costmodel.specs import FlopCount, LayerGroup, ModelSpec, TrainingSpec


def layer_model_flops(model: ModelSpec, group: LayerGroup, sequence_length: int) -> float:
    """Forward FLOP of one layer on one sequence, causal attention at half."""
    attention, feed_forward = group.attention, group.feed_forward
    heads = 2 * attention.num_attention_heads + 2 * attention.num_key_value_heads
    width = (3 if feed_forward.gated else 2) * feed_forward.intermediate_size
    products = 2.0 * sequence_length * model.hidden_size * (heads * attention.head_dim + width)
    scores = causal_scores(sequence_length, attention.window)
    return products + 4.0 * attention.num_attention_heads * attention.head_dim * scores


def model_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """Equation (1)."""
    length = training.sequence_length
    layers = sum(group.count * layer_model_flops(model, group, length) for group, _ in layer_kinds(model))
    head = 2.0 * length * model.hidden_size * model.padded_vocab_size
    return 3.0 * training.global_batch_size * (layers + head)


def hardware_flops(setting: Setting) -> float:
    """Equation (2) of the first candidate."""
    table, layers = setting.table, setting.contents.layers[0].sum(axis=0)
    forward = float((layers.sum(axis=1) * table.layer_forward_flops[0]).sum())
    backward = float((layers * table.layer_backward_flops[0]).sum())
    head = float(table.head_flops[0].sum())
    passes = (
        setting.grid.num_micro_batches[0] * setting.grid.data_parallel_size[0] * setting.grid.context_parallel_size[0]
    )
    return float(np.float64(passes) * setting.grid.tensor_parallel_size[0] * (forward + backward + head))


def flop_count(setting: Setting) -> FlopCount:
    """Both counts of the first candidate."""
    return FlopCount(
        model=model_flops(setting.problem.model, setting.problem.training), hardware=hardware_flops(setting)
    )
