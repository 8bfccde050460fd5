#!/usr/bin/env bash
# bits: why a step of GPT-2 124M has other bits in some runs, by bench/bits_gpu.sh: a line for each suspect left out, most telling first (stdout,
# logs). Where DEBS holds old.tgz (git archive of another commit), that commit's command is built first and its runs are compared, too.
. "$(dirname "$0")/common.sh"
old=()
found=$(old_build) && old=("$found")
cmake --build "$build" --target bench_repeat >"$out/build.log" 2>&1 || tail -n 3 "$out/build.log"
LIMIT=$(($(left) - 3)) OUT=$out bash "$root/bench/bits_gpu.sh" "$build" "${old[@]}"
