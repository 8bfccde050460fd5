#!/usr/bin/env bash
# replay [PART…]: what finding silent corruption costs and finds here: steps of GPT-2 124M with every 100th computed twice beside steps without, in turns
# (steps.csv, and replay_cost.csv: part steps); audits of an honest run and of one whose checkpoint was changed, a flip that is undone, in bf16 and fp8
# (audits.csv: part audits); flips by bench/flips.sh on one GPU (flips.csv: part flips) and in what a rank receives, on two (part collectives).
. "$(dirname "$0")/common.sh"
model=$(pick "--model gpt2-124M --batch-size 32 --seq-len 1024" "--model gpt2 --layers 2 --heads 2 --d-model 64 --batch-size 2 --seq-len 64")
every=$(pick 100 6)
asked() { [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $1 "* ]]; }
parts=("$@")
for turn in 1 2; do
    asked steps && time_for 60 "turn $turn" || continue
    for replay in 0 "$every"; do
        # shellcheck disable=SC2086
        steps "replay-$replay-$turn" $model --vocab 50304 --precision bf16 --dropout 0 --steps $((every * 5 / 2)) \
            --replay "$replay" $([[ $replay -eq 0 ]] || echo --replay-update)
    done
    # shellcheck disable=SC2046
    row replay_cost.csv turn,every,without_ms,with_ms,percent,replay_ms,first_without_ms,first_with_ms,first_percent,first_replay_ms "$turn" "$every" \
        $(python3 "$root/bench/gpu/replay_cost.py" replay-{0,"$every"}-"$turn"/metrics.jsonl "$every")
done
few=(--data "$text" --tokenizer byte --layers 4 --heads 4 --d-model "$(pick 256 32)" --seq-len "$(pick 128 32)" --batch-size "$(pick 16 2)" \
    --device "$device" --steps 30
    --checkpoint-every 10 --keep-last 0 --eval-every 0 --eval-final=false --sample-every -1 --log-every 5 --quiet)
audits() { # PRECISION
    local p=$1 status
    capped 30 "$mezzo" train "${few[@]}" --precision "$p" \
        --out "a-$p" >/dev/null 2>"$out/a-$p.err" || echo "plain $p: exit code $?, $(tail -n 1 "$out/a-$p.err")"
    capped 30 "$mezzo" audit "a-$p" --intervals 0 --quiet >"$out/audit-$p.txt" 2>&1
    row audits.csv what,precision,exit_code,wanted,detail "audit of an honest run" "$p" $? 0 "$(tail -n 1 "$out/audit-$p.txt")"
    cp -r "a-$p" "m-$p"
    printf '\x01' | dd of="m-$p/checkpoints/step-00000020/model.safetensors" bs=1 seek=20000 conv=notrunc status=none
    capped 30 "$mezzo" audit "m-$p" --intervals 0 --quiet >"$out/changed-$p.txt" 2>&1
    row audits.csv what,precision,exit_code,wanted,detail "audit of a changed weight" "$p" $? 1 "$(grep -m1 safetensors "$out/changed-$p.txt" | cut -c1-160)"
    capped 30 "$mezzo" train "${few[@]}" --precision "$p" --out "f-$p" --replay 5 --replay-update --replay-policy continue \
        --inject 'flip@10:call/30#777' >/dev/null 2>"$out/flip-$p.err"
    status=$?
    cmp -s {a,f}-"$p"/checkpoints/step-00000030/model.safetensors && detail="same weights" || detail="OTHER WEIGHTS"
    row audits.csv what,precision,exit_code,wanted,detail "a flip is undone" "$p" $status 0 "$detail, $(grep -c 'two different' "$out/flip-$p.err") alarms"
}
for p in bf16 fp8; do ! asked audits || ! time_for 20 "audits in $p" || audits $p; done
for p in bf16 fp8 fp32; do
    ! asked flips || ! time_for 15 "flips in $p" || MEZZO=$mezzo COMMIT=$commit capped 150 bash "$root/bench/flips.sh" --device "$device" --flips "$(pick 200 4)" \
        --precisions $p --csv "$out/flips.csv" \
        --seed 11 --kinds "flip flap update" >"$out/flips-$p.txt" 2>&1 || { echo "flips $p: exit code $?"; tail -n 2 "$out/flips-$p.txt"; }
done
collectives() { # SHARD [GPUS]
    [[ -z ${2:-} ]] || export CUDA_VISIBLE_DEVICES=$2
    MEZZO=$mezzo COMMIT=$commit capped 110 bash "$root/bench/flips.sh" --device "$device" --ranks 2 --shards "$1" --flips "$(pick 200 8)" \
        --precisions bf16 --csv "$out/flips-$1.csv" --seed 11 --kinds "sum sums" >"$out/collectives-$1.txt" 2>&1 ||
        { echo "flips in collectives, $1: exit code $?"; tail -n 2 "$out/collectives-$1.txt"; }
}
for shards in "optimizer gradients" "parameters none"; do # two at a time where there are four GPUs
    asked collectives || continue
    [[ $device != cuda || $gpus -ge 2 ]] || { echo "flips in collectives: one GPU"; break; }
    time_for 15 "flips in collectives, shards $shards" || break
    mapfile -t pairs < <([[ $device != cuda || $gpus -lt 4 ]] || printf '0,1\n2,3\n')
    for shard in $shards; do
        collectives "$shard" "${pairs[0]:-}" &
        [[ ${#pairs[@]} -gt 0 ]] || wait
        pairs=("${pairs[@]:1}")
    done
    wait
done
awk -F, '$9 != "where" { f += $10; c += $11; t += $12; n += $13; u += 1 - $14 }
    END { print "flips", f, "changed", c, "caught", t, "named", n, "rows not undone", u }' "$out"/flips*.csv 2>/dev/null
exit 0
