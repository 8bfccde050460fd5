#!/usr/bin/env bash
# experts: ranks that own experts, on all GPUs: first whether ranks carry rows at all (transport.txt); weights of one GPU beside those of 2 and 4 in bf16
# and fp8 with --reduce canonical (bits.csv); then steps and memory with --rank-experts exchange and gather (steps.csv; names are
# SHAPE-TOKENS-PRECISION-RANKS-WAY): layers of Qwen3-30B-A3B's shape (128 experts of 768, 8 a token, width 2048) and of GLM-4.5-Air's (128 experts of
# 1408, 8 a token and a shared one, width 4096), 8,192 tokens a GPU and 1,024.
. "$(dirname "$0")/common.sh"
most=$(pick "$gpus" 2)
MEZZO_LAUNCH_PROGRAM=$build/tests/dist_rank capped 30 "$mezzo" launch -n "$most" -- check "$device" >"$out/transport.txt" 2>&1
verdict $? "transport on $most: $(tail -n 1 "$out/transport.txt")"

bits() { # PRECISION: the same batches on 1, 2 and 4
    local options=(--data "$text" --tokenizer byte --split 1 --device "$device" --model glm4_moe --layers 4 --heads 4 --kv-heads 2 --d-model "$(pick 512 64)"
        --d-ff 1024 --d-expert "$(pick 512 64)" --experts 8 --experts-per-token 2 --seq-len "$(pick 256 32)" --batch-size 2 --global-batch 8 --bucket-mib 1
        --precision "$1" --reduce canonical --steps 4 --warmup 1 --eval-every 0 --sample-every -1 --checkpoint-every 0 --quiet) ranks file log
    rm -rf one
    capped 40 "$mezzo" train "${options[@]}" --out one >"$out/bits.log" 2>&1 || { echo "FAIL: one: $(tail -n 1 "$out/bits.log")" && return; }
    for ranks in 4 2; do
        [[ $ranks -le $most ]] || continue
        rm -rf ranks
        log=$out/bits-$1-$ranks.log
        capped 40 "$mezzo" launch -n $ranks -- train "${options[@]}" --shard parameters --rank-experts exchange --out ranks >"$log" 2>&1 ||
            echo "FAIL: $1 on $ranks: $(grep -v '^ *$' "$log" | tail -n 1)"
        for file in model optimizer; do
            cmp -s {one,ranks}/checkpoints/step-00000004/$file.safetensors
            row bits.csv precision,ranks,file,differ "$1" $ranks $file $?
        done
    done
}

qwen=(--model qwen3_moe --layers "$(pick 6 2)" --heads "$(pick 32 2)" --kv-heads "$(pick 4 2)" --head-dim "$(pick 128 32)" --d-model "$(pick 2048 64)"
    --d-expert "$(pick 768 64)" --experts "$(pick 128 8)" --experts-per-token "$(pick 8 2)" --vocab "$(pick 32768 512)")
glm=(--model glm4_moe --layers "$(pick 3 2)" --heads "$(pick 32 2)" --kv-heads "$(pick 8 2)" --head-dim "$(pick 128 32)" --d-model "$(pick 4096 64)"
    --d-ff "$(pick 10944 128)" --d-expert "$(pick 1408 64)" --experts "$(pick 128 8)" --experts-per-token "$(pick 8 2)" --shared-experts 1
    --vocab "$(pick 32768 512)")
both() { # SHAPE TOKENS PRECISION RANKS OPTION…
    local way
    for way in exchange gather; do
        ! time_for 15 "$1, $2 tokens, $3, $4 ranks, $way" || RANKS=$4 ROW_LIMIT=40 steps "$1-$2-$3-$4-$way" "${@:5}" --batch-size 1 --global-batch "$4" \
            --seq-len "$2" --precision "$3" --shard parameters --rank-experts $way --bucket-mib 128 --split 1 --steps 12
    done
}
long=$(pick 8192 64) short=$(pick 1024 32)
bits bf16
both qwen "$long" bf16 "$most" "${qwen[@]}"
bits fp8
both qwen "$short" bf16 "$most" "${qwen[@]}"
both glm "$long" bf16 "$most" "${glm[@]}"
both qwen "$long" fp8 "$most" "${qwen[@]}"
[[ $most -le 2 ]] || both qwen "$long" bf16 2 "${qwen[@]}"
exit 0
