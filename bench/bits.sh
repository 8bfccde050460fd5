#!/usr/bin/env bash
# bench/bits.sh MEZZO [DEVICE…]: hashes of the losses and the weights of short training runs, one row each. A refactoring keeps every row:
#   bench/bits.sh OLD/mezzo >old; bench/bits.sh NEW/mezzo >new; diff old new
# DEVICE is ref, cpu, cuda, or cpu:LEVEL with LEVEL amx, avx512, avx2 or ref (portable C); without one: ref and every level of cpu that
# this machine has. A row ends with the exit status where a run fails.
# Models of images learn from made-up radio maps, of a build with libpng.
set -euo pipefail

mezzo=$(realpath "${1:?give the mezzo command}")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_WAIT_POLICY=passive

# A text of our own: 40,000 words drawn by a small generator, so that every machine has the same.
awk 'BEGIN { n = split("the of and a to in he was that it his her with as had for she not at but be on they have him which said from all this " \
    "would will there one were their been when who no more out up", w, " "); x = 1
    for (i = 0; i < 40000; i++) { x = (x * 16807) % 2147483647; printf "%s%s", w[1 + x % n], i % 12 == 11 ? "\n" : " " } }' >text.txt

if [[ $# -eq 0 ]]; then
    set -- ref
    for level in ref avx2 avx512 amx; do
        if MEZZO_ISA=$level "$mezzo" doctor --device cpu >/dev/null 2>&1 || [[ $? -eq 1 ]]; then
            set -- "$@" "cpu:$level"
        fi
    done
fi

"$mezzo" data radio --maps 10 --transmitters 2 --size 16 --extent 64 --seed 3 --out cities >/dev/null 2>&1

texts="--data text.txt --tokenizer char --seq-len 32 --batch-size 4 --grad-accum 2"
models=(
    "gpt2 --layers 2 --heads 4 --d-model 64 --dropout 0.1 $texts"
    "cs336 --layers 2 --heads 4 --d-model 64 --d-ff 160 $texts"
    "glm4_moe --layers 2 --heads 4 --kv-heads 2 --d-model 64 --d-ff 128 --d-expert 48 --experts 4 --experts-per-token 2 $texts"
    "kl_vae-tiny --data cities --batch-size 4 --grad-accum 2"
    "radio_unet-tiny --data cities --batch-size 4 --grad-accum 2"
)
for device in "$@"; do
    for model in "${models[@]}"; do
        for kept in fp32 tf32 bf16 fp16 fp8 fp8-dw16 fp8-block bf16/split bf16/stochastic; do # precision, or precision/masters
            precision=${kept%%/*} master=${kept##*/}
            [[ $kept == */* ]] || master=fp32
            level=${device#*:}
            [[ $device == *:* ]] || level=
            rm -rf run
            status=0
            # shellcheck disable=SC2086
            MEZZO_ISA=$level "$mezzo" train --model $model --steps 20 --warmup 4 --lr 2e-3 --min-lr 1e-4 --precision "$precision" --master "$master" --device "${device%%:*}" --threads 2 --seed 7 --log-every 1 \
                --eval-every 10 --eval-iters 2 --sample-every -1 --checkpoint-every 20 --out run --quiet >out.txt 2>err.txt || status=$?
            row="${model%% *} $kept $device"
            if [[ $status -ne 0 ]]; then
                echo "$row exit $status: $(head -n 1 err.txt)"
                continue
            fi
            losses=$(grep -oE '"(train/)?loss": *[^,}]*|"(val|val/)[a-z_]*": *[^,}]*' run/metrics.jsonl | sha256sum | cut -c1-16)
            weights=$(sha256sum <"$(echo run/checkpoints/step-*20/model.safetensors)" | cut -c1-16)
            moments=$(sha256sum <"$(echo run/checkpoints/step-*20/optimizer.safetensors)" | cut -c1-16)
            echo "$row losses $losses weights $weights moments $moments"
        done
    done
done
