#!/usr/bin/env bash
# bench/gpus.sh MEZZO TEXT OUT [PART…]: one, two … all GPUs of this machine, rows as bench/results/ranks-h200.csv into OUT/gpus.csv. Parts, in this order:
#   scaling   GPT-2 124M in bf16, 524,288 tokens a step, 32 x 1,024 a micro batch, on 1, 2, 4 … GPUs
#   replay    the same on all GPUs, every 20th step computed twice
#   left      a rank is killed: its job goes on with one GPU fewer
#   8B        llama-3.1-8B, --shard parameters, 1 x 8,192 tokens a GPU, bf16 and fp8, beside PyTorch's FSDP2 (COMPARE=0: without)
# COMMIT names what was built. Each row's time is the median of rank 0's steps without the first third. DEVICE=cpu TINY=1 tries it with two ranks of a CPU.
set -uo pipefail
mezzo=$(realpath "$1") text=$(realpath "$2") out=$(realpath -m "$3") root=$(cd "$(dirname "$0")/.." && pwd)
shift 3
[[ $# -gt 0 ]] || set -- scaling replay left 8B
mkdir -p "$out"
device=${DEVICE:-cuda} all=2 name=CPU
[[ $device == cpu ]] || all=$(nvidia-smi -L | wc -l)
[[ $device == cpu ]] || name="$all x $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$text" text.txt
common=(--data text.txt --tokenizer byte --device "$device" --log-every 1 --eval-every 0 --eval-final false --eval-iters 1 --sample-every -1 --checkpoint-every -1 --warmup 2 --dropout 0)
[[ -s $out/gpus.csv ]] || echo "system,device,ranks,model,batch,tokens,precision,way,ms_step,tokens_per_s,peak_mib,commit,command" >"$out/gpus.csv"

row() { # RANKS MODEL BATCH TOKENS PRECISION WAY OPTION…: trains, and appends the row
    local ranks=$1 model=$2 batch=$3 tokens=$4 precision=$5 way=$6 command
    shift 6
    local sizes=(--model "$model" --batch-size "$batch" --seq-len "$tokens")
    [[ ${TINY:-0} != 1 ]] || sizes=(--model "${model%%-*}" --layers 2 --heads 2 --d-model 32 --batch-size 1 --seq-len 32)
    [[ ${TINY:-0} != 1 || $model != llama* ]] || sizes+=(--kv-heads 2)
    command=(launch -n "$ranks" -- train "${sizes[@]}" --precision "$precision" "${common[@]}" "$@")
    rm -rf run
    timeout "${ROW_LIMIT:-100}" "$mezzo" "${command[@]}" --out run >"$out/$model-$ranks-$precision-${way// /-}.log" 2>&1 ||
        { echo "FAILED: $model on $ranks, $precision, $way: $(grep -v '^ *$' "$out/$model-$ranks-$precision-${way// /-}.log" | tail -1 | cut -c1-300)"; return 1; }
    python3 - "$name" "$ranks" "$model" "$batch" "$tokens" "$precision" "$way" "${COMMIT:-unknown}" "mezzo ${command[*]}" <<'P' | tee -a "$out/gpus.csv" | cut -d, -f4-13
import csv, json, statistics, sys
rows = [r for r in map(json.loads, open("run/metrics.jsonl")) if "perf/step_ms" in r]
ms = [r["perf/step_ms"] for r in rows][len(rows) // 3:]
median = statistics.median(ms)
rate = statistics.median(r["perf/tokens_per_second"] for r in rows[len(rows) // 3:]) if "perf/tokens_per_second" in rows[-1] else ""
name, ranks, model, batch, tokens, precision, way, commit, command = sys.argv[1:]
csv.writer(sys.stdout, lineterminator="\n").writerow(["mezzo", name, ranks, model, batch, tokens, precision, f"{way}, loss {rows[-1]['train/loss']:.4f}, {min(ms):.2f} to {max(ms):.2f}, mean {statistics.mean(ms):.2f}",
    f"{median:.2f}", rate and f"{rate:.0f}", rows[-1].get("perf/memory_bytes", 0) >> 20, commit, command])
P
}

scaling() {
    local n
    for ((n = 1; n <= all; n *= 2)); do row "$n" gpt2-124M 32 1024 bf16 optimizer --global-batch 512 --steps 15; done
}
replay() {
    row "$all" gpt2-124M 32 1024 bf16 "optimizer, replay of every 20th step" --global-batch $((all * 32)) --steps 90 --replay 20
    row "$all" gpt2-124M 32 1024 bf16 "optimizer, without" --global-batch $((all * 32)) --steps 90
}
left() {
    local job ranks
    [[ $all -gt 1 ]] || return 0
    "$mezzo" launch -n "$all" --restarts 1 --min-ranks $((all - 1)) -- train --model gpt2 --layers 4 --heads 4 --d-model $((${TINY:-0} == 1 ? 32 : 256)) --seq-len $((${TINY:-0} == 1 ? 16 : 256)) --batch-size 1 --global-batch 12 --steps $((${TINY:-0} == 1 ? 600 : 4000)) --precision bf16 \
        "${common[@]}" --checkpoint-every 200 --out left >"$out/left.log" 2>&1 &
    job=$!
    for ((i = 0; i < 300; i++)); do [[ -e left/checkpoints/step-00000400 ]] && break; sleep 0.1; done
    ranks=$(pgrep -P "$job")
    kill -9 "$(tail -1 <<<"$ranks")"
    wait "$job"
    echo "left: exit code $?, $(grep -c step- <(ls left/checkpoints 2>/dev/null)) checkpoints; $(grep -v '^step\|^ *$' "$out/left.log" | cut -c1-160 | sed 1d | head -5 | tr '\n' ';')"
}
eight_b() {
    local precision
    for precision in bf16 fp8; do
        row "$all" llama-3.1-8B 1 8192 $precision parameters --vocab 128256 --shard parameters --bucket-mib 128 --global-batch "$all" --steps 12 ||
            row "$all" llama-3.1-8B 1 8192 $precision "parameters, recompute" --vocab 128256 --shard parameters --bucket-mib 128 --recompute --global-batch "$all" --steps 12
    done
    [[ ${COMPARE:-1} = 0 || $device == cpu ]] || timeout 150 torchrun --standalone --nproc-per-node "$all" "$root/bench/peers/torch_ddp.py" --iters 8 llama-8B:fsdp:1x8192 2>"$out/fsdp.log" | tee -a "$out/fsdp.csv" ||
        tail -3 "$out/fsdp.log"
}
for part in "$@"; do
    case $part in
    8B) eight_b ;;
    scaling | replay | left) $part ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$root/bench/gpus.sh" && exit 2 ;;
    esac
done
