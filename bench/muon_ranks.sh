#!/usr/bin/env bash
# bench/muon_ranks.sh TEXT OUT [RANKS]: on RANKS GPUs (2), whether Muon and NorMuon have the bits of one GPU whatever ranks share, with widths of 66 and 128
# and --reduce canonical, and step times of GPT-2 124M with AdamW and Muon in turns, 32 x 1,024 tokens a rank: OUT/muon-ranks.csv. MEZZO: the command.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$(realpath "${MEZZO:-$root/build/cuda/mezzo}") text=$(realpath "${1:?usage: bench/muon_ranks.sh TEXT OUT [RANKS]}") ranks=${3:-2}
mkdir -p "${2:?usage: bench/muon_ranks.sh TEXT OUT [RANKS]}" && out=$(realpath "$2") || exit 2
commit=$(git -C "$root" rev-parse --short HEAD) device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit
bad=0
common=(--device cuda --data "$text" --tokenizer byte --precision bf16 --dropout 0 --eval-every 0 --eval-final false --sample-every -1 --quiet)
bits() { # kind, width
    local options=("${common[@]}" --model gpt2 --layers 3 --heads 2 --d-model "$2" --seq-len 64 --batch-size 2 --global-batch 8 --warmup 1 --optimizer "$1"
        --reduce canonical --steps 6) shard file
    rm -rf one ranks
    "$mezzo" train "${options[@]}" --out one >"$out/bits.log" 2>&1 || bad=1
    for shard in none optimizer gradients parameters; do
        rm -rf ranks
        "$mezzo" launch -n "$ranks" -- train "${options[@]}" --shard $shard --out ranks >>"$out/bits.log" 2>&1 || bad=1
        for file in model optimizer; do
            cmp {one,ranks}/checkpoints/step-00000006/$file.safetensors || { echo "$1, width $2, --shard $shard: another $file" && bad=1; }
        done
    done
}
step() { # kind, shard, turn
    rm -rf ranks
    "$mezzo" launch -n "$ranks" -- train "${common[@]}" --model gpt2 --layers 12 --heads 12 --d-model 768 --vocab 50304 --seq-len 1024 --batch-size 32 \
        --global-batch $((32 * ranks)) --steps 24 --warmup 5 --log-every 1 --checkpoint-every 0 --optimizer "$1" --shard "$2" --out ranks >"$out/step.log" 2>&1 ||
        { bad=1 && return; }
    python3 - "$1,$2,$ranks,$3" "$device,$commit" <<'END_OF_SCRIPT' | tee -a "$out/muon-ranks.csv"
import json, statistics, sys
ms = [row["perf/step_ms"] for row in map(json.loads, open("ranks/metrics.jsonl")) if "perf/step_ms" in row][9:]
print(f"{sys.argv[1]},{statistics.median(ms):.3f},{min(ms):.3f},{max(ms):.3f},{sys.argv[2]}")
END_OF_SCRIPT
}
for kind in muon normuon; do for width in 66 128; do bits $kind $width; done; done
echo "optimizer,shard,ranks,turn,median_ms,min_ms,max_ms,device,commit" | tee "$out/muon-ranks.csv"
for turn in 1 2; do for shard in gradients optimizer; do for kind in adamw muon; do step $kind $shard $turn; done; done; done
exit $bad
