"""Small plans for GPUs that are not there, and dry steps of their ranks, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from costmodel.build import build_plan
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import AXIS_ORDERS, AxisOrder, ParallelConfig, Plan, TrainingSpec
from executor.dry_run_rank import DryStep, dry_step
from executor.mesh import first_rank
from hardware_profiles.loader import load_cluster

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 259,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 8,
    "n_positions": 512,
    "vocab_size": 260,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 8}
WINDOW = 128
_SLIDING = {**LLAMA, "sliding_window": WINDOW}
_GEMMA2 = {**_SLIDING, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 8}
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {**_SLIDING, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "phi3": {**_SLIDING, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": None},
    "qwen2": {
        **_SLIDING,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "gemma2": _GEMMA2,
    "gemma2-uncapped": {**_GEMMA2, "attn_logit_softcapping": None},
}
for _config in (WINDOWED["gemma2"], WINDOWED["gemma2-uncapped"]):
    _config.pop("hidden_act")
MODELS = {"llama": LLAMA, "gpt2": GPT2, "qwen3": QWEN3, **WINDOWED}
TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True, "loss_parallel": True}
PIPELINE = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "num_micro_batches": 4}
INTERLEAVED = {**PIPELINE, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}


def zero(stage: int, *, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    """Sizes of a ZeRO plan."""
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "num_micro_batches": 2, **sizes}


def make_plan(
    model: str = "llama",
    *,
    sequence: int = 256,
    recompute: Any = "none",
    precision: str = "bf16",
    attention: Any = "fused",
    layers_per_stage: tuple[int, ...] | None = None,
    axis_order: AxisOrder = "pipeline_outermost",
    **sizes: Any,
) -> Plan:
    """A plan of runtime torch for H100s."""
    runtime, parallel = load_runtime("torch"), ParallelConfig.model_validate(sizes)
    training = TrainingSpec(
        global_batch_size=parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size,
        sequence_length=sequence,
        precision=runtime.precisions[precision],
        attention_implementation=attention,
    )
    return build_plan(
        build_model(MODELS[model], name=model),
        load_cluster(f"{parallel.num_devices}xH100-SXM"),
        training,
        runtime,
        parallel,
        recompute=recompute,
        layers_per_stage=layers_per_stage,
        axis_order=AXIS_ORDERS[axis_order],
    )


def dry(plan: Plan, pipeline_rank: int = 0, *, earlier_steps: int = 0) -> DryStep:
    """`dry_step` in a forked process: DTensor keeps what it learns about a mesh for the life of one."""
    rank = first_rank(plan, pipeline_rank)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, plan, rank, earlier_steps))
    process.start()
    sender.close()
    try:
        step = receiver.recv()
    finally:
        process.join(60)
    assert isinstance(step, DryStep), step
    return step


def _send(sender: Connection, plan: Plan, rank: int, earlier_steps: int) -> None:
    try:
        sender.send(dry_step(plan, rank, earlier_steps=earlier_steps))
    except BaseException as error:
        sender.send(repr(error))
