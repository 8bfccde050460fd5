#!/usr/bin/env bash
# twice [VARIANT…]: whether two runs, side by side, have the same losses, norms, weights and moments (twice.csv): GPT-2 124M in bf16 (default) and
# fp8, two layers of Qwen 2.5's widths (qwen; mma: with the older kernels of attention's backward). bench/gpu/bits.sh says why they do not. wide, for heads
# of 128, 90 s: whether steps of Qwen 2.5's 1.5B and of two layers of Llama 8B's widths, computed twice, have the same gradients, and the 1.5B's time with
# either kernels (steps.csv).
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
again() { # NAME STEPS OPTION…: every step's gradients are computed twice
    local name=$1 count=$2 began=$SECONDS found
    shift 2
    steps "$name" "$@" --steps "$count" --replay 1 --replay-policy continue
    found=$(grep -c '"perf/step_ms"' "$name/metrics.jsonl" 2>/dev/null)
    row twice.csv name,steps,differ,first_that_differs,loss_and_norm,files,seconds,options "$name" "${found:-0}" "$(grep -c 'two different' "$out/$name.log")" \
        "$(grep -o -m1 'step [0-9]*: .*two different.*' "$out/$name.log" | tr -d , | cut -c1-300)" - - $((SECONDS - began)) "$* --replay 1"
}
wide() {
    local shape="--dropout 0 --precision bf16" big two
    big=$(pick "--model qwen2.5-1.5B --vocab 151936 --logits-rows 4096 --batch-size 8 --seq-len 1024" \
        "--model qwen2 --layers 2 --heads 2 --kv-heads 1 --d-model 64 --d-ff 128 --vocab 512 --batch-size 2 --seq-len 64")
    two=$(pick "--model llama --layers 2 --heads 32 --kv-heads 8 --d-model 4096 --d-ff 14336 --vocab 50304 --batch-size 4 --seq-len 1024" \
        "--model llama --layers 2 --heads 4 --kv-heads 1 --d-model 64 --d-ff 128 --vocab 512 --batch-size 2 --seq-len 64")
    # shellcheck disable=SC2086
    {
        ROW_LIMIT=45 again 1.5B-twice "$(pick 80 6)" $shape $big
        ! time_for 20 "the 1.5B's time" || ROW_LIMIT=20 steps 1.5B-wgmma $shape $big --steps "$(pick 16 6)"
        ! time_for 20 "the 1.5B's time by mma" || MEZZO_CUDA_WIDE_HEADS=mma ROW_LIMIT=20 steps 1.5B-mma $shape $big --steps "$(pick 16 6)"
        ! time_for 10 "Llama's widths" || ROW_LIMIT=25 again llama-8B-twice "$(pick 80 6)" $shape $two
    }
}
[[ $# -gt 0 ]] || set -- qwen default fp8
for name in "$@"; do
    # shellcheck disable=SC2086
    case $name in
    default) twice default $gpt2 --precision bf16 ;;
    fp8) twice fp8 $gpt2 --precision fp8 ;;
    qwen) twice qwen $qwen --precision bf16 ;;
    mma) MEZZO_CUDA_WIDE_HEADS=mma twice mma $qwen --precision bf16 ;;
    wide) wide ;;
    *) echo "twice: no variant $name" ;;
    esac
done
exit 0
