"""`transformers` models cut into pipeline stages.

A model is built on the meta device from the plan's ``hf_config``, so no process ever holds the whole of it. A stage
keeps the layers it owns under their fully qualified names in the whole model (``model.layers.7.mlp.up_proj.weight``), so a
parameter has one name under every plan. The stage with the head computes the loss itself: what leaves a stage is always one
tensor, either hidden states or the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from costmodel.specs import InputError, ModelSpec, Plan, StageSpec
from executor.adapter import materialise
from executor.loss import micro_batch_loss
from executor.recompute import attention_name

DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "hidden_dropout",
    "dropout",
    "layerdrop",
)


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """What a model type calls its parts inside ``base``; ``position_offset`` rows of its table precede position 0's."""

    base: str
    token_embedding: str
    position_embedding: str | None
    layers: str
    norm: str
    rotary: str | None
    head: str = "lm_head"
    position_offset: int = 0

    @property
    def embedding_weight(self) -> str:
        """Fully qualified name of the token embedding."""
        return f"{self.base}.{self.token_embedding}.weight"

    @property
    def head_weight(self) -> str:
        """Fully qualified name of the head."""
        return f"{self.head}.weight"


_LLAMA = ModuleNames("model", "embed_tokens", None, "layers", "norm", "rotary_emb")
_GPT2 = ModuleNames("transformer", "wte", "wpe", "h", "ln_f", None)
_NEOX = ModuleNames("gpt_neox", "embed_in", None, "layers", "final_layer_norm", "rotary_emb")
_OPT = ModuleNames(
    "model.decoder", "embed_tokens", "embed_positions", "layers", "final_layer_norm", None, position_offset=2
)
MODEL_TYPES: Mapping[str, ModuleNames] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _LLAMA,
    "phi3": _LLAMA,
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "opt": _OPT,
}


def module_names(model: ModelSpec) -> ModuleNames:
    """The part names of a model's type.

    Raises:
        InputError: when the executor cannot run the type.
    """
    if model.model_type not in MODEL_TYPES:
        raise InputError(f"model_type {model.model_type} cannot be run; the executor runs {', '.join(MODEL_TYPES)}")
    return MODEL_TYPES[model.model_type]


def original_config(model: ModelSpec) -> Any:
    """The model's `transformers` config as it was given, with the vocabulary that its tables have."""
    config = CONFIG_MAPPING[model.model_type].from_dict(deepcopy(model.hf_config))  # it changes nested objects
    config.vocab_size = model.padded_vocab_size
    config.tie_word_embeddings = model.tie_word_embeddings
    return config


def build_config(model: ModelSpec) -> Any:
    """The `transformers` config for training: dropout 0, no key-value cache, no padding token.

    Sequences are packed, so a padding token would only freeze one row of the embedding.
    """
    config = original_config(model)
    config.use_cache = False
    config.pad_token_id = None
    for name in _DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def build_whole_model(model: ModelSpec, dtype: torch.dtype) -> Any:
    """The whole `transformers` causal language model on the meta device, parameters in ``dtype``.

    Raises:
        InputError: when the executor cannot run the model's type.
    """
    module_names(model)
    config = build_config(model)
    with torch.device("meta"):
        whole: Any = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention_implementation(config)
        )
    if dtype == torch.float64:
        keep_norms_in_double(whole)
    whole.train()
    return whole


def attention_implementation(config: Any) -> str:
    """The attention function of a plain `transformers` model: gemma2 has no other than its own."""
    return "eager" if config.model_type == "gemma2" else "sdpa"


def keep_norms_in_double(model: nn.Module) -> None:
    """Let RMSNorm compute in float64, in place.

    `transformers` computes it in float32 whatever its input. Rounding gradients to float32 does not commute with the factor
    between a micro batch's mean and the global mean, so float64 runs would agree only where that is a power of 2.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_rms_norm, module)


def _rms_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """gemma2's norms, whose constant is called ``eps``, multiply by 1 + weight."""
    centred = hasattr(norm, "eps")
    epsilon, weight = (norm.eps, 1.0 + norm.weight) if centred else (norm.variance_epsilon, norm.weight)
    return weight * (hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon))


