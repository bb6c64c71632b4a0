"""Words and numbers as people write them, and sizes completed from a part of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_documents import sample_cluster, sample_plan, sample_runtime

from costmodel.specs import InputError, ParallelConfig, RuntimeProfile
from hardware_profiles.loader import load_cluster
from meshwright import load_runtime
from meshwright.inputs import choose_precision, make_training, parse_assignments, parse_tokens
from meshwright.layout import complete_parallel


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("300e9", 300_000_000_000),
        ("300B", 300_000_000_000),
        ("2T", 2_000_000_000_000),
        ("1.5 t", 1_500_000_000_000),
        ("1_000", 1000),
        ("1,000,000", 1_000_000),
        (5, 5),
        (3e11, 300_000_000_000),
        ("300e+9", 300_000_000_000),
    ],
)
def test_tokens(text: str | float, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "B", "-5", "0", "nan", "inf", "1e400", "1e99T", "0.1", "5 tokens", "١٢", True])
def test_tokens_refused(text: str) -> None:
    with pytest.raises(InputError, match="tokens is"):
        parse_tokens(text)


def test_assignments() -> None:
    assert parse_assignments(["zero-stage=1", "recompute = full"], option="--fix") == {
        "zero_stage": "1",
        "recompute": "full",
    }
    for wrong in ("zero_stage", "=1", "zero_stage=", ""):
        with pytest.raises(InputError, match="needed axis=value"):
            parse_assignments([wrong], option="--fix")
    with pytest.raises(InputError, match="twice: 1 and 2"):
        parse_assignments(["zero_stage=1", "zero-stage=2"], option="--fix")


@pytest.mark.parametrize(
    ("cluster", "runtime", "precision"),
    [
        ("8xH100-SXM", "torch", "bf16"),
        ("8xA100-SXM-80GB", "megatron", "bf16"),
        ("8xV100-SXM-32GB", "torch", "fp16"),
        ("4xcpu", "torch", "fp32"),
    ],
)
def test_default_precision(cluster: str, runtime: str, precision: str) -> None:
    assert choose_precision(load_cluster(cluster).device, load_runtime(runtime), None) == precision


def test_precision_must_exist_on_the_device() -> None:
    with pytest.raises(InputError, match="V100-SXM-32GB does not support bf16 training; choose one of fp16, fp32"):
        choose_precision(load_cluster("8xV100-SXM-32GB").device, load_runtime("torch"), "bf16")
    assert choose_precision(load_cluster("2xcpu").device, load_runtime("torch"), "fp64") == "fp64"
    with pytest.raises(
        InputError, match="fp64 is for exact comparisons on a cpu, found H100-SXM; choose one of bf16, fp16, fp32"
    ):
        choose_precision(load_cluster("8xH100-SXM").device, load_runtime("torch"), "fp64")


def training(batch: int):
    runtime: RuntimeProfile = sample_runtime()
    return make_training(sample_cluster(), runtime, global_batch_size=batch, sequence_length=128)


def complete(batch: int = 1024, **sizes: object) -> ParallelConfig:
    return complete_parallel(dict(sizes), cluster=sample_cluster(), training=training(batch), runtime=sample_runtime())


def test_switches_that_a_runtime_always_has_under_tensor_parallelism_are_on() -> None:
    runtime = sample_runtime().model_copy(update={"loss_parallel": "always", "sequence_parallel": "never"})

    def switches(**sizes: object) -> tuple[bool, bool]:
        made = complete_parallel(dict(sizes), cluster=sample_cluster(), training=training(1024), runtime=runtime)
        return made.sequence_parallel, made.loss_parallel

    assert switches(tensor_parallel_size=8) == (False, True)
    assert switches(tensor_parallel_size=1) == (False, False)
    assert switches(tensor_parallel_size=8, loss_parallel=False) == (False, False)
    assert complete(tensor_parallel_size=8).loss_parallel is False


def test_sizes_that_follow_are_filled_in() -> None:
    """64 devices: 64 / (8 x 4) = 2 replicas; 1024 / (2 x 1) = 512 micro-batches."""
    parallel = complete(tensor_parallel_size=8, pipeline_parallel_size=4)
    assert (parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size) == (2, 1)
    assert (parallel.micro_batch_size, parallel.num_micro_batches) == (1, 512)
    assert parallel.pipeline_schedule == "1f1b"
    assert parallel.num_devices == 64


def test_the_zero_stage_decides_between_replicas_and_shards() -> None:
    assert complete(zero_stage=3).data_parallel_shard_size == 64
    hybrid = complete(zero_stage=3, data_parallel_shard_size=8)
    assert (hybrid.data_parallel_replicate_size, hybrid.data_parallel_shard_size) == (8, 8)
    assert complete(zero_stage=3, data_parallel_replicate_size=16).data_parallel_shard_size == 4


def test_the_batch_gives_the_micro_batch() -> None:
    """The documents' example: micro batch 8 x 32 micro-batches x 4 replicas = 1024."""
    parallel = complete(1024, tensor_parallel_size=16, micro_batch_size=8)
    assert (parallel.data_parallel_size, parallel.num_micro_batches) == (4, 32)
    assert complete(1024, tensor_parallel_size=16, num_micro_batches=32).micro_batch_size == 8


def test_idle_devices_are_allowed_when_both_data_parallel_sizes_are_stated() -> None:
    parallel = complete(data_parallel_replicate_size=3, data_parallel_shard_size=1, micro_batch_size=1, batch=6)
    assert parallel.num_devices == 3


def test_chunks_mean_interleaving() -> None:
    assert complete(pipeline_parallel_size=4, num_model_chunks=2).pipeline_schedule == "interleaved_1f1b"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor_parallel_size": 3}, r"does not divide 64 devices"),
        ({"tensor_parallel_size": 128}, r"= 128 does not divide 64 devices"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: found 0"),
        ({"tensor_parallel_size": -1}, "tensor_parallel_size: found -1"),
        ({"tensor_parallel_size": float("nan")}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 10**30}, "needed at most"),
        ({"zero_stage": 4}, "zero_stage: found 4; needed one of 0, 1, 2, 3"),
        ({"pipeline_schedule": "zigzag"}, "interleaved_1f1b"),
        ({"context_parallel_size": 3}, "context_parallel_size 3"),
        ({"context_parallel_method": "zigzag"}, "all_to_all"),
        ({"tensor_size": 2}, "unknown size 'tensor_size'"),
        ({"micro_batch_size": 5}, "does not divide global_batch_size 1024"),
        ({"num_micro_batches": 2048}, "does not divide global_batch_size 1024"),
    ],
)
def test_sizes_refused(sizes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        complete(**sizes)


powers = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=100, deadline=None)
@given(powers, powers, st.sampled_from([0, 1, 2, 3]), powers)
def test_completed_sizes_multiply(tensor: int, pipeline: int, zero: int, micro: int) -> None:
    parallel = complete(
        tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, zero_stage=zero, micro_batch_size=micro
    )
    assert parallel.num_devices == 64
    assert parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size == 1024


def test_completing_a_full_configuration_changes_nothing() -> None:
    parallel = sample_plan().parallel
    assert complete(**parallel.model_dump()) == parallel
