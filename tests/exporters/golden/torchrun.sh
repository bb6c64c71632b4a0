#!/usr/bin/env bash
# sample-70b on 8x8xSAMPLE-80GB, for torchrun and torch 2.13.0 (meshwright 0.1.0)
# plan <hash>
# predicted: step time 8 s (80% interval 6.4 s to 10 s), peak memory 46 GiB of 80 GiB a device
# made by: meshwright plan ...
set -euo pipefail

# ---- what you may change, here or in the environment
NNODES="${NNODES:-8}"                  # nodes of the run; start this script once on each
NODE_RANK="${NODE_RANK:-0}"            # number of this node, from 0
RDZV_ENDPOINT="${RDZV_ENDPOINT:-}"     # host:port of node 0, the same on every node; needed for more than one node
PLAN="${PLAN:-}"                       # plan file; default: the one beside this script
DATA="${DATA:-}"                       # text, JSON Lines or token file to train on; default: the text that meshwright carries
STEPS="${STEPS:-100}"                  # optimizer steps
OUTPUT="${OUTPUT:-meshwright-output}"  # folder for observation.json
# ----

NUM_DEVICES=64
# shellcheck disable=SC2034 # not every script needs it
HERE="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
fail() {
    echo "error: $1" >&2
    exit 2
}
whole() { # name, value, lowest
    [[ "$2" =~ ^(0|[1-9][0-9]{0,8})$ && "$2" -ge "$3" ]] || fail "$1 is '$2'; needed a whole number of at least $3"
}
whole NNODES "$NNODES" 1
whole NODE_RANK "$NODE_RANK" 0
whole STEPS "$STEPS" 1
[ $((NUM_DEVICES % NNODES)) -eq 0 ] || fail "$NUM_DEVICES devices cannot be shared by NNODES=$NNODES nodes equally"
[ "$NODE_RANK" -lt "$NNODES" ] || fail "NODE_RANK is $NODE_RANK; needed at most $((NNODES - 1)) for NNODES=$NNODES"
[ -n "$PLAN" ] || PLAN="$HERE"/launch.plan.json
[ -f "$PLAN" ] || fail "the plan file $PLAN does not exist"
[ -z "$DATA" ] || [ -f "$DATA" ] || fail "the text $DATA does not exist"
[ ! -e "$OUTPUT" ] || [ -d "$OUTPUT" ] || fail "OUTPUT=$OUTPUT is a file; needed the name of a folder"
[ ! -e "$OUTPUT/observation.json" ] || fail "$OUTPUT/observation.json exists already; choose another OUTPUT"
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; install meshwright[run] and activate its environment"
launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id <hash>)
fi
worker=(--plan "$PLAN" --steps "$STEPS" --output "$OUTPUT")
if [ -n "$DATA" ]; then
    worker+=(--data "$DATA")
fi
mkdir -p "$OUTPUT"
# Options of this script are the processes' own: --checkpoint DIR --checkpoint-every N --resume --save-hf DIR
exec torchrun "${launch[@]}" -m executor.worker "${worker[@]}" "$@"
