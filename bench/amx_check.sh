#!/usr/bin/env bash
# On a machine with AMX: checks the BF16 products on the real tile instructions (edges, all three products of a linear layer, one
# to three threads) against FP64 sums, then times them beside FP32 at three shapes, the pieces alone, and other block sizes.
# Needs gcc and nothing else. Writes amx_matmul.csv and amx_matmul.log into $OUT (bench/results). Exit status 1: a result is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
mkdir -p "$out"
run() { bash bench/cpu_matmul.sh "$@"; }
{
    lscpu | grep -E 'Model name|^CPU\(s\)|Thread|L1d|L2|L3' || true
    gcc --version | head -1
    edges=1x1x1,1x40x64,5x7x3,16x16x16,31x33x32,32x32x31,33x65x97,17x31x2000,100x200x300,470x37x5,5x5000x33,64x96x1600
    big=1024x3072x768,4096x1536x384,2048x2048x2048
    for op in linear dx dw; do
        run --check --op $op --shapes $edges --threads 1,2,3 --paths bf16_amx,bf16_dot,fp32_avx512,fp16_avx512
        run --check --op $op --shapes $big --threads 2 --paths bf16_amx
    done
    run --parts --paths bf16_amx,bf16_dot,fp32_avx512,bf16_avx512,fp16_avx512
    for kc in 256 384 512 1024 2048; do run --parts --paths bf16_amx --kc $kc; done
    for ahead in 2048 4096 8192; do
        EXTRA=-DMZ_AMX_PREFETCH=$ahead BUILD=build/bench_ahead_$ahead run --parts --paths bf16_amx
    done
    for op in linear dx dw; do
        run --op $op --shapes $big --threads 1,2 --rounds 21 --csv "$out/amx_matmul.csv" \
            --paths bf16_amx,bf16_dot,fp32_avx512,fp16_avx512,openblas,blis,onednn
        run --op $op --shapes 768x512x128,768x128x512,4096x768x3072 --threads 1,2 --rounds 21 --csv "$out/amx_matmul.csv" \
            --paths bf16_amx,fp32_avx512
    done
    for kc in 384 512 1024 2048; do
        run --op linear --shapes $big --threads 1,2 --rounds 15 --paths bf16_amx --kc $kc --csv "$out/amx_matmul.csv"
    done
    for mc in 128 256 1024; do
        run --op linear --shapes $big --threads 1,2 --rounds 15 --paths bf16_amx --mc $mc --csv "$out/amx_matmul.csv"
    done
    for nc in 512 1024; do
        run --op linear --shapes $big --threads 1,2 --rounds 15 --paths bf16_amx --nc $nc --csv "$out/amx_matmul.csv"
    done
} 2>&1 | tee "$out/amx_matmul.log"
