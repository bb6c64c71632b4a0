"""A complete plan: everything an executor or exporter needs, and nothing to look up.

``plan_hash`` is the SHA-256 of the canonical JSON without ``plan_hash``, ``estimate``, ``provenance`` and ``site`` (see
canonical.py), so a plan is the same plan whoever estimated it and when.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from costmodel.specs.estimate import Estimate
from costmodel.specs.model import ModelSpec
from costmodel.specs.parallel import ParallelConfig
from costmodel.specs.site import SiteProfile
from costmodel.specs.training import TrainingSpec
from hardware_profiles.spec import Spec
from hardware_profiles.types import ClusterSpec

SCHEMA_VERSION = 1
Axis = Literal["pp", "dp_replicate", "dp_shard", "cp", "tp"]
AxisOrder = Literal["pipeline_outermost", "data_outermost"]
DEFAULT_AXIS_ORDER: tuple[Axis, ...] = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
AXIS_ORDERS: dict[AxisOrder, tuple[Axis, ...]] = {
    "pipeline_outermost": DEFAULT_AXIS_ORDER,
    "data_outermost": ("dp_replicate", "dp_shard", "pp", "cp", "tp"),
}
"""Word -> mesh axes, outer to inner: how global ranks count through the mesh. Neighbouring ranks differ in the last axis.

``data_outermost`` keeps every pipeline on neighbouring devices, so that gradients cross the slow links and its messages do not.
"""


class RecomputeSpec(Spec):
    """What a stage recomputes in backward.

    ``core_attention``: only softmax(QK^T)V (arXiv 2205.05198's selective). ``op_policy``: all but attention and every
    second matrix product (torchtitan's per-operation selective checkpointing). ``full``: every layer from
    its input. ``num_layers``: so many layers from the chunk's first on, the others nothing (Megatron-LM's method
    "block"); None means all of them.
    """

    kind: Literal["none", "core_attention", "op_policy", "full"] = "none"
    num_layers: PositiveInt | None = None
    partitioned: Literal[False] = False
    offload_fraction: Literal[0] = 0

    @property
    def word(self) -> str:
        """As a person writes it: ``full``, or ``full:2`` for the first two layers."""
        return self.kind if self.num_layers is None else f"{self.kind}:{self.num_layers}"


class StageSpec(Spec):
    """One model chunk on one pipeline rank: layers ``start`` to ``stop`` (exclusive).

    A plan lists its stages in virtual-stage order, the order of the model; costmodel/runtimes/placement.py says which chunk of
    which rank each is.
    """

    rank: NonNegativeInt
    chunk: NonNegativeInt
    start: NonNegativeInt
    stop: NonNegativeInt
    embedding: bool
    head: bool
    weight_versions: Literal[1] = 1
    recompute: RecomputeSpec = RecomputeSpec()

    @property
    def num_layers(self) -> int:
        """Layers in the chunk."""
        return self.stop - self.start

    @property
    def num_recomputed_layers(self) -> int:
        """Layers from the first one on that recompute."""
        if self.recompute.kind == "none":
            return 0
        return self.num_layers if self.recompute.num_layers is None else self.recompute.num_layers


class RuntimeRef(Spec):
    """The training framework the plan is meant for."""

    name: str
    version: str


class OffloadSpec(Spec):
    """Reserved: nothing is offloaded now."""

    parameters: Literal[0] = 0
    gradients: Literal[0] = 0
    optimizer_state: Literal[0] = 0
    activations: Literal[0] = 0
    target: Literal["none"] = "none"


class Provenance(Spec):
    """Where the plan came from; not part of its identity."""

    meshwright_version: str
    command: str = ""
    constants_version: str = ""
    warnings: tuple[str, ...] = ()


class Plan(Spec):
    """A parallel plan, complete and self-contained.

    ``axis_order``: one of `AXIS_ORDERS`. ``site``: the corrections its estimate is made with; like the estimate no part of its
    identity.
    """

    schema_version: Literal[1] = 1
    plan_hash: str = ""
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    runtime: RuntimeRef
    parallel: ParallelConfig
    axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER
    stages: tuple[StageSpec, ...] = Field(min_length=1)
    offload: OffloadSpec = OffloadSpec()
    tiling: None = None
    placements: None = None
    num_devices_used: PositiveInt
    estimate: Estimate | None = None
    provenance: Provenance | None = None
    site: SiteProfile | None = None
