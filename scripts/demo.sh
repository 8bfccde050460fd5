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
exec build/release/mezzo train --model gpt2 --layers 4 --heads 4 --d-model 128 --seq-len 128 --batch-size 16 --steps 400 \
    --data "$text" --tokenizer char --precision auto --out "runs/demo-$n"
