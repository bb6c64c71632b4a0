"""A bash script that runs the plan with meshwright's executor: torchrun, one process per device.

The script stands beside its plan file. A machine needs bash, meshwright[run] and both files. Options of the script are handed
on to every process.
"""

from __future__ import annotations

from costmodel.specs import AXIS_ORDERS, Plan, Rejection
from executor.checks import find_lack
from meshwright.exporters.base import ALL_FIELDS, MAIN_SCRIPT, Exporter, Job
from meshwright.exporters.environment import environment
from meshwright.exporters.script import Setting, opening, torchrun, unequal_nodes
from meshwright.files import dump_document

TESTED_TORCH = "2.13.0"
PLAN_FILE = "launch.plan.json"

_SETTINGS = (
    Setting(name="PLAN", value="", what="plan file; default: the one beside this script"),
    Setting(
        name="DATA",
        value="",
        what="text, JSON Lines or token file to train on; default: the text that meshwright carries",
    ),
    Setting(name="STEPS", value="100", what="optimizer steps"),
    Setting(name="OUTPUT", value="meshwright-output", what="folder for observation.json"),
)
_CHECKS = f"""\
[ -n "$PLAN" ] || PLAN="$HERE"/{PLAN_FILE}
[ -f "$PLAN" ] || fail "the plan file $PLAN does not exist"
[ -z "$DATA" ] || [ -f "$DATA" ] || fail "the text $DATA does not exist"
[ ! -e "$OUTPUT" ] || [ -d "$OUTPUT" ] || fail "OUTPUT=$OUTPUT is a file; needed the name of a folder"
[ ! -e "$OUTPUT/observation.json" ] || fail "$OUTPUT/observation.json exists already; choose another OUTPUT"
"""
_RUN = """\
worker=(--plan "$PLAN" --steps "$STEPS" --output "$OUTPUT")
if [ -n "$DATA" ]; then
    worker+=(--data "$DATA")
fi
mkdir -p "$OUTPUT"
# Options of this script are the processes' own: --checkpoint DIR --checkpoint-every N --resume --save-hf DIR
exec torchrun "${launch[@]}" -m executor.worker "${worker[@]}" "$@"
"""
_CPU_THREADS = """
# Every process gets its share of the cores, as the prediction assumes.
CORES="$(getconf _NPROCESSORS_ONLN)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((CORES > NPROC_PER_NODE ? CORES / NPROC_PER_NODE : 1))}"
"""


def _render(job: Job) -> dict[str, str]:
    plan = job.plan
    script = (
        opening(
            job,
            target=f"torchrun and {job.version}",
            settings=_SETTINGS,
            wholes=(("STEPS", 1),),
            checks=_CHECKS,
        )
        + torchrun(
            job,
            variables=environment(plan, in_order=False, fsdp=False),
            install="install meshwright[run] and activate its environment",
            more=_CPU_THREADS if plan.cluster.device.kind == "cpu" else "",
        )
        + _RUN
    )
    return {job.name: script, PLAN_FILE: dump_document(plan.model_dump(mode="json"), suffix=".json")}


def _reject(plan: Plan) -> Rejection | None:
    return unequal_nodes(plan, "torchrun") or find_lack(plan)


TORCHRUN = Exporter(
    name="torchrun",
    target="bash script for torchrun and meshwright's executor",
    tested_versions=(f"torch {TESTED_TORCH}",),
    fields=ALL_FIELDS,
    runtimes=("torch",),
    axis_orders=tuple(AXIS_ORDERS),
    main=MAIN_SCRIPT,
    render=_render,
    reject=_reject,
)
