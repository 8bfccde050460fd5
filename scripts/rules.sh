#!/usr/bin/env bash
# data/rules/*.json from the measured rows of bench/results: scripts/rules.sh MEZZO [--check]
# With --check nothing is written; a file that is not what the rows give is an error.
set -euo pipefail
mezzo=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while read -r name rows; do
    cp "bench/results/$rows/full_data.csv" "$work/$name.csv"
    "$mezzo" analyze "$work/$name.csv" --out "$work/$name" >/dev/null
    if [[ ${2:-} == --check ]]; then
        cmp "$work/$name/rules.json" "data/rules/$name.json"
    else
        mkdir -p data/rules
        cp "$work/$name/rules.json" "data/rules/$name.json"
    fi
done <<END
h200-gpt2 sweep-gpt2-h200
h100-glm4_moe sweep-h100
amx-glm4_moe sweep-cpu-amx
END
