"""What every framework's stack keeps, against byte counts worked out from its source code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_worlds import llama, make_plan

from costmodel.build import build_plan
from costmodel.megatron_activation_memory import megatron_end_bytes, megatron_layer_bytes
from costmodel.memory import plan_memory
from costmodel.models.loader import build_model
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.layer_split import split_by_cost
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import MemoryAccounting, ModelSpec, Plan, StageCosts
from costmodel.state_memory import state_bytes

S, B = 512, 2


def llama_layers(
    layers: int, *, hidden: int = 256, intermediate: int = 512, heads: int = 8, vocab: int = 1024
) -> ModelSpec:
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "vocab_size": vocab, "max_position_embeddings": S,
        "tie_word_embeddings": False, "intermediate_size": intermediate,
    }  # fmt: skip
    return build_model(config, name="llama")


def plan_of(runtime: str, *, precision: str = "bf16", **parallel: Any) -> Plan:
    return make_plan(llama(layers=4), runtime=runtime, precision=precision, sequence=S, **parallel)


@pytest.mark.parametrize(
    ("runtime", "precision", "everywhere", "sharded"),
    [
        # Megatron-LM, docs/source/api-guide/dist_optimizer.md: 6 + 12/d in bf16 (4 + 12/d in fp16, besides the step's copy).
        ("megatron", "bf16", 6, 12),
        ("megatron", "fp16", 4, 12),
        # nanotron, optim/gradient_accumulator.py: bf16 parameters, fp32 gradients of all; fp32 copy and moments sharded.
        ("nanotron", "bf16", 6, 12),
        # Aleph-Alpha/scaling, core/optimizer/parameter_group.py: parameters and gradients in bf16, fp32 partition and moments.
        ("aleph", "bf16", 4, 12),
        # DeepSpeed, runtime/bf16_optimizer.py: bf16 parameters 2, bf16 gradients 2, fp32 accumulation 4.
        ("megatron-deepspeed", "bf16", 8, 12),
        # 16-bit parameters, 16-bit gradients, and one flat 16-bit copy.
        ("megatron-deepspeed", "fp16", 6, 12),
        # OneFlow: fp32 variables, 16-bit gradients, two fp32 moments.
        ("oneflow", "fp16", 6, 8),
    ],
)
def test_bytes_per_parameter(runtime: str, precision: str, everywhere: int, sharded: int) -> None:
    profile = load_runtime(runtime)
    plan = plan_of(runtime, precision=precision)
    elements = state_bytes(plan, profile, 0)["after_step"].parameters
    elements //= 4 if runtime == "oneflow" else 2
    state = state_bytes(plan, profile, 0)["after_step"]
    assert state.parameters + state.gradients == everywhere * elements
    assert state.optimizer_state == sharded * elements
    (stage,) = plan_memory(plan, profile)
    terms = {term.name: term.bytes for term in stage.terms if term.phase == "forward_backward"}
    assert terms["parameters"] + terms["gradients"] == everywhere * elements
    assert terms["optimizer_state"] == sharded * elements


def layer(runtime: str, *, fusion: str | None = None, tensor: int = 1, sequence: bool = False, **training: Any) -> int:
    """Bytes that one layer keeps of one micro-batch."""
    profile = load_runtime(runtime)
    model = llama_layers(4)
    plan = make_plan(model, runtime=runtime, sequence=S, micro_batch_size=B, training=training)
    grid = Grid.from_plan(plan)
    size = grid.tensor_parallel_size * tensor
    cut = grid.sequence_parallel * 0 + int(sequence)
    grid = replace(grid, tensor_parallel_size=size, sequence_parallel=cut)
    found = megatron_layer_bytes(
        model, model.layers[0], plan.training, grid, accounting=profile.memory, fusion=fusion or profile.kernel_fusion
    )
    return int(found.kept[0])


H, F, A, T = 256, 512, 8, S * B


def test_a_megatron_layer_keeps_fused_kernels_inputs() -> None:
    """Two norms 2 h each, two projections' inputs 2 h each, q k v and output 8 h, SwiGLU 3 x 2 f, log-sum-exp 4 a."""
    assert layer("megatron") == T * (8 * H + 8 * H + 6 * F + 4 * A)


def test_an_aleph_layer_keeps_what_its_kernels_do_not_fuse() -> None:
    """Norms in fp32: 8 h each instead of 2 h; the transposed output 2 h; SwiGLU's activation 2 f more; scores 6 each."""
    fused_norms = T * (8 * H + 10 * H + 8 * F + 4 * A)
    assert layer("aleph", fusion="norms") == fused_norms
    assert layer("aleph", fusion="none") == fused_norms + T * 12 * H
    unfused = layer("aleph", fusion="norms", attention_implementation="unfused")
    assert unfused == fused_norms + T * (6 * A * S - 4 * A)


