#!/usr/bin/env bash
# bench/memory.sh [OUT.csv] [DEVICE]: what `mezzo memory` plans against the peak of really training two steps, in ten configurations.
# On a CPU the peak is how far the kernel saw the process's resident memory grow; on a GPU what was allocated on the device.
# MEZZO names the command (build/release/mezzo), JOBS how many of them run at once (1; each counts its own). The largest takes 2.2 GB.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
device=${2:-cpu}
out=${1:-$root/bench/results/memory-$device.csv}
mezzo=${MEZZO:-$root/build/release/mezzo}
if [[ -n ${COMMIT:-} ]]; then
    commit=$COMMIT
else
    commit=$(git -C "$root" rev-parse --short=12 HEAD)
    git -C "$root" diff --quiet HEAD -- src include cli || commit=$commit-dirty
fi

configurations=(
    "--model gpt2-124M --seq-len 256 --batch-size 1 --precision fp32 --optimizer adamw"
    "--model gpt2-124M --seq-len 256 --batch-size 1 --precision bf16 --optimizer adamw --master split"
    "--model gpt2-124M --seq-len 256 --batch-size 4 --precision bf16 --optimizer sgd --master fp32 --recompute"
    "--model gpt2-124M --seq-len 128 --batch-size 2 --precision fp16 --optimizer sgd-plain"
    "--model gpt2 --layers 6 --heads 6 --d-model 384 --vocab 8000 --seq-len 256 --batch-size 8 --precision fp32 --optimizer adamw"
    "--model gpt2 --layers 6 --heads 6 --d-model 384 --vocab 8000 --seq-len 256 --batch-size 8 --precision bf16 --optimizer adamw --master fp32"
    "--model gpt2 --layers 6 --heads 6 --d-model 384 --vocab 8000 --seq-len 256 --batch-size 8 --precision fp16 --optimizer adamw --residual low"
    "--model cs336 --layers 4 --heads 8 --d-model 512 --seq-len 256 --batch-size 4 --precision fp32 --optimizer sgd"
    "--model cs336 --layers 4 --heads 8 --d-model 512 --seq-len 256 --batch-size 4 --precision bf16 --optimizer adamw --master stochastic --recompute"
    "--model glm4_moe-4x256 --seq-len 128 --batch-size 4 --precision bf16 --optimizer adamw --master fp32"
)

# SET=gpt2: gpt2-124M on 4 x 1,024 tokens instead, FP32 beside BF16, as they are and with all that saves memory but micro batches. Takes 5.5 GB.
if [[ ${SET:-} == gpt2 ]]; then
    step="--model gpt2-124M --seq-len 1024 --batch-size 4 --optimizer adamw"
    configurations=("$step --precision fp32" "$step --precision bf16 --master fp32" "$step --precision bf16 --master split"
        "$step --precision fp32 --recompute-light --logits-rows 1024"
        "$step --precision bf16 --master fp32 --residual low --recompute-light --logits-rows 1024"
        "$step --precision bf16 --master split --residual low --recompute-light --logits-rows 1024")
fi

field() { # KEY: its first value in the JSON on stdin
    sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?$/\1/p" | head -n 1
}

mkdir -p "$(dirname "$out")"
echo "device,commit,command,precision,optimizer,master,parameters,weights,shadows,gradients,optimizer_bytes,activations,workspace,planned,measured,error_percent" >"$out"
rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
measure() { # OPTIONS FILE
    local options=$1 result row key error
    # shellcheck disable=SC2086
    result=$("$mezzo" memory $options --device "$device" --measure --json 2>"$2.error") || { cat "$2.error" >&2 && return 1; }
    row=("\"$(sed -nE 's/^ *"device": "(.*)",$/\1/p' <<<"$result")\"" "$commit" "\"mezzo memory $options --device $device --measure\"")
    for key in precision optimizer_kind master parameters weights shadows gradients optimizer activations workspace total measured; do
        row+=("$(field "$key" <<<"$result")")
    done
    error=$(awk -v p="$(field total <<<"$result")" -v m="$(field measured <<<"$result")" 'BEGIN { printf "%.4f", 100 * (p / m - 1) }')
    (IFS=, && echo "${row[*]},$error") | tee "$2"
}
for i in "${!configurations[@]}"; do
    while (($(jobs -rp | wc -l) >= ${JOBS:-1})); do wait -n || true; done
    measure "${configurations[i]}" "$rows/$i.row" &
done
wait
for i in "${!configurations[@]}"; do
    [[ -s $rows/$i.row ]] && cat "$rows/$i.row" >>"$out" || echo "not measured: ${configurations[i]}" >&2
done
awk -F, 'NR > 1 { e = $NF < 0 ? -$NF : $NF; worst = e > worst ? e : worst } END { print "rows: " NR - 1 ", largest error: " worst " %" }' "$out" >&2
[[ $(wc -l <"$out") -gt ${#configurations[@]} ]]
