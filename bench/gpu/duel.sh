#!/usr/bin/env bash
# duel [SHAPE [WAYS [MICRO_BATCHES [mma]]]]: bench/duel.py, of SHAPE (qwen2.5-1.5B), 50 steps: duel.csv, duel-losses.csv. mma: the older kernels
# for heads of 128 (1.5B, 3B), by MEZZO_CUDA_WIDE_HEADS. A wheel of torchao in DEBS is used where none is installed.
. "$(dirname "$0")/common.sh"
[[ $(df --output=avail /dev/shm 2>/dev/null | tail -n 1) -lt 16000000 ]] || export TMPDIR=/dev/shm # the first weights of 1.5B are 6 GB
python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
[[ -z ${4:-} ]] || export MEZZO_CUDA_WIDE_HEADS=$4
wheel=$(find "${DEBS:-/dev/null}" -name 'torchao*.whl' 2>/dev/null | head -n 1)
ways=${2:-$(pick mezzo:bf16,torch:bf16,torch:tensorwise,mezzo:fp8 mezzo:fp32,torch:fp32)}
capped 600 python3 "$root/bench/duel.py" "$mezzo" "$(tokens "$(pick gpt2 byte)")" --csv "$out/duel.csv" --commit "$commit" --device "$device" \
    --only "$(pick "${1:-qwen2.5-1.5B}" tiny)" \
    --ways "$ways" --micro-batches "${3:-1}" --steps "$(pick "${STEPS:-50}" 6)" ${wheel:+--torchao "$wheel"}
echo "exit code $?, $SECONDS s"
