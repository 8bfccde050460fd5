#!/usr/bin/env bash
# twice [VARIANT…]: whether two runs of GPT-2 124M, side by side, have the same losses, norms of gradients, weights and moments; by variant, since each has
# other kernels. Rows: twice.csv. A step that replays itself (--replay 1) and differs is counted beside it.
. "$(dirname "$0")/common.sh"
model=$(pick "--model gpt2-124M --batch-size 32 --seq-len 1024" "--model gpt2 --layers 2 --heads 2 --d-model 64 --batch-size 2 --seq-len 64")
wide=$(pick "--model qwen2 --layers 6 --heads 12 --kv-heads 2 --d-model 1536 --d-ff 8960 --batch-size 8 --seq-len 1024" \
    "--model qwen2 --layers 2 --heads 2 --kv-heads 1 --d-model 64 --d-ff 128 --batch-size 2 --seq-len 64")
twice() { # NAME STEPS OPTION…
    local name=$1 steps=$2 began=$SECONDS i pids=() status=0
    shift 2
    time_for 20 "$name" || return
    for i in 1 2; do
        rm -rf "run-$i"
        capped 60 "$mezzo" train --data "$text" --tokenizer byte --vocab 50304 --precision bf16 --device "$device" --dropout 0 "$@" --steps "$steps" --log-every 1 \
            --eval-every 0 --eval-final=false --sample-every -1 --checkpoint-every 0 --quiet --out "run-$i" >/dev/null 2>"$out/$name-$i.err" &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || status=$?; done
    local files=same
    for i in model optimizer; do cmp -s run-{1,2}/checkpoints/step-*/$i.safetensors || files=other; done
    [[ $status -eq 0 ]] || files="exit code $status"
    local found
    found=$(python3 - <<'END'
import json
rows = []
for i in 1, 2:
    try:
        rows.append({r["step"]: (r["train/loss"], r.get("gradients/total_norm")) for r in map(json.loads, open(f"run-{i}/metrics.jsonl")) if "train/loss" in r})
    except (OSError, ValueError):
        rows.append({})
both = sorted(set(rows[0]) & set(rows[1]))
first = next((s for s in both if rows[0][s] != rows[1][s]), None)
print(len(both), sum(rows[0][s] != rows[1][s] for s in both), first or "-", *(f"{rows[i][first]}".replace(" ", "") for i in (0, 1) if first))
END
)
    # shellcheck disable=SC2086
    set -- $found "" ""
    row twice.csv name,steps,differ,first_that_differs,loss_and_norm_1,loss_and_norm_2,files,seconds "$name" "$1" "$2" "$3" "$4" "$5" "$files" $((SECONDS - began))
    rm -rf run-1 run-2
}
replayed() { # NAME STEPS OPTION…: alarms of --replay 1
    local name=$1 steps=$2 began=$SECONDS status
    shift 2
    time_for 20 "$name" || return
    capped 60 "$mezzo" train --data "$text" --tokenizer byte --vocab 50304 --precision bf16 --device "$device" --dropout 0 "$@" --steps "$steps" --replay 1 --replay-policy continue \
        --log-every 20 --eval-every 0 --eval-final=false --sample-every -1 --checkpoint-every -1 --quiet --out replayed >/dev/null 2>"$out/$name.err"
    status=$?
    local alarms
    alarms=$(grep -c 'two different' "$out/$name.err")
    row twice.csv name,steps,differ,first_that_differs,loss_and_norm_1,loss_and_norm_2,files,seconds "$name" "$steps" "$alarms" \
        "$(grep -m1 -o 'step [0-9]*: rank' "$out/$name.err" | cut -d' ' -f2 | tr -d :)" "$(grep -o 'first op that differs is [^,]*' "$out/$name.err" | cut -c25- | sort | uniq -c | sort -rn | head -n 2 | tr -s ' \n' ' ')" "" \
        "exit code $status" $((SECONDS - began))
    rm -rf replayed
}
n=$(pick 100 6)
variant() {
    # shellcheck disable=SC2086
    case $1 in
    default) twice default "$n" $model ;;
    replay) replayed replay $((n / 2)) $model ;;
    vocabulary) twice vocabulary "$n" $model --vocab 256 ;;
    slowest) MEZZO_CUDA_PLANS=slowest twice slowest $((n / 2)) $model ;;
    hooked) twice hooked $((n / 2)) $model --inject flip@100000:call/0#1 ;; # call by call on one stream, no graph
    dropout) twice dropout "$n" $model --dropout 0.1 ;;                    # another attention backward
    fp8) twice fp8 "$n" $model --precision fp8 ;;
    wide) twice wide $((n / 2)) $wide ;;
    wgmma) MEZZO_CUDA_WIDE_HEADS=wgmma twice wgmma $((n / 2)) $wide ;;
    *) echo "twice: no variant $1" && return 2 ;;
    esac
}
[[ $# -gt 0 ]] || set -- default wgmma replay vocabulary fp8 wide slowest hooked dropout
for name in "$@"; do variant "$name"; done
exit 0
