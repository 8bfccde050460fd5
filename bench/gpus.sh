#!/usr/bin/env bash
# bench/gpus.sh MEZZO TEXT OUT [PART…]: one, two … all GPUs of this machine, rows as bench/results/ranks-h200.csv into OUT/gpus.csv. Parts, in this order:
#   8B        llama-3.1-8B, --shard parameters, 1 x 8,192 tokens a GPU, bf16 and fp8, beside PyTorch's FSDP2 (COMPARE=0: without)
#   scaling   GPT-2 124M in bf16, 524,288 tokens a step, 32 x 1,024 a micro batch, on all, … 2, 1 GPUs
#   left      a rank is killed: its job goes on with one GPU fewer
#   replay    GPT-2 124M, 32 x 1,024 tokens a GPU, every 100th step computed twice
# COMMIT names what was built. Each row's time is the median of rank 0's steps without the first third. LIMIT: seconds for all parts, ROW_LIMIT (100) for a
# row; a run that either cuts gets a row of the steps that it made. PYTHON: one with torch. DEVICE=cpu TINY=1 tries it with two ranks of a CPU.
set -uo pipefail
mezzo=$(realpath "$1") text=$(realpath "$2") out=$(realpath -m "$3") root=$(cd "$(dirname "$0")/.." && pwd)
shift 3
[[ $# -gt 0 ]] || set -- 8B scaling left replay
mkdir -p "$out"
device=${DEVICE:-cuda} tiny=${TINY:-0} all=2 name=CPU
if [[ $device != cpu ]]; then
    all=$(nvidia-smi -L | wc -l)
    name="$all x $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1 | sed 's/, /, driver /')"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$text" text.txt
# Without validation, for which rank 0 would gather all weights.
common=(--data text.txt --tokenizer byte --split 1 --device "$device" --log-every 1 --eval-every 0 --sample-every -1 --checkpoint-every -1 --warmup 2
    --dropout 0)
[[ -s $out/gpus.csv ]] || echo "system,device,ranks,model,batch,tokens,precision,way,ms_step,tokens_per_s,peak_mib,commit,command" >"$out/gpus.csv"

seconds() { # MOST: at most what is left
    local left=$((${LIMIT:-36000} - SECONDS - 2))
    echo $((left < $1 ? (left > 1 ? left : 1) : $1))
}

row() { # RANKS MODEL BATCH TOKENS PRECISION WAY OPTION…: trains, and appends the row
    local ranks=$1 model=$2 batch=$3 tokens=$4 precision=$5 way=$6 command code
    shift 6
    local sizes=(--model "$model" --batch-size "$batch" --seq-len "$tokens") log="$out/$model-$ranks-$precision-${way//[ ,]/-}.log" found
    [[ $tiny != 1 ]] || sizes=(--model "${model%%-*}" --layers 2 --heads 2 --d-model 32 --batch-size 1 --seq-len 32)
    [[ $tiny != 1 || $model != llama* ]] || sizes+=(--kv-heads 2)
    command=(launch -n "$ranks" -- train "${sizes[@]}" --precision "$precision" "${common[@]}" "$@")
    rm -rf run
    timeout "$(seconds "${ROW_LIMIT:-100}")" "$mezzo" "${command[@]}" --out run >"$log" 2>&1
    code=$?
    [[ $code -eq 0 ]] || echo "FAILED: $model on $ranks, $precision, $way: exit code $code, $(grep -v '^ *$' "$log" | tail -1 | cut -c1-300)"
    found=$(python3 "$root/bench/gpu/steps.py" run/metrics.jsonl) || return 1
    read -ra found <<<"$found"
    way+=", ${found[8]} steps, exit code $code, loss ${found[6]}, ${found[1]} to ${found[2]}, mean ${found[3]}"
    write mezzo "$ranks" "$model" "$batch" "$tokens" "$precision" "$way" "${found[0]}" "${found[7]}" "${found[4]}" "${COMMIT:-unknown}" "mezzo ${command[*]}"
    return $code
}
write() { # SYSTEM RANKS MODEL …: a row
    echo "$1,\"$name\",$2,$3,$4,$5,$6,\"$7\",$8,$9,${10},${11},\"${12}\"" | tee -a "$out/gpus.csv" | cut -d, -f3-15 | cut -c1-200
}

torch() { # CASE: PyTorch on all GPUs, its row in the same file
    local command=(torch.distributed.run --standalone --nproc-per-node "$all" "$root/bench/peers/torch_ddp.py"
        --iters $((tiny == 1 ? 2 : 8)) "$1") r
    timeout "$(seconds 150)" "${PYTHON:-python3}" -m "${command[@]}" >"$out/torch.csv" 2>"$out/torch.log"
    IFS=, read -ra r < <(grep '^torch ' "$out/torch.csv")
    [[ ${#r[@]} -eq 14 ]] || { echo "FAILED: $1: $(grep -E 'Error|error' "$out/torch.log" | tail -1 | cut -c1-300)" && return 1; }
    write "${r[@]::1}" "${r[@]:2:5}" "${r[7]} compiled, loss ${r[13]}, best ${r[10]}" "${r[9]}" "${r[11]}" "${r[12]}" "" "${command[*]//$root\//}"
}

scaling() {
    local n=1
    while ((n * 2 <= all)); do n=$((n * 2)); done
    for (( ; n >= 1; n /= 2)); do row "$n" gpt2-124M 32 1024 bf16 optimizer --global-batch $((tiny == 1 ? 4 : 512)) --steps 15; done
}
replay() {
    local steps=$((tiny == 1 ? 30 : 300)) each=$((tiny == 1 ? 10 : 100)) batch=$((tiny == 1 ? 1 : 32))
    row "$all" gpt2-124M 32 1024 bf16 "optimizer, replay of every ${each}th step" --global-batch $((all * batch)) --steps $steps --replay $each
    row "$all" gpt2-124M 32 1024 bf16 "optimizer, without" --global-batch $((all * batch)) --steps $steps
}
left() {
    local job ranks
    [[ $all -gt 1 ]] || return 0
    timeout "$(seconds 60)" "$mezzo" launch -n "$all" --restarts 1 --min-ranks $((all - 1)) -- train --model gpt2 --layers 4 --heads 4 \
        --d-model $((tiny == 1 ? 32 : 256)) --seq-len $((tiny == 1 ? 16 : 256)) --batch-size 1 --global-batch 12 --steps $((tiny == 1 ? 600 : 2000)) \
        --precision bf16 "${common[@]}" --checkpoint-every 200 --out left >"$out/left.log" 2>&1 &
    job=$!
    for ((i = 0; i < 300; i++)); do [[ -e left/checkpoints/step-00000400 ]] && break; sleep 0.1; done
    ranks=$(pgrep -P "$(pgrep -P "$job")")
    kill -9 "$(tail -1 <<<"$ranks")"
    wait "$job"
    echo "left: exit code $?, $(grep -c step- <(ls left/checkpoints 2>/dev/null)) checkpoints;" \
        "$(grep -v '^step\|^ *$' "$out/left.log" | cut -c1-160 | sed 1d | head -5 | tr '\n' ';')"
}
eight_b() {
    local options=(--vocab 128256 --shard parameters --bucket-mib 128 --global-batch "$all" --steps 12) precision
    for precision in bf16 fp8; do
        row "$all" llama-3.1-8B 1 8192 $precision parameters "${options[@]}" ||
            ! grep -q "out of .*memory" "$out/llama-3.1-8B-$all-$precision-parameters.log" ||
            row "$all" llama-3.1-8B 1 8192 $precision "parameters, recompute" "${options[@]}" --recompute
    done
    [[ ${COMPARE:-1} = 0 ]] || torch llama-8B:fsdp:1x$((tiny == 1 ? 32 : 8192))
}
for part in "$@"; do
    case $part in
    8B) eight_b ;;
    scaling | replay | left) $part ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$root/bench/gpus.sh" && exit 2 ;;
    esac
done
