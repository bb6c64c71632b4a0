"""A Slurm job around another target's launcher: one task a node, which starts the launcher's script there.

Options of sbatch: https://slurm.schedmd.com/sbatch.html. The first node of the job is the meeting point.
"""

from __future__ import annotations

import dataclasses
import shlex

from meshwright.exporters.base import MAIN_SCRIPT, Exporter, Job
from meshwright.exporters.header import comment, header
from meshwright.exporters.script import num_nodes

NAME = "slurm"
JOB_FILE = "job.sbatch"

_JOB = """\
#!/usr/bin/env bash
{header}
# ---- what your site may want changed, here or as options of sbatch: --partition, --account, --qos
#SBATCH --job-name={job_name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{devices}#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
# ----
set -euo pipefail
: "${{SLURM_JOB_ID:?start this file with sbatch}}"

# Slurm runs a copy of this file, so the scripts are looked for where sbatch was called, or in JOB_FOLDER.
JOB_FOLDER="${{JOB_FOLDER:-$SLURM_SUBMIT_DIR}}"
LAUNCH="$JOB_FOLDER"/{launch}
if [ ! -f "$LAUNCH" ]; then
    echo "error: $LAUNCH does not exist; call sbatch in the folder of this file, or set JOB_FOLDER to it" >&2
    exit 2
fi
if [ "$SLURM_JOB_NUM_NODES" -ne {nodes} ]; then
    echo "error: the job has $SLURM_JOB_NUM_NODES nodes; the plan needs {nodes}" >&2
    exit 2
fi
HOSTS="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
HEAD="${{HOSTS%%$'\n'*}}"
PORT=$((20000 + SLURM_JOB_ID % 20000)) # jobs that share a node do not meet
export LAUNCH NNODES="$SLURM_JOB_NUM_NODES" RDZV_ENDPOINT="$HEAD:$PORT"
# shellcheck disable=SC2016 # SLURM_NODEID is every task's own
srun --kill-on-bad-exit=1 bash -c 'export NODE_RANK="$SLURM_NODEID" && exec bash "$LAUNCH" "$@"' bash "$@"
"""


def wrap(inner: Exporter) -> Exporter:
    """The target that writes a Slurm job around a launcher."""

    def render(job: Job) -> dict[str, str]:
        files = inner.render(dataclasses.replace(job, name=MAIN_SCRIPT))
        return {job.name: _job(job, inner), **files}

    return dataclasses.replace(
        inner,
        name=NAME,
        target=f"Slurm job around: {inner.target}",
        tested_versions=inner.tested_versions,
        main=JOB_FILE,
        render=render,
        recognises=None,
        read=None,
    )


def _job(job: Job, inner: Exporter) -> str:
    plan = job.plan
    nodes = num_nodes(plan)
    gpus = f"#SBATCH --gpus-per-node={plan.num_devices_used // nodes}\n" if plan.cluster.device.kind == "cuda" else ""
    return _JOB.format(
        header=comment(header(job, f"Slurm around {inner.name} ({job.version})")),
        job_name=f"meshwright-{plan.plan_hash[:12]}",
        nodes=nodes,
        devices=gpus,
        launch=shlex.quote(MAIN_SCRIPT),
    )
