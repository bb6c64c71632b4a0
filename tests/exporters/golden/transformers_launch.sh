#!/usr/bin/env bash
# sample-70b on 8x8xSAMPLE-80GB, for transformers 5.24.0 (meshwright 0.1.0)
# plan <hash>
# predicted: step time 8 s (80% interval 6.4 s to 10 s), peak memory 46 GiB of 80 GiB a device
# made by: meshwright plan ...
set -euo pipefail

# ---- what you may change, here or in the environment
NNODES="${NNODES:-8}"                       # nodes of the run; start this script once on each
NODE_RANK="${NODE_RANK:-0}"                 # number of this node, from 0
RDZV_ENDPOINT="${RDZV_ENDPOINT:-}"          # host:port of node 0, the same on every node; needed for more than one node
TRAIN_SCRIPT="${TRAIN_SCRIPT:-}"            # your training script; it gets the JSON file of TrainingArguments
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
[ -n "$TRAIN_SCRIPT" ] || fail "TRAIN_SCRIPT is not set; needed your script, which reads TrainingArguments from JSON"
[ -f "$TRAIN_SCRIPT" ] || fail "the training script $TRAIN_SCRIPT does not exist"
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; install transformers and accelerate, and activate their environment"
unset CUDA_DEVICE_MAX_CONNECTIONS  # FSDP must not start all kernels from one queue
launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id <hash>)
fi
export SEQUENCE_LENGTH
# Options of this script are the training script's own; HfArgumentParser.parse_json_file reads the file.
exec torchrun "${launch[@]}" "$TRAIN_SCRIPT" "$HERE"/training_args.json "$@"
