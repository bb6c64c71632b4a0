"""Models: a catalogue name or a config.json -> ModelSpec, and the parameter tensors of a ModelSpec."""

from costmodel.models.loader import (
    CatalogueEntry,
    build_model,
    describe_models,
    list_models,
    load_model,
    supported_model_types,
)
from costmodel.models.notices import config_notices
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
    "CatalogueEntry",
    "ParameterTensor",
    "build_model",
    "config_notices",
    "describe_models",
    "embedding_tensors",
    "head_tensors",
    "layer_tensors",
    "list_models",
    "load_model",
    "model_tensors",
    "num_layer_parameters",
    "num_parameters",
    "supported_model_types",
]
