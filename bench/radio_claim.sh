#!/usr/bin/env bash
# bench/radio_claim.sh [--step PROGRAM] --out FOLDER
# "2 to 3 times as fast, 30 to 50 % less memory": steps of radio_unet with RadioDiff's sizes on a GPU, fp32 beside tf32, bf16 and fp16, ours and
# PyTorch's. FOLDER gets claim-ours.csv and claim-peers.csv, a row a run, claim-times.csv, a row a step, and claim.md, the table.
# BATCHES (default "2 8 24"), PRECISIONS ("fp32 tf32 bf16 fp16"), WAYS (PyTorch's: "eager", each also as one CUDA graph), REPEATS (2),
# MODEL (radio_unet-radiodiff), STEPS (12), LIMIT (seconds a run may take: 60), COMMIT and PYTHON as in bench/cuda.sh. Runs take turns, so that a
# card that warms up is warm for all. Without PyTorch there are our rows alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
step=$root/build/cuda/bench_step
out=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --step) step=$2 ;;
    --out) out=$2 ;;
    *) break ;;
    esac
    shift 2
done
[[ $# -eq 0 && -n $out ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2; }
model=${MODEL:-radio_unet-radiodiff}
precisions=${PRECISIONS:-fp32 tf32 bf16 fp16}
batches=${BATCHES:-2 8 24}
python=${PYTHON:-python3}
limit=${LIMIT:-60}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
mkdir -p "$out"
rm -f "$out"/claim-{ours,peers,times}.csv

ours() { # batch
    local header=()
    [[ -s $out/claim-ours.csv ]] && header=(--no-header)
    # shellcheck disable=SC2086
    timeout "$limit" "$step" --commit "$commit" --times "$out/claim-times.csv" "${header[@]}" --device cuda --model "$model" --batch "$1" \
        --steps "${STEPS:-12}" --warmup 4 $precisions >>"$out/claim-ours.csv" || echo "ours, batch $1: exit $?" >&2
}

peers() {
    local b p w list=() csv=$out/claim-peers.csv
    for b in $batches; do
        for w in ${WAYS:-eager}; do
            for p in $precisions; do
                list+=("$model:$b:$p:$w")
            done
        done
    done
    # Without cudnn.benchmark: trying every engine of every convolution takes PyTorch longer than all steps.
    timeout "$limit" "$python" "$root/bench/peers/torch_radio.py" --heuristics --capture --times "$out/claim-times.csv" --iters "${STEPS:-12}" \
        "${list[@]}" >"$csv.part" || echo "PyTorch: exit $?" >&2
    { [[ -s $csv ]] && grep -v '^system,' "$csv.part" || cat "$csv.part"; } >>"$csv" || true
    rm -f "$csv.part"
}

table() {
    "$python" "$root/bench/radio_claim.py" "$out/claim-times.csv" "$out"/claim-{ours,peers}.csv >"$out/claim.md"
}

for ((repeat = 0; repeat < ${REPEATS:-2}; repeat++)); do
    for batch in $batches; do
        ours "$batch"
    done
    if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then peers; fi
    table
done
cat "$out/claim.md"
