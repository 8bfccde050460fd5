#!/usr/bin/env bash
# duel [SHAPE [WAYS [MICRO_BATCHES [mma]]]]: bench/duel.py, of SHAPE (qwen2.5-1.5B), 50 steps: duel.csv, duel-losses.csv. mma: the older kernels
# for heads of 128 (1.5B, 3B), by MEZZO_CUDA_WIDE_HEADS. A wheel of torchao in DEBS is used where none is installed.
# duel profile: where a step of Qwen 2.5's 1.5B goes, in bf16 and fp8, and of CS336's with its vocabulary and 16 sequences (NAME-ops.csv, steps.csv): 45 s.
# duel accumulated: the 1.5B with 8 micro batches a step in bf16, fp8 and with everything in fp8, and its use of the peak (steps.csv): 75 s.
. "$(dirname "$0")/common.sh"
qwen="$(pick "--model qwen2.5-1.5B --batch-size 8" "--model qwen2 --layers 2 --heads 4 --kv-heads 2 --d-model 64 --d-ff 128 --batch-size 4")"
qwen_steps() { # NAME OPTION…
    local name=$1
    shift
    # shellcheck disable=SC2046
    ROW_LIMIT=40 steps "$name" $(pick "--vocab 151936 --logits-rows 4096 --seq-len 1024" "--vocab 1000 --seq-len 64") --dropout 0 "$@"
}
if [[ ${1:-} == profile || ${1:-} == accumulated ]]; then DATA=$(tokens "$(pick gpt2 byte)"); fi
if [[ ${1:-} == profile ]]; then
    while read -r name options; do
        # shellcheck disable=SC2086
        time_for 12 "$name" && qwen_steps "$name" $options --steps 12 --profile 3 || continue
        cp "$name/profile/ops.csv" "$out/$name-ops.csv"
        python3 "$root/bench/gpu/ops.py" "$out/$name-ops.csv"
    done <<<"$(pick "1.5B-bf16 $qwen --precision bf16
1.5B-fp8 $qwen --precision fp8
cs336-bf16 --model cs336 --layers 28 --heads 12 --d-model 1536 --d-ff 8960 --batch-size 16 --precision bf16" "tiny $qwen --precision bf16")"
    exit 0
fi
if [[ ${1:-} == accumulated ]]; then
    for way in bf16 fp8 "fp8 --autocast *=fp8"; do
        name=1.5B-8-$(tr -dc a-z0-9 <<<"$way")
        set -f # the pattern is not a file's
        # shellcheck disable=SC2086
        ! time_for 12 "$way" || qwen_steps "$name" $qwen --grad-accum 8 --steps 9 --precision $way
    done
    # 6 FLOP a parameter and token, and attention's causal half: 9.526 GFLOP
    python3 -c 'import csv, sys
for r in csv.DictReader(open(sys.argv[1])): print(r["name"], "%.1f %% of the peak" % (float(r["tokens_per_s"]) * 9.526e9 / 989.4e10))' "$out/steps.csv"
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
