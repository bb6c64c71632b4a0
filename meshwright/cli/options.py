"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

_WHOLE_NUMBER = re.compile(r" *[+-]?[0-9]{1,100} *", re.ASCII)


def number(name: str, text: str = "", *, lowest: int = 1, metavar: str = "N") -> Any:
    """An option that takes a whole number of at least ``lowest`` and says what it found instead."""

    def parse(word: str | int) -> int:
        found = str(word)
        if not _WHOLE_NUMBER.fullmatch(found) or int(found) < lowest:
            raise typer.BadParameter(f"found {found[:40]!r}; needed a whole number of at least {lowest}")
        return int(found)

    return typer.Option(name, help=text, parser=parse, metavar=metavar)


def text(name: str, help_text: str = "", *, metavar: str | None = None) -> Any:
    """An option that takes a word."""
    return typer.Option(name, help=help_text, metavar=metavar)


_MODEL = text("--model", "A catalogue name, a config.json, or a folder that holds one.", metavar="M")
_CLUSTER = text("--cluster", "8xH100-SXM (one node), 16x8xA100-SXM-80GB (16 nodes of 8), or a YAML file.", metavar="C")
_GLOBAL_BATCH_SIZE = number("--global-batch-size", "Sequences per optimizer step.")
_SEQUENCE_LENGTH = number("--sequence-length", "Tokens per sequence.", metavar="S")

Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
Cluster = Annotated[str, _CLUSTER]
OptionalCluster = Annotated[str | None, _CLUSTER]
GlobalBatchSize = Annotated[int, _GLOBAL_BATCH_SIZE]
OptionalGlobalBatchSize = Annotated[int | None, _GLOBAL_BATCH_SIZE]
SequenceLength = Annotated[int, _SEQUENCE_LENGTH]
OptionalSequenceLength = Annotated[int | None, _SEQUENCE_LENGTH]
Runtime = Annotated[
    str,
    text(
        "--runtime",
        "Training framework: torch (our own executor), megatron, nemo, torchtitan, deepspeed, ...; a wrong name lists all.",
    ),
]
Precision = Annotated[
    str | None,
    text("--precision", "bf16, fp16, fp32, fp64 or fp8. Default: bf16 where the device has it, fp32 on a cpu."),
]
Optimizer = Annotated[str, text("--optimizer", "adamw or sgd.")]
Attention = Annotated[str, text("--attention", "fused (flash-like) or unfused (score matrix in memory).")]
LossChunks = Annotated[
    int, number("--loss-chunks", "Parts of a sequence whose logits exist one at a time, where the runtime can.")
]
Tokens = Annotated[
    str | None,
    text("--tokens", "Also say how long training on this many tokens takes: 300e9, 300B, 2T.", metavar="T"),
]
Site = Annotated[
    Path | None,
    typer.Option("--site", metavar="FILE", readable=False, help="Corrections that `meshwright calibrate` wrote."),
]
MaxMemoryFraction = Annotated[
    str | None,
    text("--max-memory-fraction", "Share of a device's memory that a plan may use: 0.9 or 90%.", metavar="F"),
]
ReserveMemory = Annotated[
    str | None, text("--reserve-memory", "Memory of a device to leave to others: 4GiB.", metavar="SIZE")
]
Price = Annotated[
    str | None, text("--price", "Price of a device-hour, in any currency. Default: the cluster's.", metavar="P")
]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", metavar="AXIS=VALUE", help="Hold one axis at one value; repeatable.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="AXIS=1,2,4",
        help="Search only these values; pipeline_schedule=all takes all that the runtime has; repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, alone on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", readable=False, help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Launcher = Annotated[
    str | None,
    text("--launcher", "What a slurm job starts. Default: what the plan's runtime is started by.", metavar="TARGET"),
]
Timeout = Annotated[
    int | None, number("--timeout", "Seconds that nodes and processes wait for one another. Default: 60.", metavar="S")
]
IgnoreMemory = Annotated[
    bool, typer.Option("--ignore-memory", help="Estimate although the plan does not fit; the answer is labelled so.")
]
# readable=False: the check is ours, with one wording for every file.
_PLAN_HELP = "A plan file, or a recommendation (its best plan)."
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", readable=False, help=_PLAN_HELP)]
OptionalPlanFile = Annotated[Path | None, typer.Argument(metavar="PLAN", readable=False, help=_PLAN_HELP)]

