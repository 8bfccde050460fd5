#!/usr/bin/env bash
# bench/ranks.sh [--mezzo PROGRAM] [--ranks N] [--results FILE]: GPT-2 124M on N GPUs of this machine [2], 8 x 1,024 tokens a rank and micro batch, bf16.
# DEVICE=cpu, SIZE (the model's options), BATCH (as there), BUCKET (MiB) and STEPS [12] take another device and size.
# Each way to share the work: the loss, a checksum of the weights (ways that must give the same bits show the same one), the median step, the shortest one, rank 0's memory.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$root/build/release/mezzo ranks=2 results=$root/bench/results/ranks-ways.csv
while [[ ${1:-} == --* ]]; do
    case $1 in
    --mezzo) mezzo=$2 ;;
    --ranks) ranks=$2 ;;
    --results) results=$2 ;;
    *) sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift 2
done
mezzo=$(realpath "$mezzo")
device=${DEVICE:-cuda}
read -ra size <<<"${SIZE:---layers 12 --heads 12 --d-model 768 --seq-len 1024 --batch-size 8}"
batch=${BATCH:-8}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk 'BEGIN { x = 1; for (i = 0; i < 400000; i++) { x = (x * 16807) % 2147483647; printf "%c%s", 97 + x % 26, x % 7 == 0 ? " " : "" } }' >"$work/text.txt"
cd "$work"
echo "way,ranks,device,micro_batches,loss,weights,median_ms,least_ms,memory_bytes,commit,command" >"$results"

way() { # NAME MICRO-BATCHES OPTION…
    local name=$1 micro=$2 command
    shift 2
    command=(launch -n "$ranks" -- train --data text.txt --model gpt2 --tokenizer byte "${size[@]}" --device "$device" --precision bf16 --steps "${STEPS:-12}" --log-every 1 --eval-every 0
        --eval-final false --sample-every -1 --checkpoint-every 0 --bucket-mib "${BUCKET:-32}" --quiet --out "$name" --global-batch $((ranks * batch * micro)) "$@")
    "$mezzo" "${command[@]}" >/dev/null
    python3 - "$name" "$micro" "$ranks" "$device" "$commit" "mezzo ${command[*]}" <<'P' | tee -a "$results" | cut -d, -f1-9
import csv, glob, hashlib, json, sys
name, micro, ranks, device, commit, command = sys.argv[1:]
weights = hashlib.sha256(open(sorted(glob.glob(f"{name}/checkpoints/*/model.safetensors"))[-1], "rb").read()).hexdigest()[:16]
rows = [row for row in map(json.loads, open(f"{name}/metrics.jsonl")) if "perf/step_ms" in row]
steps = sorted(row["perf/step_ms"] for row in rows[4:])
last = rows[-1]
csv.writer(sys.stdout, lineterminator="\n").writerow([name, ranks, device, micro, last["train/loss"], weights, f"{steps[len(steps) // 2]:.3f}", f"{steps[0]:.3f}", last["perf/memory_bytes"], commit, command])
P
}
way none 1 --shard none
way optimizer 1
way gradients 1 --shard gradients
way parameters 1 --shard parameters
way wire 1 --reduce-wire bf16
way wire-gradients 1 --reduce-wire bf16 --shard gradients
way optimizer-4 4
way gradients-4 4 --shard gradients
way parameters-4 4 --shard parameters
way canonical 2 --reduce canonical
way canonical-gradients 2 --reduce canonical --shard gradients
way canonical-parameters 2 --reduce canonical --shard parameters
