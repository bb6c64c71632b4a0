"""How it is trained: batch, sequence, precision, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from hardware_profiles.spec import Spec
from hardware_profiles.types import NumberFormat

# Beyond these no product of sizes stays exact in 64 bits; no training comes near them.
MAX_GLOBAL_BATCH_SIZE = 10**6
MAX_SEQUENCE_LENGTH = 10**7
BYTES_PER_ELEMENT: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


Fp8Recipe = Literal["delayed", "current", "rowwise", "blockwise", "mxfp8"]


class PrecisionSpec(Spec):
    """Number formats, resolved by the runtime profile.

    ``compute``: activations and matrix inputs. ``parameter``: the tensor the model holds between
    steps. ``master``: a separate optimizer copy, or None when ``parameter`` is already the master.
    ``gradient``: the accumulated gradient. ``reduce``: what the gradient collective sends.
    ``state``: each optimizer moment. ``fp8_recipe``: how operands of the layers' projections are scaled to
    8 bits, None when they stay in ``compute``; everything else does.
    """

    compute: NumberFormat
    parameter: NumberFormat
    master: NumberFormat | None = None
    gradient: NumberFormat
    reduce: NumberFormat
    state: NumberFormat
    fp8_recipe: Fp8Recipe | None = None


_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Spec):
    """AdamW (two moments) or SGD (none, or one with momentum)."""

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.01
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8
    momentum: float = Field(default=0.0, ge=0, lt=1)
    max_grad_norm: PositiveFloat | None = 1.0

    @property
    def num_moments(self) -> int:
        """Parameter-sized state tensors: 2 for AdamW, 1 for SGD with momentum, else 0."""
        if self.name == "adamw":
            return 2
        return 1 if self.momentum > 0 else 0


class TrainableSpec(Spec):
    """Reserved for adapters: everything is trainable now."""

    fraction: Literal[1] = 1
    lora_rank: None = None
    targets: tuple[str, ...] = Field(default=(), max_length=0)
    frozen_dtype: None = None


class TrainingSpec(Spec):
    """One optimizer step: ``global_batch_size`` sequences of ``sequence_length`` tokens.

    ``attention_implementation``: ``fused`` (flash-like, no score matrix in memory) or ``unfused``. ``loss_chunks``: parts
    that every sequence is cut into for the head and the loss; one part's logits exist at a time, made again in backward.
    """

    global_batch_size: int = Field(gt=0, le=MAX_GLOBAL_BATCH_SIZE)
    sequence_length: int = Field(gt=0, le=MAX_SEQUENCE_LENGTH)
    precision: PrecisionSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    attention_implementation: Literal["fused", "unfused"] = "fused"
    dropout: Literal[0] = 0
    loss_chunks: int = Field(default=1, ge=1, le=MAX_SEQUENCE_LENGTH)
    trainable: TrainableSpec = TrainableSpec()
    seed: int = Field(default=0, ge=0, lt=2**63)
