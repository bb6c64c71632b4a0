"""Megatron-LM's arguments, written and read. The names are checked against the list of its own parser (d98e8a64)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from generated_plans import generated_plans
from real_plans import real_plans
from sample_plans import plan_for

from costmodel.specs import InputError, Plan, Rejection
from meshwright import estimate, make_plan
from meshwright.exporters import EXPORTERS, reject, render
from meshwright.exporters.imported import Imported
from meshwright.exporters.megatron import names, read
from meshwright.exporters.shell import launches
from meshwright.importing import import_plan

BASE = {
    "--num-layers": "32",
    "--hidden-size": "4096",
    "--num-attention-heads": "32",
    "--seq-length": "4096",
    "--max-position-embeddings": "4096",
    "--micro-batch-size": "1",
    "--global-batch-size": "64",
    "--tensor-model-parallel-size": "2",
    "--pipeline-model-parallel-size": "4",
    "--bf16": "",
}


def script_of(plan: Plan) -> str:
    files = render(plan, "megatron", command="meshwright export plan.json --to megatron -o out")
    assert isinstance(files, dict)
    return files["launch.sh"]


def arguments_of(script: str) -> list[str]:
    *_, command = launches(script, ("torchrun",))
    return [word for word in command.words if word.startswith("--")]


def config(*more: str, launcher: str = "torchrun --nproc-per-node 8 --nnodes 2", **changes: str | None) -> Imported:
    stated: dict[str, str | None] = {
        **BASE,
        **{f"--{name.replace('_', '-')}": value for name, value in changes.items()},
    }
    words = [word for name, value in stated.items() if value is not None for word in (name, value) if word]
    return read({"run.sh": f"{launcher} pretrain_gpt.py {shlex.join([*words, *more])}\n"})


def test_the_script(golden: Callable[[str, str], None]) -> None:
    golden("megatron.sh", script_of(plan_for("megatron")))


def test_a_script_with_uneven_stages_and_recomputed_layers(golden: Callable[[str, str], None]) -> None:
    plan = make_plan(
        "qwen2.5-7b", "2x8xA100-SXM-80GB", global_batch_size=64, sequence_length=4096, runtime="megatron",
        sizes={"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "zero_stage": 1, "sequence_parallel": True},
        layers_per_stage=(6, 7, 8, 7), recompute="full:2", precision="bf16",
    )  # fmt: skip
    golden("megatron_uneven.sh", script_of(plan))


MODELS = ("llama-3-8b", "qwen2.5-7b", "gpt2-xl", "mistral-7b")


def test_every_argument_is_one_of_megatron_s() -> None:
    known = names.arguments()
    launcher = {
        "--nproc-per-node",
        "--standalone",
        "--nnodes",
        "--node-rank",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
    }
    plans = generated_plans(
        "megatron", MODELS, count=60, seed=1, accept=lambda plan: reject(EXPORTERS["megatron"], plan) is None
    )
    found = {word for plan in plans for word in arguments_of(script_of(plan))} - launcher
    assert found <= set(known)
    assert not found & set(names.DEAD)


def test_the_tables_name_megatron_s_arguments() -> None:
    known = names.arguments()
    assert len(known) == 876  # of its 878 names, which count -h and --help
    mapped = {name for field, name in names.FIELDS.items() if field != "num_devices"}
    assert {*mapped, *names.DEAD, *names.NOT_MODELLED, *names.ROUGHLY} <= set(known)


@pytest.mark.parametrize(
    ("device", "tensor", "expected"), [("H100-SXM", 2, True), ("H100-SXM", 1, False), ("B200", 2, False)]
)
def test_one_queue_of_kernels_where_megatron_asserts_it(device: str, tensor: int, expected: bool) -> None:
    plan = make_plan(
        "llama-3-8b", f"8x{device}", global_batch_size=64, sequence_length=2048, runtime="megatron",
        sizes={"tensor_parallel_size": tensor},
    )  # fmt: skip
    assert ("export CUDA_DEVICE_MAX_CONNECTIONS=" in script_of(plan)) == expected


def test_the_vocabulary_is_padded_to_the_plan_s_table() -> None:
    """50,257 rows padded to 51,200 are no multiple of 128 x 8 tensor-parallel ranks, but of 1,024."""
    for plan in real_plans("megatron"):
        words = arguments_and_values(script_of(plan))
        multiple = int(words["--make-vocab-size-divisible-by"]) * plan.parallel.tensor_parallel_size
        assert -(-plan.model.vocab_size // multiple) * multiple == plan.model.padded_vocab_size


def arguments_and_values(script: str) -> dict[str, str]:
    *_, command = launches(script, ("torchrun",))
    return dict(zip(command.words, (*command.words[1:], ""), strict=True))


def test_what_megatron_s_arguments_do_not_say() -> None:
    plan = make_plan("llama-3-8b", "8xH100-SXM", global_batch_size=64, sequence_length=2048, runtime="megatron")
    model = plan.model
    yarn = {**model.hf_config, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    relu = model.layers[0].feed_forward.model_copy(update={"activation": "relu"})
    cases = {
        "scaled by yarn": model.model_copy(update={"hf_config": yarn}),
        "activation is relu": model.model_copy(
            update={"layers": (model.layers[0].model_copy(update={"feed_forward": relu}),)}
        ),
        "more than one kind": model.model_copy(
            update={"layers": (model.layers[0], model.layers[0].model_copy(update={"feed_forward": relu}))}
        ),
    }
    for reason, other in cases.items():
        rejection = render(plan.model_copy(update={"model": other}), "megatron")
        assert isinstance(rejection, Rejection)
        assert reason in rejection.message
    seed = plan.training.model_copy(update={"seed": 2**40})
    rejection = render(plan.model_copy(update={"training": seed}), "megatron")
    assert isinstance(rejection, Rejection)
    assert "seed 1099511627776" in rejection.message


def test_what_a_script_says() -> None:
    found = config("--use-distributed-optimizer", "--sequence-parallel", "--recompute-activations")
    assert found.sizes == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 4, "context_parallel_size": 1, "sequence_parallel": True,
        "micro_batch_size": 1, "pipeline_schedule": "1f1b", "num_model_chunks": 1, "zero_stage": 1,
        "data_parallel_replicate_size": 1, "data_parallel_shard_size": 2,
    }  # fmt: skip
    assert found.num_devices == 16
    assert found.recompute == "core_attention"
    assert (found.training["precision"], found.training["global_batch_size"]) == ("bf16", 64)
    assert found.training["optimizer"].betas == (0.9, 0.999)


def test_gradients_in_bf16() -> None:
    """2 bytes a parameter less, which decides whether much fits: megatron-core's distributed optimizer, 4 + 12/d."""
    words = config("--grad-reduce-in-bf16", *LLAMA)
    assert words.training["precision"] == "bf16-gradients"
    plan = import_plan(words, "llama-3-8b", "2x8xH100-SXM")
    other = import_plan(config(*LLAMA), "llama-3-8b", "2x8xH100-SXM")
    assert "--grad-reduce-in-bf16" in script_of(plan)
    assert "--grad-reduce-in-bf16" not in script_of(other)
    made, usual = (estimate(each).memory[0] for each in (plan, other))
    gradients = [next(term.bytes for term in stage.terms if term.name == "gradients") for stage in (made, usual)]
    assert 2 * gradients[0] == gradients[1]
    both = config("--grad-reduce-in-bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise", *LLAMA)
    assert (both.training["precision"], both.warnings) == ("fp8-current-bf16-gradients", config(*LLAMA).warnings)
    assert "--grad-reduce-in-bf16" in script_of(import_plan(both, "llama-3-8b", "2x8xH100-SXM"))


