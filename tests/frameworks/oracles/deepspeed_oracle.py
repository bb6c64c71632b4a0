"""Runs under the frameworks' own interpreter: what DeepSpeed makes of its JSON and of its launcher's arguments."""

import json
import os
import sys
import tempfile
from pathlib import Path

import deepspeed
import deepspeed.comm.torch
import torch.distributed as dist
from deepspeed.launcher.runner import fetch_hostfile, parse_args
from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS, DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

# Half a minute of compiling for messages between processes of one machine, of which there are none.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


ASKED = set()


class Spy(dict):
    """A config that remembers which keys it is asked for."""

    def __contains__(self, key):
        ASKED.add(key)
        return super().__contains__(key)

    def __getitem__(self, key):
        ASKED.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        ASKED.add(key)
        return super().get(key, default)

    def keys(self):
        return self


class Unit:
    """What a training script says of tensor parallelism."""

    def __init__(self, data_parallel):
        self.data_parallel = data_parallel

    def get_data_parallel_world_size(self):
        return self.data_parallel


def world_of(size):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    if not deepspeed.comm.is_initialized():
        deepspeed.comm.init_distributed(dist_backend="fake", verbose=False)


def parse(content, world):
    world_of(world)
    tensor = content.get("tensor_parallel", {}).get("autotp_size", 1)
    return DeepSpeedConfig(content, mpu=Unit(world // tensor) if tensor > 1 else None)


def launch(job):
    """Processes that the launcher starts, and the file that it hands on."""
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
        hosts.write(job["hosts"])
        hosts.flush()
        words = list(job["arguments"])
        words[words.index("--hostfile") + 1] = hosts.name
        args = parse_args(words)
        slots = fetch_hostfile(args.hostfile)
    assert args.no_ssh
    assert 0 <= args.node_rank < len(slots)
    assert args.user_args[:2] == ["--deepspeed", "--deepspeed_config"]
    return sum(slots.values()), args.user_args[2]


def ask(job):
    world, path = launch(job)
    content = json.loads(Path(path).read_text())
    config = parse(content, world)
    zero = config.zero_config
    return {
        "world_size": world,
        "data_parallel_size": int(config.world_size),
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "micro_batches": config.gradient_accumulation_steps,
        "global_batch": int(config.train_batch_size),
        "zero_stage": int(zero.stage),
        "hierarchical_partition": zero.zero_hpz_partition_size,
        "tensor": config.tensor_parallel_config.autotp_size or 1,
        "loss_parallel": bool(config.tensor_parallel_config.vocab_parallel_lm_head),
        "sequence_parallel_size": content.get("sequence_parallel_size", 1),
        "compute": "fp16" if config.float16_config.enabled else "bf16" if config.bfloat16_config.enabled else "fp32",
        "clipping": config.gradient_clipping,
        "optimizer": [config.optimizer_name, config.optimizer_params],
        "checkpoints": config.activation_checkpointing_config.number_checkpoints,
        "offload": [zero.offload_param is not None, zero.offload_optimizer is not None],
    }


def accepts(case):
    """Whether DeepSpeed takes a config, else its error."""
    try:
        parse(case["config"], case["world"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return True


def names(model):
    return sorted({name for key, field in model.model_fields.items() for name in (key, field.alias) if name})


def main():
    asked = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    answers = {"jobs": [ask(job) for job in asked["jobs"]], "cases": [accepts(case) for case in asked["cases"]]}
    world_of(1)
    DeepSpeedConfig(Spy(train_micro_batch_size_per_gpu=1))
    answers["top"] = sorted(key for key in ASKED if isinstance(key, str))
    answers["zero"] = names(DeepSpeedZeroConfig)
    answers["offload"] = sorted({*names(DeepSpeedZeroOffloadParamConfig), *names(DeepSpeedZeroOffloadOptimizerConfig)})
    answers["removed"] = [sorted(_REMOVED_TOP_LEVEL_CONFIG_KEYS), sorted(_REMOVED_ZERO_CONFIG_KEYS)]
    json.dump(answers, output)


if __name__ == "__main__":
    main()
