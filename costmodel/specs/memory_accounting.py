"""How a stack's memory differs from Megatron-core's: what its layers keep, and how it deals layers to pipeline stages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from costmodel.specs.training import Fp8Recipe
from hardware_profiles.spec import Spec


class MemoryAccounting(Spec):
    """What a stack keeps on a device; the defaults are Megatron-core's. Equations: megatron_activation_memory.py.

    Attributes:
        gathered_inputs: whether projections keep their input gathered under sequence parallelism, instead of gathering it
            again in backward.
        attention_copies: tensors of the attention output's size kept beyond query, key, value and output.
        unfused_norm_bytes: bytes per element that a norm made of single operations keeps beside its output; a fused norm
            keeps its input.
        score_bytes: bytes per attention score kept by unfused attention; None: one tensor in the compute format.
        dropout_masks: whether layers have dropout: masks, and dropped-out scores.
        gathered_logits: whether every tensor-parallel rank holds the logits of the whole vocabulary.
        loss_bytes: bytes per logit alive in the loss; None: fp32 probabilities and the logits in the compute format. A
            ``torch`` memory model takes it for a loss in one kernel: not in a parallel loss, and where nothing is compiled
            only with ``fused_loss``.
        fused_loss: whether the loss is one kernel, whatever is compiled.
        fp8_primary_weights: fp8 recipes under which projections' weights are kept in 8 bits alone, with no copy in the
            parameters' format.
        hidden_squared_bucket: whether DeepSpeed's reduction bucket has hidden x hidden elements, not its default 5e8.
        sent_outputs: whether a pipeline rank holds the outputs it sent until their gradients come.
        state_bytes: bytes per parameter of one rank beyond those of the precision's formats, by compute format.
        stream_pools: whether what FSDP2's own streams free stays reserved for them (stream_pools.py).
    """

    gathered_inputs: bool = False
    attention_copies: NonNegativeInt = 0
    unfused_norm_bytes: NonNegativeInt = 6
    score_bytes: NonNegativeInt | None = None
    dropout_masks: bool = False
    gathered_logits: bool = False
    loss_bytes: NonNegativeInt | None = None
    fused_loss: bool = False
    fp8_primary_weights: tuple[Fp8Recipe, ...] = ()
    hidden_squared_bucket: bool = False
    sent_outputs: bool = False
    state_bytes: dict[str, NonNegativeInt] = Field(default={})
    stream_pools: bool = False


class StageCosts(Spec):
    """Layers are dealt to pipeline stages by cumulative cost, front to back; a layer costs 1.

    ``head``: a number, or ``parameters``: its multiplications relative to a layer's.
    """

    embedding: NonNegativeFloat = 0.0
    head: NonNegativeFloat | Literal["parameters"] = 0.0
