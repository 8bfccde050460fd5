#!/usr/bin/env bash
# suite: every test that a GPU can run, by bench/gpu_suite.sh in the build that is there, with all GPUs. Appends to a copy of
# bench/results/gpu-suite.csv. suite REGEX: only the tests whose names match, on this stream's GPU, without a row.
. "$(dirname "$0")/common.sh"
cp "$root/bench/results/gpu-suite.csv" "$out/"
visible=${CUDA_VISIBLE_DEVICES:-}
unset CUDA_VISIBLE_DEVICES MEZZO MEZZO_PYTHON MEZZO_SOURCE MEZZO_TESTS MEZZO_TEST_DEVICE OMP_WAIT_POLICY PYTHONPATH # tests set their own
if [[ $# -gt 0 ]]; then
    [[ -z $visible ]] || export CUDA_VISIBLE_DEVICES=$visible
    exec timeout $((limit - 2)) ctest --test-dir "$build" -L gpu -R "$1" -j "$(nproc)" --output-on-failure
fi
LIMIT=$((limit - 25)) TREE=${TREE:-clean} COMMIT=$commit exec bash "$root/bench/gpu_suite.sh" --build "$build" --results "$out" \
    --out "$out" ${DEBS:+--debs "$DEBS"}
