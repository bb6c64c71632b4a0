"""DeepSpeed, both ways: its JSON with a script for its launcher, and such JSON read back.

The launcher is started on every node (``--no_ssh``) with a list of nodes that only counts them: neither names nor ssh are needed.
"""

from __future__ import annotations

from costmodel.specs import Plan, Rejection
from meshwright.exporters.base import Exporter, Job
from meshwright.exporters.deepspeed.document import config, losses, refuse
from meshwright.exporters.deepspeed.read import read, recognises
from meshwright.exporters.environment import environment
from meshwright.exporters.manifest import manifest
from meshwright.exporters.script import Setting, opening, unequal_nodes
from meshwright.files import dump_document

CONFIG = "ds_config.json"
FIELDS = frozenset(
    {
        "tensor_parallel_size", "loss_parallel", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage",
        "hierarchical_partition_size", "micro_batch_size", "num_micro_batches", "context_parallel_size",
        "context_parallel_method",
    }
)  # fmt: skip
_CHECKS = """\
[ -n "$TRAIN_SCRIPT" ] || fail "TRAIN_SCRIPT is not set; needed your training script, which calls deepspeed.initialize"
[ -f "$TRAIN_SCRIPT" ] || fail "the training script $TRAIN_SCRIPT does not exist"
command -v deepspeed > /dev/null || fail "deepspeed is not on the PATH; install deepspeed and activate its environment"
[ "$NNODES" -eq 1 ] || [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0"
"""
_RUN = """\
: "${{RDZV_ENDPOINT:=127.0.0.1:29500}}"
{variables}# The launcher counts the nodes in a list; nobody logs in there.
HOSTS="$(mktemp)"
trap 'rm -f "$HOSTS"' EXIT
for ((node = 0; node < NNODES; node++)); do
    echo "node-$node slots=$NPROC_PER_NODE"
done > "$HOSTS"
launch=(--hostfile "$HOSTS" --no_ssh --node_rank "$NODE_RANK")
launch+=(--master_addr "${{RDZV_ENDPOINT%:*}}" --master_port "${{RDZV_ENDPOINT##*:}}")
export SEQUENCE_LENGTH
# Options of this script are the training script's own.
deepspeed "${{launch[@]}}" "$TRAIN_SCRIPT" --deepspeed --deepspeed_config "$HERE"/{config} "$@"
"""


def _render(job: Job) -> dict[str, str]:
    plan, target = job.plan, f"DeepSpeed {job.version}"
    settings = (
        Setting(
            name="TRAIN_SCRIPT", value="", what="your training script; it gets --deepspeed --deepspeed_config FILE"
        ),
        Setting(
            name="SEQUENCE_LENGTH",
            value=str(plan.training.sequence_length),
            what="tokens of a sequence, for your script",
        ),
    )
    variables = "".join(f"{variable.line}\n" for variable in environment(plan, in_order=False, fsdp=False))
    script = opening(
        job, target=target, settings=settings, wholes=(("SEQUENCE_LENGTH", 1),), checks=_CHECKS
    ) + _RUN.format(variables=variables, config=CONFIG)
    return {
        job.name: script,
        CONFIG: dump_document(config(plan), suffix=".json"),
        **manifest(job, "deepspeed"),
    }


def _refuse(plan: Plan) -> Rejection | None:
    return unequal_nodes(plan, "deepspeed") or refuse(plan)


DEEPSPEED = Exporter(
    name="deepspeed",
    target="DeepSpeed's JSON and a script for its launcher",
    tested_versions=("0.19.8",),
    fields=FIELDS,
    runtimes=("deepspeed",),
    render=_render,
    reject=_refuse,
    losses=losses,
    recognises=recognises,
    read=read,
)
