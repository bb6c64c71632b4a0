"""A bash script that runs the plan with meshwright's executor: torchrun, one process per device.

The script stands beside its plan file. A machine needs bash, meshwright[run] and both files. Options of the script are handed
on to every process.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath

from costmodel.specs import Plan, Rejection
from executor.checks import find_lack
from meshwright import units
from meshwright.exporters.base import ALL_FIELDS, Exporter
from meshwright.files import dump_document
from meshwright.version import __version__

TESTED_TORCH = "2.13.0"

# Variable, default, what it is; {num_nodes} is filled in.
_VARIABLES = (
    ("NNODES", "{num_nodes}", "nodes of the run; start this script once on each"),
    ("NODE_RANK", "0", "number of this node, from 0"),
    ("RDZV_ENDPOINT", "", "host:port of node 0, the same on every node; needed for more than one node"),
    ("PLAN", "", "plan file; default: the one beside this script"),
    ("DATA", "", "text, JSON Lines or token file to train on; default: the text that meshwright carries"),
    ("STEPS", "100", "optimizer steps"),
    ("OUTPUT", "meshwright-output", "folder for observation.json"),
)
# Doubled braces are bash's; the single ones are filled in.
_SCRIPT = """\
#!/usr/bin/env bash
{header}
set -euo pipefail

# ---- what you may change, here or in the environment
{variables}
# ----

NUM_DEVICES={num_devices}
if [ -z "$PLAN" ]; then
    PLAN="$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"/{plan_file}
fi
fail() {{
    echo "error: $1" >&2
    exit 2
}}
whole() {{ # name, value, lowest
    [[ "$2" =~ ^(0|[1-9][0-9]{{0,8}})$ && "$2" -ge "$3" ]] || fail "$1 is '$2'; needed a whole number of at least $3"
}}
whole NNODES "$NNODES" 1
whole NODE_RANK "$NODE_RANK" 0
whole STEPS "$STEPS" 1
[ $((NUM_DEVICES % NNODES)) -eq 0 ] || fail "$NUM_DEVICES devices cannot be shared by NNODES=$NNODES nodes equally"
[ "$NODE_RANK" -lt "$NNODES" ] || fail "NODE_RANK is $NODE_RANK; needed at most $((NNODES - 1)) for NNODES=$NNODES"
[ -f "$PLAN" ] || fail "the plan file $PLAN does not exist"
[ -z "$DATA" ] || [ -f "$DATA" ] || fail "the text $DATA does not exist"
[ ! -e "$OUTPUT" ] || [ -d "$OUTPUT" ] || fail "OUTPUT=$OUTPUT is a file; needed the name of a folder"
[ ! -e "$OUTPUT/observation.json" ] || fail "$OUTPUT/observation.json exists already; choose another OUTPUT"
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; install meshwright[run] and activate its environment"
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
{threads}
launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id {run_id})
fi
worker=(--plan "$PLAN" --steps "$STEPS" --output "$OUTPUT")
if [ -n "$DATA" ]; then
    worker+=(--data "$DATA")
fi
mkdir -p "$OUTPUT"
# Options of this script are the processes' own: --checkpoint DIR --checkpoint-every N --resume --save-hf DIR
exec torchrun "${{launch[@]}}" -m executor.worker "${{worker[@]}}" "$@"
"""
_CPU_THREADS = """
# Every process gets its share of the cores, as the prediction assumes.
CORES="$(getconf _NPROCESSORS_ONLN)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((CORES > NPROC_PER_NODE ? CORES / NPROC_PER_NODE : 1))}"
"""


def _render(plan: Plan, name: str) -> dict[str, str]:
    plan_file = f"{PurePath(name).stem}.plan.json"
    script = _SCRIPT.format(
        header="\n".join(f"# {' '.join(line.split())}" for line in _header(plan)),
        variables="\n".join(_assignments(_num_nodes(plan))),
        num_devices=plan.num_devices_used,
        plan_file=shlex.quote(plan_file),
        run_id=plan.plan_hash[:16],
        threads=_CPU_THREADS if plan.cluster.device.kind == "cpu" else "",
    )
    return {name: script, plan_file: dump_document(plan.model_dump(mode="json"), suffix=".json")}


def _header(plan: Plan) -> list[str]:
    lines = [
        f"{plan.model.name} on {plan.cluster.name}, for torchrun and torch {TESTED_TORCH} (meshwright {__version__})",
        f"plan {plan.plan_hash}",
    ]
    if plan.estimate is not None:
        interval, peak = plan.estimate.step_time_seconds, plan.estimate.peak_memory_bytes
        low, high = units.seconds(interval.low), units.seconds(interval.high)
        capacity = units.memory(plan.estimate.memory_capacity_bytes)
        lines.append(
            f"predicted: step time {units.seconds(interval.value)} ({interval.level:.0%} interval {low} to {high}), "
            f"peak memory {units.memory(peak.device)} of {capacity} a device"
        )
    if plan.provenance is not None and plan.provenance.command:
        lines.append(f"made by: {plan.provenance.command}")
    return lines


def _assignments(num_nodes: int) -> list[str]:
    texts = [
        (f'{name}="${{{name}:-{default.format(num_nodes=num_nodes)}}}"', what) for name, default, what in _VARIABLES
    ]
    width = max(len(text) for text, _ in texts)
    return [f"{text.ljust(width)}  # {what}" for text, what in texts]


def _num_nodes(plan: Plan) -> int:
    """The fewest nodes of the cluster that share the plan's devices equally, or 0 when none do."""
    used, per_node = plan.num_devices_used, plan.cluster.devices_per_node
    fits = (n for n in range(1, plan.cluster.num_nodes + 1) if used % n == 0 and used // n <= per_node)
    return next(fits, 0)


def _reject(plan: Plan) -> Rejection | None:
    if _num_nodes(plan):
        return find_lack(plan)
    used, cluster = plan.num_devices_used, plan.cluster
    return Rejection(
        rule="export_torchrun_nodes",
        message=f"torchrun starts equally many processes on every node, but {used} devices cannot be shared equally by "
        f"up to {cluster.num_nodes} nodes of {cluster.devices_per_node}",
        numbers={
            "num_devices_used": used,
            "devices_per_node": cluster.devices_per_node,
            "num_nodes": cluster.num_nodes,
        },
        fix=f"use a multiple of {cluster.devices_per_node} devices, or fewer nodes",
    )


TORCHRUN = Exporter(
    name="torchrun",
    target="bash script for torchrun and meshwright's executor",
    tested_versions=(f"torch {TESTED_TORCH}",),
    fields=ALL_FIELDS,
    runtimes=("torch",),
    suffix=".sh",
    render=_render,
    reject=_reject,
    executable=True,
)
