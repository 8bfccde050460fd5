#!/usr/bin/env bash
# bench/fp8_losses.sh TEXT [OUT.csv]: what each recipe and each kind of moments learns of the characters of TEXT (tiny Shakespeare) at the shape of
# nanoGPT's config/train_shakespeare_char.py: 6 layers, 6 heads, width 384, context 256, batch 64, 5,000 steps, dropout 0.2, no biases, beta2 0.99,
# the learning rate from 1e-3 to 1e-4 along a cosine after 100 steps. A row each, with the lowest validation loss of 20 (whole validation set) and the last;
# a recipe that the command does not know is passed over. All bits come from the seed: a row can be made again by itself.
# RUNS="NAME:SEED …" chooses others, where NAME is a precision, mxfp8, mxfp4 or nvfp4 (emulated; :sr and :rht behind it: gradients rounded at random,
# inputs of weights' gradients turned), or moments-KIND (of bf16). STOP ends each run there, with the schedule of 5,000 steps. JOBS run at a time (4; rows are losses, not times, so that they
# may share a GPU). Rows that OUT has already are left out. DEVICE_KIND (cuda), MEZZO and COMMIT as elsewhere.
set -euo pipefail
text=$(realpath "${1:?usage: bench/fp8_losses.sh TEXT [OUT.csv]}")
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-$root/bench/results/fp8-losses.csv}
export mezzo=${MEZZO:-$root/build/cuda/mezzo} text out
export commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD)} device=${DEVICE_KIND:-cuda} stop=${STOP:-5000}
export runs_dir
runs_dir=$(mktemp -d)
trap 'rm -rf "$runs_dir"' EXIT
list=${RUNS:-bf16:1 fp8:1 moments-int8:1 nvfp4:1 fp8-block:1 mxfp8:1 mxfp4:1 fp8-dw16:1 moments-bf16:1 bf16:2 fp8:2 moments-int8:2 bf16:3 fp8:3 moments-int8:3
    nvfp4:sr:rht:1 fp8-block:2 fp8-block:3 mxfp8:2 mxfp8:3 mxfp4:2 mxfp4:3 nvfp4:2 nvfp4:3 fp8-dw16:2 fp8-dw16:3 moments-bf16:2 moments-bf16:3}
[[ -s $out ]] || echo "recipe,precision,emulate,rounding,hadamard,moments,seed,steps,best_val_loss,val_loss,train_loss,device,commit,command" >"$out"

one() { # NAME:SEED
    local name=${1%:*} seed=${1##*:} precision=bf16 emulate=none rounding=nearest hadamard=off moments=fp32 result
    case $name in
    moments-*) moments=${name#moments-} ;;
    mxfp8* | mxfp4* | nvfp4*) emulate=${name%%:*} ;;
    *) precision=$name ;;
    esac
    [[ $name != *:sr* ]] || rounding=stochastic
    [[ $name != *:rht* ]] || hadamard=on
    ! grep -q "^$name,.*,$moments,$seed,$stop," "$out" || return 0
    local model=(--model gpt2 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64 --bias false --dropout 0.2 --tokenizer char)
    local options=(--steps "$stop" --schedule-steps 5000 --lr 1e-3 --min-lr 1e-4 --schedule cosine --warmup 100 --beta2 0.99 --precision "$precision" --moments "$moments" --seed "$seed")
    [[ $emulate == none ]] || options+=(--emulate "$emulate")
    [[ $rounding == nearest ]] || options+=(--emulate-rounding stochastic)
    [[ $hadamard == off ]] || options+=(--emulate-hadamard)
    if ! result=$("$mezzo" train "${model[@]}" "${options[@]}" --data "$text" --device "$device" --out "$runs_dir/$name-$seed" --eval-every 250 --eval-iters 0 \
        --sample-every -1 --checkpoint-every -1 --log-every 500 --json --quiet 2>"$runs_dir/$name-$seed.log"); then
        sed "s/^/$name seed $seed: /" "$runs_dir/$name-$seed.log" | tail -2 >&2
        return 0
    fi
    python3 - "$name" "$precision" "$emulate" "$rounding" "$hadamard" "$moments" "$seed" "$stop" "$commit" \
        "mezzo train ${model[*]} ${options[*]} --data tinyshakespeare.txt" "$result" <<'END' | tee -a "$out"
import csv, json, sys

*words, commit, command, result = sys.argv[1:]
r = json.loads(result)
csv.writer(sys.stdout, lineterminator="\n").writerow(words + [r["best_val_loss"], r["val_loss"], r["loss"], r["device"], commit, command])
END
    rm -rf "$runs_dir/$name-$seed"
}
export -f one
tr -s ' \n' '\n' <<<"$list" | sed '/^$/d' | xargs -P "${JOBS:-4}" -I{} bash -c 'one {}'
