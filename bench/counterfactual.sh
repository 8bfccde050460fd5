#!/usr/bin/env bash
# What measuring counterfactual formats costs, in steps: processor time of runs on one thread that measure every step,
# beside runs that measure none, so that other load on the machine matters little. CSV on stdout.
#   MEZZO=build/mezzo bench/counterfactual.sh [WIDTH…]
set -euo pipefail
mezzo=$(realpath "${MEZZO:-build/mezzo}")
formats=${FORMATS:-fp8,mxfp8,nvfp4}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for i in $(seq 400); do echo "line $i of a text, and $((i * i)) besides"; done >text.txt

seconds() { # WIDTH PRECISION STEPS OPTION…: processor time
    local TIMEFORMAT=%U
    rm -rf run
    { time "$mezzo" train --data text.txt --model gpt2 --layers 4 --heads 4 --d-model "$1" --seq-len 128 \
        --batch-size 8 --device "${DEVICE:-cpu}" --threads 1 --precision "$2" --out run --checkpoint-every -1 \
        --eval-every 0 --eval-iters 1 --no-eval-final --sample-every -1 --quiet --steps "$3" "${@:4}" >/dev/null 2>&1; } 2>&1
}

echo "width,precision,formats,step_ms,measured_ms,steps"
for width in "${@:-256}"; do
    for precision in bf16 fp32; do
        measured=(--counterfactual "$formats" --counterfactual-every 1)
        python3 -c "
import sys
a, b, c, d = map(float, sys.argv[1:])
step = (b - a) / 10
cost = (d - c) / 10 - step
print('$width,$precision,\"$formats\",%.1f,%.1f,%.2f' % (1e3 * step, 1e3 * cost, cost / step))" \
            "$(seconds "$width" $precision 1)" "$(seconds "$width" $precision 11)" \
            "$(seconds "$width" $precision 1 "${measured[@]}")" "$(seconds "$width" $precision 11 "${measured[@]}")"
    done
done
