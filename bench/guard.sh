#!/usr/bin/env bash
# bench/guard.sh BUILD [DEVICE [traces|cost|both]]: that a skipped step leaves no trace (traces), and what the guard costs (cost), on one device
# (cuda by default); both is the default and takes about 45 s on a GPU. Of the traces, 1 is the exit code where bits differ; they need no idle
# machine. BUILD holds mezzo (with MEZZO_INJECT) and bench_guard; rows go to stdout in the columns of bench/results/guard-cpu.csv.
# COMMIT names the commit outside of a repository.
set -euo pipefail
build=$(realpath "${1:?usage: bench/guard.sh BUILD [DEVICE [traces|cost|both]]}") device=${2:-cuda} what=${3:-both}
commit=${COMMIT:-$(git -C "$(dirname "$0")" rev-parse --short=12 HEAD)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for ((i = 0; i < 20000; i++)); do echo "line $i of a text: $((i * 7919 % 99991)) and $((i * 31 % 4096))."; done >text.txt

small=(--data text.txt --device "$device" --threads 1 --layers 2 --heads 2 --d-model 64 --seq-len 64 --batch-size 8 --eval-every 0
    --eval-iters 1 --no-eval-final --sample-every -1 --log-every 50 --quiet --dropout 0.1 --init-scale 1024 --schedule-steps 60 --warmup 5)
sum() { cat "$1"/checkpoints/step-*/model.safetensors "$1"/checkpoints/step-*/optimizer.safetensors | cksum; }
traces() { # PRECISION
    local precision=$1 fault word differ=0
    mkdir "$precision" && cd "$precision" && ln -s ../text.txt .
    "$build/mezzo" train "${small[@]}" --precision "$precision" --out without --steps 59 --inject drop@25.1:batch >/dev/null
    for fault in nan@25:batch inf@25:loss nan@25:h.0.attn/attention; do
        "$build/mezzo" train "${small[@]}" --precision "$precision" --out with --steps 60 --inject $fault >/dev/null
        if [[ $(sum without) == "$(sum with)" ]]; then word="the same bits"; else word="OTHER BITS" differ=1; fi
        echo "$precision, $fault, skipped: $word" >&2
        rm -r with
    done
    return $differ
}
if [[ $what != cost ]]; then
    pids=() failed=0
    for precision in fp32 bf16 fp16; do (traces $precision) & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    [[ $what != traces ]] || exit $failed
fi

rows() { "$build/bench_guard" "$1" "$2" "$commit" --data text.txt --device "$device" --eval-every 0 --out none "${@:3}"; }
echo "device,commit,command,precision,steps,off_ms,on_ms,percent_q1,percent_median,percent_q3,percent_least"
if [[ $device == cpu ]]; then
    for precision in fp32 bf16; do
        rows 150 1 --threads 1 --precision $precision --layers 4 --heads 4 --d-model 128 --seq-len 64 --batch-size 12
    done
    exit
fi
rows 60 20 --precision bf16 --layers 4 --heads 4 --d-model 128 --seq-len 64 --batch-size 12
rows 60 20 --precision fp16 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64
rows 8 4 --precision bf16 --model gpt2-124M --seq-len 1024 --batch-size 8
rows 8 4 --precision fp16 --model gpt2-124M --seq-len 1024 --batch-size 8
