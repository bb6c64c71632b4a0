"""What a training framework supports and what its stack costs. No hardware numbers here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from costmodel.specs.estimate import Evidence
from costmodel.specs.memory_accounting import MemoryAccounting, StageCosts
from costmodel.specs.parallel import ContextParallelMethod, PipelineSchedule, ZeroStage
from costmodel.specs.plan import AxisOrder
from costmodel.specs.training import PrecisionSpec
from hardware_profiles.spec import Spec


class Constant(Spec):
    """A fitted or documented number with its origin.

    A *free* constant states ``prior`` and ``bounds``: the value that would be assumed without measured runs, and the range
    that is physically possible. ``uncertainty`` is the standard error of ``value`` relative to it (0.1 is 10%).
    """

    value: float
    evidence: Evidence
    source: str
    prior: float | None = None
    bounds: tuple[float, float] | None = None
    uncertainty: NonNegativeFloat | None = None

    @model_validator(mode="after")
    def _stays_in_bounds(self) -> Constant:
        if (self.prior is None) != (self.bounds is None):
            raise ValueError("a free constant states both prior and bounds")
        if self.bounds is not None and not self.bounds[0] <= self.value <= self.bounds[1]:
            raise ValueError(f"value {self.value} lies outside its bounds {self.bounds[0]} to {self.bounds[1]}")
        return self

    @property
    def is_free(self) -> bool:
        """Whether the constant is fitted to measured runs."""
        return self.prior is not None


KernelFusion = Literal["none", "norms", "full"]
"""Which element-wise operations are one kernel: none of them, norms only, or all (hand-written kernels, torch.compile)."""


RecomputeLayers = Literal["per_stage", "uniform", "all"]
"""How many layers of a virtual stage full recomputation covers.

``per_stage``: of every virtual stage another number, and another kind. ``uniform``: one number for all virtual stages, of
which each recomputes its first so many layers, or all of them where it has fewer. ``all``: every layer of the model or none.
"""


WindowedAttention = Literal["window", "full_scores"]
"""What fused attention computes under a sliding window shorter than the sequence.

``window``: the kernel knows the window and skips the blocks outside it. ``full_scores``: the kernel is given a mask tensor, which
it cannot skip by: it computes all scores of the sequence, also those that causal attention would not.
"""


TensorParallelSwitch = Literal["optional", "always", "never"]
"""What a switch is under tensor parallelism: the user's choice, always on, or never on."""


