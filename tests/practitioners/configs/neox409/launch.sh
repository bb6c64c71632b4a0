#!/usr/bin/env bash
GPUS_PER_NODE=8
TP=8
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes 1)
GPT_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 1
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40
    --seq-length 2048 --max-position-embeddings 2048
    --micro-batch-size 1
    --global-batch-size 1
    --fp16
    --use-distributed-optimizer
    --attention-backend unfused
    --attention-dropout 0 --hidden-dropout 0
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_ARGS[@]}
