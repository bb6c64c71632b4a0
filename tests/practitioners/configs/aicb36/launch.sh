#!/bin/bash
NNODES=4
torchrun --nproc_per_node=8 --nnodes=$NNODES pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 10880 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 1 \
    --micro-batch-size 1 --global-batch-size 4 \
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear \
    --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 \
    --bf16 --use-distributed-optimizer
