#!/usr/bin/env bash
# answers: what the answers cost here: `advise --data` (advise.csv), steps with statistics of counterfactual formats beside steps without, and
# whether weights stay the same (steps.csv, answers.csv), 355M in fp8 predicted from smaller widths (transfer.txt).
. "$(dirname "$0")/common.sh"
began=$(date +%s.%N)
capped 90 "$mezzo" advise --data "$text" --device "$device" --out "$out/advise" $(pick "" "--minutes 0.05 --layers 1 --d-model 32") \
    >"$out/advise.txt" 2>"$out/advise.err"
status=$? seconds=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
row answers.csv what,value,detail "advise, seconds" "$seconds" "exit code $status, $(head -n 1 "$out/advise.txt")"
small=$(pick "--layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 16" "--layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2")
large=$(pick "--model gpt2-124M --seq-len 1024 --batch-size 8" "--layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2")
compare() { # NAME SHAPE STEPS
    local name=$1 shape=$2 n=$3 a b cost
    time_for 25 "$name" || return
    # shellcheck disable=SC2086
    steps "$name-without" $shape --precision bf16 --steps "$n" --checkpoint-every 0 &&
        steps "$name-every-10th" $shape --precision bf16 --steps "$n" --checkpoint-every 0 --counterfactual fp8,mxfp8,nvfp4 --counterfactual-every 10 || return
    cmp -s "$name"-{without,every-10th}/checkpoints/*/model.safetensors
    row answers.csv what,value,detail "$name: weights differ" $? ""
    head -n 400 "$name-every-10th/counterfactual.jsonl" >"$out/$name.jsonl"
    # Column 5 is the mean.
    a=$(awk -F, -v n="$name-without" '$1 == n { print $5 }' "$out/steps.csv") b=$(awk -F, -v n="$name-every-10th" '$1 == n { print $5 }' "$out/steps.csv")
    cost=$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.2f", 10 * (b - a) / a }')
    row answers.csv what,value,detail "$name: cost at every 100th step, percent" "$cost" "mean steps $a and $b ms, the latter with every 10th measured"
    rm -rf "$name"-*
}
compare 124M "$large" "$(pick 40 20)"
compare 384x6 "$small" "$(pick 100 20)"
# shellcheck disable=SC2046
! time_for 60 transfer || capped 150 "$mezzo" verify --matched --data "$(tokens)" --device "$device" --baseline bf16 --precision fp8 --lr 6e-4 \
    --weight-decay 0.1 --eval-iters 8 --seeds 3 \
    --minutes "$(pick "$(awk -v s="$(left)" 'BEGIN { printf "%.2f", (s - 25) / 60 }')" 0.1)" --transfer "$(pick 256,384,512 16,24,32)" \
    --out "$out/transfer" --quiet \
    $(pick "--model gpt2 --layers 24 --heads 16 --d-model 1024 --seq-len 1024 --batch-size 4 --steps 60 --warmup 20" \
    "--model gpt2 --layers 2 --heads 2 --d-model 64 --seq-len 32 --batch-size 2 --steps 12 --warmup 2") \
    >"$out/transfer.txt" 2>"$out/transfer.err"
tail -n 12 "$out/transfer.txt" "$out/transfer.err" 2>/dev/null
exit 0
