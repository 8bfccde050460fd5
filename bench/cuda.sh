#!/usr/bin/env bash
# bench/cuda.sh [--build FOLDER] [--results FOLDER] PIECE...
# Builds, tests and times the cuda backend on this machine's GPU, beside PyTorch where python3 has it. Pieces, in any choice; each but
# `build` and `prewarm` stays below ten minutes on an H100:
#   build      build/cuda: a release build for this GPU, with tests
#   test       every kernel against ref; golden values, repeat, resume and recompute on the GPU
#   sanitize   compute-sanitizer's memcheck and racecheck on the small ones
#   prewarm    lets PyTorch compile what is timed below, so that nothing below waits for that
#   gpt2       GPT-2 124M, 32 x 1,024, in bf16, fp16, tf32 and fp32       → cuda-steps.csv, cuda-peers.csv
#   sizes      small to 2.7B, 4 x 512                                     → the same
#   tiny       4 and 12 layers of width 256 and 512                       → the same
#   moe        GLM-4's mixture of experts, 4 layers of width 256 and 12 of width 512 → the same
#   images     radio_unet with RadioDiff's sizes, batch 8, and kl_vae, batch 32   → cuda-steps.csv, cuda-images-peers.csv
#   fp8        GPT-2 124M and 1558M in bf16 and fp8, and the products of both, one by one → cuda-steps.csv, fp8-products.csv
#   profile    every kernel of one step of GPT-2 124M in bf16 (Nsight Compute) → cuda-kernels.csv
#   all        all of them
# Rows carry device, driver, commit and command. PRECISIONS (default "bf16 fp16 tf32 fp32"), WAYS (PyTorch's: "compiled graphs") and MODELS
# (as "xl 2.7B"; all of a piece's) choose fewer;
# MEZZO_CUDA_LIBRARIES names folders of CUDA's libraries that are not in their usual places.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/cuda
results=$root/bench/results
while [[ ${1:-} == --* ]]; do
    case $1 in
    --build) build=$2 ;;
    --results) results=$2 ;;
    *) break ;;
    esac
    shift 2
done
[[ $# -gt 0 ]] || { sed -n '2,21s/^# \{0,1\}//p' "$0" && exit 2; }
precisions=${PRECISIONS:-bf16 fp16 tf32 fp32}
ways=${WAYS:-compiled graphs}
python=${PYTHON:-python3}
mkdir -p "$results"
if commit=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null); then
    git -C "$root" diff --quiet HEAD -- src include bench || commit=$commit-dirty
else
    commit=${COMMIT:-unknown}
fi
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)

step=$build/bench_step # where `make build` or this script's `build` put it
[[ -x $step ]] || step=$root/build/release/bench_step

chosen() { # model: whether MODELS has it
    [[ -z ${MODELS:-} || " $MODELS " == *" $1 "* ]]
}

ours() { # name layers heads width vocabulary batch length steps
    chosen "$1" || return 0
    local header=(--no-header) csv=$results/cuda-steps.csv
    [[ -s $csv ]] || header=()
    # shellcheck disable=SC2086
    "$step" --commit "$commit" "${header[@]}" --name "$1" --layers "$2" --heads "$3" --width "$4" --vocab "$5" --batch "$6" \
        --length "$7" --steps "$8" --warmup 5 $precisions | tee -a "$csv" | cut -d, -f1,9,13-17
}

experts() { # model name batch length steps
    chosen "$2" || return 0
    local header=(--no-header) csv=$results/cuda-steps.csv
    [[ -s $csv ]] || header=()
    # shellcheck disable=SC2086
    "$step" --commit "$commit" "${header[@]}" --model "$1" --name "$2" --batch "$3" --length "$4" --steps "$5" --warmup 5 $precisions |
        tee -a "$csv" | cut -d, -f1,9,13-17
}

pictures() { # model batch steps ways...: ours, and the same module in PyTorch
    local model=$1 batch=$2 steps=$3 csv=$results/cuda-steps.csv peers=$results/cuda-images-peers.csv header=(--no-header) p w list=()
    shift 3
    chosen "$model" || return 0
    [[ -s $csv ]] || header=()
    # shellcheck disable=SC2086
    "$step" --commit "$commit" "${header[@]}" --device cuda --model "$model" --batch "$batch" --steps "$steps" --warmup 5 $precisions |
        tee -a "$csv" | cut -d, -f1,9,13-17
    has_torch || { echo "no PyTorch with a GPU: it is left out" && return; }
    for p in $precisions; do
        for w in "$@"; do
            list+=("$model:$batch:$p:$w")
        done
    done
    # Without cudnn.benchmark: trying every engine of every convolution takes PyTorch longer than all steps.
    "$python" "$root/bench/peers/torch_radio.py" --heuristics --iters 12 "${list[@]}" |
        { [[ -s $peers ]] && grep -v '^system,' || cat; } | tee -a "$peers" | cut -d, -f3-6,8,9,11
}

