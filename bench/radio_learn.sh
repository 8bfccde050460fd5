#!/usr/bin/env bash
# bench/radio_learn.sh [--mezzo PROGRAM] --out FOLDER: what radio_unet with RadioDiff's widths (119 M parameters) has learnt of simulated radio maps,
# on cities that it was not trained on: as a regression and as decoupled diffusion (one sampler step, five), beside the mean map and the
# free-space loss. FOLDER gets radio-learn.csv, a row a predictor, and a sheet of pictures of each.
# MAPS [2000], SIZE [80] pixels of 2 m, MODEL [radio_unet-radiodiff], STEPS [2600], BATCH [8], LR [2e-4], PRECISION [bf16], EMA [0.995], SEED [1],
# OBJECTIVES ["4 3"]: 4 regression, 3 decoupled; WORK, a folder for data and runs that is kept.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$root/build/cuda/mezzo
out=
while [[ $# -gt 0 ]]; do
    case $1 in
    --mezzo) mezzo=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,6s/^# //p' "$0" && exit 2 ;;
    esac
    shift 2
done
[[ -n $out ]] || { sed -n '2,6s/^# //p' "$0" && exit 2; }
maps=${MAPS:-2000} size=${SIZE:-80} model=${MODEL:-radio_unet-radiodiff} steps=${STEPS:-2600} batch=${BATCH:-8} lr=${LR:-2e-4}
precision=${PRECISION:-bf16} ema=${EMA:-0.995} seed=${SEED:-1}
mkdir -p "$out"
work=${WORK:-}
[[ -n $work ]] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; }
csv=$out/radio-learn.csv
echo predictor,sampler_steps,model,precision,seed,maps,size,batch,train_steps,lr,ema,train_seconds,pictures,nmse,rmse,ssim,psnr >"$csv"

# row PREDICTOR SAMPLER_STEPS TRAIN_SECONDS: from the JSON on stdin
row() {
    local json key line=$1,$2,$model,$precision,$seed,$maps,$size,$batch,$steps,$lr,$ema,$3
    json=$(cat)
    for key in pictures nmse rmse ssim psnr; do
        line+=,$(sed -n "s/.*\"$key\": \([-0-9.e]*\).*/\1/p" <<<"$json")
    done
    echo "$line" | tee -a "$csv"
}

[[ -e $work/cities/radio.json ]] || "$mezzo" data radio --maps "$maps" --size "$size" --extent $((2 * size)) --seed 1 --out "$work/cities"
for word in mean free-space; do
    "$mezzo" eval $word --truth "$work/cities" --split 0.9 --json | row $word 0 0
done
for objective in ${OBJECTIVES:-4 3}; do
    run=$work/run-$objective name=regression draws=1
    [[ $objective == 3 ]] && name=decoupled draws="1 5"
    rm -rf "$run"
    started=$SECONDS
    "$mezzo" train --model "$model" --model.objective "$objective" --data "$work/cities" --split 0.9 --batch-size "$batch" --steps "$steps" \
        --lr "$lr" --warmup 100 --weight-decay 0.01 --ema "$ema" --precision "$precision" --seed "$seed" --eval-every $((steps / 4)) --eval-iters 8 \
        --checkpoint-every 0 --keep-last 1 --out "$run" --json >"$out/$name.json"
    for n in $draws; do
        "$mezzo" sample "$run" --out "$work/predicted-$objective-$n" --steps "$n" --rows 8 --json | row $name "$n" $((SECONDS - started))
        cp "$work/predicted-$objective-$n/sheet.png" "$out/$name-$n.png"
    done
done
