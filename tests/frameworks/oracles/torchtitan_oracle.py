"""Runs under the frameworks' own interpreter: what torchtitan makes of commands. Standard input and output are JSON."""

import json
import os
import sys

from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.run import get_args_parser
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy
from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part, _get_pipeline_metadata
from torchtitan.models.llama3 import model_registry as llama3
from torchtitan.models.qwen3 import model_registry as qwen3


def ask(job):
    """The meaning of one torchrun command that was started in a folder."""
    launch = get_args_parser().parse_args(job["arguments"])
    assert launch.module
    assert launch.training_script == "torchtitan.train"
    world = int(launch.nnodes.split(":")[-1]) * int(launch.nproc_per_node)
    sys.path.insert(0, job["folder"])
    sys.modules.pop("planned_config", None)
    try:
        config = ConfigManager().parse_args(launch.training_script_args)
    finally:
        sys.path.pop(0)
    model = config.model_spec.model
    model.update_from_config(config=config)
    dims = ParallelDims.from_config(config.parallelism, world)
    return meaning(config, dims, model, world)


def meaning(config, dims, model, world):
    training, parallelism = config.training, config.parallelism
    data = dims.dp_replicate * dims.dp_shard
    piped = dims.pp > 1
    micro = parallelism.pipeline_parallel_microbatch_size if piped else training.local_batch_size
    assert training.global_batch_size % (training.local_batch_size * data) == 0
    divisor = dims.tp * (2 * dims.cp if dims.cp > 1 else 1)
    assert training.seq_len % divisor == 0
    assert isinstance(config.loss, ChunkedLossWrapper.Config)
    reshard = get_fsdp_reshard_after_forward_policy(parallelism.fsdp_reshard_after_forward, piped)
    (group,) = config.optimizer.param_groups
    multi = piped and issubclass(get_schedule_class(parallelism.pipeline_parallel_schedule), PipelineScheduleMulti)
    return {
        "world_size": world,
        "data_parallel_size": data,
        "replicate": dims.dp_replicate,
        "shard_group": dims.dp_shard * dims.cp,
        "tensor": dims.tp,
        "sequence_parallel": parallelism.enable_sequence_parallel and dims.tp > 1,
        "context": dims.cp,
        "pipeline": dims.pp,
        "schedule": parallelism.pipeline_parallel_schedule if piped else None,
        "chunks": len(split(config, dims, model)) // dims.pp if multi else 1,
        "layers_per_stage": split(config, dims, model),
        "micro_batch": micro,
        "micro_batches": training.global_batch_size // (micro * data),
        "micro_batches_in_flight": training.local_batch_size // micro,
        "global_batch": training.global_batch_size,
        "sequence": training.seq_len,
        "zero_stage": 0 if dims.dp_shard * dims.cp == 1 else 3 if reshard else 2,
        "recompute": recompute(config.activation_checkpoint),
        "compute": training.mixed_precision_param,
        "compiled": config.compile.enable,
        "loss_chunks": config.loss.num_chunks,
        "optimizer": [
            group.optimizer_name, *(group.optimizer_kwargs[key] for key in ("lr", "betas", "eps", "weight_decay")),
        ],
        "max_norm": training.max_norm,
        "model": sizes(model),
    }  # fmt: skip


def split(config, dims, model):
    """Layers of every virtual stage, as torchtitan itself splits them."""
    if dims.pp == 1:
        return [len(model.layers)]
    parallelism = config.parallelism
    count, depth, first, last = _get_pipeline_metadata(dims, parallelism, model)
    names = parallelism.module_fqns_per_model_part or _generate_llm_fqn_per_model_part(count, depth, first, last)
    listed = [name for stage in names for name in stage if name.startswith("layers.")]
    assert listed == [f"layers.{index}" for index in range(depth)]
    assert names[0][0] == "tok_embeddings"
    assert names[-1][-2:] == ["norm", "lm_head"]
    return [sum(name.startswith("layers.") for name in stage) for stage in names]


def recompute(config):
    kinds = ((SelectiveAC.Config, "op_policy"), (FullAC.Config, "full"))
    return "none" if config is None else next(kind for made, kind in kinds if isinstance(config, made))


def sizes(model):
    layer = model.layers[0]
    attention = layer.attention
    return {
        "num_hidden_layers": len(model.layers),
        "hidden_size": model.dim,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim or model.dim // attention.n_heads,
        "intermediate_size": layer.feed_forward.w1.out_features,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.enable_weight_tying,
        "max_positions": attention.rope.max_seq_len,
    }


def defaults(preset):
    """What a config function sets."""
    config = ConfigManager().parse_args(["--module", preset["module"], "--config", preset["config"]])
    training, parallelism = config.training, config.parallelism
    return {
        "model": sizes(config.model_spec.model),
        "seq_len": training.seq_len,
        "local_batch_size": training.local_batch_size,
        "tensor_parallel_degree": parallelism.tensor_parallel_degree,
        "recompute": recompute(config.activation_checkpoint),
        "compiled": config.compile.enable,
        "others_are_one": [
            parallelism.context_parallel_degree, parallelism.pipeline_parallel_degree,
            parallelism.data_parallel_replicate_degree, -parallelism.data_parallel_shard_degree,
        ],
        "global_batch_size": training.global_batch_size,
    }  # fmt: skip


def deal(case):
    """Layers of every stage, or None where torchtitan refuses."""
    depth, stages, first, last = case
    try:
        names = _generate_llm_fqn_per_model_part(stages, depth, first, last)
    except ValueError:
        return None
    return [sum(name.startswith("layers.") for name in stage) for stage in names]


def answer(function, one):
    """The function's result, or the error that torchtitan ends with (its parser exits)."""
    try:
        return function(one)
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    asked = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    registries = {"llama3": llama3, "qwen3": qwen3}
    answers = {
        "jobs": [answer(ask, job) for job in asked.get("jobs", ())],
        "flavors": [sizes(registries[module](name).model) for module, name in asked.get("flavors", ())],
        "splits": [deal(case) for case in asked.get("splits", ())],
        "presets": [answer(defaults, preset) for preset in asked.get("presets", ())],
    }
    json.dump(answers, output)


if __name__ == "__main__":
    main()
