#!/usr/bin/env bash
# bench/cpu.sh [--results FOLDER] [PIECE...]
# Builds the cpu backend and times it on this machine, PyTorch beside it where $PYTHON (python3) has it. Pieces, all by default:
#   matmul   the three products of a linear layer on three shapes, every precision, each beside its arithmetic's peak → cpu-matmul.csv
#   kernels  every kernel at the shapes of GPT 6 x 384 and GPT-2 124M, beside the peaks                              → cpu-kernels.csv
#   steps    training steps of both models in every precision                                                        → cpu-steps.csv
#   peers    PyTorch's steps of the same models, eager and compiled; llm.c's where $LLMC is a checkout of it          → cpu-peers.csv
# THREADS (default "2"), PRECISIONS ("bf16 fp16 tf32 fp32"), SHAPES ("gpt6x384 gpt2-124M") and STEPS (5) choose less or more. Ratios hold
# between rows of one run on a machine that does nothing else.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results
if [[ ${1:-} == --results ]]; then
    results=$2
    shift 2
fi
pieces=${*:-matmul kernels steps peers}
threads=${THREADS:-2} precisions=${PRECISIONS:-bf16 fp16 tf32 fp32} shapes=${SHAPES:-gpt6x384 gpt2-124M} steps=${STEPS:-5}
python=${PYTHON:-python3}
build=$root/build/cpu-bench
commit=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
mkdir -p "$results"

if [[ ! -x $build/bench_step || ! -x $build/mezzo ]]; then
    cmake -S "$root" -B "$build" -G Ninja -DMEZZO_CUDA=OFF -DCMAKE_BUILD_TYPE=Release >/dev/null
    ninja -C "$build" bench_step mezzo >/dev/null
fi

shape_of() { # name → bench_step's options
    case $1 in
    gpt6x384) echo --name gpt6x384 --layers 6 --heads 6 --width 384 --vocab 65 --batch 16 --length 256 ;;
    gpt2-124M) echo --name gpt2-124M --layers 12 --heads 12 --width 768 --vocab 50304 --batch 4 --length 1024 ;;
    *) echo "no such shape: $1" >&2 && return 2 ;;
    esac
}

for piece in $pieces; do
    case $piece in
    matmul)
        for op in linear dx dw; do
            MEZZO_COMMIT=$commit "$root/bench/cpu_matmul.sh" --op $op --shapes 1024x3072x768,4096x1536x384,2048x2048x2048 \
                --threads "1,${threads// /,}" --csv "$results/cpu-matmul.csv"
        done
        ;;
    kernels)
        for n in $threads; do
            "$build/mezzo" bench --kernels --device cpu --threads "$n" --precision "${precisions// /,}" --csv "$results/cpu-kernels.csv"
        done
        ;;
    steps)
        for n in $threads; do
            for shape in $shapes; do
                header=(--no-header)
                [[ -s $results/cpu-steps.csv ]] || header=()
                # shellcheck disable=SC2086,SC2046
                "$build/bench_step" --device cpu --threads "$n" --commit "$commit" "${header[@]}" $(shape_of "$shape") --steps "$steps" \
                    --warmup 2 $precisions | tee -a "$results/cpu-steps.csv" | cut -d, -f1,9,13-17
            done
        done
        ;;
    peers)
        for n in $threads; do
            MEZZO_COMMIT=$commit "$python" "$root/bench/peers/torch_cpu.py" --threads "$n" --shapes "${shapes// /,}" --steps "$steps" |
                tee -a "$results/cpu-peers.csv"
            [[ -z ${LLMC:-} ]] || MEZZO_COMMIT=$commit python3 "$root/bench/peers/llmc_cpu.py" "$LLMC" --threads "$n" --shapes "${shapes// /,}" \
                --steps "$steps" | tee -a "$results/cpu-peers.csv"
        done
        ;;
    *) echo "no such piece: $piece" >&2 && exit 2 ;;
    esac
done
