"""Every parameter tensor of a model: name, shape and how tensor parallelism cuts it.

The tensors are those that transformers builds from the model's ``hf_config``, under their fully qualified names and in
the order of ``model.parameters()``; a tied head is the token embedding and appears once, among the embedding's tensors.

Tensor parallelism is Megatron's column -> row split (arXiv 1909.08053, section 3): query, key, value, gate and up
projections are cut along their output, output and down projections along their input, and the bias of a row-wise
projection stays whole. ``tensor_parallel_dim`` is the dim *of the tensor as stored*: ``torch.nn.Linear`` stores
[out, in], GPT-2's ``Conv1D`` stores [in, out].

    (1) parameters of a gated layer without biases   = h a d + 2 h k d + a d h + 3 h f + n h
    (2) parameters of a GPT layer                    = 12 h^2 + 13 h              with f = 4 h and a d = k d = h

    h hidden size, a query heads, k key-value heads, d head size, f feed-forward size, n norms a layer (2, gemma2: 4).
"""

from __future__ import annotations

from functools import lru_cache

from costmodel.models.families import FAMILIES, Norm, norm_tensors
from costmodel.models.tensor import ParameterTensor
from costmodel.specs import LayerGroup, ModelSpec

__all__ = [
    "ParameterTensor",
    "embedding_tensors",
    "head_tensors",
    "layer_tensors",
    "model_tensors",
    "num_layer_parameters",
    "num_parameters",
]


def layer_tensors(model: ModelSpec, index: int) -> tuple[ParameterTensor, ...]:
    """Tensors of transformer layer ``index`` (0-based).

    Raises:
        IndexError: when the model has no such layer.
    """
    return _layer_tensors(model.family, model.norm, model.hidden_size, _group(model, index), index)


def embedding_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """The token embedding [padded vocabulary, h] and, where they are learned, the position embeddings [rows, h].

    The token embedding's ``tensor_parallel_dim`` is 0 (vocabulary); a runtime that cuts it otherwise overrides it with
    its own ``embedding_tensor_parallel``. opt's position table has two rows more than positions.
    """
    family = FAMILIES[model.family]
    table = (model.padded_vocab_size, model.hidden_size)
    tokens = ParameterTensor(f"{family.base}.{family.tokens}.weight", table, 0)
    if not model.learned_position_embeddings:
        return (tokens,)
    positions = (model.max_position_embeddings + family.position_offset, model.hidden_size)
    return (tokens, ParameterTensor(f"{family.base}.{family.positions}.weight", positions))


def head_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """The final norm and, unless it is tied to the token embedding, the head [padded vocabulary, h]."""
    norm = _final_norm(model)
    if model.tie_word_embeddings:
        return norm
    return (*norm, ParameterTensor("lm_head.weight", (model.padded_vocab_size, model.hidden_size), 0))


def model_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """All tensors in the order of ``model.parameters()``."""
    layers = tuple(tensor for index in range(model.num_hidden_layers) for tensor in layer_tensors(model, index))
    norm, head = _final_norm(model), head_tensors(model)
    if FAMILIES[model.family].norm_first:
        return (*embedding_tensors(model), *norm, *layers, *head[len(norm) :])
    return (*embedding_tensors(model), *layers, *head)


def num_layer_parameters(model: ModelSpec, index: int) -> int:
    """Parameters of layer ``index``, equations (1) and (2) and their variants with biases and query-key norms.

    Raises:
        IndexError: when the model has no such layer.
    """
    return _num_layer_parameters(model.family, model.norm, model.hidden_size, _group(model, index))


def num_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied head counts once."""
    layers = sum(
        group.count * _num_layer_parameters(model.family, model.norm, model.hidden_size, group)
        for group in model.layers
    )
    return layers + sum(tensor.num_elements for tensor in (*embedding_tensors(model), *head_tensors(model)))


def _final_norm(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    family = FAMILIES[model.family]
    return norm_tensors(f"{family.base}.{family.norm}", model.norm, model.hidden_size)


def _group(model: ModelSpec, index: int) -> LayerGroup:
    if index < 0:
        raise IndexError(f"layers are counted from 0, found {index}")
    return model.layer(index)


@lru_cache(maxsize=4096)
def _layer_tensors(
    family: str, norm: Norm, hidden_size: int, group: LayerGroup, index: int
) -> tuple[ParameterTensor, ...]:
    found = FAMILIES[family]
    return found.layer(f"{found.base}.{found.layers}.{index}", norm, hidden_size, group)


@lru_cache(maxsize=256)
def _num_layer_parameters(family: str, norm: Norm, hidden_size: int, group: LayerGroup) -> int:
    return sum(tensor.num_elements for tensor in _layer_tensors(family, norm, hidden_size, group, 0))
