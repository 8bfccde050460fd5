#!/usr/bin/env bash
# muon_ranks: on all GPUs, whether Muon and NorMuon have the bits of one GPU whatever ranks share, with widths of 66 and 128 and --reduce canonical
# (bits.csv), and steps of GPT-2 124M with AdamW and Muon in turns, every --shard, 32 x 1,024 tokens a rank (steps.csv).
. "$(dirname "$0")/common.sh"
ranks=$(pick "$gpus" 2)
bits() { # KIND WIDTH
    local options=(--device "$device" --data "$text" --tokenizer byte --precision bf16 --dropout 0 --eval-every 0 --eval-iters 1 --eval-final=false
        --sample-every -1 --quiet --model gpt2 --layers 3 --heads 2 --d-model "$2" --seq-len 64 --batch-size 2 --global-batch 8 --warmup 1
        --optimizer "$1" --reduce canonical --steps 6) shard file
    rm -rf one
    capped 40 "$mezzo" train "${options[@]}" --out one >"$out/bits.log" 2>&1 || { echo "FAIL: one GPU: $(tail -n 1 "$out/bits.log")" && return; }
    for shard in none optimizer gradients parameters; do
        time_for 15 "$1, width $2, $shard" || return
        rm -rf ranks
        capped 40 "$mezzo" launch -n "$ranks" -- train "${options[@]}" --shard $shard --out ranks \
            >"$out/bits.log" 2>&1 || echo "FAIL: $shard: $(tail -n 1 "$out/bits.log")"
        for file in model optimizer; do
            cmp -s {one,ranks}/checkpoints/step-00000006/$file.safetensors
            row bits.csv optimizer,width,ranks,shard,file,differ "$1" "$2" "$ranks" $shard $file $?
        done
    done
}
for turn in 1 2; do for shard in gradients optimizer parameters none; do for kind in adamw muon; do
    # shellcheck disable=SC2046
    ! time_for 20 "$kind, $shard, turn $turn" || RANKS=$ranks steps "$kind-$shard-$turn" $(pick \
        "--model gpt2 --layers 12 --heads 12 --d-model 768 --vocab 50304 --seq-len 1024 --batch-size 32" \
        "--model gpt2 --layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2") --precision bf16 --dropout 0 \
        --global-batch $(($(pick 32 2) * ranks)) --steps "$(pick 24 6)" --optimizer "$kind" --shard "$shard"
done; done; done
for kind in muon normuon; do for width in 66 128; do bits $kind $width; done; done
exit 0
