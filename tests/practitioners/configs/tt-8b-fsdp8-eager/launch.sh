#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 1 -m torchtitan.train --module llama3 --config llama3_8b \
    --training.local_batch_size 2 \
    --training.global_batch_size 16 \
    --parallelism.data_parallel_shard_degree 8 \
    --training.seq_len 8192 \
    --loss.num_chunks 1 \
    activation-checkpoint:selective
