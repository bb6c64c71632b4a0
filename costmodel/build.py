"""Assemble a complete `Plan` from its parts."""

from __future__ import annotations

from costmodel.specs import (
    DEFAULT_AXIS_ORDER,
    Axis,
    ClusterSpec,
    ModelSpec,
    ParallelConfig,
    Plan,
    RuntimeProfile,
    RuntimeRef,
    TrainingSpec,
    with_hash,
)
from costmodel.stages import Recomputation, make_stages
from costmodel.vocabulary import padded_model


def build_plan(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    parallel: ParallelConfig,
    *,
    recompute: Recomputation = "none",
    layers_per_stage: tuple[int, ...] | None = None,
    axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER,
) -> Plan:
    """A hashed plan without an estimate; its model has the table that the runtime pads. ``recompute``: see `make_stages`.

    Raises:
        InputError: when the layers do not fit the stages. Every other rule is runtimes/rules.py's.
    """
    stages = make_stages(
        model.num_hidden_layers,
        parallel.pipeline_parallel_size,
        parallel.num_model_chunks,
        schedule=parallel.pipeline_schedule,
        recompute=recompute,
        layers_per_stage=layers_per_stage,
    )
    return with_hash(
        Plan(
            model=padded_model(model, runtime, parallel.tensor_parallel_size),
            cluster=cluster,
            training=training,
            runtime=RuntimeRef(name=runtime.name, version=runtime.version),
            parallel=parallel,
            axis_order=axis_order,
            stages=stages,
            num_devices_used=parallel.num_devices,
        )
    )
