#!/usr/bin/env bash
# bench/study.sh [--mezzo PROGRAM] [--results FOLDER] [--device NAME] [--data FILE] PIECE...
# Does mixed precision pay on this machine? Every measurement of the study, each of which goes on where it was stopped or starts anew:
#   sweep      the default grid (GLM-4's mixture of experts, 96 shapes, fp32 and bf16), then its analysis   → sweep-NAME/
#   small      a grid for a CPU: widths 64 to 256, 64 to 512 tokens, 48 shapes                              → sweep-NAME/
#   dense      the default grid of gpt2 with a vocabulary of 32,000                                         → sweep-gpt2-NAME/
#   models     mezzo bench --all-models in the shape of GPT-2; PyTorch's steps of the same sizes beside it
#              where python3 has it                                    → bench-models-NAME.csv, bench-models-NAME-torch.csv
#   experts    steps of GLM-4's mixture of experts, 4 layers of width 256 on 1 x 128 tokens and 12 of width 512 on 8 x 1,024, and those of
#              transformers (python3's) in the same run: eager, on a GPU compiled too            → bench-experts-NAME.csv, -torch.csv
#   verify     fp32 against bf16 on FILE, three seeds                                                       → verify-NAME/
#   all        sweep models verify
# NAME is --name, or the device's. MEZZO_COMMIT goes into the rows. QUICK=1 times models 4 times after 2 warm-ups, not 10 after 5, and PyTorch 6
# times, not 20; of experts, half as many steps. PRECISIONS (all), and of experts THREADS (all), choose. bench_step lies beside mezzo.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=$root/build/release/mezzo
results=$root/bench/results
device=auto
data=$root/../shared/data/tinyshakespeare.txt
name=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --mezzo) mezzo=$2 ;;
    --results) results=$2 ;;
    --device) device=$2 ;;
    --data) data=$2 ;;
    --name) name=$2 ;;
    *) break ;;
    esac
    shift 2
done
[[ $# -gt 0 && $1 != --* ]] || { sed -n '2,15s/^# \{0,1\}//p' "$0" && exit 2; }
[[ -n $name ]] || name=$device
if [[ -z ${MEZZO_COMMIT:-} ]]; then
    MEZZO_COMMIT=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || true)
fi
export MEZZO_COMMIT
mkdir -p "$results"

swept() { # FOLDER OPTION...
    local folder=$results/$1
    shift
    mkdir -p "$folder"
    "$mezzo" sweep --device "$device" --out "$folder/full_data.csv" "$@"
    "$mezzo" analyze "$folder/full_data.csv" --out "$folder"
}

told() { # OPTIONS: PyTorch's rows on stdin, with Mezzo's commit and the command
    awk -F, -v commit="${MEZZO_COMMIT:-unknown}" -v options="$*" '/^system/ { print $0 ",commit,command" }
        /^torch/ { print $0 "," commit ",\"torch_gpt2.py " options " " $3 ":" $6 ":" $7 "\"" }'
}

experts() {
    local out=$results/bench-experts-$name torch=$root/bench/peers/torch_gpt2.py
    local threads=${THREADS:-0} at=("glm4_moe-4x256 moe-d256-l4-b1-t128 1 128 100" "glm4_moe-12x512 moe-d512-l12-b8-t1024 8 1024 20")
    local precisions=${PRECISIONS:-fp32 tf32 bf16 fp16} ways="eager compiled" where=() header=() iters=20 shape p w
    if [[ $device == cpu* ]]; then
        ways=eager where=(--cpu) iters=3 at=("${at[0]% 100} 20" "${at[1]% 20} 3")
        ((threads == 0)) || export OMP_NUM_THREADS=$threads
    fi
    [[ -z ${QUICK:-} ]] || iters=$(((iters + 1) / 2))
    : >"$out.csv"
    for shape in "${at[@]}"; do
        read -r model title batch length steps <<<"$shape"
        [[ -z ${QUICK:-} ]] || steps=$(((steps + 1) / 2))
        # shellcheck disable=SC2086
        "$(dirname "$mezzo")/bench_step" --device "$device" --threads "$threads" --commit "${MEZZO_COMMIT:-unknown}" "${header[@]}" --model "$model" \
            --name "$title" --batch "$batch" --length "$length" --steps "$steps" --warmup 3 $precisions >>"$out.csv"
        header=(--no-header)
    done
    cut -d, -f1,9,13-17 "$out.csv"
    python3 -c 'import torch, transformers' 2>/dev/null || { echo "no PyTorch with transformers: left out" && return; }
    echo "system,device,model,batch,tokens,precision,way,params,ms_step,ms_best,tokens_per_second,peak_mib,loss,onednn_isa,commit,command" >"$out-torch.csv"
    for shape in "${at[@]}"; do
        read -r model title _ <<<"$shape"
        for p in $precisions; do
            [[ $device != cpu* || $p == fp32 || $p == bf16 ]] || continue # what PyTorch's CPU has fast
            for w in $ways; do
                # A process each: oneDNN's BF16 dies at its first tile instruction on some virtual machines, and runs with its instruction set capped.
                if ! python3 "$torch" --iters "$iters" "${where[@]}" "$title:$p:$w" | sed -n 's/^torch.*/&,/p' >"$out.row" || [[ ! -s $out.row ]]; then
                    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python3 "$torch" --iters "$iters" "${where[@]}" "$title:$p:$w" |
                        sed -n 's/^torch.*/&,AVX512_CORE_BF16/p' >"$out.row" || true
                fi
                told --iters "$iters" "${where[@]}" <"$out.row" | tee -a "$out-torch.csv"
            done
        done
    done
    rm -f "$out.row"
}

piece() {
    case $1 in
    sweep) swept "sweep-$name" ;;
    small)
        swept "sweep-$name" --layers 2,4 --d-models 64,128,256 --batch-sizes 1,4 --seq-lens 64,128,256,512 --vocab 8192
        ;;
    dense) swept "sweep-gpt2-$name" --family gpt2 --vocab 32000 --heads 8 ;;
    models)
        local repeats=() iters=20
        local chosen=${PRECISIONS:-fp32 tf32 bf16 fp16}
        chosen=${chosen// /,}
        [[ -z ${QUICK:-} ]] || repeats=(--warmup 2 --iters 4) iters=6
        "$mezzo" bench --all-models --family gpt2 --device "$device" --precisions "$chosen" "${repeats[@]}" --csv "$results/bench-models-$name.csv"
        if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
            local cases=()
            for size in small medium large xl 2.7B; do
                for precision in ${chosen//,/ }; do cases+=("$size:$precision:eager"); done
            done
            python3 "$root/bench/peers/torch_gpt2.py" --iters $iters "${cases[@]}" | told --iters $iters >"$results/bench-models-$name-torch.csv"
        fi
        ;;
    experts) experts ;;
    verify)
        # A GPU has nothing to do with the default's 8,192 tokens of width 128.
        local shape=()
        [[ $device != cuda* ]] || shape=(--layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64)
        "$mezzo" verify --data "$data" --precision bf16 --device "$device" "${shape[@]}" --out "$results/verify-$name"
        ;;
    all)
        piece sweep
        piece models
        piece verify
        ;;
    *)
        echo "bench/study.sh: there is no piece \"$1\"" >&2
        exit 2
        ;;
    esac
}
for p in "$@"; do
    piece "$p"
done
