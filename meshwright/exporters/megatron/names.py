"""What Megatron-LM calls the sizes of a plan, and which of its arguments are dead, or mean what no plan can say.

The names are those of d98e8a64 (`arguments.json`, listed from its own parser). Beside each dead name stands what replaced it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

VERSION = "d98e8a64"

TENSOR, PIPELINE, CONTEXT = "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"
CONTEXT_METHOD = "--cp-comm-type"
SEQUENCE_PARALLEL = "--sequence-parallel"
LAYERS_PER_CHUNK, NUM_CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
LAYOUT = "--pipeline-model-parallel-layout"
FIRST_LAYERS, LAST_LAYERS = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
COUNT_EMBEDDING, COUNT_LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
DATA_OUTERMOST = "--use-tp-pp-dp-mapping"
DISTRIBUTED_OPTIMIZER = "--use-distributed-optimizer"
MICRO_BATCH, GLOBAL_BATCH, SEQUENCE = "--micro-batch-size", "--global-batch-size", "--seq-length"
RECOMPUTE, RECOMPUTE_METHOD, RECOMPUTE_LAYERS = (
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
)
RECOMPUTE_MODULES, RECOMPUTE_SELECTIVE = "--recompute-modules", "--recompute-activations"
NUM_LAYERS = "--num-layers"

# Field of `ParallelConfig` or of the training -> argument; what has no entry follows from the others.
FIELDS = {
    "tensor_parallel_size": TENSOR,
    "sequence_parallel": SEQUENCE_PARALLEL,
    "pipeline_parallel_size": PIPELINE,
    "num_model_chunks": NUM_CHUNKS,
    "context_parallel_size": CONTEXT,
    "context_parallel_method": CONTEXT_METHOD,
    "zero_stage": DISTRIBUTED_OPTIMIZER,
    "micro_batch_size": MICRO_BATCH,
    "global_batch_size": GLOBAL_BATCH,
    "sequence_length": SEQUENCE,
    "recompute": RECOMPUTE,
    "layers_per_stage": LAYOUT,
    "axis_order": DATA_OUTERMOST,
    "num_devices": "--nproc-per-node x --nnodes",
}
CONTEXT_METHODS = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}

# training/arguments.py, validate_args: each raises there.
DEAD = {
    "--model-parallel-size": TENSOR,
    "--batch-size": MICRO_BATCH,
    "--checkpoint-activations": f"{RECOMPUTE_SELECTIVE}, or {RECOMPUTE} full",
    "--warmup": "--lr-warmup-fraction",
}
# Arguments that change time or memory in a way that no plan of runtime megatron holds, with the value that changes nothing.
NOT_MODELLED: dict[str, str | None] = {
    "--use-megatron-fsdp": None,
    "--use-torch-fsdp2": None,
    "--num-distributed-optimizer-instances": "1",
    "--expert-tensor-parallel-size": "1",
    "--tensor-parallel-num-weight-shards": "1",
    "--optimizer-cpu-offload": None,
    "--cpu-offloading-num-layers": "0",
    "--fine-grained-activation-offloading": None,
    "--multi-latent-attention": None,
    "--mtp-num-layers": "0",
    "--hybrid-layer-pattern": None,
    "--hybrid-override-pattern": None,
    "--hierarchical-context-parallel-sizes": None,
    "--hybrid-context-parallel": None,
    "--fp4-format": None,
    "--use-precision-aware-optimizer": None,
    "--heterogeneous-layers-config-path": None,
}
# The same, but the plan without it is near enough to be worth its figures: argument -> what the figures leave out.
ROUGHLY = {
    "--tp-comm-overlap": "the overlap of tensor-parallel collectives with products",
    "--rampup-batch-size": "the smaller batches at the start",
    "--step-batch-size-schedule": "the smaller batches at the start",
    "--distribute-saved-activations": "the inputs of recomputed layers are counted whole on every tensor-parallel rank",
    "--overlap-param-gather-with-optimizer-step": "the overlap of the optimizer step with gathers",
    "--delay-wgrad-compute": "weight gradients that are made later",
    "--fp8-param-gather": "parameters are gathered in bf16",
    "--no-gradient-accumulation-fusion": "gradients are added up in the products",
    "--cuda-graph-impl": "CUDA graphs",
    "--enable-cuda-graph": "CUDA graphs",
    "--external-cuda-graph": "CUDA graphs",
    "--no-overlap-p2p-communication": "messages between stages overlap under interleaving",
    "--defer-embedding-wgrad-compute": "the head's weight gradient made later",
}


@lru_cache(maxsize=1)
def arguments() -> dict[str, int | str]:
    """Every argument of the parser -> how many values it takes: a number, ``?``, ``*`` or ``+``."""
    text = Path(__file__).with_name("arguments.json").read_text(encoding="utf-8")
    found: dict[str, int | str] = json.loads(text)["arguments"]
    return found
