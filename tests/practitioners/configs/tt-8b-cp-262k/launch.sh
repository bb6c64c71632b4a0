#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 1 -m torchtitan.train --module llama3 --config llama3_8b \
    --training.local_batch_size 1 \
    --training.global_batch_size 1 \
    --training.seq_len 262144 \
    --parallelism.data_parallel_shard_degree 1 \
    --parallelism.context_parallel_degree 8 \
    --loss.num_chunks 1 \
    --compile.enable \
    activation-checkpoint:full
