"""The bash script that starts one node's processes: settings at the top, checks, then torchrun or another launcher.

Every launcher's script is started once on each node and obeys NNODES, NODE_RANK and RDZV_ENDPOINT, so that a job
scheduler needs to know nothing else about it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from costmodel.specs import Plan, Rejection
from meshwright.exporters.base import Job
from meshwright.exporters.environment import Variable
from meshwright.exporters.header import comment, header


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that whoever starts the script may set; ``value`` is its default, ``what`` says what it is."""

    name: str
    value: str
    what: str


# Doubled braces are bash's; the single ones are filled in.
_START = """\
#!/usr/bin/env bash
{header}
set -euo pipefail

# ---- what you may change, here or in the environment
{settings}
# ----

NUM_DEVICES={num_devices}
# shellcheck disable=SC2034 # not every script needs it
HERE="$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
"""
_CHECKS = """\
fail() {{
    echo "error: $1" >&2
    exit 2
}}
whole() {{ # name, value, lowest
    [[ "$2" =~ ^(0|[1-9][0-9]{{0,8}})$ && "$2" -ge "$3" ]] || fail "$1 is '$2'; needed a whole number of at least $3"
}}
whole NNODES "$NNODES" 1
whole NODE_RANK "$NODE_RANK" 0
{wholes}[ $((NUM_DEVICES % NNODES)) -eq 0 ] || fail "$NUM_DEVICES devices cannot be shared by NNODES=$NNODES nodes equally"
[ "$NODE_RANK" -lt "$NNODES" ] || fail "NODE_RANK is $NODE_RANK; needed at most $((NNODES - 1)) for NNODES=$NNODES"
{checks}
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
"""
_TORCHRUN = """\
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; {install}"
{environment}launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id {run_id})
fi
"""
NODES = (
    Setting(name="NNODES", value="{num_nodes}", what="nodes of the run; start this script once on each"),
    Setting(name="NODE_RANK", value="0", what="number of this node, from 0"),
    Setting(
        name="RDZV_ENDPOINT",
        value="",
        what="host:port of node 0, the same on every node; needed for more than one node",
    ),
)


def opening(
    job: Job, *, target: str, settings: Iterable[Setting], wholes: Iterable[tuple[str, int]] = (), checks: str = ""
) -> str:
    """The first part of a script: header, settings, and the checks of what nodes and settings may be.

    Args:
        job: the export.
        target: what the script starts, with its version.
        settings: beside those of `NODES`.
        wholes: settings that are whole numbers, with the lowest value of each.
        checks: further lines; ``fail MESSAGE`` ends the script with exit code 2.
    """
    plan = job.plan
    start = _START.format(
        header=comment(header(job, target)),
        settings="\n".join(_assignments((*NODES, *settings), num_nodes(plan))),
        num_devices=plan.num_devices_used,
    )
    lines = "".join(f'whole {name} "${name}" {lowest}\n' for name, lowest in wholes)
    return start + _CHECKS.format(wholes=lines, checks=checks.rstrip("\n"))


def torchrun(job: Job, *, variables: Iterable[Variable], install: str, more: str = "") -> str:
    """The part of a script that fills ``launch``, the arguments of torchrun.

    Args:
        job: the export.
        variables: of the environment.
        install: what to do where there is no torchrun.
        more: further lines on the environment.
    """
    exported = "".join(f"{variable.line}\n" for variable in variables)
    return _TORCHRUN.format(install=install, environment=exported + more.lstrip("\n"), run_id=job.plan.plan_hash[:16])


def _assignments(settings: Iterable[Setting], nodes: int) -> list[str]:
    texts = [
        (f'{setting.name}="${{{setting.name}:-{_default(setting, nodes)}}}"', setting.what) for setting in settings
    ]
    width = max(len(text) for text, _ in texts)
    return [f"{text.ljust(width)}  # {what}" for text, what in texts]


def _default(setting: Setting, nodes: int) -> str:
    """A default as it may stand inside double quotes."""
    text = setting.value.replace("{num_nodes}", str(nodes))
    for character in ("\\", '"', "$", "`", "}"):
        text = text.replace(character, "\\" + character)
    return text


def quote_all(words: Iterable[str]) -> str:
    """Words of a bash array, each quoted where it needs to be, or where it looks like several (a comma)."""
    return " ".join(f"'{word}'" if "," in word and shlex.quote(word) == word else shlex.quote(word) for word in words)


def num_nodes(plan: Plan) -> int:
    """The fewest nodes of the cluster that share the plan's devices equally, or 0 when none do."""
    used, per_node = plan.num_devices_used, plan.cluster.devices_per_node
    fits = (n for n in range(1, plan.cluster.num_nodes + 1) if used % n == 0 and used // n <= per_node)
    return next(fits, 0)


def unequal_nodes(plan: Plan, target: str) -> Rejection | None:
    """A launcher starts equally many processes on every node; why it cannot, or None."""
    if num_nodes(plan):
        return None
    used, cluster = plan.num_devices_used, plan.cluster
    return Rejection(
        rule=f"export_{target}_nodes",
        message=f"{target} starts equally many processes on every node, but {used} devices cannot be shared equally by "
        f"up to {cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)} of {cluster.devices_per_node}",
        numbers={
            "num_devices_used": used,
            "devices_per_node": cluster.devices_per_node,
            "num_nodes": cluster.num_nodes,
        },
        fix=f"use a multiple of {cluster.devices_per_node} devices, or fewer nodes",
    )
