#!/usr/bin/env bash
# muon [1.5B|still|symmetric|old|study]: steps of GPT-2 124M with AdamW, Muon and NorMuon in turns (steps.csv); ms of Muon's step by call, and how much of it the
# floors are (calls.csv, of ops-calls.csv); a 1.5B shape at 65,536 tokens, whose difference in ms is that of any number of tokens (with its word, at 262,144
# and nothing else; still: with both optimizers, also at a learning rate of 1e-30, and the card's clocks meanwhile in clocks.csv); whether two runs, and a
# resumed one, have the same bits (bits.csv); in fp8. With the word symmetric nothing but steps with AdamW, Muon, and Muon without the kernel of symmetric
# products, in turns, and calls of both (calls.csv, calls-without.csv); old: the same with the Muon of DEBS/old.tgz (calls-old.csv). study: losses of AdamW
# and Muon by the format of its products on the texts DEBS/*.txt (else the one here), three seeds, by bench/muon_loss.py, four runs at the same time
# (losses.csv; study.csv: intervals); then, if there is time, AdamW at other rates, NorMuon and other formats.
. "$(dirname "$0")/common.sh"
gpt2=$(pick "--model gpt2 --layers 12 --heads 12 --d-model 768 --vocab 50304 --seq-len 1024 --batch-size 32" \
    "--model gpt2 --layers 2 --heads 2 --d-model 48 --vocab 512 --seq-len 32 --batch-size 2")
