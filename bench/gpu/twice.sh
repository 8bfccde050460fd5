#!/usr/bin/env bash
# twice [VARIANT…]: whether two runs, side by side, have the same losses, norms, weights and moments (twice.csv): GPT-2 124M in bf16 (default) and
# fp8, Qwen 2.5's widths with attention's backward for heads of 128 by mma (wide) and wgmma. bench/gpu/bits.sh says why they do not.
. "$(dirname "$0")/common.sh"
gpt2=$(pick "--model gpt2-124M --batch-size 32 --seq-len 1024" "--model gpt2 --layers 2 --heads 2 --d-model 64 --batch-size 2 --seq-len 64")
qwen=$(pick "--model qwen2 --layers 2 --heads 12 --kv-heads 2 --d-model 1536 --d-ff 8960 --batch-size 8 --seq-len 1024" \
    "--model qwen2 --layers 2 --heads 2 --kv-heads 1 --d-model 64 --d-ff 128 --batch-size 2 --seq-len 64")
n=$(pick 100 6)
twice() { # NAME OPTION…
    local name=$1 began=$SECONDS i pids=() files=same status=0 found
    shift
    time_for 20 "$name" || return
    for i in 1 2; do
        rm -rf "run-$i"
        capped 60 "$mezzo" train --data "$text" --tokenizer byte --vocab 50304 --device "$device" --dropout 0 "$@" --steps "$n" --log-every 1 \
            --eval-every 0 --eval-iters 1 --eval-final=false \
            --sample-every -1 --checkpoint-every 0 --quiet --out "run-$i" >/dev/null 2>"$out/$name-$i.err" &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || status=$?; done
    for i in model optimizer; do cmp -s run-{1,2}/checkpoints/step-*/$i.safetensors || files=other; done
    [[ $status -eq 0 ]] || files="exit code $status"
    found=$(python3 - <<'END'
import json, os
rows = [{}, {}]
for i in 0, 1:
    if os.path.exists(f"run-{i + 1}/metrics.jsonl"):
        for r in map(json.loads, open(f"run-{i + 1}/metrics.jsonl")):
            if "train/loss" in r:
                rows[i][r["step"]] = r["train/loss"], r.get("gradients/total_norm")
both = sorted(set(rows[0]) & set(rows[1]))
other = [step for step in both if rows[0][step] != rows[1][step]]
print(len(both), len(other), *([other[0], f"{rows[0][other[0]]}/{rows[1][other[0]]}".replace(" ", "")] if other else "--"))
END
)
    # shellcheck disable=SC2086
    row twice.csv name,steps,differ,first_that_differs,loss_and_norm,files,seconds,options "$name" $found "$files" $((SECONDS - began)) "$*"
    rm -rf run-1 run-2
}
[[ $# -gt 0 ]] || set -- wgmma default wide fp8
for name in "$@"; do
    # shellcheck disable=SC2086
    case $name in
    default) twice default $gpt2 --precision bf16 ;;
    fp8) twice fp8 $gpt2 --precision fp8 ;;
    wide) twice wide $qwen --precision bf16 ;;
    wgmma) MEZZO_CUDA_WIDE_HEADS=wgmma twice wgmma $qwen --precision bf16 ;;
    *) echo "twice: no variant $name" ;;
    esac
done
exit 0
