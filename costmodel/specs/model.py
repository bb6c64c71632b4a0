"""What is trained: a decoder-only transformer as groups of equal layers.

Field names are Hugging Face's. A model is ``embedding -> layers -> final norm -> head``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from hardware_profiles.spec import Spec


class AttentionSpec(Spec):
    """Grouped-query attention (multi-head when the two head counts agree); ``window`` is the sliding window in tokens.

    ``partial_rotary_factor`` is the share of every head that rotary positions turn. With ``attn_logit_softcapping`` c the
    scores x become c tanh(x / c) before the softmax.
    """

    kind: Literal["gqa"] = "gqa"
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: PositiveInt | None = None
    causal: Literal[True] = True
    partial_rotary_factor: float = Field(default=1.0, ge=0, le=1)
    attn_logit_softcapping: PositiveFloat | None = None

    def slides_over(self, length: int) -> bool:
        """Whether the window hides any of ``length`` tokens that causal attention would see."""
        return self.window is not None and self.window < length


class FeedForwardSpec(Spec):
    """Dense feed-forward; the expert fields are reserved."""

    gated: bool
    intermediate_size: PositiveInt
    activation: str
    bias: bool = False
    experts: Literal[0] = 0
    top_k: Literal[0] = 0
    shared: Literal[0] = 0
    capacity: None = None


class LayerGroup(Spec):
    """``count`` consecutive layers of one kind."""

    count: PositiveInt
    attention: AttentionSpec
    feed_forward: FeedForwardSpec


class ModelSpec(Spec):
    """A model; ``hf_config`` is the verbatim config.json from which the executor builds it.

    ``family`` says how its layers are made and what their tensors are called (`costmodel.models.families`).
    ``padded_vocab_size`` is the number of rows of the embedding table actually allocated (Megatron
    pads to a multiple of 128 x tensor_parallel_size; 51,200 in the published runs).
    """

    name: str
    family: Literal["llama", "gpt", "gemma", "phi", "neox", "opt"]
    model_type: str
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    padded_vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    learned_position_embeddings: bool
    norm: Literal["rmsnorm", "layernorm"]
    tie_word_embeddings: bool
    use_parallel_residual: bool = False
    final_logit_softcapping: PositiveFloat | None = None
    layers: tuple[LayerGroup, ...] = Field(min_length=1)
    hf_config: dict[str, JsonValue]
    weights_path: str | None = None
    tokenizer_path: str | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Layers in all groups together."""
        return sum(group.count for group in self.layers)

    def layer(self, index: int) -> LayerGroup:
        """The group that layer ``index`` (0-based) belongs to.

        Raises:
            IndexError: when the model has no such layer.
        """
        for group in self.layers:
            if index < group.count:
                return group
            index -= group.count
        raise IndexError(f"{self.name} has {self.num_hidden_layers} layers")
