"""The numbers that the decision guide asks for: what fits where, and whether the link between nodes is fast.

A link is fast for ZeRO-3 when gathering and reducing takes no longer than the computation it can hide behind.
With P parameters, T tokens of one device per step, m micro-batches, n devices, peak F and GEMM fraction e:

    communication seconds per step = m (all-gather of P in the compute format, twice) + reduce-scatters of P   (1)
    compute seconds per step       = 6 P T / (e F)                                                            (2)
    crossover rate                 = link rate x (1) / (2)                                                    (3)

m is the smallest that fits under ZeRO-3 in the searched space; where none does, one sequence is one micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.collectives import all_gather_seconds, group, network, reduce_scatter_seconds
from costmodel.layer_kinds import layer_kinds
from costmodel.models.parameters import (
    embedding_tensors,
    head_tensors,
    num_layer_parameters,
    num_parameters,
)
from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import BYTES_PER_ELEMENT, ClusterSpec, ParallelConfig, TrainingSpec
from planner.candidates import Candidates, device_bytes
from planner.context_values import LEAST_TOKENS, why_not_cut
from planner.infeasible import frugal_space, least_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Equations (1) to (3) between nodes; ``reduce_count``: reduce-scatters per step."""

    name: str
    communication_seconds: float
    compute_seconds: float
    link_bytes_per_second: float
    crossover_bytes_per_second: float
    num_micro_batches: int

    @property
    def fast(self) -> bool:
        """Communication can hide behind computation."""
        return self.communication_seconds <= self.compute_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the guide's questions are answered with; bytes are those of the fullest device."""

    num_devices: int
    devices_per_node: int
    capacity_bytes: int
    one_device_bytes: int
    one_node_bytes: int | None
    largest_layer_bytes: int
    gathered_layer_bytes: int
    link: LinkSpeed | None
    sequence_length: int
    why_not_cut: str | None

    @property
    def fits_device(self) -> bool:
        """One device trains the whole model, micro batch 1."""
        return self.one_device_bytes <= self.capacity_bytes

    @property
    def fits_node(self) -> bool:
        """The devices of one node together train the whole model."""
        return self.one_node_bytes is not None and self.one_node_bytes <= self.capacity_bytes

    @property
    def largest_layer_fits(self) -> bool:
        """One device holds the training state of the largest layer."""
        return self.largest_layer_bytes <= self.capacity_bytes

    @property
    def long_sequences(self) -> bool:
        """Two devices could share a sequence and keep as much of it as is searched (context_values.py)."""
        return self.sequence_length >= 2 * LEAST_TOKENS

    @property
    def gathered_layer_fits(self) -> bool:
        """One device holds the largest layer as ZeRO gathers it."""
        return self.gathered_layer_bytes <= self.capacity_bytes


def gather_facts(candidates: Candidates) -> Facts:
    """All facts about one sifted space."""
    context = candidates.context
    cluster = context.cluster
    largest = _largest_layer_parameters(context)
    return Facts(
        num_devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        capacity_bytes=context.usable_bytes,
        one_device_bytes=_one_device_bytes(context),
        one_node_bytes=_one_node_bytes(context),
        largest_layer_bytes=largest * state_bytes_per_parameter(context.training),
        gathered_layer_bytes=largest * _gathered_bytes_per_parameter(context.training),
        link=_link_speed(candidates) if cluster.num_nodes > 1 else None,
        sequence_length=context.training.sequence_length,
        why_not_cut=why_not_cut(context),
    )


def state_bytes_per_parameter(training: TrainingSpec) -> int:
    """Parameter, master copy, gradient and moments, as in ZeRO's 2 + 2 + 12 (arXiv 1910.02054, section 3.1)."""
    precision = training.precision
    held = [precision.parameter, precision.gradient, *([precision.state] * training.optimizer.num_moments)]
    return sum(BYTES_PER_ELEMENT[name] for name in [*held, *([precision.master] if precision.master else [])])


def _gathered_bytes_per_parameter(training: TrainingSpec) -> int:
    """A gathered parameter and its gradient before reduction."""
    return 2 * BYTES_PER_ELEMENT[training.precision.compute]


def _largest_layer_parameters(context: RuleContext) -> int:
    """Parameters of the largest transformer layer, embedding or head."""
    model = context.model
    tables = (embedding_tensors(model), head_tensors(model))
    return max(
        *(num_layer_parameters(model, kind.first) for kind in layer_kinds(model)),
        *(sum(tensor.num_elements for tensor in tensors) for tensors in tables),
    )


def _one_device_bytes(context: RuleContext) -> int:
    """Least memory of the whole model on one device, micro batch 1, over the runtime's recompute kinds."""
    sizes = ParallelConfig(num_micro_batches=context.training.global_batch_size)
    kinds = [kind for kind in RECOMPUTE_KINDS if kind in context.runtime.recompute_kinds]
    whole = replace(context, layers_per_stage=None)
    return int(device_bytes(whole, Grid.joined([Grid.from_parallel(sizes, kind) for kind in kinds])).min())


def one_node(cluster: ClusterSpec) -> ClusterSpec:
    """The first node of a cluster."""
    return cluster.model_copy(update={"levels": cluster.levels[:1], "name": f"one node of {cluster.name}"})


def _one_node_bytes(context: RuleContext) -> int | None:
    """Least memory of any plan on one node; None when no plan obeys the rules there."""
    space = frugal_space(context, cluster=one_node(context.cluster))
    least = None if space is None else least_memory(space)
    return None if least is None else int(least.needed_bytes)


def _least_micro_batches(candidates: Candidates) -> int:
    """The fewest micro-batches of a ZeRO-3 candidate over all devices that fits; one sequence each where none does."""
    grid, context = candidates.grid, candidates.context
    whole = (grid.tensor_parallel_size == 1) & (grid.pipeline_parallel_size == 1)
    zero3 = grid.take((grid.zero_stage == 3) & whole)
    counts = zero3.num_micro_batches[device_bytes(context, zero3) <= context.usable_bytes]
    alone = max(1, context.training.global_batch_size // context.cluster.num_devices)
    return int(counts.min()) if len(counts) else alone


def _link_speed(candidates: Candidates) -> LinkSpeed:
    """Equations (1) to (3)."""
    context = candidates.context
    cluster, training, precision = context.cluster, context.training, context.training.precision
    devices, parameters = cluster.num_devices, num_parameters(context.model)
    count = _least_micro_batches(candidates)
    column = np.array([float(devices)])
    everyone = group(network(cluster), size=column, stride=np.ones(1), devices=column)
    layers = float(context.model.num_hidden_layers + 1)
    gathered = np.array([float(parameters * BYTES_PER_ELEMENT[precision.compute])])
    reduced = np.array([float(parameters * BYTES_PER_ELEMENT[precision.reduce])])
    gathers = 2 * count * float(all_gather_seconds(everyone, gathered, layers)[0])
    communication = gathers + count * float(reduce_scatter_seconds(everyone, reduced, layers)[0])
    tokens = training.global_batch_size * training.sequence_length / devices
    device = cluster.device
    compute = 6 * parameters * tokens / (device.gemm.max_fraction * device.peak_flops_per_second[precision.compute])
    rate = float(everyone.bytes_per_second[0])
    return LinkSpeed(
        name=cluster.levels[-1].link.name,
        communication_seconds=communication,
        compute_seconds=compute,
        link_bytes_per_second=rate,
        crossover_bytes_per_second=rate * communication / compute,
        num_micro_batches=count,
    )
