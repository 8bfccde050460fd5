#!/usr/bin/env bash
# bench/fp8_losses.sh TEXT [OUT.csv]: what each recipe and each kind of moments learns. A row each, with the lowest validation loss (of the whole validation
# set, every 250 steps) and the last. Of a text its characters, at the shape of nanoGPT's config/train_shakespeare_char.py (tiny Shakespeare): 6 layers, 6 heads,
# width 384, context 256, batch 64, 5,000 steps, dropout 0.2, no biases, beta2 0.99, the learning rate from 1e-3 to 1e-4 along a cosine after 100 steps.
# Of a folder with train.bin and val.bin (bench/rfc_text.sh) GPT-2 124M, 8 sequences of 1,024 tokens, 1,500 steps, weight decay 0.1, beta2 0.95, 6e-4 to 6e-5
# after 150. A recipe that the command does not know is passed over. All bits come from the seed: a row can be made again by itself.
# RUNS="NAME:SEED …" chooses others, where NAME is a precision (fp8-all: fp8 with the head and the outer blocks), mxfp8, mxfp4 or nvfp4 (emulated; :sr and
# :rht after it: gradients rounded at random, inputs of weights' gradients turned), or moments-KIND (of bf16). STOP ends each run there, with the schedule of all
# steps. JOBS run at a time (4; rows are losses, not times, so that they may share a GPU). Rows that OUT has already are left out. WINDOWS names a file for the loss
# of each batch of the validation set at the end (bench/fp8_losses.py makes standard errors of differences of it). FOLDER keeps the runs' metrics. MODEL and STEPS
# stand in for a shape and its steps, to try. DEVICE_KIND (cuda), MEZZO and COMMIT as elsewhere.
set -euo pipefail
text=$(realpath "${1:?usage: bench/fp8_losses.sh TEXT [OUT.csv]}")
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-$root/bench/results/fp8-losses.csv}
export mezzo=${MEZZO:-$root/build/cuda/mezzo} text out windows=${WINDOWS:-}
export commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD)} device=${DEVICE_KIND:-cuda}
export runs_dir=${FOLDER:-}
if [[ -z $runs_dir ]]; then
    runs_dir=$(mktemp -d)
    trap 'rm -rf "$runs_dir"' EXIT
fi
mkdir -p "$runs_dir"
if [[ -d $text ]]; then
    export steps=${STEPS:-1500} name_of_text=RFCs words=${MODEL:-"--model gpt2-124M --seq-len 1024 --batch-size 8"}
    export rates="--lr 6e-4 --min-lr 6e-5 --schedule cosine --warmup 150 --beta2 0.95 --weight-decay 0.1"
    list=${RUNS:-bf16:1 mxfp8:1 mxfp4:1 nvfp4:1 fp8:1 fp8-all:1 fp8-block:1 fp8-dw16:1 moments-int8:1 moments-bf16:1 bf16:2}
else
    export steps=${STEPS:-5000} name_of_text=tinyshakespeare.txt
    export words=${MODEL:-"--model gpt2 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64 --bias false --dropout 0.2 --tokenizer char"}
    export rates="--lr 1e-3 --min-lr 1e-4 --schedule cosine --warmup 100 --beta2 0.99"
    list=${RUNS:-bf16:1 fp8:1 moments-int8:1 nvfp4:1 fp8-block:1 mxfp8:1 mxfp4:1 fp8-dw16:1 moments-bf16:1 bf16:2 fp8:2 moments-int8:2 bf16:3 fp8:3 moments-int8:3
        nvfp4:sr:rht:1 fp8-block:2 fp8-block:3 mxfp8:2 mxfp8:3 mxfp4:2 mxfp4:3 nvfp4:2 nvfp4:3 fp8-dw16:2 fp8-dw16:3 moments-bf16:2 moments-bf16:3}
fi
export stop=${STOP:-$steps}
[[ -s $out ]] || echo "recipe,precision,emulate,rounding,hadamard,moments,seed,steps,best_val_loss,val_loss,train_loss,device,commit,command" >"$out"
[[ -z $windows || -s $windows ]] || echo "recipe,seed,batch,counted,loss" >"$windows"

one() { # NAME:SEED
    local name=${1%:*} seed=${1##*:} precision=bf16 emulate=none rounding=nearest hadamard=off moments=fp32 result checkpoints=-1
    case $name in
    moments-*) moments=${name#moments-} ;;
    mxfp8* | mxfp4* | nvfp4*) emulate=${name%%:*} ;;
    fp8-all) precision=fp8 ;;
    *) precision=$name ;;
    esac
    [[ $name != *:sr* ]] || rounding=stochastic
    [[ $name != *:rht* ]] || hadamard=on
    ! grep -q "^$name,.*,$moments,$seed,$stop," "$out" || return 0
    local model options run=$runs_dir/$name-$seed
    read -ra model <<<"$words"
    read -ra options <<<"--steps $stop --schedule-steps $steps $rates --precision $precision --moments $moments --seed $seed"
    [[ $emulate == none ]] || options+=(--emulate "$emulate")
    [[ $rounding == nearest ]] || options+=(--emulate-rounding stochastic)
    [[ $hadamard == off ]] || options+=(--emulate-hadamard)
    [[ $name != fp8-all ]] || options+=('--autocast.*' fp8)
    [[ -z $windows ]] || checkpoints=0
    if ! result=$("$mezzo" train "${model[@]}" "${options[@]}" --data "$text" --device "$device" --out "$run" --eval-every 250 --eval-iters 0 \
        --sample-every -1 --checkpoint-every $checkpoints --log-every 50 --json --quiet 2>"$run.log"); then
        sed "s/^/$name seed $seed: /" "$run.log" | tail -2 >&2
        return 0
    fi
    python3 - "$name" "$precision" "$emulate" "$rounding" "$hadamard" "$moments" "$seed" "$stop" "$commit" \
        "mezzo train ${model[*]} ${options[*]} --data $name_of_text" "$result" <<'END' | tee -a "$out"
import csv, json, sys

*words, commit, command, result = sys.argv[1:]
r = json.loads(result)
csv.writer(sys.stdout, lineterminator="\n").writerow(words + [r["best_val_loss"], r["val_loss"], r["loss"], r["device"], commit, command])
END
    if [[ -n $windows ]] && "$mezzo" eval "$run" --device "$device" --csv "$run.windows" >"$run.eval" 2>&1; then
        tail -n +2 "$run.windows" | sed "s/^/$name,$seed,/" >>"$windows"
    fi
    rm -rf "$run/checkpoints"
}
export -f one
tr -s ' \n' '\n' <<<"$list" | sed '/^$/d' | xargs -P "${JOBS:-4}" -I{} bash -c 'one {}'
