#!/usr/bin/env bash
# sample-70b on 8x8xSAMPLE-80GB, for DeepSpeed 0.19.8 (meshwright 0.1.0)
# plan <hash>
# predicted: step time 8 s (80% interval 6.4 s to 10 s), peak memory 46 GiB of 80 GiB a device
# made by: meshwright plan ...
# warning: stages.recompute: the model's code has to checkpoint every layer (gradient_checkpointing_enable()); DeepSpeed's JSON only counts the checkpoints
set -euo pipefail

# ---- what you may change, here or in the environment
NNODES="${NNODES:-8}"                       # nodes of the run; start this script once on each
NODE_RANK="${NODE_RANK:-0}"                 # number of this node, from 0
RDZV_ENDPOINT="${RDZV_ENDPOINT:-}"          # host:port of node 0, the same on every node; needed for more than one node
TRAIN_SCRIPT="${TRAIN_SCRIPT:-}"            # your training script; it gets --deepspeed --deepspeed_config FILE
SEQUENCE_LENGTH="${SEQUENCE_LENGTH:-8192}"  # tokens of a sequence, for your script
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
whole SEQUENCE_LENGTH "$SEQUENCE_LENGTH" 1
[ $((NUM_DEVICES % NNODES)) -eq 0 ] || fail "$NUM_DEVICES devices cannot be shared by NNODES=$NNODES nodes equally"
[ "$NODE_RANK" -lt "$NNODES" ] || fail "NODE_RANK is $NODE_RANK; needed at most $((NNODES - 1)) for NNODES=$NNODES"
[ -n "$TRAIN_SCRIPT" ] || fail "TRAIN_SCRIPT is not set; needed your training script, which calls deepspeed.initialize"
[ -f "$TRAIN_SCRIPT" ] || fail "the training script $TRAIN_SCRIPT does not exist"
command -v deepspeed > /dev/null || fail "deepspeed is not on the PATH; install deepspeed and activate its environment"
[ "$NNODES" -eq 1 ] || [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0"
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
: "${RDZV_ENDPOINT:=127.0.0.1:29500}"
# The launcher counts the nodes in a list; nobody logs in there.
HOSTS="$(mktemp)"
trap 'rm -f "$HOSTS"' EXIT
for ((node = 0; node < NNODES; node++)); do
    echo "node-$node slots=$NPROC_PER_NODE"
done > "$HOSTS"
launch=(--hostfile "$HOSTS" --no_ssh --node_rank "$NODE_RANK")
launch+=(--master_addr "${RDZV_ENDPOINT%:*}" --master_port "${RDZV_ENDPOINT##*:}")
export SEQUENCE_LENGTH
# Options of this script are the training script's own.
deepspeed "${launch[@]}" "$TRAIN_SCRIPT" --deepspeed --deepspeed_config "$HERE"/ds_config.json "$@"
