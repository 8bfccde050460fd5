#!/usr/bin/env bash
# cost: what `doctor` predicts for bf16 beside measured steps of PyTorch programs, by bench/torch_cost.py, on the GPU and, on other cores, the CPU:
# gpu/torch-cost.csv, cpu/torch-cost.csv, with each program's trace. Programs that nothing was fitted to come first.
. "$(dirname "$0")/common.sh"
mapfile -t cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
n=${#cores[@]} half=$((${#cores[@]} < 32 ? (${#cores[@]} + 1) / 2 : 16))
few=$(pick "" "vit:1 recommender:1")
one() { # DEVICE CORES OPTION…
    local name=$1 where=$2
    shift 2
    # shellcheck disable=SC2086
    capped 600 taskset -c "$where" python3 "$root/bench/torch_cost.py" "$mezzo" $few --device "$name" --commit "$commit" --results "$out/$name" \
        --seconds $(($(left) - 25)) "$@" >"$out/$name.txt" 2>"$out/$name.err"
}
mkdir -p "$out/cpu" "$out/$device"
one cpu "$(IFS=,; echo "${cores[*]:$((n - half)):half}")" --threads "$half" &
[[ $device == cpu ]] || one "$device" "$(IFS=,; echo "${cores[*]:0:6}")"
wait
cat "$out/$device.txt"
[[ $device == cpu ]] || cat "$out/cpu.txt"
grep -hv Warning "$out"/*.err | tail -n 4 | cut -c1-300
echo "$n cores, $half of them for the CPU's rows; load $(cut -d' ' -f1 /proc/loadavg); $SECONDS s"
