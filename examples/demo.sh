#!/usr/bin/env bash
# The main job, end to end: measure this machine, plan a big model for a big cluster, explain and export the plan,
# then plan a small model for this machine and train it with the plan, beside the same training in one process.
set -euo pipefail

OUTPUT="${OUTPUT:-demo-output}"
PROCESSES="${PROCESSES:-4}"
STEPS="${STEPS:-8}"
rm -rf "$OUTPUT"
mkdir -p "$OUTPUT"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

say "1. What can this machine do? ($PROCESSES processes share its cores; about 20 s)"
show meshwright hardware measure --quick --device cpu --processes "$PROCESSES" -o "$OUTPUT/cpu.yaml"

say "2. Which plan trains llama-3-70b fastest on 8 nodes of 8 H100, and why?"
show meshwright plan --model llama-3-70b --cluster 8x8xH100-SXM --global-batch-size 1024 --sequence-length 8192 \
    --tokens 15e12 -o "$OUTPUT/llama-3-70b.json"
show meshwright explain "$OUTPUT/llama-3-70b.json"
show meshwright export "$OUTPUT/llama-3-70b.json" --to torchrun -o "$OUTPUT/llama-3-70b-launch"

say "3. A small llama on this machine: plan it, and train it with the plan"
small=(--model llama-tiny-demo --cluster "$OUTPUT/cpu.yaml" --global-batch-size 32 --sequence-length 128)
show meshwright plan "${small[@]}" -o "$OUTPUT/small.json"
show meshwright run "$OUTPUT/small.json" --steps "$STEPS" --reference -o "$OUTPUT/small.observation.json"

say "4. The same model with tensor and pipeline parallelism forced"
show meshwright plan "${small[@]}" --fix tensor_parallel_size=2 --fix pipeline_parallel_size=2 -o "$OUTPUT/small-tp2-pp2.json"
show meshwright run "$OUTPUT/small-tp2-pp2.json" --steps "$STEPS" --reference -o "$OUTPUT/small-tp2-pp2.observation.json"

say "Done. The plans, scripts and observations are in $OUTPUT/."
