"""Variables that a plan's processes need, each with the reason why.

CUDA_DEVICE_MAX_CONNECTIONS is the number of hardware queues that kernels of one device start from. Megatron-LM
d98e8a64, training/arguments.py: 1 is required under tensor or context parallelism before Blackwell, so that
communication kernels start before the computation that hides them; FSDP requires that it is not 1.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from costmodel.specs import Plan
from hardware_profiles.profiles import find_network

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_FROM_BLACKWELL = ("blackwell",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable; ``value`` None: it must not be set to what it says it must not be, so it is unset."""

    name: str
    value: str | None
    why: str

    @property
    def line(self) -> str:
        """The line of a bash script; a value that the user has set stays."""
        if self.value is None:
            return f"unset {self.name}  # {self.why}"
        return f'export {self.name}="${{{self.name}:-{shlex.quote(self.value)}}}"  # {self.why}'


def environment(plan: Plan, *, in_order: bool, fsdp: bool) -> tuple[Variable, ...]:
    """The variables of a plan: of the launch order of its kernels, and of the network between its nodes.

    Args:
        plan: the plan.
        in_order: whether the target needs kernels to start in order under tensor and context parallelism (Megatron).
        fsdp: whether parameters are sharded by FSDP, which must not start them in order.
    """
    return (*_connections(plan, in_order=in_order, fsdp=fsdp), *_network(plan))


def _connections(plan: Plan, *, in_order: bool, fsdp: bool) -> tuple[Variable, ...]:
    parallel, device = plan.parallel, plan.cluster.device
    if device.kind != "cuda":
        return ()
    if fsdp:
        return (Variable(name=_CONNECTIONS, value=None, why="FSDP must not start all kernels from one queue"),)
    split = parallel.tensor_parallel_size > 1 or parallel.context_parallel_size > 1
    if not (in_order and split) or device.architecture.lower() in _FROM_BLACKWELL:
        return ()
    why = "tensor and context parallelism before Blackwell: communication starts before what hides it"
    return (Variable(name=_CONNECTIONS, value="1", why=why),)


def _network(plan: Plan) -> tuple[Variable, ...]:
    levels = plan.cluster.levels
    if len(levels) == 1 or plan.num_devices_used <= plan.cluster.devices_per_node:
        return ()
    network = find_network(levels[-1].link.name)
    if network is None:
        return ()
    return tuple(
        Variable(name=name, value=str(value), why=network.sources[f"environment.{name}"])
        for name, value in network.environment.items()
    )
