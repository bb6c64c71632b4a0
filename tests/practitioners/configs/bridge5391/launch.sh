#!/bin/bash
LAYOUT='Et*2|(t*2|)*34,t*3|(t*2|)*3,tL'
torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8 \
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 \
    --seq-length 4096 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --sequence-parallel \
    --pipeline-model-parallel-layout "$LAYOUT" --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16
