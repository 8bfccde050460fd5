#!/usr/bin/env bash
# Cross-builds for 64-bit ARM (scripts/setup.sh arm64) into build/arm64, and runs its tests under qemu-user as two processors: one with every
# extension, BF16 dot products among them, and one with plain NEON.
#   scripts/arm64.sh [smoke|all] [clang]      smoke: what exercises the kernels, a few minutes; all: every unit, gradient, golden and resume
#                                     test [smoke]. clang: compiled by it, with its own OpenMP for ARM, into build/arm64-clang
# MEZZO_QEMU_JOBS processes at a time [all cores]; a test may take MEZZO_QEMU_SECONDS [300; all: 1800]. Exit 1 when a test fails.
set -uo pipefail
cd "$(dirname "$0")/.."
which=${1:-smoke}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export build=$PWD/build/arm64 scratch
options=()
if [[ ${2:-} == clang ]]; then
    build+=-clang
    # libomp for ARM has files of the same names as x86-64's: it is unpacked, not installed.
    omp=$PWD/build/arm64-libomp
    if [[ ! -e $omp/libomp.so ]]; then
        version=$(clang -dumpversion)
        mkdir -p "$omp"
        (cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download "libomp5-${version%%.*}:arm64" && dpkg-deb --fsys-tarfile ./*.deb | tar -x) || exit 3
        cp "$scratch"/usr/lib/llvm-*/lib/libomp.so.5 "$omp/" && ln -sf libomp.so.5 "$omp/libomp.so" || exit 3
    fi
    options=(-DMEZZO_ARM64_CLANG=ON -DOpenMP_C_FLAGS=-fopenmp -DOpenMP_C_LIB_NAMES=omp "-DOpenMP_omp_LIBRARY=$omp/libomp.so")
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64.cmake" -DCMAKE_BUILD_TYPE=Release -DMEZZO_CUDA=OFF \
    -DMEZZO_TESTS=ON "${options[@]}" >"$build.log" 2>&1 || { tail -n 20 "$build.log"; exit 1; }

# smoke: the probe, every op, whole models in every precision; and the products alone, by the first processor.
smoke="unit_test_matmul unit_test_cpu_isa golden_test_amp golden_test_ops golden_test_gpt2 golden_test_transformers"
if [[ $which == smoke ]]; then
    read -ra programs <<<"$smoke"
    seconds=${MEZZO_QEMU_SECONDS:-300}
else
    seconds=${MEZZO_QEMU_SECONDS:-1800}
    programs=()
    for source in tests/{unit,grad,golden,backend,resume}/test_*.c; do
        name=${source#tests/}
        name=${name%.c}
        programs+=("${name/\//_}")
    done
fi
cmake --build "$build" --target mezzo "${programs[@]}" >"$build.log" 2>&1 || { grep -E 'error|FAILED' "$build.log" | head -n 20; exit 1; }

export MEZZO=$build/mezzo MEZZO_TESTS=$PWD/tests MEZZO_SOURCE=$PWD MEZZO_BUILD=$build MEZZO_PYTHON=
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive seconds

try() { # CPU TEST: one line to stdout
    local folder=$scratch/$1/$2 status TIMEFORMAT=%U
    mkdir -p "$folder"
    cd "$folder" || exit 1
    { time timeout "$seconds" qemu-aarch64 -cpu "$1" "$build/tests/$2" >output 2>&1; } 2>time
    status=$?
    case $status in
    0) echo "passed $2 $(<time), skipped inside: $(grep -c '^\[  SKIPPED \] [^0-9]' output)" ;;
    77) echo "skipped $2" ;;
    *)
        echo "FAILED $2, exit code $status"
        grep -vE '^\[ (RUN|      OK)' output | tail -n 15
        ;;
    esac
}
export -f try

failed=0
for cpu in max,pauth-impdef=on cortex-a72; do
    began=$SECONDS
    printf '%s\n' "${programs[@]}" | if [[ $which == smoke && $cpu != max* ]]; then grep -v matmul; else cat; fi | xargs -P "${MEZZO_QEMU_JOBS:-$(nproc)}" -I{} bash -c 'try "$0" {}' "$cpu" >"$scratch/results"
    grep -v '^passed' "$scratch/results"
    [[ $which == smoke ]] || sort "$scratch/results" | grep '^passed'
    echo "$cpu: $(grep -c '^passed' "$scratch/results") programs passed, $(grep -c '^skipped' "$scratch/results") skipped," \
        "$(grep -c '^FAILED' "$scratch/results") failed, $((SECONDS - began)) s"
    grep -q '^FAILED' "$scratch/results" && failed=1
done
exit $failed
