"""The runtime profiles: what they load to and the byte tables their frameworks document."""

import pytest

from costmodel.runtimes.grid import SCHEDULES
from costmodel.runtimes.loader import list_runtimes, load_runtime, read_constants
from costmodel.specs import BYTES_PER_ELEMENT, InputError, PrecisionSpec


def test_every_listed_runtime_loads_under_its_own_name() -> None:
    assert {"torch", "megatron", "torchtitan", "deepspeed", "unknown"} <= set(list_runtimes())
    assert [load_runtime(name).name for name in list_runtimes()] == list(list_runtimes())


def test_an_unknown_runtime_is_refused_with_the_list() -> None:
    with pytest.raises(InputError, match=r"'jax'; supported: accelerate, aleph, .*megatron, .*torch"):
        load_runtime("jax")


@pytest.mark.parametrize("name", list_runtimes())
def test_every_constant_and_every_memory_number_has_a_source(name: str) -> None:
    runtime = load_runtime(name)
    assert all(constant.source for constant in runtime.constants.values())
    assert {"context_bytes", "reserved_over_allocated", "precisions", "schedules"} <= set(runtime.sources)
    assert runtime.band_evidence


@pytest.mark.parametrize("name", list_runtimes())
def test_a_runtime_has_at_most_four_free_constants_of_its_own(name: str) -> None:
    shared = {key for key, value in read_constants("shared")["constants"].items() if "prior" in value}
    free = {key for key, value in load_runtime(name).constants.items() if value.is_free}
    assert 0 < len(free - shared) <= 4


def test_a_profile_that_extends_another_keeps_what_it_does_not_state() -> None:
    nemo, megatron = load_runtime("nemo"), load_runtime("megatron")
    assert nemo.precisions == megatron.precisions
    assert nemo.constants["fused_accumulation"] == megatron.constants["fused_accumulation"]
    assert nemo.constants["tensor_parallel_backward_overlap"] != megatron.constants["tensor_parallel_backward_overlap"]


@pytest.mark.parametrize("name", ["aleph", "oneflow", "internevo", "megatron-deepspeed"])
def test_an_entry_of_null_drops_the_inherited_one(name: str) -> None:
    """Stacks without fp8 extend megatron, which has it."""
    assert any(each.fp8_recipe for each in load_runtime("megatron").precisions.values())
    precisions = load_runtime(name).precisions
    assert "bf16" in precisions
    assert not any(each.fp8_recipe for each in precisions.values())


def adam_bytes(precision: PrecisionSpec) -> tuple[int, int]:
    """Bytes per parameter that every device keeps, and that the optimizer step has once per data-parallel group.

    A gradient that is not fp32 is copied to fp32 for the step.
    """
    size = BYTES_PER_ELEMENT
    master = size[precision.master] if precision.master else 0
    copy = 4 if size[precision.gradient] < 4 else 0
    return size[precision.parameter] + size[precision.gradient], master + 2 * size[precision.state] + copy


@pytest.mark.parametrize(
    ("precision", "everywhere", "shared"),
    [("fp16", 4, 16), ("bf16", 6, 12), ("fp32", 8, 8)],
)
def test_megatron_bytes_per_parameter(precision: str, everywhere: int, shared: int) -> None:
    """Megatron-LM, docs/source/api-guide/dist_optimizer.md: 4 + 16/d, 6 + 12/d and 8 + 8/d bytes per parameter."""
    assert adam_bytes(load_runtime("megatron").precisions[precision]) == (everywhere, shared)


@pytest.mark.parametrize(("precision", "total"), [("bf16", 16), ("fp16", 16), ("fp32", 16), ("fp64", 32)])
def test_torch_bytes_per_parameter(precision: str, total: int) -> None:
    """The parameter is the master copy: parameter, gradient and two moments in one format."""
    spec = load_runtime("torch").precisions[precision]
    assert spec.master is None
    assert sum(adam_bytes(spec)) == total


def test_what_each_runtime_shards_and_schedules() -> None:
    torch, megatron = load_runtime("torch"), load_runtime("megatron")
    assert (torch.zero_stages, megatron.zero_stages) == ((0, 1, 2, 3), (0, 1))
    assert (torch.sharding, megatron.sharding) == ("fsdp2", "flat")
    assert torch.schedules == SCHEDULES
    assert load_runtime("torchtitan").schedules == ("none", "naive", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
    assert set(megatron.schedules) == {"none", "1f1b", "interleaved_1f1b"}
