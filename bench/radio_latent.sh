#!/usr/bin/env bash
# bench/radio_latent.sh [--mezzo PROGRAM] --out FOLDER: RadioDiff's whole pipeline on simulated radio maps: kl_vae, its latents, radio_unet on them,
# maps of cities that neither was trained on. FOLDER gets radio-latent.csv, a row a predictor: the mean map, free-space loss, the autoencoder alone
# (no predictor: what is lost before the U-Net begins), decoupled diffusion in 1 and 5 steps, regression of latents, regression of the maps
# themselves by a smaller U-Net; of each a sheet of pictures, NAME.png, and its training's report, NAME.json. Each row is there as soon as it is
# known, and a part that fails ends no other.
# MAPS [2000], SIZE [320] pixels, EXTENT [SIZE] metres, VAE [kl_vae-radiodiff], UNET [radio_unet-radiodiff], DIRECT [radio_unet --model.multipliers
# 12444 --model.attention_from 4], steps VAE_STEPS [4000], UNET_STEPS [6000], REGRESSION_STEPS [2500], DIRECT_STEPS [2000], batches VAE_BATCH [2],
# BATCH [8], VAE_LR [2e-4], LR [2e-4], DIRECT_LR [1e-3], PRECISION [bf16], EMA [0.999], SEED [1], DEVICE [cuda], LIMIT [400] seconds for one
# training, COMMIT, PARTS ["vae decoupled regression direct"]; WORK, a folder for data and runs that is kept: what is there is not made again.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$root/build/cuda/mezzo
out=
usage() { sed -n '2,12s/^# //p' "$0" && exit 2; }
while [[ $# -gt 0 ]]; do
    case $1 in
    --mezzo) mezzo=${2:-} ;;
    --out) out=${2:-} ;;
    *) usage ;;
    esac
    shift 2 || usage
done
[[ -n $out ]] || usage
maps=${MAPS:-2000} size=${SIZE:-320} precision=${PRECISION:-bf16} seed=${SEED:-1} limit=${LIMIT:-400}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
work=${WORK:-}
[[ -n $work ]] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; }
mkdir -p "$out" "$work" || exit 1
csv=$out/radio-latent.csv failed=0
columns=predictor,sampler_steps,model,precision,seed,maps,size,batch,train_steps,lr,ema,train_seconds,sample_seconds
echo "$columns,pictures,nmse,rmse,ssim,psnr,commit" >"$csv"

number() { sed -n "s/.*\"$1\": \([-0-9.e]*\).*/\1/p" <<<"$2" | head -n 1; }

# row PREDICTOR SAMPLER_STEPS MODEL BATCH STEPS LR EMA TRAIN_SECONDS JSON
row() {
    local key line
    line=$1,$2,$3,$precision,$seed,$maps,$size,$4,$5,$6,$7,$8,$(number seconds "$9")
    for key in pictures nmse rmse ssim psnr; do
        line+=,$(number "$key" "$9")
    done
    echo "$line,$commit" | tee -a "$csv"
}

fail() { echo "$1: exit $2" >&2 && failed=1 && return 1; }

# train NAME MODEL_AND_OPTIONS BATCH STEPS LR OPTION...: into WORK/NAME, whose report is FOLDER/NAME.json
train() {
    local name=$1 model=$2 batch=$3 steps=$4 lr=$5
    shift 5
    [[ -s $work/$name.done ]] && cp "$work/$name.done" "$out/$name.json" && return
    rm -rf "${work:?}/$name"
    # shellcheck disable=SC2086
    timeout "$limit" "$mezzo" train --model $model --data "$work/cities" --split 0.9 --batch-size "$batch" --steps "$steps" --lr "$lr" \
        --warmup $((steps / 20 + 1)) --weight-decay 0.01 --ema "$ema" --precision "$precision" --seed "$seed" --device "${DEVICE:-cuda}" \
        --eval-every $((steps / 4 + 1)) --eval-iters 8 --sample-every -1 --checkpoint-every 0 --keep-last 1 --out "$work/$name" --json "$@" \
        >"$out/$name.json" || fail "$name" $? || return
    cp "$out/$name.json" "$work/$name.done"
}

# score NAME SAMPLER_STEPS MODEL BATCH STEPS LR: draws the maps of cities that were not trained on
score() {
    local json drawn=$work/drawn-$1-$2
    rm -rf "$drawn"
    json=$(timeout "$limit" "$mezzo" sample "$work/$1" --out "$drawn" --steps "$2" --rows 6 --json) || fail "$1, drawn in $2" $? || return
    row "$1" "$2" "${3%% *}" "$4" "$5" "$6" "$ema" "$(number seconds "$(cat "$work/$1.done")")" "$json"
    cp "$drawn/sheet.png" "$out/$1-$2.png"
}

# part NAME DRAWS MODEL BATCH STEPS LR OPTION...
part() {
    local name=$1 draws=$2 n
    [[ " ${PARTS:-vae decoupled regression direct} " == *" $name "* ]] || return 0
    shift 2
    train "$name" "$@" || return
    for n in $draws; do
        score "$name" "$n" "${@:1:4}"
    done
}

started=$SECONDS
[[ -e $work/cities/radio.json ]] ||
    "$mezzo" data radio --maps "$maps" --size "$size" --extent "${EXTENT:-$size}" --seed 1 --out "$work/cities" || exit 1
echo "cities: $((SECONDS - started)) s"
for word in mean free-space; do
    json=$("$mezzo" eval $word --truth "$work/cities" --split 0.9 --json) || fail "$word" $? || continue
    row $word 0 "" 0 0 0 0 0 "$json"
done
ema=${EMA:-0.999}
unet=${UNET:-radio_unet-radiodiff} latents=(--latents "$work/vae")
part vae 1 "${VAE:-kl_vae-radiodiff}" "${VAE_BATCH:-2}" "${VAE_STEPS:-4000}" "${VAE_LR:-2e-4}"
part decoupled "1 5" "$unet" "${BATCH:-8}" "${UNET_STEPS:-6000}" "${LR:-2e-4}" --model.objective 3 "${latents[@]}"
part regression 1 "$unet" "${BATCH:-8}" "${REGRESSION_STEPS:-2500}" "${LR:-2e-4}" --model.objective 4 "${latents[@]}"
part direct 1 "${DIRECT:-radio_unet --model.multipliers 12444 --model.attention_from 4}" "${BATCH:-8}" "${DIRECT_STEPS:-2000}" \
    "${DIRECT_LR:-1e-3}" --model.objective 4
echo "in all: $((SECONDS - started)) s"
exit $failed
