#!/usr/bin/env bash
# bits: why a step of GPT-2 124M has other bits in some runs, by bench/bits_gpu.sh: a line for each suspect left out, most telling first (stdout,
# logs). Where DEBS holds old.tgz (git archive of another commit), that commit's command is built first and its runs are compared, too.
. "$(dirname "$0")/common.sh"
old=()
if [[ $device == cuda && -s ${DEBS:-}/old.tgz ]]; then
    mkdir -p "$build/old/source"
    tar xzf "$DEBS/old.tgz" -C "$build/old/source"
    cmake -S "$build/old/source" -B "$build/old/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=OFF -DMEZZO_TESTS=OFF -DMEZZO_CUDA=ON \
        "-DMEZZO_CUDA_ARCH=$("$root/scripts/gpu-arch.sh")" >"$out/old.log" &&
        cmake --build "$build/old/build" --target mezzo >>"$out/old.log" 2>&1 && old=("$build/old/build") || tail -n 3 "$out/old.log"
fi
cmake --build "$build" --target bench_repeat >"$out/build.log" 2>&1 || tail -n 3 "$out/build.log"
LIMIT=$(($(left) - 3)) OUT=$out bash "$root/bench/bits_gpu.sh" "$build" "${old[@]}"
