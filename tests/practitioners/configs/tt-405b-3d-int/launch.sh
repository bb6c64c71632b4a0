#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 64 -m torchtitan.train --module llama3 --config llama3_405b \
    --training.local_batch_size 32 \
    --training.global_batch_size 256 \
    --parallelism.data_parallel_shard_degree 8 \
    --parallelism.tensor_parallel_degree 8 \
    --parallelism.pipeline_parallel_degree 8 \
    --training.disable_cuda_graphs \
    --parallelism.pipeline_parallel_schedule Interleaved1F1B \
    --training.seq_len 8192 \
    --loss.num_chunks 1 \
    --compile.enable \
    activation-checkpoint:full
