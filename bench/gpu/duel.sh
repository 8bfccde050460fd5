#!/usr/bin/env bash
# duel [SHAPE [WAYS [MICRO_BATCHES [mma]]]]: bench/duel.py, of SHAPE (qwen2.5-1.5B), 50 steps: duel.csv, duel-losses.csv. mma: the older kernels
# for heads of 128 (1.5B, 3B), by MEZZO_CUDA_WIDE_HEADS. A wheel of torchao in DEBS is used where none is installed.
# duel profile: where a step of Qwen 2.5's 1.5B goes, in bf16 and fp8, and of CS336's with its vocabulary and 16 sequences (NAME-ops.csv, steps.csv): 45 s.
. "$(dirname "$0")/common.sh"
if [[ ${1:-} == profile ]]; then
    DATA=$(tokens "$(pick gpt2 byte)")
    while read -r name options; do
        # shellcheck disable=SC2046,SC2086
        time_for 12 "$name" && ROW_LIMIT=40 steps "$name" $options $(pick "--vocab 151936 --logits-rows 4096 --seq-len 1024" "--vocab 1000 --seq-len 64") \
            --dropout 0 --steps 12 --profile 3 || continue
        cp "$name/profile/ops.csv" "$out/$name-ops.csv"
        python3 "$root/bench/gpu/ops.py" "$out/$name-ops.csv"
    done <<<"$(pick "1.5B-bf16 --model qwen2.5-1.5B --batch-size 8 --precision bf16
1.5B-fp8 --model qwen2.5-1.5B --batch-size 8 --precision fp8
cs336-bf16 --model cs336 --layers 28 --heads 12 --d-model 1536 --d-ff 8960 --batch-size 16 --precision bf16" "tiny --model qwen2 --layers 2 --heads 4 --kv-heads 2 --d-model 64 --d-ff 128 --batch-size 4 --precision bf16")"
    exit 0
fi
[[ $(df --output=avail /dev/shm 2>/dev/null | tail -n 1) -lt 16000000 ]] || export TMPDIR=/dev/shm # the first weights of 1.5B are 6 GB
python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
[[ -z ${4:-} ]] || export MEZZO_CUDA_WIDE_HEADS=$4
wheel=$(find "${DEBS:-/dev/null}" -name 'torchao*.whl' 2>/dev/null | head -n 1)
ways=${2:-$(pick mezzo:bf16,torch:bf16,torch:tensorwise,mezzo:fp8 mezzo:fp32,torch:fp32)}
capped 600 python3 "$root/bench/duel.py" "$mezzo" "$(tokens "$(pick gpt2 byte)")" --csv "$out/duel.csv" --commit "$commit" --device "$device" \
    --only "$(pick "${1:-qwen2.5-1.5B}" tiny)" \
    --ways "$ways" --micro-batches "${3:-1}" --steps "$(pick "${STEPS:-50}" 6)" ${wheel:+--torchao "$wheel"}
echo "exit code $?, $SECONDS s"
