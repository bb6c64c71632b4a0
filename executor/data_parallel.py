"""Data parallelism: `replicate`, ZeRO by `fully_shard` flags, hybrid shard and hpZ.

One group of parameters per transformer layer is communicated together; embedding, final norm and head form the root group.
ZeRO stages differ only in when parameters are freed and gradients reduced (arXiv 1910.02054, section 5):

    stage   parameters gathered                       gradients reduced (reduce-scattered)
    0       never (whole)                             in the last micro batch
    1       once per step                             in the last micro batch
    2       once per step                             in every micro batch
    3       in every forward and every backward       in every micro batch

With replicas of the shards (hybrid shard) the shards' gradients are all-reduced over the replicas in the last micro batch.
hpZ (ZeRO++, arXiv 2306.10209) is stage 3 whose backward gathers inside groups of ``hierarchical_partition_size``.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from costmodel.specs import ParallelConfig, Plan
from executor.adapter import replicate, reshard_to_partitions, sum_addends_in_reduce_format
from executor.hf_models import DTYPES, Stage
from executor.mesh import Mesh, partition_mesh


def wrap_data_parallel(stage: Stage, plan: Plan, mesh: Mesh) -> None:
    """Wrap a stage and its layers in place; nothing to do for one replica without mixed precision."""
    parallel, precision = plan.parallel, plan.training.precision
    mixed = precision.compute != precision.parameter
    if parallel.data_parallel_size == 1 and not mixed:
        return
    policy = MixedPrecisionPolicy()
    if mixed:
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce])
    modules: list[nn.Module] = [*stage.layers.values(), stage]
    if parallel.data_parallel_shard_size == 1 and parallel.data_parallel_replicate_size > 1:
        for module in modules:
            replicate(module, mesh=mesh["dp_replicate"], mp_policy=policy)
    else:
        axes = ("dp_replicate", "dp_shard") if parallel.data_parallel_replicate_size > 1 else "dp_shard"
        for module in modules:
            fully_shard(module, mesh=mesh[axes], mp_policy=policy, reshard_after_forward=parallel.zero_stage == 3)
    sum_addends_in_reduce_format(stage)
    if parallel.hierarchical_partition_size is not None:
        reshard_to_partitions(stage, partition_mesh(plan, mesh))


def prepare_micro_batch(module: nn.Module, parallel: ParallelConfig, *, last: bool) -> None:
    """Set what the next forward and backward communicates, by the table above. Not for pipelines: their schedule does."""
    if not isinstance(module, FSDPModule):
        return
    module.set_requires_gradient_sync(last or parallel.zero_stage >= 2)
    if parallel.data_parallel_shard_size > 1 and parallel.data_parallel_replicate_size > 1:
        module.set_requires_all_reduce(last)
    module.set_reshard_after_backward(last or parallel.zero_stage == 3)
    module.set_is_last_backward(last)