def test_data_outermost_is_megatron_s_other_mapping() -> None:
    """Its order of ranks is tp-cp-ep-dp-pp, innermost first, and tp-cp-ep-pp-dp with the argument."""
    model, cluster = "llama-3-8b", "2x8xH100-SXM"
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "zero_stage": 1}
    for order, written in (("pipeline_outermost", False), ("data_outermost", True)):
        plan = make_plan(
            model,
            cluster,
            global_batch_size=64,
            sequence_length=4096,
            runtime="megatron",
            sizes=sizes,
            axis_order=order,
        )
        script = script_of(plan)
        assert ("--use-tp-pp-dp-mapping" in arguments_of(script)) == written
        found = read({"launch.sh": script})
        assert found.axis_order == order
        assert "--use-tp-pp-dp-mapping" not in found.ignored
        assert import_plan(found, model, cluster).axis_order == plan.axis_order


def test_sharding_over_nobody_is_none() -> None:
    assert config("--use-distributed-optimizer", launcher="torchrun --nproc-per-node 8").sizes["zero_stage"] == 0


@pytest.mark.parametrize(
    ("arguments", "layers", "chunks"),
    [
        (("--pipeline-model-parallel-layout", "Et*7|t*9|t*9|t*7L"), (7, 9, 9, 7), 1),
        (("--pipeline-model-parallel-layout", "Et|(tt|)*6,t*19L"), (1, 2, 2, 2, 2, 2, 2, 19), 2),
        (("--decoder-first-pipeline-num-layers", "5", "--decoder-last-pipeline-num-layers", "7"), (5, 10, 10, 7), 1),
        (("--decoder-last-pipeline-num-layers", "5"), (9, 9, 9, 5), 1),
        (("--num-layers-per-virtual-pipeline-stage", "4"), None, 2),
        (("--num-virtual-stages-per-pipeline-rank", "8"), None, 8),
    ],
)
def test_ways_to_state_stages(arguments: tuple[str, ...], layers: tuple[int, ...] | None, chunks: int) -> None:
    found = config(*arguments)
    assert found.layers_per_stage == layers
    assert found.sizes["num_model_chunks"] == chunks
    assert found.sizes["pipeline_schedule"] == ("1f1b" if chunks == 1 else "interleaved_1f1b")