n=$(pick 26 8)
124M() { # TURN
    for o in adamw muon normuon; do
        # shellcheck disable=SC2086
        ! time_for 12 "$o, turn $1" || steps "$o-bf16-$1" $gpt2 --precision bf16 --dropout 0 --steps "$n" --optimizer $o
    done
}
calls() { # FILE
    local line
    # shellcheck disable=SC2086
    time_for 12 "$1" && steps "profile-$1" $gpt2 --precision bf16 --dropout 0 --steps 8 --optimizer muon --profile 2 || return
    cp "profile-$1/profile/ops.csv" "$out/ops-$1.csv"
    while IFS='|' read -r -a line; do row "$1.csv" phase,call,tensors,kernel,calls,ms,share_of_peak "${line[@]}"; done < <(python3 -c '
import collections, csv, sys
table = collections.defaultdict(lambda: [0, 0, 0])
for op in csv.DictReader(open(sys.argv[1])):
    is_update = op["phase"] not in ("forward", "backward")
    is_product = is_update and op["op"] == "matmul"
    row = table[op["phase"], op["op"] if is_update else "all", op["tensors"] if is_product else "", op["kernel"] if is_product else ""]
    for i, column in enumerate(("calls_per_step", "ms_per_step", "floor_ms_per_step")):
        row[i] += float(op[column])
for key, (calls, ms, floor) in sorted(table.items(), key=lambda one: -one[1][1]):
    print("%s|%g|%.3f|%.2f" % ("|".join(key), calls, ms, floor / ms if ms > 0 else 0))
' "$out/ops-$1.csv")
}
beside() { # without|old: steps and calls of AdamW, Muon, and this other Muon in turns
    local other=$1 turn o new=$mezzo old=$mezzo kernel="" found
    [[ $other != without || $device != cuda ]] || kernel=matmul__cuda_symmetric
    [[ $other != old ]] || ! found=$(old_build) || old=$found/mezzo
    for turn in 1 2; do
        # shellcheck disable=SC2086
        for o in adamw muon "$other"; do
            time_for 12 "$o, turn $turn" || continue
            mezzo=$([[ $o == old ]] && echo "$old" || echo "$new") MEZZO_CUDA_WITHOUT=$([[ $o != without ]] || echo "$kernel") ROW_LIMIT=20 \
                steps "$o-bf16-$turn" $gpt2 --precision bf16 --dropout 0 --steps "$n" --optimizer "$([[ $o == adamw ]] && echo adamw || echo muon)"
        done
        mezzo=$([[ $turn == 1 ]] && echo "$new" || echo "$old") MEZZO_CUDA_WITHOUT=$([[ $turn == 1 ]] || echo "$kernel") \
            calls "$([[ $turn == 1 ]] && echo calls || echo "calls-$other")"
    done
}
fp8() {
    for o in adamw muon; do
        # shellcheck disable=SC2086
        ! time_for 12 "$o in fp8" || steps "$o-fp8" $gpt2 --precision fp8 --dropout 0 --steps "$n" --optimizer $o
    done
}
bits() {
    small=(--data "$text" --tokenizer byte --device "$device" --model gpt2 --layers 2 --heads 2 --d-model 66 --precision bf16 --seq-len 64 \
        --batch-size 4 --warmup 1 --eval-every 0 --eval-iters 1
        --eval-final=false --sample-every -1 --quiet --schedule-steps 6)
    for kind in muon normuon; do
        time_for 20 "bits of $kind" || continue
        for run in a b; do capped 20 "$mezzo" train "${small[@]}" --optimizer $kind --steps 6 --out $run >/dev/null 2>>"$out/bits.err"; done
        capped 20 "$mezzo" train "${small[@]}" --optimizer $kind --steps 3 --out c >/dev/null 2>>"$out/bits.err"
        capped 20 "$mezzo" train --config c/config.yaml --resume auto --steps 6 --quiet >/dev/null 2>>"$out/bits.err"
        for other in b c; do
            for file in model optimizer; do
                cmp -s {a,$other}/checkpoints/step-00000006/$file.safetensors
                row bits.csv what,file,differ "$kind: $([[ $other == b ]] && echo "two runs" || echo "a resumed run")" $file $?
            done
        done
        rm -rf a b c
    done
}
1.5B() { # SECONDS SEQUENCES
    # shellcheck disable=SC2046
    for o in adamw muon; do
        ! time_for "$1" "$o, 1.5B" || steps "$o-1.5B-$(($2 * 1024))" $(pick \
            "--model gpt2 --layers 48 --heads 25 --d-model 1600 --vocab 50304 --seq-len 1024 --batch-size 8 --global-batch $2" \
            "--model gpt2 --layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2 --global-batch 4") --recompute true --precision bf16 \
            --dropout 0 --steps 5 --optimizer $o
    done
}
still() { # at a learning rate of 1e-30 the weights stay as they were drawn
    local o rate shape sampler
    shape=$(pick "--model gpt2 --layers 48 --heads 25 --d-model 1600 --vocab 50304 --seq-len 1024 --batch-size 8 --global-batch 256" \
        "--model gpt2 --layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2 --global-batch 4")
    for rate in 6e-4 1e-30; do
        for o in adamw muon; do
            time_for 40 "$o, learning rate $rate" || continue
            nvidia-smi --id="${CUDA_VISIBLE_DEVICES:-0}" --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active \
                --format=csv,noheader,nounits --loop-ms=500 >clocks 2>/dev/null &
            sampler=$!
            # shellcheck disable=SC2086
            steps "$o-$rate" $shape --recompute true --precision bf16 --dropout 0 --steps 4 --lr $rate --optimizer $o
            kill $sampler 2>/dev/null
            sed "s/^/$o $rate, /" clocks >>"$out/clocks.csv"
        done
    done
}
study() { # 24 runs of 1,500 steps, then 30 more
    local line texts=("${DEBS:-}"/*.txt)
    [[ -e ${texts[0]} ]] || texts=("$text")
    # shellcheck disable=SC2046
    python3 "$root/bench/muon_loss.py" "$mezzo" "${texts[@]}" --device "$device" --steps "$(pick 1500 15)" \
        --variants adamw,muon-bf16,muon-fp32,muon-fp16 --then adamw@2e-3,adamw@5e-4,normuon-bf16,muon-tf32,muon-bf16@2e-3 --together 4 \
        --seconds "$(($(left) - 5))" --out "$out/losses.csv" --summary "$work/study.csv" -- $(pick "--batch-size 32" \
        "--layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2 --dropout 0") >"$out/study.txt" 2>&1 || echo "FAIL: $(tail -n 1 "$out/study.txt")"
    while IFS=, read -r -a line; do row study.csv "$(head -n 1 "$work/study.csv")" "${line[@]}"; done < <(tail -n +2 "$work/study.csv")
}
if [[ ${1:-} == study ]]; then
    study
elif [[ ${1:-} == 1.5B ]]; then
    1.5B 40 256
elif [[ ${1:-} == still ]]; then
    still
elif [[ ${1:-} == symmetric ]]; then
    beside without
elif [[ ${1:-} == old ]]; then
    beside old
else
    124M 1
    calls calls
    124M 2
    1.5B 18 64
    bits
    fp8
fi
exit 0
