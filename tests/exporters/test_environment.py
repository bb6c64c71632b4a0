"""Variables of a plan's processes: the launch order of kernels, and the network between nodes."""

from __future__ import annotations

import pytest
from sample_documents import sample_plan

from costmodel.specs import Plan
from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.loader import load_cluster, load_device, load_network, load_node
from hardware_profiles.profiles import find_network, list_networks
from meshwright.exporters.environment import environment


def plan_on(cluster: str, **sizes: int) -> Plan:
    return sample_plan(**sizes).model_copy(update={"cluster": load_cluster(cluster)})


def plan_on_efa(**sizes: int) -> Plan:
    parts = (load_device("A100-SXM-40GB"), load_node("p4d.24xlarge"), load_network("efa-100g"))
    cluster = assemble_cluster(*parts, num_nodes=8, devices_per_node=8)
    return sample_plan(**sizes).model_copy(update={"cluster": cluster})


def variables(plan: Plan, *, in_order: bool = False, fsdp: bool = False) -> dict[str, str | None]:
    return {found.name: found.value for found in environment(plan, in_order=in_order, fsdp=fsdp)}


@pytest.mark.parametrize(
    ("cluster", "tensor", "expected"),
    [("8x8xH100-SXM", 8, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), ("8x8xH100-SXM", 1, {}), ("8x8xB200", 8, {})],
)
def test_one_queue_under_tensor_parallelism_before_blackwell(
    cluster: str, tensor: int, expected: dict[str, str]
) -> None:
    plan = plan_on(cluster, tensor_parallel_size=tensor)
    assert variables(plan, in_order=True) == expected
    assert variables(plan) == {}


def test_fsdp_never_starts_from_one_queue() -> None:
    assert variables(plan_on("8x8xH100-SXM"), fsdp=True) == {"CUDA_DEVICE_MAX_CONNECTIONS": None}
    (unset,) = environment(plan_on("8x8xH100-SXM"), in_order=True, fsdp=True)
    assert unset.line.startswith("unset CUDA_DEVICE_MAX_CONNECTIONS  # ")


def test_variables_of_the_network() -> None:
    found = environment(plan_on_efa(), in_order=False, fsdp=False)
    assert [(each.name, each.value) for each in found] == [
        ("FI_EFA_USE_HUGE_PAGE", "0"),
        ("FI_EFA_USE_DEVICE_RDMA", "1"),
    ]
    assert found[0].line.startswith('export FI_EFA_USE_HUGE_PAGE="${FI_EFA_USE_HUGE_PAGE:-0}"  # ')
    assert all("efa-cheatsheet" in each.why for each in found)


def test_one_node_needs_no_network() -> None:
    plan = plan_on_efa(pipeline_parallel_size=1, data_parallel_shard_size=1)
    assert plan.num_devices_used <= 8
    assert variables(plan) == {}


def test_every_network_is_found_by_its_link() -> None:
    for name in list_networks():
        network = load_network(name)
        assert find_network(network.link.name) == network
        assert all(network.sources[f"environment.{variable}"] for variable in network.environment)
    assert find_network("a cable") is None
