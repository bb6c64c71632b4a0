"""Models: config.json or a catalogue name -> ModelSpec, and the parameter tensors of a ModelSpec."""

from costmodel.models.parameters import (
    ParameterTensor,
    embedding_tensors,
    head_tensors,
    layer_tensors,
    model_tensors,
    num_layer_parameters,
    num_parameters,
)

__all__ = [
    "ParameterTensor",
    "embedding_tensors",
    "head_tensors",
    "layer_tensors",
    "model_tensors",
    "num_layer_parameters",
    "num_parameters",
]
