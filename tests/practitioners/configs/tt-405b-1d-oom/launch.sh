#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 16 -m torchtitan.train --module llama3 --config llama3_405b \
    --training.local_batch_size 1 \
    --training.global_batch_size 128 \
    --parallelism.data_parallel_shard_degree 128 \
    --parallelism.tensor_parallel_degree 1 \
    --training.seq_len 8192 \
    --loss.num_chunks 1 \
    --compile.enable \
    activation-checkpoint:full
