#!/usr/bin/env bash
# bench/fp8_bits.sh DEVICE [OUT.csv]: the bits of training in 8 bits, with emulated formats and with short moments, a row each: whether runs that have to end
# with the same weights, moments and tables of maxima do. repeat: the same run twice, with accumulation over 1 and over 4 micro batches; recompute: with
# --recompute; resume: stopped in the middle and resumed; ranks: two ranks twice, with every kind of shards (RANKS=0 leaves them out; on CPUs they need a build
# with MPI and PMIx); skip: a bad step, after which a checkpoint has what the one before it has; rollback: a bad step and a return to the checkpoint before it,
# twice (both need a build with MEZZO_INJECT, or tests). GPT-2 of 4 blocks (WIDTH 256), 24 steps. JOBS runs at a time (4); runs of one rank take turns on CARDS
# GPUs (1). LIMIT: seconds after which no run begins; what is missing then has no row. MEZZO and COMMIT as elsewhere. Exit code 1 where a row says no.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
device=${1:?usage: bench/fp8_bits.sh DEVICE [OUT.csv]} out=${2:-/dev/stdout}
export device mezzo=${MEZZO:-$root/build/cuda/mezzo} width=${WIDTH:-256} limit=${LIMIT:-1000000} cards=${CARDS:-1} OMP_WAIT_POLICY=passive
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD)} ranks=${RANKS:-1}
work=$(mktemp -d) began=$(date +%s)
export work began
trap 'rm -rf "$work"' EXIT
awk 'BEGIN { x = 1; for (i = 0; i < 60000; i++) { x = (x * 16807) % 2147483647; printf "%c", x % 13 == 0 ? 10 : 97 + x % 26 } }' >"$work/text.txt"

train() { # CARD FOLDER options…; instead of a card: two, for two ranks
    local card=$1 to=$work/$2 launch=("$mezzo")
    shift 2
    (($(date +%s) - began < limit)) || return 0
    if [[ $card == two ]]; then
        launch=("$mezzo" launch -n 2 --)
    elif ((cards > 1)); then
        export CUDA_VISIBLE_DEVICES=$card
    fi
    "${launch[@]}" train --data "$work/text.txt" --tokenizer byte --model gpt2 --layers 4 --heads 4 --d-model "$width" --seq-len 64 --batch-size 8 --dropout 0.1 --steps 24 \
        --warmup 4 --lr 1e-3 --device "$device" --eval-every 0 --sample-every -1 --keep-last 99 --checkpoint-every 12 --log-every 1 --threads 1 --quiet --out "$to" \
        "$@" >"$to.out" 2>"$to.err" || sed "s/^/$(basename "$to"): /" "$to.err" | tail -1 >&2
}
export -f train
together() {
    xargs -P "${JOBS:-4}" -L 1 bash -c 'train "$@"' train
}
bits() { # FOLDER STEP: weights, moments, and the table of maxima
    (cd "$work/$1/checkpoints/$(printf 'step-%08d' "$2")" 2>/dev/null && cat ./*.safetensors | sha256sum | cut -c1-16) || true
}
row() { # WHAT one other
    local same=no
    [[ -n $2 && -n $3 ]] || return 0
    [[ $2 != "$3" ]] || same=yes
    [[ $same == yes ]] || touch "$work/failed"
    echo "$name,\"$1\",$same,$2,$3,$device,$commit" >>"$out"
}

cat >"$work/recipes" <<'END'
fp8 --precision fp8
fp8-block --precision fp8-block
fp8-dw16 --precision fp8-dw16
fp8-all --precision fp8 --autocast.* fp8
moments-int8 --precision bf16 --moments int8
moments-bf16 --precision bf16 --moments bf16
mxfp8 --precision bf16 --emulate mxfp8
mxfp4:sr --precision bf16 --emulate mxfp4 --emulate-rounding stochastic
nvfp4:sr:rht --precision bf16 --emulate nvfp4 --emulate-rounding stochastic --emulate-hadamard
END
injects=1
"$mezzo" train --inject nan@1:batch --data "$work/nothing" 2>&1 | grep -q "no option --inject" && injects=0
each() { # FUNCTION: called for each recipe with its card, its name in folders, and its options
    local k=0 options
    while read -r name options; do
        "$1" "$((k++ % cards))" "${name//[^a-z0-9]/_}" "$options"
    done <"$work/recipes"
}
alone() {
    printf "%s\n" "$1 $2-a1 $3" "$1 $2-b1 $3" "$1 $2-a4 $3 --grad-accum 4" "$1 $2-b4 $3 --grad-accum 4" "$1 $2-r $3 --recompute"
    ((injects == 0)) || printf "%s\n" "$1 $2-s $3 --checkpoint-every 1 --inject nan@9:batch" \
        "$1 $2-back1 $3 --guard rollback --checkpoint-every 4 --inject nan@9:batch" "$1 $2-back2 $3 --guard rollback --checkpoint-every 4 --inject nan@9:batch"
}
resumed() {
    cp -r "$work/$2-a1" "$work/$2-h" 2>/dev/null || return 0
    rm -rf "$work/$2-h/checkpoints/step-00000024"
    echo "$1 $2-h $3 --resume auto"
}
in_ranks() {
    local mode
    for mode in none optimizer gradients parameters; do
        printf "%s\n" "two $2-$mode-1 $3 --shard $mode" "two $2-$mode-2 $3 --shard $mode"
    done
}
rows() {
    local g mode
    for g in 1 4; do
        row "repeat, accumulation of $g" "$(bits "$2-a$g" 24)" "$(bits "$2-b$g" 24)"
    done
    row recompute "$(bits "$2-a1" 24)" "$(bits "$2-r" 24)"
    row resume "$(bits "$2-a1" 24)" "$(bits "$2-h" 24)"
    row skip "$(bits "$2-s" 8)" "$(bits "$2-s" 9)"
    grep -qs "going back" "$work/$2-back1.err" && row rollback "$(bits "$2-back1" 24)" "$(bits "$2-back2" 24)"
    for mode in none optimizer gradients parameters; do
        row "two ranks, shards $mode" "$(bits "$2-$mode-1" 24)" "$(bits "$2-$mode-2" 24)"
    done
}
[[ -s $out ]] || echo "recipe,what,same,one,other,device,commit" >>"$out"
each alone | together
each resumed | together
[[ $ranks == 0 ]] || each in_ranks | together
each rows
[[ ! -e $work/failed ]]
