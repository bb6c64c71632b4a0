#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 16 pretrain_gpt.py --num-layers 44 --hidden-size 6144 --num-attention-heads 64 \
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --use-distributed-optimizer --bf16 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --attention-dropout 0 --hidden-dropout 0
