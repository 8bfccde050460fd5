#!/usr/bin/env bash
# muon [1.5B]: steps of GPT-2 124M with AdamW, Muon and NorMuon in turns, bf16 and fp8, a 1.5B shape at 262,144 tokens (steps.csv; with the word, that
# alone); whether two runs, and a resumed one, have the same bits (bits.csv); where the time goes (ops.csv).
. "$(dirname "$0")/common.sh"
gpt2=$(pick "--model gpt2 --layers 12 --heads 12 --d-model 768 --vocab 50304 --seq-len 1024 --batch-size 32" \
    "--model gpt2 --layers 2 --heads 2 --d-model 48 --vocab 512 --seq-len 32 --batch-size 2")
n=$(pick 26 8)
124M() {
    for turn in 1 2; do for o in adamw muon; do
        # shellcheck disable=SC2086
        ! time_for 15 "$o, turn $turn" || steps "$o-bf16-$turn" $gpt2 --precision bf16 --dropout 0 --steps "$n" --optimizer $o
    done; done
    for o in adamw muon; do
        # shellcheck disable=SC2086
        ! time_for 15 "$o in fp8" || steps "$o-fp8" $gpt2 --precision fp8 --dropout 0 --steps "$n" --optimizer $o
    done
    # shellcheck disable=SC2086
    ! time_for 15 profile || { steps profile $gpt2 --precision bf16 --dropout 0 --steps 8 --optimizer muon \
        --profile 2 && cp profile/profile/ops.csv "$out/"; }
    # shellcheck disable=SC2086
    ! time_for 15 normuon || steps normuon $gpt2 --precision bf16 --dropout 0 --steps "$n" --optimizer normuon
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
[[ ${1:-} == 1.5B ]] || 124M
# shellcheck disable=SC2046
for o in adamw muon; do
    ! time_for 40 "$o, 1.5B" || steps "$o-1.5B-262144" $(pick \
        "--model gpt2 --layers 48 --heads 25 --d-model 1600 --vocab 50304 --seq-len 1024 --batch-size 8 --global-batch 256" \
        "--model gpt2 --layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2 --global-batch 4") --recompute true --precision bf16 \
        --dropout 0 --steps 5 --optimizer $o
done
exit 0
