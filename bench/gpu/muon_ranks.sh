#!/usr/bin/env bash
# muon_ranks [PART…]: on all GPUs, parts steps: GPT-2 124M with AdamW and Muon in turns, every --shard, 32 x 1,024 tokens a rank (steps.csv); timeline: when
# each kernel and collective of a step runs, of ranks 0 and 1 with AdamW and Muon (timeline.csv, by timeline.c and timeline.py), and the update's calls one
# after the other (calls.csv); bits: whether Muon and NorMuon have the bits of one GPU whatever ranks share, with widths of 66 and 128 and --reduce canonical
# (bits.csv). Without a word: steps, then bits.
. "$(dirname "$0")/common.sh"
ranks=$(pick "$gpus" 2)
parts=("$@")
[[ $# -gt 0 ]] || parts=(steps bits)
asked() { [[ " ${parts[*]} " == *" $1 "* ]]; }
read -ra gpt2 <<<"$(pick "--model gpt2 --layers 12 --heads 12 --d-model 768 --vocab 50304 --seq-len 1024 --batch-size 32" \
    "--model gpt2 --layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2")"
gpt2+=(--precision bf16 --dropout 0 --global-batch $(($(pick 32 2) * ranks)))
bits() { # KIND WIDTH
    local options=(--device "$device" --data "$text" --tokenizer byte --precision bf16 --dropout 0 --eval-every 0 --eval-iters 1 --eval-final=false
        --sample-every -1 --quiet --model gpt2 --layers 3 --heads 2 --d-model "$2" --seq-len 64 --batch-size 2 --global-batch 8 --warmup 1
        --optimizer "$1" --reduce canonical --steps 6) shard file
    rm -rf one
    capped 40 "$mezzo" train "${options[@]}" --out one >"$out/bits.log" 2>&1 || { echo "FAIL: one GPU: $(tail -n 1 "$out/bits.log")" && return; }
    for shard in none optimizer gradients parameters; do
        time_for 15 "$1, width $2, $shard" || return
        rm -rf ranks
        capped 40 "$mezzo" launch -n "$ranks" -- train "${options[@]}" --shard $shard --out ranks \
            >"$out/bits.log" 2>&1 || echo "FAIL: $shard: $(tail -n 1 "$out/bits.log")"
        for file in model optimizer; do
            cmp -s {one,ranks}/checkpoints/step-00000006/$file.safetensors
            row bits.csv optimizer,width,ranks,shard,file,differ "$1" "$2" "$ranks" $shard $file $?
        done
    done
}
recorder() { # builds the library that records a process's kernels, and prints its path
    local cuda
    cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    [[ -e $cuda/include/cupti.h ]] || cuda=$cuda/extras/CUPTI
    cc -O2 -shared -fPIC -I "$cuda/include" -I "$cuda/../../include" -o "$work/libtimeline.so" "$root/bench/gpu/timeline.c" -L "$cuda/lib64" -lcupti \
        "-Wl,-rpath,$cuda/lib64" 2>"$out/recorder.err" && echo "$work/libtimeline.so"
}
timeline() { # OPTIMIZER SHARD
    local name=$1-$2 rank line
    rm -rf run
    TIMELINE=$work/$name CUDA_INJECTION64_PATH=$library capped 40 "$mezzo" launch -n "$ranks" -- train --data "$text" --tokenizer byte --device "$device" \
        --warmup 2 --log-every 100 --eval-every 0 --eval-iters 1 --eval-final=false --sample-every -1 --checkpoint-every -1 --quiet "${gpt2[@]}" \
        --steps 14 --optimizer "$1" --shard "$2" --out run >"$out/$name-timeline.log" 2>&1 ||
        echo "FAIL: $name: $(tail -n 1 "$out/$name-timeline.log")"
    for rank in 0 1; do
        while IFS='|' read -r -a line; do
            row timeline.csv run,ranks,rank,what,order,name,stream,count,ms_step,exposed_ms,start_ms "$name" "$ranks" "$rank" "${line[@]}" ""
        done < <(python3 "$root/bench/gpu/timeline.py" "$work/$name.$rank.csv") >/dev/null
        grep "^$name,$ranks,$rank,total" "$out/timeline.csv"
    done
}
calls() { # OPTIMIZER SHARD
    local phase op tensors n ms
    RANKS=$ranks steps "profile-$1-$2" "${gpt2[@]}" --steps 8 --optimizer "$1" --shard "$2" --profile 2 || return
    while IFS='|' read -r phase op tensors n ms; do row calls.csv run,phase,call,tensors,calls,ms "$1-$2" "$phase" "$op" "$tensors" "$n" "$ms"; done < <(
        python3 -c '
import csv
for op in csv.DictReader(open("profile-'"$1-$2"'/profile/ops.csv")):
    if op["phase"] not in ("forward", "backward"):
        print("|".join(op[key] for key in ("phase", "op", "tensors", "calls_per_step", "ms_per_step")))
')
}
if asked timeline; then
    library=""
    [[ $device != cuda ]] || library=$(recorder) || echo "FAIL: no CUPTI: $(tail -n 1 "$out/recorder.err")"
    for shard in gradients parameters; do for kind in muon adamw; do
        [[ -z $library ]] || ! time_for 15 "timeline of $kind, $shard" || timeline $kind $shard
    done; done
    ! time_for 15 "calls" || calls muon gradients
fi
for turn in 1 2; do for shard in gradients optimizer parameters none; do for kind in adamw muon; do
    ! asked steps || ! time_for 20 "$kind, $shard, turn $turn" || RANKS=$ranks steps "$kind-$shard-$turn" "${gpt2[@]}" --steps "$(pick 24 6)" \
        --optimizer "$kind" --shard "$shard"
done; done; done
for kind in muon normuon; do for width in 66 128; do ! asked bits || bits $kind $width; done; done
exit 0
