#!/usr/bin/env bash
# scripts/demo.sh [TEXT]: from nothing to a trained model and a sample of what it writes. `make demo` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

text=${1:-build/demo/text.txt}
if [[ $text == build/demo/text.txt ]]; then
    scripts/setup.sh build demo
    scripts/demo-text.sh
else
    [[ -r $text ]] || { echo "cannot read $text: give a text file, make demo DATA=FILE" >&2; exit 2; }
    scripts/setup.sh build
fi
make --no-print-directory build

n=1
while [[ -e runs/demo-$n ]]; do
    n=$((n + 1))
done
# 800 steps: about 75 seconds of BF16, 2 minutes of FP32 on two AVX-512 cores. A high rate suits so small a model and so few steps.
exec build/release/mezzo train --model gpt2 --layers 4 --heads 4 --d-model 128 --seq-len 128 --batch-size 16 --steps 800 --lr 3e-3 \
    --data "$text" --tokenizer char --split 0.95 --precision auto --out "runs/demo-$n"
