"""The contracts: frozen data that every room speaks. Read this first."""

from costmodel.specs.canonical import canonical_json, compute_plan_hash, with_hash
from costmodel.specs.estimate import (
    Communication,
    Estimate,
    Evidence,
    FlopCount,
    Interval,
    MemoryTerm,
    PeakMemory,
    Phase,
    StageMemory,
    Term,
)
from costmodel.specs.model import AttentionSpec, FeedForwardSpec, LayerGroup, ModelSpec
from costmodel.specs.observation import Comparison, FieldComparison, Instant, Observation, RankMemory, RankPeak
from costmodel.specs.parallel import ParallelConfig, PipelineSchedule, ZeroStage
from costmodel.specs.plan import (
    DEFAULT_AXIS_ORDER,
    SCHEMA_VERSION,
    Axis,
    OffloadSpec,
    Plan,
    Provenance,
    RecomputeSpec,
    RuntimeRef,
    StageSpec,
)
from costmodel.specs.recommendation import (
    AxisValues,
    Certificate,
    Guide,
    GuideOption,
    GuideStep,
    Infeasible,
    MissTerm,
    NearestMiss,
    Neighbour,
    Recommendation,
    TrainingDuration,
)
from costmodel.specs.rejection import Rejection, RejectionCount
from costmodel.specs.runtime import Constant, RuntimeProfile
from costmodel.specs.training import (
    BYTES_PER_ELEMENT,
    OptimizerSpec,
    PrecisionSpec,
    TrainableSpec,
    TrainingSpec,
)
from hardware_profiles.spec import ExecutionError, InputError, Spec
from hardware_profiles.types import (
    ClusterSpec,
    DeviceSpec,
    GemmCurve,
    HostSpec,
    LevelSpec,
    LinkSpec,
    NvmeSpec,
    Precision,
)

__all__ = [
    "BYTES_PER_ELEMENT", "DEFAULT_AXIS_ORDER", "SCHEMA_VERSION", "AttentionSpec", "Axis", "AxisValues",
    "Certificate", "ClusterSpec", "Communication", "Comparison", "Constant", "DeviceSpec", "Estimate",
    "Evidence", "ExecutionError", "FeedForwardSpec", "FieldComparison", "FlopCount", "GemmCurve", "Guide",
    "GuideOption", "GuideStep", "HostSpec", "Infeasible", "InputError", "Instant", "Interval", "LayerGroup", "LevelSpec",
    "LinkSpec", "MemoryTerm", "MissTerm", "ModelSpec", "NearestMiss", "Neighbour", "NvmeSpec",
    "Observation", "OffloadSpec", "OptimizerSpec", "ParallelConfig", "PeakMemory", "Phase",
    "PipelineSchedule", "Plan", "Precision", "PrecisionSpec", "Provenance", "RankMemory", "RankPeak",
    "Recommendation", "RecomputeSpec", "Rejection", "RejectionCount", "RuntimeProfile", "RuntimeRef",
    "Spec", "StageMemory", "StageSpec", "Term", "TrainableSpec", "TrainingDuration", "TrainingSpec",
    "ZeroStage", "canonical_json", "compute_plan_hash", "with_hash",
]
