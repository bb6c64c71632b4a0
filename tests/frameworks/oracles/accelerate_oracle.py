"""Runs under the frameworks' own interpreter: what accelerate makes of its YAML and of its launcher's arguments."""

import inspect
import json
import os
import sys
from dataclasses import fields
from pathlib import Path

from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils import launch as launch_utils
from accelerate.utils.environment import parse_choice_from_env
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def environment(words):
    """What the launcher hands to the processes of one node, and the launcher's arguments."""
    args = launch_command_parser().parse_args(words)
    args, defaults, _ = _validate_launch_command(args)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        return args, prepare_deepspeed_cmd_env(args)[1]
    return args, prepare_multi_gpu_env(args)


def ask(job):
    assert job["arguments"][0] == "launch"
    kept = dict(os.environ)
    os.environ.update({key: value for key, value in job["environment"].items() if key.startswith("ACCELERATE_")})
    try:
        args, made = environment(job["arguments"][1:])
        os.environ.update(made)
        return meaning(args, job["environment"])
    finally:
        os.environ.clear()
        os.environ.update(kept)


def meaning(args, given):
    sizes = ParallelismConfig()
    world = args.num_processes
    whole = sizes.total_size if args.use_parallelism_config else None
    assert whole in (None, world), (whole, world)
    assert int(args.nproc_per_node) * (int(args.nnodes) if args.num_machines > 1 else 1) == world
    found = {
        "world_size": world,
        "kind": "deepspeed" if args.use_deepspeed else "fsdp" if args.use_fsdp else "ddp" if args.multi_gpu else "no",
        "replicate": sizes.dp_replicate_size,
        "shard": sizes.dp_shard_size,
        "tensor": sizes.tp_size,
        "context": sizes.cp_size,
        "compute": args.mixed_precision,
        "micro_batches": parse_choice_from_env("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1),
        "micro_batch": given["MICRO_BATCH_SIZE"],
        "sequence": given["SEQUENCE_LENGTH"],
        "script": args.training_script,
    }
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
        assert not plugin.cpu_offload or not getattr(plugin.cpu_offload, "pin_memory", False)
        found |= {"zero_stage": 3 if plugin.reshard_after_forward else 2, "recompute": plugin.activation_checkpointing}
    if args.use_deepspeed:
        plugin = DeepSpeedPlugin()
        found |= {
            "zero_stage": plugin.zero_stage,
            "clipping": plugin.gradient_clipping,
            "accumulation": plugin.gradient_accumulation_steps,
            "offload": [plugin.offload_param_device, plugin.offload_optimizer_device],
        }
    return found


def accepts(path):
    """Whether the launcher takes a config, else its error."""
    try:
        environment(["--config_file", path, "--num_processes", "8", "train.py"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return True


def main():
    asked = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    source = Path(inspect.getfile(launch_utils)).read_text()
    options = {action.dest for action in launch_command_parser()._actions}
    answers = {
        "jobs": [ask(job) for job in asked["jobs"]],
        "cases": [accepts(path) for path in asked["cases"]],
        "top": [field.name for field in fields(ClusterConfig)],
        "read": [name for name in asked["names"] if name in options or f'args, "{name}"' in source],
        "options": sorted(name for name in options if name.startswith(("fsdp_", "parallelism_config_"))),
    }
    json.dump(answers, output)


if __name__ == "__main__":
    main()