def test_a_nanotron_layer_keeps_gathered_inputs() -> None:
    """Under sequence parallelism over t = 2: norms 4 h / t, gathered inputs 4 h, attention (8 + 4) h / t, 8 f / t."""
    assert layer("nanotron", tensor=2, sequence=True) == T * (2 * H + 4 * H + 6 * H + 4 * F + 2 * A)


def test_gathered_logits_do_not_shrink_with_tensor_parallelism() -> None:
    model = llama_layers(4)
    plan = make_plan(model, runtime="aleph", sequence=S, micro_batch_size=B)
    grid = Grid.from_plan(plan)
    two = replace(grid, tensor_parallel_size=grid.zero_stage * 0 + 2)
    for accounting, columns in (
        (MemoryAccounting(gathered_logits=True, loss_bytes=18), 1024),
        (MemoryAccounting(), 512),
    ):
        end = megatron_end_bytes(model, plan.training, two, accounting=accounting)
        per_logit = 18 if accounting.gathered_logits else 6
        assert int((end.probabilities + end.logits)[0]) == per_logit * T * columns


def test_a_stack_that_holds_sent_outputs_keeps_one_more_tensor_per_micro_batch_in_flight() -> None:
    pipeline = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "num_micro_batches": 8}
    profile = load_runtime("nanotron")
    plan = make_plan(llama_layers(4), runtime="nanotron", sequence=S, micro_batch_size=B, **pipeline)
    holds, frees = (
        plan_memory(
            plan, profile.model_copy(update={"memory": profile.memory.model_copy(update={"sent_outputs": held})})
        )
        for held in (True, False)
    )
    more = [a.peak_bytes - b.peak_bytes for a, b in zip(holds, frees, strict=True)]
    assert more == [flying * 2 * T * H for flying in (4, 3, 2, 0)]


@pytest.mark.parametrize(
    ("runtime", "layers", "stages", "expected"),
    [
        # Aleph-Alpha/scaling pipe_partition_uniform: 43 modules over 2 are 22 and 21, embedding first, norm and head last.
        ("aleph", 40, 2, (21, 19)),
        # 63 modules over 4: 16, 16, 16, 15.
        ("aleph", 60, 4, (15, 16, 16, 13)),
        # DeepSpeed type:transformer: 84 over 12 evenly; 82 begins with a full stage of 7.
        ("megatron-deepspeed", 84, 12, (7,) * 12),
        ("megatron-deepspeed", 82, 12, (7, 7, 7, 7, 7, 6, 7, 7, 7, 7, 7, 6)),
    ],
)
def test_layers_are_dealt_as_the_framework_does(
    runtime: str, layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    costs = load_runtime(runtime).stage_costs
    assert costs is not None
    assert split_by_cost(llama_layers(layers), costs, stages) == expected


def test_a_head_that_costs_its_parameters_shortens_the_last_stage() -> None:
    """nanotron's benchmark model: the head of 50,257 x 2,048 weighs 2.45 layers of 4 h h + 3 h f."""
    model = llama_layers(24, hidden=2048, intermediate=4096, heads=32, vocab=50257)
    costs = StageCosts(head="parameters")
    assert split_by_cost(model, costs, 4) == (7, 7, 6, 4)
    assert split_by_cost(model, costs, 24) == (1,) * 24
    assert sum(split_by_cost(model, costs, 8)) == 24


def test_zero_3_shards_parameters_and_gathers_two_layers() -> None:
    profile = load_runtime("megatron-deepspeed")
    model = llama_layers(8)
    zero = {"data_parallel_shard_size": 4, "num_micro_batches": 2}
    terms = []
    for stage in (1, 2, 3):
        plan = make_plan(model, runtime="megatron-deepspeed", sequence=S, zero_stage=stage, **zero)
        (rank,) = plan_memory(plan, profile)
        terms.append({term.name: term.bytes for term in rank.terms if term.phase == "forward_backward"})
    assert terms[0]["gradients"] == pytest.approx(4 * terms[1]["gradients"], rel=1e-4)
    assert terms[0]["parameters"] == pytest.approx(4 * terms[2]["parameters"], rel=1e-4)
    layer_elements = 4 * H * H + 3 * H * F + 2 * H
    root = 2 * 1024 * H + H
    assert terms[2]["gathered_parameters"] == 2 * (2 * layer_elements + root)
    assert "gathered_parameters" not in terms[1]


def test_a_plan_with_dealt_stages_is_a_plan() -> None:
    profile, model = load_runtime("aleph"), llama_layers(8)
    plan = make_plan(model, runtime="aleph", pipeline_parallel_size=2, pipeline_schedule="1f1b", num_micro_batches=4)
    assert profile.stage_costs is not None
    dealt = build_plan(
        model, plan.cluster, plan.training, profile, plan.parallel,
        layers_per_stage=split_by_cost(model, profile.stage_costs, 2),
    )  # fmt: skip
    assert [stage.stop - stage.start for stage in dealt.stages] == [5, 3]
