torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 30 --hidden-size 1024 \
    --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 \
    --pipeline-model-parallel-size 4 --fp16
