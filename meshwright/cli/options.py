"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = typer.Option("--model", help="A catalogue name, a config.json, or a folder that holds one.")
_CLUSTER = typer.Option("--cluster", help="8xH100-SXM (one node), 16x8xA100-SXM-80GB (16 nodes of 8), or a YAML file.")
_GLOBAL_BATCH_SIZE = typer.Option("--global-batch-size", help="Sequences per optimizer step.")
_SEQUENCE_LENGTH = typer.Option("--sequence-length", help="Tokens per sequence.")

Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
Cluster = Annotated[str, _CLUSTER]
OptionalCluster = Annotated[str | None, _CLUSTER]
GlobalBatchSize = Annotated[int, _GLOBAL_BATCH_SIZE]
OptionalGlobalBatchSize = Annotated[int | None, _GLOBAL_BATCH_SIZE]
SequenceLength = Annotated[int, _SEQUENCE_LENGTH]
OptionalSequenceLength = Annotated[int | None, _SEQUENCE_LENGTH]
Runtime = Annotated[str, typer.Option("--runtime", help="Training framework: torch (our own executor) or megatron.")]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="bf16, fp16, fp32 or fp64. Default: bf16 where the device has it, fp32 on a cpu."),
]
Optimizer = Annotated[str, typer.Option("--optimizer", help="adamw or sgd.")]
Attention = Annotated[str, typer.Option("--attention", help="fused (flash-like) or unfused (score matrix in memory).")]
Tokens = Annotated[
    str | None, typer.Option("--tokens", help="Also say how long training on this many tokens takes: 300e9, 300B, 2T.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, alone on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
IgnoreMemory = Annotated[
    bool, typer.Option("--ignore-memory", help="Estimate although the plan does not fit; the answer is labelled so.")
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, or a recommendation (its best plan).")]

# Sizes of a plan, for `estimate`; each is a field of ParallelConfig.
TensorParallelSize = Annotated[int | None, typer.Option("--tensor-parallel-size", rich_help_panel="Sizes")]
SequenceParallel = Annotated[
    bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", rich_help_panel="Sizes")
]
LossParallel = Annotated[bool | None, typer.Option("--loss-parallel/--no-loss-parallel", rich_help_panel="Sizes")]
PipelineParallelSize = Annotated[int | None, typer.Option("--pipeline-parallel-size", rich_help_panel="Sizes")]
PipelineSchedule = Annotated[
    str | None,
    typer.Option("--pipeline-schedule", help="naive, gpipe, 1f1b or interleaved_1f1b.", rich_help_panel="Sizes"),
]
NumModelChunks = Annotated[
    int | None, typer.Option("--num-model-chunks", help="Chunks of a pipeline rank.", rich_help_panel="Sizes")
]
DataParallelReplicateSize = Annotated[
    int | None, typer.Option("--data-parallel-replicate-size", rich_help_panel="Sizes")
]
DataParallelShardSize = Annotated[
    int | None,
    typer.Option("--data-parallel-shard-size", help="Devices ZeRO shards over.", rich_help_panel="Sizes"),
]
ZeroStage = Annotated[int | None, typer.Option("--zero-stage", help="0, 1, 2 or 3.", rich_help_panel="Sizes")]
HierarchicalPartitionSize = Annotated[
    int | None, typer.Option("--hierarchical-partition-size", help="hpZ.", rich_help_panel="Sizes")
]
MicroBatchSize = Annotated[int | None, typer.Option("--micro-batch-size", rich_help_panel="Sizes")]
NumMicroBatches = Annotated[int | None, typer.Option("--num-micro-batches", rich_help_panel="Sizes")]
Recompute = Annotated[
    str, typer.Option("--recompute", help="none, core_attention (selective) or full.", rich_help_panel="Sizes")
]
LayersPerStage = Annotated[
    str | None,
    typer.Option("--layers-per-stage", metavar="10,12,...", help="Uneven pipeline stages.", rich_help_panel="Sizes"),
]
SIZE_NAMES = (
    "tensor_parallel_size", "sequence_parallel", "loss_parallel", "pipeline_parallel_size", "pipeline_schedule",
    "num_model_chunks", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage",
    "hierarchical_partition_size", "micro_batch_size", "num_micro_batches",
)  # fmt: skip
