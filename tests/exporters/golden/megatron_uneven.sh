#!/usr/bin/env bash
# qwen2.5-7b on 2x8xA100-SXM-80GB, for Megatron-LM d98e8a64 (meshwright 0.1.0)
# plan <hash>
# written by: meshwright export plan.json --to megatron -o out
set -euo pipefail

# ---- what you may change, here or in the environment
NNODES="${NNODES:-2}"                          # nodes of the run; start this script once on each
NODE_RANK="${NODE_RANK:-0}"                    # number of this node, from 0
RDZV_ENDPOINT="${RDZV_ENDPOINT:-}"             # host:port of node 0, the same on every node; needed for more than one node
MEGATRON_PATH="${MEGATRON_PATH:-Megatron-LM}"  # folder that holds pretrain_gpt.py
DATA_PATH="${DATA_PATH:-}"                     # prefix of the .bin and .idx files to train on; default: made-up data
TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"         # Hugging Face tokenizer of that data
CHECKPOINTS="${CHECKPOINTS:-}"                 # folder for checkpoints; default: none are written
STEPS="${STEPS:-100}"                          # optimizer steps
# ----

NUM_DEVICES=16
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
[ -f "$MEGATRON_PATH/pretrain_gpt.py" ] || fail "MEGATRON_PATH=$MEGATRON_PATH holds no pretrain_gpt.py"
[ -z "$DATA_PATH" ] || [ -n "$TOKENIZER_MODEL" ] || fail "DATA_PATH is set; needed its tokenizer too, TOKENIZER_MODEL"
NPROC_PER_NODE=$((NUM_DEVICES / NNODES))
command -v torchrun > /dev/null || fail "torchrun is not on the PATH; activate the environment of Megatron-LM"
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"  # tensor and context parallelism before Blackwell: communication starts before what hides it
launch=(--nproc-per-node "$NPROC_PER_NODE")
if [ "$NNODES" -eq 1 ]; then
    launch+=(--standalone)
else
    [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0, the same on every node"
    launch+=(--nnodes "$NNODES" --node-rank "$NODE_RANK")
    launch+=(--rdzv-backend static --rdzv-endpoint "$RDZV_ENDPOINT" --rdzv-id <hash>)
fi
model=(
    --num-layers 28
    --hidden-size 3584
    --num-attention-heads 28
    --ffn-hidden-size 18944
    --kv-channels 128
    --vocab-size 152064
    --group-query-attention --num-query-groups 4
    --make-vocab-size-divisible-by 128
    --normalization RMSNorm --norm-epsilon 1e-06
    --position-embedding-type rope --rotary-base 1000000 --max-position-embeddings 131072
    --swiglu
    --disable-bias-linear --add-qkv-bias
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
)
layout=(
    --tensor-model-parallel-size 2
    --sequence-parallel
    --pipeline-model-parallel-size 4
    --pipeline-model-parallel-layout 'Et*6|t*7|t*8|t*7L'
    --context-parallel-size 1
    --use-distributed-optimizer --overlap-param-gather
    --overlap-grad-reduce
    --micro-batch-size 1
    --global-batch-size 64
    --recompute-granularity full --recompute-method block --recompute-num-layers 2
)
training=(
    --seq-length 4096
    --bf16
    --attention-backend auto
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95
    --adam-eps 1e-08
    --lr 0.001 --min-lr 0.001 --lr-decay-style constant
    --weight-decay 0.01 --clip-grad 1.0
    --seed 1
    --train-iters "$STEPS"
    --log-interval 1
    --log-throughput
    --eval-iters 0
    --eval-interval 1000
)
data=(--mock-data --tokenizer-type NullTokenizer)
if [ -n "$DATA_PATH" ]; then
    data=(--data-path "$DATA_PATH" --split '100,0,0')
    data+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL")
fi
if [ -n "$CHECKPOINTS" ]; then
    data+=(--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 1000)
fi
# Options of this script are pretrain_gpt.py's own, and the last of two counts.
exec torchrun "${launch[@]}" "$MEGATRON_PATH/pretrain_gpt.py" \
    "${model[@]}" "${layout[@]}" "${training[@]}" "${data[@]}" "$@"
