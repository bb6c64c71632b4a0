"""How the work is split. Sizes multiply to the devices used; cross-field rules live in runtimes/rules.py.

devices used = pipeline x data_parallel_replicate x data_parallel_shard x context x tensor
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from hardware_profiles.spec import Spec

PipelineSchedule = Literal[
    "none",
    "naive",
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "interleaved_zero_bubble",
    "zbv_zero_bubble",
    "dualpipe_v",
]
ZeroStage = Literal[0, 1, 2, 3]
ContextParallelMethod = Literal["ring", "all_gather", "all_to_all"]


class ParallelConfig(Spec):
    """The sizes of a plan.

    ``hierarchical_partition_size`` (hpZ) keeps a second 16-bit copy per group of that many devices;
    None means off. ``num_micro_batches`` are the gradient accumulation steps of one data-parallel
    rank: global_batch_size = micro_batch_size x num_micro_batches x data_parallel_size.
    ``pipeline_schedule`` is "none" exactly when ``pipeline_parallel_size`` is 1; costmodel/schedules.py describes each, and
    costmodel/runtimes/placement.py where its ``num_model_chunks`` chunks of a rank lie in the model. ``context_parallel_size``
    devices share every sequence: ``ring`` passes keys and values on (arXiv 2310.01889), ``all_gather``
    gathers them, ``all_to_all`` exchanges the sequence for heads around attention (arXiv 2309.14509); the
    method is None exactly when the size is 1. Fields typed with a single value are reserved: they refuse
    every other value until they are implemented.
    """

    tensor_parallel_size: PositiveInt = 1
    sequence_parallel: bool = False
    loss_parallel: bool = False
    pipeline_parallel_size: PositiveInt = 1
    pipeline_schedule: PipelineSchedule = "none"
    num_model_chunks: PositiveInt = 1
    data_parallel_replicate_size: PositiveInt = 1
    data_parallel_shard_size: PositiveInt = 1
    zero_stage: ZeroStage = 0
    hierarchical_partition_size: PositiveInt | None = None
    micro_batch_size: PositiveInt = 1
    num_micro_batches: PositiveInt = 1
    context_parallel_size: PositiveInt = 1
    context_parallel_method: ContextParallelMethod | None = None
    expert_parallel_size: Literal[1] = 1
    expert_tensor_parallel_size: Literal[1] = 1
    data_parallel_method: Literal["all_reduce"] = "all_reduce"
    weight_update: Literal["synchronous"] = "synchronous"
    bucket_bytes: None = None
    prefetch_depth: None = None

    @property
    def data_parallel_size(self) -> int:
        """Replicas that see different samples: replicate x shard."""
        return self.data_parallel_replicate_size * self.data_parallel_shard_size

    @property
    def num_devices(self) -> int:
        """Devices used: the product of all sizes."""
        return (
            self.data_parallel_size
            * self.tensor_parallel_size
            * self.pipeline_parallel_size
            * self.context_parallel_size
        )
