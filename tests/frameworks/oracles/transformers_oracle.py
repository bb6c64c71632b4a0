"""Runs under the frameworks' own interpreter: what transformers makes of TrainingArguments in JSON."""

import ast
import copy
import inspect
import json
import os
import sys
import textwrap
from pathlib import Path

from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.run import get_args_parser
from transformers import HfArgumentParser, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig


class World:
    """Training arguments of a job that is larger than this machine."""

    def __init__(self, arguments, size):
        self.arguments, self.world_size = arguments, size

    def __getattr__(self, name):
        return getattr(self.arguments, name)


def parse(content):
    (arguments,) = HfArgumentParser(TrainingArguments).parse_dict({**content, "use_cpu": True, "report_to": []})
    return arguments


def ask(job):
    launch = get_args_parser().parse_args(job["arguments"])
    world = int(launch.nnodes.split(":")[-1]) * int(launch.nproc_per_node)
    (path,) = launch.training_script_args
    content = json.loads(Path(path).read_text())
    of_deepspeed = content.pop("deepspeed", None)
    arguments = parse(content)
    found = {
        "world_size": world,
        "script": launch.training_script,
        "sequence": job["environment"]["SEQUENCE_LENGTH"],
        "micro_batch": arguments.per_device_train_batch_size,
        "micro_batches": arguments.gradient_accumulation_steps,
        "compute": "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32",
        "optimizer": [
            arguments.optim.value, arguments.learning_rate, arguments.weight_decay, arguments.adam_beta1, arguments.adam_beta2,
            arguments.adam_epsilon, arguments.max_grad_norm,
        ],
        "recompute": arguments.gradient_checkpointing,
        "zero_stage": 0,
    }  # fmt: skip
    if arguments.fsdp:
        plugin = FullyShardedDataParallelPlugin(**arguments._process_fsdp_args())
        assert plugin.fsdp_version == 2
        found |= {"zero_stage": 3 if plugin.reshard_after_forward else 2, "recompute": plugin.activation_checkpointing}
    if of_deepspeed is not None:
        config = HfTrainerDeepSpeedConfig(copy.deepcopy(of_deepspeed))
        config.trainer_config_process(World(arguments, world))
        assert config.mismatches == [], config.mismatches
        found |= {
            "zero_stage": config.get_value("zero_optimization.stage"),
            "hierarchical_partition": config.get_value("zero_optimization.zero_hpz_partition_size", 1),
            "global_batch": config.get_value("train_batch_size"),
        }
    return found


def accepts(content):
    """Whether transformers takes training arguments, else its error."""
    try:
        arguments = parse(content)
        if arguments.fsdp:
            FullyShardedDataParallelPlugin(**arguments._process_fsdp_args())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return True


def fsdp_keys():
    """Keys of fsdp_config that _process_fsdp_args asks for by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(TrainingArguments._process_fsdp_args)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.fsdp_config":
            found.add(node.slice)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "self.fsdp_config.get",
            "self.fsdp_config.setdefault",
        ):
            found.add(node.args[0])
        if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "self.fsdp_config":
            found.add(node.left)
    return sorted({node.value for node in found if isinstance(node, ast.Constant)})


def main():
    asked = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    answers = {
        "jobs": [ask(job) for job in asked["jobs"]],
        "cases": [accepts(content) for content in asked["cases"]],
        "keys": fsdp_keys(),
    }
    json.dump(answers, output)


if __name__ == "__main__":
    main()
