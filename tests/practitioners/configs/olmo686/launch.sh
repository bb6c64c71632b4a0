#!/bin/bash
torchrun --nproc_per_node 8 -m torchtitan.train --module qwen3 --config qwen3_0_6b \
    --parallelism.pipeline_parallel_degree 2 --training.local_batch_size 8 --training.global_batch_size 64 --training.disable_cuda_graphs