has_torch() {
    "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

cases() { # model: its cases in the chosen precisions and ways
    local p w
    chosen "$1" || return 0
    for p in $precisions; do
        for w in $ways; do
            echo "$1:$p:$w"
        done
    done
}

peers() { # model...
    has_torch || { echo "no PyTorch with a GPU: peers are left out" && return; }
    local csv=$results/cuda-peers.csv list=() m
    for m in "$@"; do
        mapfile -t -O "${#list[@]}" list < <(cases "$m")
    done
    [[ -s $csv ]] || echo "system,device,model,batch,tokens,precision,way,parameters,ms_step,best_ms,tokens_per_s,peak_mib,loss,driver,command" >"$csv"
    "$python" "$root/bench/peers/torch_gpt2.py" "${list[@]}" |
        while IFS= read -r row; do
            [[ $row == torch* ]] && echo "$row,$driver,\"bench/peers/torch_gpt2.py $(cut -d, -f3,6,7 <<<"$row" | tr , :)\""
        done | tee -a "$csv" | cut -d, -f3,6,7,9,11,12
}

piece() {
    case $1 in
    build)
        cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=OFF -DMEZZO_TESTS=ON -DMEZZO_CUDA=ON \
            "-DMEZZO_CUDA_ARCH=$("$root/scripts/gpu-arch.sh")"
        cmake --build "$build" && cmake --build "$build" --target bench_step bench_fp8_products
        ;;
    test) ctest --test-dir "$build" --output-on-failure -j 4 -R 'backend/|_cuda$|test_transformers' ;;
    sanitize)
        # Racecheck looks at shared memory, where our own kernels keep their partial sums; the libraries' kernels are not ours.
        local test="$build/tests/backend_test_kernels" tool op
        export MEZZO_TEST_DEVICE=cuda
        for tool in memcheck racecheck; do
            for op in layernorm layernorm_bwd cross_entropy cross_entropy_dx embedding_bwd attention attention_bwd linear linear_dw grad_stats \
                grouped_linear grouped_linear_dx grouped_linear_dw expert_order route combine rope adamw sgd; do
                # It stops at an exception in the library's products, even where it is told to look at other kernels only.
                [[ $tool == racecheck && $op == linear* ]] && continue
                compute-sanitizer --tool $tool --error-exitcode 9 --kernel-name-exclude kernel_substring=cublas \
                    --kernel-name-exclude kernel_substring=cutlass --kernel-name-exclude kernel_substring=cudnn \
                    "$test" "kernels_of_$op" >"$results/sanitize.txt" 2>&1 || { cat "$results/sanitize.txt" && exit 1; }
                echo "$tool $op: $(grep -a 'ERROR SUMMARY\|RACECHECK SUMMARY' "$results/sanitize.txt" | tail -n 1)"
            done
        done
        rm -f "$results/sanitize.txt"
        ;;
    prewarm)
        has_torch || return 0
        local m list=()
        for m in gpt2 small medium large xl 2.7B d256-l4-b1-t128 d512-l12-b8-t1024; do
            mapfile -t -O "${#list[@]}" list < <(cases "$m")
        done
        for m in moe-d256-l4-b1-t128 moe-d512-l12-b8-t1024; do
            mapfile -t -O "${#list[@]}" list < <(ways=compiled cases "$m")
        done
        "$python" "$root/bench/peers/torch_gpt2.py" --prewarm --iters 1 "${list[@]}" >/dev/null
        ;;
    gpt2) ours gpt2-124M 12 12 768 50304 32 1024 15 && peers gpt2 ;;
    sizes)
        ours small 12 12 768 10000 4 512 50
        ours medium 24 16 1024 10000 4 512 30
        ours large 36 20 1280 10000 4 512 20
        ours xl 48 25 1600 10000 4 512 10
        ours 2.7B 32 32 2560 10000 4 512 10
        peers small medium large xl 2.7B
        ;;
    tiny)
        ours d256-l4-b1-t128 4 8 256 32000 1 128 200
        ours d512-l12-b8-t1024 12 8 512 32000 8 1024 20
        peers d256-l4-b1-t128 d512-l12-b8-t1024
        ;;
    moe)
        experts glm4_moe-4x256 moe-d256-l4-b1-t128 1 128 200
        experts glm4_moe-12x512 moe-d512-l12-b8-t1024 8 1024 20
        ways=${WAYS:-eager compiled} peers moe-d256-l4-b1-t128 moe-d512-l12-b8-t1024
        ;;
    images)
        # shellcheck disable=SC2086
        pictures radio_unet-radiodiff 8 10 ${WAYS:-eager}
        # shellcheck disable=SC2086
        pictures kl_vae 32 20 ${WAYS:-eager graphs}
        ;;
    fp8)
        precisions="bf16 fp8" ours gpt2-124M 12 12 768 50304 32 1024 20
        precisions="bf16 fp8" ours gpt2-1558M 48 25 1600 50304 8 1024 8
        "$(dirname "$step")/bench_fp8_products" 32768x2304x768 32768x768x768 32768x3072x768 32768x768x3072 8192x4800x1600 8192x1600x1600 \
            8192x6400x1600 8192x1600x6400 | tee "$results/fp8-products.csv"
        ;;
    profile)
        local log=$results/cuda-profile.log
        ncu --clock-control none --profile-from-start off --metrics gpu__time_duration.sum,dram__bytes.sum --csv \
            --log-file "$log" "$step" --profile --steps 1 --warmup 3 --no-header bf16 >/dev/null
        "$python" "$root/bench/cuda_kernels.py" "$log" "$commit" "$driver" >"$results/cuda-kernels.csv"
        rm -f "$log"
        head -n 20 "$results/cuda-kernels.csv"
        ;;
    all) for p in build test sanitize prewarm gpt2 sizes tiny moe images fp8 profile; do piece $p; done ;;
    *) echo "bench/cuda.sh: no piece \"$1\"; without arguments it lists them" >&2 && exit 2 ;;
    esac
}

for p in "$@"; do
    echo "== $p" && piece "$p"
done
