"""The torch runtime's counts against what transformers' layers really dispatch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from costmodel.compute import roofline
from costmodel.layers import MicroBatch, layer_passes
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Precision, TrainingSpec
from costmodel.stack import read_stack
from hardware_profiles.loader import load_device

TOKENS, HIDDEN = 256, 64
PRODUCTS = ("mm", "attention")


class Counter(TorchDispatchMode):
    """Operations, and bytes read and written by those that are neither views nor products."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.moved_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        name = str(func)
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        view = (alias is not None and not alias.is_write) or "_unsafe_view" in name
        if not view and not any(product in name for product in PRODUCTS):
            tensors = [leaf for leaf in tree_leaves((args, kwargs or {}, result)) if isinstance(leaf, torch.Tensor)]
            self.moved_bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)
        return result


def llama(layers: int) -> tuple[dict[str, Any], Callable[[], torch.nn.Module]]:
    config = {
        "hidden_size": HIDDEN, "intermediate_size": 176, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": TOKENS,
    }  # fmt: skip
    return {**config, "model_type": "llama"}, lambda: LlamaForCausalLM(LlamaConfig(**config, use_cache=False))


def gpt2(layers: int, activation: str) -> tuple[dict[str, Any], Callable[[], torch.nn.Module]]:
    config = {
        "n_embd": HIDDEN, "n_layer": layers, "n_head": 4, "n_positions": TOKENS, "vocab_size": 64, "resid_pdrop": 0.0,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "activation_function": activation, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    return {**config, "model_type": "gpt2"}, lambda: GPT2LMHeadModel(GPT2Config(**config, use_cache=False))


def count(build: Callable[[], torch.nn.Module], dtype: torch.dtype) -> tuple[Counter, Counter]:
    """Forward and backward of the whole model on one sequence, gradients made anew."""
    model, tokens = build().to(dtype), torch.zeros(1, TOKENS, dtype=torch.int64)
    with Counter() as forward:
        logits = model(tokens).logits
    with Counter() as backward:
        logits.backward(torch.ones_like(logits))
    return forward, backward


MODELS = {
    "llama": llama,
    "gpt2": lambda layers: gpt2(layers, "gelu_new"),
    "gpt2-fused-gelu": lambda layers: gpt2(layers, "gelu_pytorch_tanh"),
}


def per_layer(name: str, dtype: torch.dtype) -> list[tuple[float, float]]:
    """Operations and bytes that one more layer adds, forward and backward."""
    one, three = (count(MODELS[name](layers)[1], dtype) for layers in (1, 3))
    return [
        ((b.operations - a.operations) / 2, (b.moved_bytes - a.moved_bytes) / 2)
        for a, b in zip(one, three, strict=True)
    ]


def predicted_bytes(name: str, precision: Precision) -> list[float]:
    """Stream seconds of one layer at one byte per second."""
    model, runtime = build_model(MODELS[name](1)[0], name=name), load_runtime("torch")
    device = load_device("cpu").model_copy(update={"memory_bandwidth_bytes_per_second": 1.0, "memory_fraction": 1.0})
    one = np.ones(1)
    batch = MicroBatch(
        sequences=one, sequence_length=TOKENS, tensor_parallel=one, sequence_parallel=0 * one, loss_parallel=0 * one,
        wrapped=0 * one, forward_collectives=0 * one, backward_collectives=0 * one,
    )  # fmt: skip
    training = TrainingSpec(global_batch_size=1, sequence_length=TOKENS, precision=runtime.precisions[precision])
    forward, backward, _, _ = layer_passes(
        model, model.layer(0), training, batch=batch, ceiling=roofline(device, precision), stack=read_stack(runtime)
    )
    return [float(forward.stream[0]), float(backward.stream[0])]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_bytes_moved_by_one_layer(name, precision, dtype):
    """Within 10%: masks, position tables and the layout changes around attention are not modelled."""
    for predicted, (_, counted) in zip(predicted_bytes(name, precision), per_layer(name, dtype), strict=True):
        assert predicted == pytest.approx(counted, rel=0.10)


@pytest.mark.parametrize(("name", "family"), [("llama", "llama"), ("gpt2", "gpt")])
def test_operations_of_one_layer(name, family):
    constants = load_runtime("torch").constants
    stated = [constants[f"{way}_operations_{family}"].value for way in ("forward", "backward")]
    counted = [operations for operations, _ in per_layer(name, torch.float32)]
    assert counted == pytest.approx(stated, rel=0.05)