class Stage(nn.Module):
    """The part of a model that one pipeline stage holds.

    ``forward`` takes token ids [micro batch, sequence] on the stage with the embedding, else hidden states
    [micro batch, sequence, hidden]; it returns hidden states, or with the head the loss of the micro batch as a scalar:
    its mean over the micro batch's tokens divided by the number of micro batches. Under sequence parallelism the sequence
    dim of hidden states is this rank's share.
    """

    config: Any  # the transformers config of the whole model

    def __init__(self, plan: Plan, stage: StageSpec) -> None:
        super().__init__()
        self.names = module_names(plan.model)
        self.spec = stage
        self.sequence_length = plan.training.sequence_length
        self.num_micro_batches = plan.parallel.num_micro_batches
        self.logit_cap = plan.model.final_logit_softcapping
        self.windows = [plan.model.layer(index).attention.window for index in range(stage.start, stage.stop)]
        self.positions = slice(0, self.sequence_length)
        whole = build_whole_model(plan.model, DTYPES[plan.training.precision.parameter])
        whole.config._attn_implementation = attention_name("none", plan.training.attention_implementation)
        self.config = whole.config
        self._take_parts(whole)

    def _take_parts(self, whole: nn.Module) -> None:
        base, kept = whole.get_submodule(self.names.base), nn.Module()
        if self.spec.embedding:
            self._move(base, kept, self.names.token_embedding)
            self._move(base, kept, self.names.position_embedding)
            if self.names.position_offset:  # opt's own forward makes positions of an attention mask
                table = getattr(kept, str(self.names.position_embedding))
                table.forward = partial(nn.Embedding.forward, table)
        layers = getattr(base, self.names.layers)
        own = {str(index): layers[index] for index in range(self.spec.start, self.spec.stop)}
        setattr(kept, self.names.layers, nn.ModuleDict(own))
        if self.spec.head:
            self._move(base, kept, self.names.norm)
        self._hold(self.names.base, kept)
        if self.spec.head:
            self._move(whole, self, self.names.head)
        self._move(base, kept, self.names.rotary)
        self.tie()

    def _hold(self, path: str, module: nn.Module) -> None:
        """Make ``module`` the submodule at a dotted path; what lies between is empty."""
        *between, name = path.split(".")
        target: nn.Module = self
        for part in between:
            setattr(target, part, nn.Module())
            target = getattr(target, part)
        setattr(target, name, module)

    @staticmethod
    def _move(source: nn.Module, target: nn.Module, name: str | None) -> None:
        if name is not None:
            setattr(target, name, getattr(source, name))

    @property
    def base(self) -> nn.Module:
        """The container of everything but the head."""
        return self.get_submodule(self.names.base)

    @property
    def layers(self) -> nn.ModuleDict:
        """Transformer layers by their number in the whole model."""
        return getattr(self.base, self.names.layers)

    @property
    def token_embedding(self) -> nn.Module:
        """The token embedding; only on the stage that holds it."""
        return getattr(self.base, self.names.token_embedding)

    @property
    def head(self) -> nn.Module:
        """The head; only on the stage that holds it."""
        return getattr(self, self.names.head)

    def tie(self) -> None:
        """Make a tied head and token embedding one parameter, if the stage holds both.

        To be called again after whatever replaces parameters: each replacement loses the tie.
        """
        if self.config.tie_word_embeddings and self.spec.embedding and self.spec.head:
            self.head.weight = self.token_embedding.weight

    def materialise(self, device: torch.device) -> None:
        """Move the stage from meta to ``device``; parameters are uninitialised."""
        materialise(self, device)
        self.tie()
        if self.names.rotary is not None:
            # Rotary tables and gemma2's factor are computed, not loaded: meta tensors have lost them.
            rotary_type = type(getattr(self.base, self.names.rotary))
            setattr(self.base, self.names.rotary, rotary_type(self.config).to(device))
        if self.spec.embedding and isinstance(
            scale := getattr(self.token_embedding, "embed_scale", None), torch.Tensor
        ):
            scale.fill_(self.config.hidden_size**0.5)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Run the stage on one micro batch; ``targets`` [micro batch, sequence] is read only with the head."""
        hidden = self._embed(inputs) if self.spec.embedding else inputs
        shared = self._position_arguments(hidden)
        for layer, window in zip(self.layers.values(), self.windows, strict=True):
            hidden = layer(hidden, attention_mask=self._mask(window, hidden.device), **shared)
        if not self.spec.head:
            return hidden
        assert targets is not None  # the training run hands targets to the stage with the head
        logits = self.head(getattr(self.base, self.names.norm)(hidden))
        if self.logit_cap is not None:
            logits = torch.tanh(logits / self.logit_cap) * self.logit_cap
        return micro_batch_loss(logits, targets, num_micro_batches=self.num_micro_batches)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.token_embedding(tokens)
        if self.names.position_embedding is not None:
            positions = torch.arange(self.sequence_length, device=tokens.device)[self.positions].unsqueeze(0)
            table = getattr(self.base, self.names.position_embedding)
            hidden = hidden + table(positions + self.names.position_offset)
        return hidden

    def _position_arguments(self, hidden: torch.Tensor) -> dict[str, Any]:
        """Rotary tables span the whole sequence: attention gathers it even where hidden states are cut."""
        if self.names.rotary is None:
            return {}
        positions = torch.arange(self.sequence_length, device=hidden.device).unsqueeze(0)
        return {"position_embeddings": getattr(self.base, self.names.rotary)(hidden, positions)}

    def _mask(self, window: int | None, device: torch.device) -> torch.Tensor | None:
        """None means causal; a window of w tokens lets token i see tokens i - w + 1 to i."""
        if window is None or window >= self.sequence_length:
            return None
        cached = self.__dict__.setdefault("_masks", {})
        if window not in cached:
            token = torch.arange(self.sequence_length, device=device)
            distance = token[:, None] - token[None, :]
            cached[window] = ((distance >= 0) & (distance < window))[None, None]
        return cached[window]
