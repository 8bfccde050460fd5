#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS]: builds tests/fuzz with clang's libFuzzer and runs each target that long (10).
set -euo pipefail
cd "$(dirname "$0")/.."

compgen -G 'tests/fuzz/fuzz_*.c' >/dev/null || exit 0
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DMEZZO_FUZZ=ON -DMEZZO_WERROR=OFF -DMEZZO_CUDA=OFF \
    -DMEZZO_FUZZ_SECONDS="${1:-10}" >/dev/null
cmake --build build/fuzz --target tests_fuzz
ctest --test-dir build/fuzz -L fuzz -j "$(nproc)" --output-on-failure
