#!/usr/bin/env bash
# tiles: own products of two commits in turns: times of steps in bf16, fp32, fp8-block and of experts in bf16, fp32, fp8 (steps.csv), and whether losses
# and gradients' norms are the same in every step (stdout). The other commit is DEBS/old.tgz, as for bits; without it the command runs beside itself.
. "$(dirname "$0")/common.sh"
two_commits
DATA=$(tokens)
gpt2=$(pick "--model gpt2-124M --batch-size 16 --seq-len 1024" "--model gpt2 --layers 2 --heads 2 --d-model 64 --batch-size 2 --seq-len 64")
experts=$(pick "--model glm4_moe --layers 4 --heads 8 --d-model 768 --d-ff 2048 --d-expert 768 --experts 16 --experts-per-token 4 --batch-size 16 --seq-len 512" \
    "--model glm4_moe --layers 2 --heads 2 --d-model 32 --d-ff 64 --d-expert 32 --experts 4 --experts-per-token 2 --batch-size 2 --seq-len 32")
for turn in 1 2 3; do
    for kind in gpt2-bf16 gpt2-fp32 gpt2-fp8-block experts-bf16 experts-fp8 experts-fp32; do
        model=${kind%%-*}
        time_for 20 "$kind, turn $turn" || exit 0
        for side in old new; do
            # shellcheck disable=SC2046,SC2086
            mezzo=${!side} ROW_LIMIT=30 steps "$side" ${!model} --vocab 50304 --precision "${kind#*-}" --dropout 0 --steps "$(pick 20 6)"
            sed -i "s/^$side,/$kind-$side-$turn,/" "$out/steps.csv"
        done
        [[ $turn -gt 1 ]] || verdict "$(cmp -s <(numbers old) <(numbers new); echo $?)" "$kind: $(numbers new | wc -l) losses and norms are the same"
    done
done
exit 0
