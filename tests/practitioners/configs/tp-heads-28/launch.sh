#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 \
    --num-attention-heads 28 --group-query-attention --num-query-groups 4 --swiglu --normalization RMSNorm \
    --untie-embeddings-and-output-weights --add-qkv-bias --disable-bias-linear --position-embedding-type rope \
    --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 --max-position-embeddings 131072 \
    --micro-batch-size 1 --global-batch-size 8 --tensor-model-parallel-size 8 --bf16
