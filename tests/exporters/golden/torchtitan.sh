#!/usr/bin/env bash
# llama-3.1-405b on 64x8xH100-SXM, for torchtitan 0.3.0 (meshwright 0.1.0)
# plan <hash>
set -euo pipefail

# ---- what you may change, here or in the environment
NNODES="${NNODES:-64}"                             # nodes of the run; start this script once on each
NODE_RANK="${NODE_RANK:-0}"                        # number of this node, from 0
RDZV_ENDPOINT="${RDZV_ENDPOINT:-}"                 # host:port of node 0, the same on every node; needed for more than one node
HF_ASSETS="${HF_ASSETS:-./assets/hf/llama3-405B}"  # folder with the tokenizer
DATASET="${DATASET:-}"                             # dataset; default: the one of the config function
STEPS="${STEPS:-1000}"                             # optimizer steps
OUTPUT="${OUTPUT:-./outputs}"                      # folder for logs and checkpoints
# ----

NUM_DEVICES=512
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

NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; install torchtitan and activate its environment"
unset CUDA_DEVICE_MAX_CONNECTIONS  # FSDP must not start all kernels from one queue
launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id <hash>)
fi
train=(
    --module planned_config
    --config planned
    --training.local_batch_size 32
    --training.global_batch_size 256
    --training.seq_len 8192
    --parallelism.pipeline_parallel_microbatch_size 1
    --training.dtype float32
    --training.mixed_precision_param bfloat16
    --training.max_norm 1.0
    --loss.num_chunks 1
    --compile.enable
    --training.disable_cuda_graphs
    --parallelism.data_parallel_replicate_degree 1
    --parallelism.data_parallel_shard_degree 8
    --parallelism.tensor_parallel_degree 8
    --parallelism.context_parallel_degree 1
    --parallelism.pipeline_parallel_degree 8
    --parallelism.fsdp_reshard_after_forward never
    --parallelism.enable_sequence_parallel
    --parallelism.pipeline_parallel_schedule 1F1B
    --optimizer.param-groups.0.optimizer-kwargs.lr 0.001
    --optimizer.param-groups.0.optimizer-kwargs.betas 0.9 0.95
    --optimizer.param-groups.0.optimizer-kwargs.eps 1e-08
    --optimizer.param-groups.0.optimizer-kwargs.weight-decay 0.01
    --training.steps "$STEPS"
    --hf_assets_path "$HF_ASSETS"
    --dump_folder "$OUTPUT"
)
[ -z "$DATASET" ] || train+=(--dataloader.dataset "$DATASET")
export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"
# Options of this script are torchtitan's own.
exec torchrun "${launch[@]}" -m torchtitan.train "${train[@]}" "$@" activation-checkpoint:full
