#!/usr/bin/env bash
# Unit, gradient and golden tests as other x86-64 processors run them, under qemu-user: Nehalem (no AVX) and Haswell (AVX2, no
# AVX-512). Tests take the kernels that the processor has, and skip, with a message, what it lacks.
#   scripts/qemu.sh [smoke|all] [BUILD [CPU…]]      smoke: the probe, every op and whole models, and the command itself, on the first
#                                     processor [all]. BUILD has compiled tests [build/release]
# MEZZO_QEMU_JOBS processes at a time [all cores]; a test may take MEZZO_QEMU_SECONDS [300]. Exit 1 when a test fails.
set -uo pipefail
cd "$(dirname "$0")/.."
which=all
[[ ${1:-} != smoke && ${1:-} != all ]] || { which=$1 && shift; }
build=$(realpath "${1:-build/release}")
shift
cpus=("$@")
[[ ${#cpus[@]} -gt 0 ]] || cpus=(Nehalem Haswell)
[[ $which == all ]] || cpus=("${cpus[0]}")
if [[ $(uname -m) != x86_64 ]]; then
    echo "qemu: other x86-64 processors are tried on x86-64 only"
    exit 0
fi

# Emulation is 12 to 100 times slower. On 2 cores Nehalem takes 4 minutes and Haswell 20. Left out is what tokenizes megabytes
# (bpe, gpt2_tokens), tries every value of a function or every shape of a product (vec_math, magnitudes, matmul; models' tests run the
# same kernels), times kernels (kernel_bench), or repeats what another test runs.
slow=" unit_test_bpe golden_test_gpt2_tokens unit_test_vec_math unit_test_magnitudes unit_test_matmul unit_test_kernel_bench "
slow+="unit_test_matmul_amx_emulated unit_test_verify unit_test_sweep unit_test_capture unit_test_python_readers unit_test_loader "
slow+="unit_test_lab "

smoke=" unit_test_cpu_isa grad_test_grad golden_test_ops golden_test_gpt2 golden_test_amp "

export build MEZZO=$build/mezzo MEZZO_TESTS=$PWD/tests MEZZO_SOURCE=$PWD MEZZO_BUILD=$build MEZZO_PYTHON=
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive scratch
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

try() { # CPU TEST: one line to stdout
    local folder=$scratch/$1/$2 status TIMEFORMAT=%U
    mkdir -p "$folder"
    cd "$folder" || exit 1
    { time timeout "${MEZZO_QEMU_SECONDS:-300}" qemu-x86_64 -cpu "$1" "$build/tests/$2" >output 2>&1; } 2>seconds
    status=$?
    case $status in
    0) echo "passed $2 $(<seconds)" ;;
    77) echo "skipped $2" ;;
    *)
        echo "FAILED $2, exit code $status"
        grep -vE '^\[ (RUN|      OK)|TCG doesn.t support' output | tail -n 15
        ;;
    esac
}
export -f try

failed=0
for cpu in "${cpus[@]}"; do
    began=$SECONDS
    for program in "$build"/tests/{unit,grad,golden}_test_*; do
        name=${program##*/}
        [[ -x $program && $slow != *" $name "* ]] && [[ $which == all || $smoke == *" $name "* ]] && echo "$name"
    done | xargs -P "${MEZZO_QEMU_JOBS:-$(nproc)}" -I{} bash -c 'try "$0" {}' "$cpu" >"$scratch/results"
    grep -v '^passed' "$scratch/results"
    grep '^passed' "$scratch/results" | sort -k3 -rn >"$scratch/passed" # slowest first
    echo "$cpu: $(wc -l <"$scratch/passed") programs passed, $(grep -c '^skipped' "$scratch/results") skipped," \
        "$(grep -c '^FAILED' "$scratch/results") failed, $((SECONDS - began)) s; most processor seconds:" \
        "$(head -n 3 "$scratch/passed" | awk '{ printf "%s%s %.0f", (NR > 1 ? ", " : ""), $2, $3 }')"
    grep -q '^FAILED' "$scratch/results" && failed=1
    (cd "$scratch" && qemu-x86_64 -cpu "$cpu" "$build/mezzo" explain --toy >output 2>&1) || { echo "$cpu: mezzo explain --toy: $(tail -n 3 "$scratch/output")" && failed=1; }
done
exit $failed
