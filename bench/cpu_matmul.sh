#!/usr/bin/env bash
# Builds bench/cpu_matmul.c with the cpu backend's matrix product alone (no other library needed) and runs it with the arguments.
# CC chooses the compiler, BUILD the folder (build/bench-$CC), EXTRA more flags.
set -euo pipefail
cd "$(dirname "$0")/.."
cc=${CC:-gcc}
build=${BUILD:-build/bench-$cc}
mkdir -p "$build"
common=(-std=gnu11 -O3 -g -fopenmp -Iinclude -Isrc -Wall -Wextra ${EXTRA:-})
avx2=(-mavx2 -mfma -mf16c)
avx512=(-mavx512f -mavx512bw -mavx512dq -mavx512vl "${avx2[@]}" -mprefer-vector-width=512)
kernels=src/backend/cpu/kernels
objects=()

compile() { # source object flags…
    local source=$1 object=$build/$2.o
    shift 2
    objects+=("$object")
    if [ ! "$object" -nt "$source" ] || [ -n "$(find src include bench/cpu_matmul.c -name '*.[ch]' -newer "$object" -print -quit)" ]; then
        "$cc" "${common[@]}" "$@" -c "$source" -o "$object"
    fi
}

for source in src/base/*.c src/backend/cpu/matmul.c src/backend/cpu/isa.c bench/cpu_matmul.c; do
    compile "$source" "$(basename "$source" .c)" -ffp-contract=off
done
for name in matmul_pack matmul_rows matmul_split matmul_f32 matmul_epilogue probe; do
    compile $kernels/$name.c ${name}__portable -ffp-contract=fast -DMZ_ISA=portable -DMZ_ISA_PORTABLE=1
    if [ "$(uname -m)" = x86_64 ]; then
        compile $kernels/$name.c ${name}__avx2 -ffp-contract=fast -DMZ_ISA=avx2 -DMZ_ISA_AVX2=1 "${avx2[@]}"
        compile $kernels/$name.c ${name}__avx512 -ffp-contract=fast -DMZ_ISA=avx512 -DMZ_ISA_AVX512=1 "${avx512[@]}"
    fi
done
if [ "$(uname -m)" = x86_64 ]; then
    for name in avx512bf16_matmul avx512bf16_split avx512bf16_epilogue avx512bf16_probe; do
        compile $kernels/$name.c $name -ffp-contract=fast -DMZ_ISA=avx512bf16 -DMZ_ISA_AVX512BF16=1 "${avx512[@]}" -mavx512bf16
    done
    for name in amx_matmul amx_probe; do
        compile $kernels/$name.c $name -ffp-contract=fast -DMZ_ISA=amx -DMZ_ISA_AMX=1 "${avx512[@]}" -mavx512bf16 -mamx-tile -mamx-bf16
    done
fi
"$cc" "${objects[@]}" -fopenmp -ldl -lm -lpthread -o "$build/cpu_matmul"
export MEZZO_COMMIT=${MEZZO_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || true)}
exec "$build/cpu_matmul" "$@"
