#!/bin/bash
# One V100 of 32 GB, without flash attention.
GPT_ARGS="
    --num-layers 36
    --hidden-size 1280
    --num-attention-heads 20
    --seq-length 1024
    --max-position-embeddings 1024
    --micro-batch-size 4
    --global-batch-size 16
    --lr 0.00015
    --fp16
    --attention-backend unfused
"
torchrun --nproc_per_node 1 pretrain_gpt.py $GPT_ARGS --train-iters 500000 --lr-decay-style cosine --clip-grad 1.0
