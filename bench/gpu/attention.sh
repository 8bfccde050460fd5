#!/usr/bin/env bash
# attention: own attention of two commits: whether losses and gradients' norms of six steps are the same for storages, widths of heads, dropout, windows
# and caps (stdout). The other commit is DEBS/old.tgz, as for bits; without it the command runs beside itself. Times: kernels+attention_bwd:SHAPE:PRECISION.
. "$(dirname "$0")/common.sh"
two_commits
for kind in gpt2-fp32-128 gpt2-tf32-128 gpt2-fp16-64 gpt2-bf16-128 mistral-fp32-64 mistral-tf32-128 gpt2-fp32-32 gpt2-tf32-64 mistral-bf16-64 gemma2-bf16-64; do
    IFS=- read -r model precision width <<<"$kind"
    time_for 12 "$kind" || break
    width=$(pick "$width" 16) more=(--kv-heads 2 --d-ff 512)
    [[ $model != gpt2 ]] || more=(--dropout 0.1)
    [[ $model != mistral ]] || more+=(--model.window "$(pick 200 20)")
    for side in old new; do
        mezzo=${!side} ROW_LIMIT=30 steps "$side" --model "$model" --layers 2 --heads 4 --d-model $((4 * width)) "${more[@]}" --batch-size 4 \
            --seq-len "$(pick 500 50)" --precision "$precision" --steps 6 >/dev/null
        sed -i "s/^$side,/$kind-$side,/" "$out/steps.csv"
    done
    verdict "$([[ $(numbers new | wc -l) -eq 6 ]] && cmp -s <(numbers old) <(numbers new); echo $?)" "$kind: $(numbers new | wc -l) losses and norms are the same"
done
exit 0
