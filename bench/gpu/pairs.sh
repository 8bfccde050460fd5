#!/usr/bin/env bash
# pairs [NAME…]: steps beside PyTorch compiled, in turns, by bench/pairs.py (cuda-pairs.csv); steps of a small Gemma 2 in bf16 and fp8 (steps.csv);
# a text past LongRoPE's original context.
. "$(dirname "$0")/common.sh"
[[ $# -gt 0 ]] || set -- $(pick "qwen3-0.6B w1536 llama-3.2-1B w2048" gpt6x384)
gib=8
[[ $device != cuda ]] || gib=$(($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1) / 1024 - 10))
cmake --build "$build" --target bench_step >"$out/build.log" 2>&1 || { echo "FAIL: bench_step"; tail -n 3 "$out/build.log"; }
capped 600 python3 "$root/bench/pairs.py" --build "$build" --results "$out" --commit "$commit" --device "$device" \
    --seconds $(($(left) - $(pick 40 10))) --memory "$gib" --compilers 4 --turns "$(pick 3 1)" \
    $(pick "" "--threads 2 --ways eager") "$@" 2>"$out/pairs.err"
grep -v Warning "$out/pairs.err" | tail -n 5 | cut -c1-300
for p in bf16 fp8; do
    # shellcheck disable=SC2046
    ! time_for 10 "gemma2 in $p" || ROW_LIMIT=20 steps "gemma2-$p" --model gemma2 $(pick \
        "--layers 4 --heads 4 --kv-heads 2 --d-model 512 --head-dim 128 --d-ff 2048 --vocab 32000 --seq-len 512 --batch-size 8" \
        "--layers 2 --heads 2 --kv-heads 1 --d-model 32 --head-dim 16 --d-ff 64 --vocab 512 --seq-len 32 --batch-size 2") --steps 25 --precision $p
done
time_for 10 LongRoPE || exit 0
steps longrope --model phi3 --layers 2 --heads 8 --kv-heads 8 --d-model "$(pick 512 64)" --head-dim "$(pick 64 8)" --d-ff "$(pick 1024 64)" \
    --rotary "$(pick 0.25 1)" --model.rope_scaling longrope --model.rope_factor 4 \
    --model.rope_original 128 --model.rope_short "$(pick 1,1,1,1.1,1.1,1.2,1.2,1.3 1,1,1,1.1)" \
    --model.rope_long "$(pick 1,2,3,4,5,6,7,8 1,2,3,4)" --model.window 0 --seq-len 512 --batch-size "$(pick 8 1)" --steps "$(pick 25 6)" \
    --precision bf16 --checkpoint-every 0
capped 20 "$mezzo" sample longrope --prompt the --tokens 200 --seed 1 --device "$device" >"$out/longrope.txt" 2>"$out/longrope.err"
verdict $? "a text past the original context"
