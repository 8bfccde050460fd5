# GPUs that own experts: 1, 2 and 4 of them have the same bits, and continue from each other's checkpoints. Two GPUs or more are needed;
# `bash experts_gpus.sh cpu` tries it with ranks on CPUs.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
device=${1:-cuda} gpus=4
[[ $device == cpu ]] || gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
[[ $device == cpu || -z ${CUDA_VISIBLE_DEVICES:-} ]] || gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
[[ $gpus -ge 2 ]] || { echo "$gpus GPUs are visible, and experts across GPUs need two" && exit 77; }
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
text 400 >text.txt

last="mezzo launch -n 2 -- check $device"
MEZZO_LAUNCH_PROGRAM=$MEZZO_BUILD/tests/dist_rank timeout 100 "$MEZZO" launch -n 2 -- check "$device" >"$OUT" 2>"$ERR" || fail "exit code $?"

width=512 tokens=256
[[ $device != cpu ]] || width=64 tokens=32
TRAIN=(--data text.txt --tokenizer byte --device "$device" --threads 1 --model glm4_moe --layers 4 --heads 4 --kv-heads 2 --d-model $width --d-ff $((2 * width))
    --d-expert $width --experts 8 --experts-per-token 2 --seq-len $tokens --batch-size 2 --global-batch 8 --bucket-mib 1 --reduce canonical
    --eval-every 0 --eval-final=false --sample-every -1 --checkpoint-every 4 --log-every 1 --quiet)
travel=(--shard parameters --rank-experts exchange)

train() { # RANKS FOLDER OPTION…
    local launch=() ranks=$1 folder=$2
    shift 2
    [[ $ranks -eq 1 ]] || launch=(launch -n "$ranks" --)
    last="${launch[*]} train --out $folder $*"
    timeout 100 "$MEZZO" "${launch[@]}" train "${TRAIN[@]}" --out "$folder" "$@" >"$OUT" 2>"$ERR" || fail "exit code $?"
}
same() { # FOLDER FOLDER STEP
    local file
    for file in model optimizer; do
        cmp "$1/checkpoints/step-0000000$3/$file.safetensors" "$2/checkpoints/step-0000000$3/$file.safetensors" || fail "$1 and $2: other bits in $file"
    done
}
recipes=(fp32 bf16 fp16)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
[[ $device != cpu && ${capability%.*} -lt 9 ]] || recipes+=(fp8 fp8-dw16 fp8-block)
for recipe in "${recipes[@]}"; do
    kind=()
    [[ $recipe != bf16 ]] || kind=(--optimizer muon)
    train 1 "one-$recipe" --precision "$recipe" --steps 4 "${kind[@]}"
    for ranks in 2 4; do
        [[ $ranks -le $gpus && ($ranks -eq 2 || $recipe == bf16 || $recipe == fp8) ]] || continue
        train $ranks "exchange-$recipe-$ranks" --precision "$recipe" --steps 4 "${kind[@]}" "${travel[@]}"
        same "one-$recipe" "exchange-$recipe-$ranks" 4
    done
done
train 2 own --precision "${recipes[-2]}" --steps 4 "${travel[@]}"
cp -r own alone
train 2 own --precision "${recipes[-2]}" --steps 8 --schedule-steps 4 --resume auto "${travel[@]}"
train 1 alone --precision "${recipes[-2]}" --steps 8 --schedule-steps 4 --resume auto
same own alone 8
echo "experts on $gpus GPUs: ok"