def test_embedding_and_loss_count_as_layers() -> None:
    found = config("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split", num_layers="30")
    assert found.layers_per_stage == (7, 8, 8, 7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"), "full"),
        (("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "3"), "full:3"),
        (("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "8"), "full"),
        (("--recompute-granularity", "selective"), "core_attention"),
        ((), "none"),
    ],
)
def test_recomputation(arguments: tuple[str, ...], words: str) -> None:
    assert config(*arguments).recompute == words


WRONG: dict[str, tuple[tuple[str, ...], dict[str, str | None], str]] = {
    "dead model parallel size": (("--model-parallel-size", "4"), {}, "--model-parallel-size is no longer an argument"),
    "dead batch size": (("--batch-size", "4"), {}, "--batch-size is no longer an argument .* use --micro-batch-size"),
    "dead checkpointing": (("--checkpoint-activations",), {}, "--checkpoint-activations is no longer an argument"),
    "a misspelt name": (
        ("--tensor-model-paralel-size", "4"),
        {},
        "has no argument --tensor-model-paralel-size; did you mean",
    ),
    "experts not divided": (
        ("--num-experts", "8", "--expert-model-parallel-size", "3"),
        {},
        "--expert-model-parallel-size is 3, which does not divide --num-experts 8",
    ),
    "experts of no model": (("--expert-model-parallel-size", "2"), {}, "--expert-model-parallel-size is 2"),
    "a mixture of experts": (("--num-experts", "8"), {}, "--num-experts is 8: mixtures of experts are not planned yet"),
    "fsdp": (("--use-megatron-fsdp",), {}, "--use-megatron-fsdp is not modelled"),
    "offload": (("--optimizer-cpu-offload",), {}, "--optimizer-cpu-offload is not modelled"),
    "two formats": (("--fp16",), {}, "--bf16 and --fp16 contradict each other"),
    "fp8 of fp32": (("--fp8-format", "hybrid"), {"bf16": None}, "--fp8-format needs --bf16"),
    "no number": ((), {"tensor_model_parallel_size": "two"}, "--tensor-model-parallel-size is 'two'"),
    "size zero": ((), {"pipeline_model_parallel_size": "0"}, "--pipeline-model-parallel-size is '0'"),
    "no value": (("--tensor-model-parallel-size",), {}, "--tensor-model-parallel-size has no value"),
    "no micro batch": ((), {"micro_batch_size": None}, "--micro-batch-size is missing"),
    "a stray word": (("--bf16", "8"), {}, r"found .8. behind --bf16 +where an argument was expected"),
    "world not divided": ((), {"tensor_model_parallel_size": "3"}, "16 processes cannot be split by --tensor-model"),
    "batch not divided": ((), {"global_batch_size": "63"}, "--global-batch-size 63 is no multiple"),
    "layers not divided": ((), {"num_layers": "30"}, "--num-layers 30 cannot be split evenly"),
    "chunks not divided": (
        ("--num-layers-per-virtual-pipeline-stage", "3"),
        {},
        "--num-layers-per-virtual-pipeline-stage 3",
    ),
    "chunks twice": (
        ("--num-layers-per-virtual-pipeline-stage", "4", "--pipeline-model-parallel-layout", "Et*16|t*16L"),
        {},
        "contradict one another",
    ),
    "a short layout": (
        ("--pipeline-model-parallel-layout", "Et*16|t*8|t*4|tL"),
        {},
        "has 29 layers, but --num-layers is 32",
    ),
    "a layout of three": (("--pipeline-model-parallel-layout", "Et*16|t*8|t*8L"), {}, "has 3 stages, no multiple of"),
    "an empty stage": (("--pipeline-model-parallel-layout", "E|(t|)*2,t*30L"), {}, "a stage without layers"),
    "a layout of noise": (("--pipeline-model-parallel-layout", "Ex*16|t*16L"), {}, "needed stages of t"),
    "an endless layout": (("--pipeline-model-parallel-layout", "((t*9999)*9999)*9999"), {}, "repeats too often"),
    "full without method": (
        ("--recompute-granularity", "full"),
        {},
        "--recompute-granularity full needs --recompute-method",
    ),
    "selective with method": (
        ("--recompute-granularity", "selective", "--recompute-method", "uniform"),
        {},
        "selective takes no --recompute-method",
    ),
    "method alone": (("--recompute-method", "block"), {}, "but --recompute-granularity is missing"),
    "gather without optimizer": (
        ("--overlap-param-gather",),
        {},
        "--overlap-param-gather needs --use-distributed-optimizer",
    ),
    "cp method": (
        ("--context-parallel-size", "2", "--cp-comm-type", "a2a+p2p"),
        {"pipeline_model_parallel_size": "2"},
        r"--cp-comm-type is a2a\+p2p",
    ),
}


@pytest.mark.parametrize(("arguments", "changes", "message"), WRONG.values(), ids=WRONG)
def test_one_error_that_names_the_argument(
    arguments: tuple[str, ...], changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        config(*arguments, **changes)
    assert "\n" not in str(error.value)


def test_interleaving_needs_whole_rounds() -> None:
    """6 micro-batches on 4 ranks: the parser of Megatron-LM takes it and the run fails, so it is an error here."""
    found = config(
        "--num-layers-per-virtual-pipeline-stage", "4", "--swiglu", "--group-query-attention", "--num-query-groups", "8",
        "--normalization", "RMSNorm", "--untie-embeddings-and-output-weights", global_batch_size="12",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"num_micro_batches to be a multiple of pipeline_parallel_size = 4, found 6"):
        import_plan(found, "llama-3-8b", "2x8xH100-SXM")


LLAMA = (
    "--swiglu", "--group-query-attention", "--num-query-groups", "8", "--normalization", "RMSNorm",
    "--untie-embeddings-and-output-weights",
)  # fmt: skip


def test_another_model_than_the_file_s() -> None:
    with pytest.raises(InputError, match="the file says --num-layers 40, but llama-3-8b has num_hidden_layers 32"):
        import_plan(config(*LLAMA, num_layers="40"), "llama-3-8b", "2x8xH100-SXM")
    with pytest.raises(InputError, match="the file says --swiglu False, but llama-3-8b has gated True"):
        import_plan(config(*LLAMA[1:]), "llama-3-8b", "2x8xH100-SXM")


def test_another_cluster_than_the_file_s() -> None:
    with pytest.raises(InputError, match=r"the file starts 16 processes .* but 8xH100-SXM has 8 devices"):
        import_plan(config(*LLAMA), "llama-3-8b", "8xH100-SXM")


def test_a_batch_that_contradicts_the_file() -> None:
    with pytest.raises(InputError, match="the file says --global-batch-size 64, but global_batch_size 128 is stated"):
        import_plan(config(*LLAMA), "llama-3-8b", "2x8xH100-SXM", global_batch_size=128)


def test_warnings_of_what_is_counted_otherwise() -> None:
    found = config("--tp-comm-overlap", "--recompute-activations", "--recompute-modules", "core_attn", "layernorm")
    told = "\n".join(found.warnings)
    assert "--tp-comm-overlap: not modelled" in told
    assert "recomputation of layernorm is left out" in told
    assert "--attention-dropout and --hidden-dropout: counted as 0" in told
    assert not config("--attention-dropout", "0", "--hidden-dropout", "0.0").warnings


def test_a_value_that_only_the_machine_knows() -> None:
    text = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --tensor-model-parallel-size $TP --num-layers 4\n"
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size is \$TP, which the file does not say"):
        read({"run.sh": text})
    assert read({"run.sh": "TP=2\n" + text}).sizes["tensor_parallel_size"] == 2
    elsewhere = f"TP=2\n{text.rstrip()} --load $CHECKPOINT\n"
    assert read({"run.sh": elsewhere}).ignored == ("--load",)


def test_an_argument_that_may_be_there() -> None:
    text = (
        "ARGS=(--micro-batch-size 1 --num-layers 4)\n[ -z \"$WITH\" ] || ARGS+=(--sequence-parallel)\n"
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 \"${ARGS[@]}\"\n"
    )  # fmt: skip
    with pytest.raises(InputError, match="ARGS at line 2, which is set under a condition to --sequence-parallel"):
        read({"run.sh": text})


def test_what_may_be_there_without_effect() -> None:
    """Data made up or real, as a condition says that only the machine decides: neither changes time or memory."""
    text = (
        'DATA=()\nif [ -d "$FOLDER" ]; then DATA+=("--data-path $FOLDER" "--num-workers 4"); else DATA+=(--mock-data); fi\n'
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 ${DATA[@]}\n"
    )
    assert read({"run.sh": text}).sizes["tensor_parallel_size"] == 2


def test_a_bare_list_of_arguments() -> None:
    words = " ".join(word for pair in BASE.items() for word in pair)
    found = read({"args.txt": words})
    assert found.sizes["pipeline_parallel_size"] == 4
    assert found.num_devices is None


def test_files_that_pass_no_arguments() -> None:
    with pytest.raises(InputError, match="no command passes arguments to a Python file"):
        read({"run.sh": "# --num-layers --micro-batch-size\necho hello\n"})


def test_nothing_is_ignored_that_is_read() -> None:
    found: dict[str, Any] = {"ignored": set(config(*LLAMA, "--lr-decay-style", "cosine", "--data-path", "x").ignored)}
    assert found["ignored"] == {"--lr-decay-style", "--data-path", "--max-position-embeddings"}
    assert not re.search("size|layers", " ".join(found["ignored"]))


def test_a_script_that_is_cut_off_is_one_error_or_still_whole() -> None:
    """Wherever a script ends, reading it is an InputError, or finds what the whole one says as far as it goes."""
    script = script_of(plan_for("megatron"))
    whole = read({"launch.sh": script})
    refused = 0
    for end in range(0, len(script), 37):
        try:
            part = read({"launch.sh": script[:end]})
        except InputError:
            refused += 1
        else:
            assert part.sizes == whole.sizes
    assert refused > 0.9 * len(script) / 37
