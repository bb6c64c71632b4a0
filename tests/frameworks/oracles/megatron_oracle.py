"""Runs under the frameworks' own interpreter: what megatron-core makes of Megatron-LM's arguments. JSON in and out.

Megatron-LM's training code has no package, so its arguments are put into megatron-core's configuration here as its
`core_transformer_config_from_args` does: a field of the same name, or one of `RENAMED`.
"""

import argparse
import dataclasses
import json
import sys

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import LayerType
from torch.distributed.run import get_args_parser

RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "fp8_format": "fp8",
    "swiglu": "gated_linear_unit",
}
NUMBERS = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "micro_batch_size",
    "global_batch_size", "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels", "vocab_size",
    "num_query_groups", "make_vocab_size_divisible_by", "seq_length", "max_position_embeddings", "recompute_num_layers",
    "num_layers_per_virtual_pipeline_stage",
}  # fmt: skip


def parse(words, counts):
    """The arguments with as many values as Megatron-LM's own parser takes."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, count in counts.items():
        if count == 0:
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, nargs=None if count == 1 else count)
    given = vars(parser.parse_args(words))
    return {
        name: int(value) if name in NUMBERS else value for name, value in given.items() if value not in (None, False)
    }


def configuration(given):
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    content = {RENAMED.get(name, name): value for name, value in given.items() if RENAMED.get(name, name) in fields}
    dtype = torch.bfloat16 if given.get("bf16") else torch.float16 if given.get("fp16") else torch.float32
    content |= {"params_dtype": dtype, "pipeline_dtype": dtype, "add_bias_linear": not given.get("disable_bias_linear")}
    content |= {name: float(given[flag]) for name, flag in (("layernorm_epsilon", "norm_epsilon"),)}
    content |= {name: float(given[name]) for name in ("hidden_dropout", "attention_dropout")}
    content["activation_func"] = F.silu if given.get("swiglu") else F.gelu
    content.pop("attention_backend", None)
    if not given.get("group_query_attention"):
        content["num_query_groups"] = None
    if "cp_comm_type" in content:
        (content["cp_comm_type"],) = content["cp_comm_type"]
    if "window_size" in content:
        content["window_size"] = tuple(int(part) for part in content["window_size"].split(","))
    if (size := given.get("num_layers_per_virtual_pipeline_stage")) is not None:
        ranks = given["pipeline_model_parallel_size"]
        content["virtual_pipeline_model_parallel_size"] = given["num_layers"] // (ranks * size)
    return TransformerConfig(**content)


def layers(config, given):
    """Layers of every virtual stage, in the order of the model."""
    ranks = config.pipeline_model_parallel_size
    chunks = config.virtual_pipeline_model_parallel_size or 1
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        return [config.num_layers // (ranks * chunks)] * (ranks * chunks)
    layout.validate_layer_layout(config.num_layers, None)
    rows = layout.layout
    return [rows[rank][chunk].count(LayerType.decoder) for chunk in range(len(rows[0])) for rank in range(ranks)]


def ask(job, counts):
    launch = get_args_parser().parse_args(job["arguments"])
    assert launch.training_script.endswith("pretrain_gpt.py")
    given = parse(launch.training_script_args, counts)
    config = configuration(given)
    stages = layers(config, given)
    world = int(launch.nnodes.split(":")[-1]) * int(launch.nproc_per_node)
    split = config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
    data, rest = divmod(world, split)
    assert rest == 0
    steps, rest = divmod(given["global_batch_size"], given["micro_batch_size"] * data)
    assert rest == 0
    return {
        "world_size": world,
        "data_parallel_size": data,
        "shard_group": data * config.context_parallel_size if given.get("use_distributed_optimizer") else 1,
        "tensor": config.tensor_model_parallel_size,
        "sequence_parallel": config.sequence_parallel,
        "pipeline": config.pipeline_model_parallel_size,
        "context": config.context_parallel_size,
        "context_method": config.cp_comm_type if config.context_parallel_size > 1 else None,
        "layers_per_stage": stages,
        "micro_batch_size": given["micro_batch_size"],
        "accumulation": steps,
        "recompute": [config.recompute_granularity, config.recompute_method, config.recompute_num_layers],
        "parameters": str(config.params_dtype),
        "fp8": config.fp8_recipe if config.fp8 else None,
        "heads": [config.num_attention_heads, config.num_query_groups, config.kv_channels],
        "feed_forward": [config.ffn_hidden_size, config.gated_linear_unit, config.add_bias_linear],
    }


if __name__ == "__main__":
    question = json.load(sys.stdin)
    json.dump([ask(job, question["counts"]) for job in question["jobs"]], sys.stdout)
