#!/usr/bin/env bash
# bench/radio.sh [--mezzo PROGRAM] [--out FILE.csv]: what a small radio_unet has learnt on cities that it was not trained on, in FP32, BF16 and
# FP16 with three seeds of each, beside the mean map and the free-space loss. A row a run; rows that are there already are not measured again.
# STEPS [500], MAPS [500], SEEDS ["1 2 3"] and PRECISIONS ["fp32 bf16 fp16"] change it. Times are not written: runs may share the machine.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$root/build/release/mezzo
out=$root/bench/results/radio-cpu.csv
while [[ $# -gt 0 ]]; do
    case $1 in
    --mezzo) mezzo=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,4s/^# //p' "$0" && exit 2 ;;
    esac
    shift 2
done
steps=${STEPS:-500} maps=${MAPS:-500}
header=predictor,seed,steps,maps,pictures,nmse,rmse,ssim,psnr
[[ -s $out ]] || echo $header >"$out"
[[ $(head -n 1 "$out") == "$header" ]] || { echo "$out is another table: give --out" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$mezzo" data radio --maps "$maps" --transmitters 2 --size 32 --extent 128 --seed 1 --out "$work/cities" >/dev/null

# row PREDICTOR SEED: from the JSON on stdin
row() {
    local json key line=$1,$2,$steps,$maps
    json=$(cat)
    for key in pictures nmse rmse ssim psnr; do
        line+=,$(sed -n "s/.*\"$key\": \([-0-9.e]*\).*/\1/p" <<<"$json")
    done
    echo "$line" | tee -a "$out"
}
there() { grep -q "^$1,$2,$steps,$maps," "$out"; }

for word in mean free-space; do
    there $word 0 || "$mezzo" eval $word --truth "$work/cities" --split 0.9 --json | row $word 0
done
for seed in ${SEEDS:-1 2 3}; do
    for precision in ${PRECISIONS:-fp32 bf16 fp16}; do
        there "$precision" "$seed" && continue
        rm -rf "$work/run"
        "$mezzo" train --model radio_unet-tiny --model.objective 4 --model.multipliers 122 --data "$work/cities" --split 0.9 --batch-size 8 \
            --steps "$steps" --lr 2e-3 --precision "$precision" --device cpu --threads 1 --seed "$seed" --eval-every "$steps" --out "$work/run" --quiet >/dev/null
        "$mezzo" sample "$work/run" --out "$work/run/pictures" --threads 1 --json | row "$precision" "$seed"
    done
done