# Sizes of a plan, for `estimate`; each is a field of ParallelConfig.
TensorParallelSize = Annotated[int | None, number("--tensor-parallel-size")]
SequenceParallel = Annotated[bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel")]
LossParallel = Annotated[bool | None, typer.Option("--loss-parallel/--no-loss-parallel")]
PipelineParallelSize = Annotated[int | None, number("--pipeline-parallel-size")]
PipelineSchedule = Annotated[
    str | None,
    text(
        "--pipeline-schedule",
        "naive, gpipe, 1f1b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv_zero_bubble or dualpipe_v.",
    ),
]
NumModelChunks = Annotated[int | None, number("--num-model-chunks", "Chunks of a pipeline rank (interleaving).")]
DataParallelReplicateSize = Annotated[int | None, number("--data-parallel-replicate-size", "Replicas.")]
DataParallelShardSize = Annotated[int | None, number("--data-parallel-shard-size", "Devices that ZeRO shards over.")]
ContextParallelSize = Annotated[int | None, number("--context-parallel-size", "Devices that share every sequence.")]
ContextParallelMethod = Annotated[str | None, text("--context-parallel-method", "ring, all_gather or all_to_all.")]
ZeroStage = Annotated[int | None, number("--zero-stage", "0, 1, 2 or 3.", lowest=0)]
HierarchicalPartitionSize = Annotated[
    int | None, number("--hierarchical-partition-size", "hpZ: devices that hold a second 16-bit copy together.")
]
MicroBatchSize = Annotated[int | None, number("--micro-batch-size", "Sequences per forward pass.")]
NumMicroBatches = Annotated[int | None, number("--num-micro-batches", "Forward passes per step of one replica.")]
Recompute = Annotated[
    str,
    text(
        "--recompute",
        "none, core_attention (selective), op_policy (where the runtime has it) or full; one for every virtual stage: "
        "full:2,none is full in the first two layers of the first.",
    ),
]
LayersPerStage = Annotated[str | None, text("--layers-per-stage", "Uneven pipeline stages.", metavar="10,12,...")]
AxisOrder = Annotated[str, text("--axis-order", "Which ranks are neighbours: data_outermost keeps pipelines together.")]
SIZE_NAMES = (
    "tensor_parallel_size", "sequence_parallel", "loss_parallel", "pipeline_parallel_size", "pipeline_schedule",
    "num_model_chunks", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage",
    "hierarchical_partition_size", "micro_batch_size", "num_micro_batches", "context_parallel_size",
    "context_parallel_method",
)  # fmt: skip
Exact = Annotated[bool, typer.Option("--exact", help="Go on until no plan of the space can be faster, or say why not.")]
TimeLimit = Annotated[
    int | None, number("--time-limit", "Seconds to spend on proving the answer at most.", metavar="SECONDS")
]
Top = Annotated[
    int | None, number("--top", "Also print how to measure the best N layouts; as many plans are shown.", metavar="N")
]
Objective = Annotated[
    str | None,
    text("--objective", "step-time (default), devices, cost or memory-headroom.", metavar="OBJECTIVE"),
]
Within = Annotated[
    str | None,
    text("--within", "How much slower a plan with more memory headroom may be. Default: 10%.", metavar="F"),
]
MinimumDevices = Annotated[
    bool, typer.Option("--minimum-devices", help="The fewest devices on which a plan fits (--objective devices).")
]
Maximize = Annotated[
    str | None,
    text(
        "--maximize",
        "The largest sequence_length, micro_batch_size or global_batch_size for which a plan fits.",
        metavar="WHAT",
    ),
]
Granularity = Annotated[
    int | None, number("--granularity", "Maximized sequence lengths are multiples of it. Default: 1024.")
]
ExportTo = Annotated[
    str | None,
    text(
        "--export-to",
        "Write the plans worth measuring (--top, 5) for this target, each into a folder of its own in that of -o.",
        metavar="TARGET",
    ),
]
