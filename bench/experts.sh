#!/usr/bin/env bash
# bench/experts.sh TEXT [OUT.csv]: a mixture of experts beside the dense model of the same active parameters, on the characters of TEXT
# (tinyshakespeare): glm4_moe of 4 layers, 4 heads, width C = 64, of 8 experts of width C/2 two chosen and one shared, the first block dense; and
# the same with 4 dense blocks of inner width 3·C/2 = (2 + 1)·C/2. A token passes as many weights in both, but for the routers' 3·8·C.
# Context 64, batch 12, 2,000 steps, learning rate 1e-3 to 1e-4 along a cosine after 100 steps of warm-up, no dropout.
# val_loss is the mean over the whole validation set (the last tenth of the text), in nats per character. The runs of a seed: fp32, bf16, fp16,
# bf16 again (its weights must be the first's, bit for bit), dense in fp32.
# DEVICE (cpu), THREADS a run (2), JOBS runs at a time (1), SEEDS ("1 2 3"), WIDTH (64), STEPS (2000), COMMIT; MEZZO names the command
# (build/release/mezzo).
set -euo pipefail
text=${1:?usage: bench/experts.sh TEXT [OUT.csv]}
root=$(cd "$(dirname "$0")/.." && pwd)
device=${DEVICE:-cpu} threads=${THREADS:-2} seeds=${SEEDS:-1 2 3} width=${WIDTH:-64}
out=${2:-$root/bench/results/experts-$device.csv}
mezzo=${MEZZO:-$root/build/release/mezzo}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD)}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

field() { # KEY: its value in the JSON on stdin
    sed -nE "s/^ *\"$1\": \"?([^\"]*[^\",])\"?,?$/\1/p" | head -n 1
}

train() { # NAME PRECISION SEED OPTION…: a run; its row in $runs/NAME-SEED.row
    local name=$1 precision=$2 seed=$3 folder=$runs/$1-$3 result row
    local options=(--model glm4_moe --layers 4 --heads 4 --d-model "$width" --d-expert $((width / 2)) --d-ff $((3 * width / 2)) --seq-len 64
        --batch-size 12 --steps "${STEPS:-2000}" --tokenizer char --precision "$precision" --device "$device" --seed "$seed" --dropout 0
        --lr 1e-3 --min-lr 1e-4 --warmup 100 "${@:4}")
    [[ $device == cuda ]] || options+=(--threads "$threads")
    result=$("$mezzo" train "${options[@]}" --data "$text" --out "$folder" --quiet --eval-every 0 --sample-every -1 --json)
    # The command has no comma and needs no quotes; the device has one.
    row=("\"$(field device <<<"$result"); $("$mezzo" --version)\"" "$commit" "mezzo train ${options[*]} --data tinyshakespeare.txt"
        "$name" "$precision" "$seed")
    for key in val_loss tokens_per_second seconds skipped_steps; do row+=("$(field "$key" <<<"$result")"); done
    (IFS=, && echo "${row[*]}") | tee "$folder.row"
}

seed_runs() {
    train bf16 bf16 "$1"
    train bf16-again bf16 "$1"
    cmp "$runs"/{bf16,bf16-again}-"$1"/checkpoints/step-*"${STEPS:-2000}"/model.safetensors && echo "seed $1: the same bits again"
}

mkdir -p "$(dirname "$out")"
for seed in $seeds; do
    for run in "train fp32 fp32 $seed" "train fp16 fp16 $seed" "seed_runs $seed" "train dense fp32 $seed --dense-layers 4"; do
        while (($(jobs -rp | wc -l) >= ${JOBS:-1})); do wait -n; done
        $run &
    done
done
while (($(jobs -rp | wc -l) > 0)); do wait -n; done
echo "device,commit,command,run,precision,seed,val_loss,tokens_per_second,seconds,skipped_steps" >"$out"
for seed in $seeds; do
    for name in fp32 bf16 bf16-again fp16 dense; do cat "$runs/$name-$seed.row"; done
done >>"$out"

# What is claimed: of each precision the mean is no worse than the dense model's, and the three lie within 0.02 of each other.
awk -F, 'NR > 1 { run = $(NF - 6); sum[run] += $(NF - 3); count[run]++ }
    END { dense = sum["dense"] / count["dense"]; printf "dense: mean %.4f\n", dense
          for (r in sum) if (r != "dense" && r != "bf16-again") { mean = sum[r] / count[r]; printf "%s: mean %.4f\n", r, mean
              if (mean > dense) { print r ": worse than dense"; bad = 1 }
              if (low == "" || mean < low) low = mean; if (mean > high) high = mean }
          printf "spread %.4f\n", high - low; exit bad || high - low > 0.02 }' "$out"
