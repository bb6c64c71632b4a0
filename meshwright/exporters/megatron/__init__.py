"""Megatron-LM: a launch script of pretrain_gpt.py, written and read."""

from __future__ import annotations

from costmodel.specs import AXIS_ORDERS
from meshwright.exporters.base import Exporter
from meshwright.exporters.megatron.names import VERSION
from meshwright.exporters.megatron.read import read, recognises
from meshwright.exporters.megatron.write import reject, render

MEGATRON = Exporter(
    name="megatron",
    target="bash script for torchrun and Megatron-LM's pretrain_gpt.py",
    tested_versions=(VERSION,),
    fields=frozenset(
        {
            "tensor_parallel_size",
            "sequence_parallel",
            "loss_parallel",
            "pipeline_parallel_size",
            "pipeline_schedule",
            "num_model_chunks",
            "data_parallel_replicate_size",
            "data_parallel_shard_size",
            "zero_stage",
            "micro_batch_size",
            "num_micro_batches",
            "context_parallel_size",
            "context_parallel_method",
        }
    ),
    runtimes=("megatron",),
    axis_orders=tuple(AXIS_ORDERS),
    render=render,
    reject=reject,
    recognises=recognises,
    read=read,
)
