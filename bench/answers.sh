#!/usr/bin/env bash
# What a GPU must show of the answers: statistics of counterfactual formats (bits and cost), bf16, fp8 and fp8-block at
# equal quality for 124M, one page in under a minute, small widths beside 355M. $BUILD, $OUT, $DATA as everywhere.
set -u
m=${MEZZO:-$BUILD/mezzo} device=${DEVICE:-cuda} start=$SECONDS
left() { echo $((${LIMIT:-146} - (SECONDS - start))); }
text=$DATA/text.txt tokens=$DATA/tokens
cd "$(mktemp -d)" || exit 1
echo "device: $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)"
# 1. The op's bits on the device beside the reference's.
MEZZO_TEST_DEVICE=$device timeout 60 "$BUILD/tests/backend_test_kernels" kernels_of_rounding >"$OUT/kernels.log" 2>&1 && echo "PASS kernels_of_rounding" ||
    { echo "FAIL kernels_of_rounding"; grep -vE "of preparing" "$OUT/kernels.log" | tail -8; }
echo "at $((SECONDS - start)) s"
# 2. Cost of a measured step, in steps; the same weights with and without.
shape384="--model gpt2 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 16"
shape124="--model gpt2-124M --seq-len 1024 --batch-size 8"
step() { # NAME SHAPE STEPS OPTION…: ms of a step, without the first ones
    local out=$1 shape=$2 steps=$3
    # shellcheck disable=SC2086
    timeout 60 "$m" train --data "$text" $shape --device "$device" --precision bf16 --warmup 2 --eval-every 0 --eval-iters 1 --no-eval-final \
        --sample-every -1 --quiet --steps "$steps" --log-every $((steps / 2)) --checkpoint-every 0 --out "$out" "${@:4}" >"$OUT/$out.log" 2>&1 ||
        tail -2 "$OUT/$out.log"
    grep -o '"perf/step_ms": [0-9.]*' "$out/metrics.jsonl" | tail -1 | sed 's/.*: //'
}
cf=(--counterfactual 'fp8,mxfp8,nvfp4' --counterfactual-every)
a=$(step none384 "$shape384" 100) b=$(step one384 "$shape384" 100 "${cf[@]}" 1) c=$(step ten384 "$shape384" 100 "${cf[@]}" 10)
cmp none384/checkpoints/*/model.safetensors ten384/checkpoints/*/model.safetensors && echo "PASS same weights" || echo "FAIL weights"
n=$(wc -l <one384/counterfactual.jsonl); echo "records of 100 steps: $n"
head -400 one384/counterfactual.jsonl >"$OUT/records.jsonl"
python3 -c "
a, b, c = map(float, '$a $b $c'.split())
print('384x6: step %.3f ms, every step measured %.3f (%.2f steps), every 10th %.3f (%.2f steps): every 100th %.2f %%' % (a, b, (b - a) / a, c, 10 * (c - a) / a, 10 * (c - a) / a))"
echo "at $((SECONDS - start)) s"
a=$(step none124 "$shape124" 40) b=$(step ten124 "$shape124" 40 "${cf[@]}" 10)
python3 -c "
a, b = map(float, '$a $b'.split())
print('124M 8x1024: step %.2f ms, every 10th measured %.2f (%.2f steps): every 100th %.2f %%' % (a, b, 10 * (b - a) / a, 10 * (b - a) / a))"
rm -rf ./*124 ./*384
echo "at $((SECONDS - start)) s"
# 3. 124M at equal quality.
verify() { # NAME PRECISION OPTION…
    # shellcheck disable=SC2086
    timeout "$(left)" "$m" verify --matched --data "$tokens" ${SHAPE:-$shape124} --device "$device" --baseline bf16 --precision "$2" --steps "${STEPS:-120}" --warmup 20 \
        --lr 6e-4 --weight-decay 0.1 --eval-iters 8 --minutes "${MINUTES:-0.42}" --out "$OUT/$1" --quiet "${@:3}" >"$OUT/$1.txt" 2>"$OUT/$1.err"
    echo "verify $1: exit $?"
    grep -E "raw|speedup|loss|equal quality|verdict|predict|inside|outside" "$OUT/$1.txt" | head -12
    tail -2 "$OUT/$1.err"
    echo "at $((SECONDS - start)) s"
}
verify fp8 fp8
verify fp8-block fp8-block
# 4. One page.
begin=$(date +%s.%N)
timeout "$(left)" "$m" advise --data "$text" --device "$device" --out "$OUT/advise" >"$OUT/advise.txt" 2>"$OUT/advise.err"
echo "advise: exit $?, $(python3 -c "import time; print('%.1f s' % (time.time() - $begin))") (asked: under 60)"
head -40 "$OUT/advise.txt"
# 5. Widths up to 124M beside 355M, if there is time.
[[ $(left) -lt 60 ]] || SHAPE="--model gpt2 --layers 24 --heads 16 --d-model 1024 --seq-len 1024 --batch-size 4" STEPS=60 MINUTES=0.12 \
    verify transfer fp8 --transfer 256,384,512 --seeds 3