class RuntimeProfile(Spec):
    """One training framework.

    ``precisions``: the user's word (bf16, ...) -> the number formats the framework really uses.
    ``recompute_layers``: how a stage may recompute some of its layers and keep the others (`RecomputeLayers`).
    ``uneven_stages``: whether a plan may choose the layers of every stage; else the framework deals them itself.
    ``embedding_tensor_parallel``: which dim of an untied embedding tensor parallelism cuts (a tied one
    is always cut along the vocabulary). ``sharding``: how ZeRO cuts: ``fsdp2`` pads dim 0 of every
    tensor to a multiple of the group, ``flat`` cuts the concatenation evenly. ``full_pipeline_schedules``:
    those that refuse fewer micro-batches than pipeline stages (dualpipe_v: than virtual stages). ``split_backward_zero_stages``:
    the stages of ZeRO under which schedules that split the backward compute the right gradients.
    ``context_parallel_methods``: how it cuts
    sequences, none when it does not. ``axis_orders``: in which orders of mesh axes it numbers its processes.
    ``vocabulary_multiple``: rows of the embedding
    table are a multiple of it for every tensor-parallel rank; None: as many as the vocabulary. ``tied_pipelines``: whether a
    head may share its table with an embedding on another pipeline stage. ``chunked_loss``: whether head and loss may go chunk by
    chunk over the sequence (``TrainingSpec.loss_chunks``). ``memory_model``: whose way to hold activations,
    buffers and states is counted. ``kernel_fusion``, ``flash_attention_version`` and
    ``unfused_softmax`` (of unfused attention): the kernels it uses unless a run
    says otherwise. ``windowed_attention``: what fused attention computes under a
    sliding window (`WindowedAttention`). ``error_band`` is the half-width of the 80% interval of step times on the architectures
    ``measured_on``, ``error_band_elsewhere`` on others (costmodel/uncertainty.py). ``constants``: named
    stack costs, listed in docs/architecture.md. ``memory``: what it keeps on a device. ``stage_costs``: how it deals layers
    to pipeline stages; None: evenly. ``site_rate`` and ``memory_margin``: rate of kernels and allocated bytes over the
    prediction's, as a site's own runs say (`costmodel.site`).

    What it does not combine (runtimes/rules_frameworks.py): ``tensor_parallel``: whether it has any, and the switches
    ``sequence_parallel`` and ``loss_parallel`` under it. ``sequence_multiple``: sequences are a multiple of it x
    tensor x context parallel size; 1: no such rule. ``all_to_all_copies_heads``: whether a key-value head may be copied to
    several context-parallel devices. ``replicas_alone``: whether data parallelism without ZeRO goes with nothing else.
    ``hybrid_zero_stages`` and ``hybrid_hierarchical_partition``: ZeRO's stages, and whether hpZ, inside groups of replicas.
    ``pipeline_zero_stages``: ZeRO's stages with pipelines. ``zero_optimizers``: those whose states it shards; None: all.
    """

    name: str
    version: str
    memory_model: Literal["torch", "megatron", "deepspeed"]
    kernel_fusion: KernelFusion
    flash_attention_version: Literal[1, 2, 3]
    unfused_softmax: Literal["fused", "eager"]
    windowed_attention: WindowedAttention = "window"
    zero_stages: tuple[ZeroStage, ...]
    hybrid_shard: bool
    hierarchical_partition: bool
    schedules: tuple[PipelineSchedule, ...]
    recompute_kinds: tuple[Literal["none", "core_attention", "op_policy", "full"], ...]
    recompute_layers: RecomputeLayers
    uneven_stages: bool
    interleaving_multiple: Literal["pipeline_parallel_size", "rounds"]
    embedding_tensor_parallel: Literal["vocab", "hidden"]
    sharding: Literal["fsdp2", "flat"]
    model_families: tuple[str, ...]
    optimizers: tuple[str, ...]
    devices: tuple[str, ...]
    precisions: dict[str, PrecisionSpec]
    error_band: float = Field(gt=0, lt=1)
    error_band_elsewhere: float | None = Field(default=None, gt=0, lt=1)
    measured_on: tuple[str, ...] = ()
    band_evidence: str
    context_bytes: NonNegativeInt
    reserved_over_allocated: float = Field(ge=1)
    constants: dict[str, Constant]
    sources: dict[str, str] = Field(default={})
    overlap_slowdown: NonNegativeFloat = 1.0
    memory: MemoryAccounting = MemoryAccounting()
    stage_costs: StageCosts | None = None
    site_rate: float = Field(default=1.0, gt=0)
    memory_margin: float = Field(default=1.0, gt=0)
    full_pipeline_schedules: tuple[PipelineSchedule, ...] = ()
    split_backward_zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    context_parallel_methods: tuple[ContextParallelMethod, ...] = ()
    axis_orders: tuple[AxisOrder, ...] = ("pipeline_outermost",)
    tied_pipelines: bool = True
    chunked_loss: bool = False
    vocabulary_multiple: PositiveInt | None = None
    tensor_parallel: bool = True
    sequence_parallel: TensorParallelSwitch = "optional"
    loss_parallel: TensorParallelSwitch = "optional"
    sequence_multiple: PositiveInt = 1
    all_to_all_copies_heads: bool = True
    replicas_alone: bool = False
    hybrid_zero_stages: tuple[ZeroStage, ...] = (1, 2, 3)
    hybrid_hierarchical_partition: bool = True
    pipeline_zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    zero_optimizers: tuple[str, ...] | None = None
