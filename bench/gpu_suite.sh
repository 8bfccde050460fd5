#!/usr/bin/env bash
# bench/gpu_suite.sh [--build FOLDER] [--results FOLDER] [--out FOLDER] [--debs FOLDER]
# Builds the tests for this machine's GPU, runs all that a GPU can run (ctest -L gpu), and appends a row
# commit,tree,device,passed,failed,seconds to gpu-suite.csv in --results (bench/results); the seconds include the build.
# --out (build/gpu-suite) gets build.log, ctest.log, tests.csv (test,result,seconds) and failed.txt (the output of each test that failed).
# --debs: a folder of Debian packages to build with: for machines where nothing can be installed.
# COMMIT and TREE (clean, dirty or a hash) say what is built where there is no git. JOBS: tests at a time (one a core); LIMIT: seconds for all tests (420).
# PART=1/2, then PART=2/2 with the same --out: half the tests each, for machines whose commands have a limit; the last part appends the row of all.
# Exit code: 0, 1 (a test failed), 2 (usage), 3 (no GPU, or it does not build).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/gpu results=$root/bench/results out=$root/build/gpu-suite debs=""
while [[ $# -gt 0 ]]; do
    [[ $1 =~ ^--(build|results|out|debs)$ && $# -gt 1 ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2; }
    declare "${1#--}=$(realpath -m "$2")"
    shift 2
done
start=$SECONDS
[[ ${PART:=1/1} =~ ^([1-9])/([1-9])$ ]] || { echo "gpu_suite.sh: PART=$PART is none of 1/2, 2/2 and the like" >&2 && exit 2; }
part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
mkdir -p "$build" "$results" "$out"

device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *1 //; s/^ *\([0-9]*\) /\1 x /' | paste -sd ';')
[[ -n $device ]] || { echo "gpu_suite.sh: no NVIDIA GPU here (nvidia-smi shows none)" >&2 && exit 3; }

commit=${COMMIT:-} tree=${TREE:-unknown}
if [[ -z $commit ]] && commit=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown) && [[ $commit != unknown ]]; then
    tree=clean
    [[ -z $(git -C "$root" status --porcelain -- "$root" ':!bench/results') ]] || tree=dirty
fi

. "$root/bench/gpu_build.sh"
build_for_gpu "$root" "$build" "$debs" "$out/build.log" || { echo "gpu_suite.sh: it does not build: $out/build.log" >&2 && exit 3; }
built=$((SECONDS - start))
echo "built in $built s"

export MEZZO_OOM_JOBS=${MEZZO_OOM_JOBS:-$(nproc)}
ctest --test-dir "$build" -N -L gpu -I "$part,,$parts" >"$out/ctest.log"
# Each GPU comes first in its share of the tests, which see the others after it: with all tests on one, its time goes round among dozens of processes.
# A share has its own cores, because a device opens as many threads as its process has cores.
mapfile -t gpus < <(seq 0 $(($(nvidia-smi -L | wc -l) - 1)))
mapfile -t cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
n=${#gpus[@]} jobs=${JOBS:-$(nproc)}
own=$((${#cores[@]} >= n ? ${#cores[@]} / n : ${#cores[@]}))
for ((g = 0; g < n; g++)); do
    mine=$(IFS=,; echo "${cores[*]:g * own % ${#cores[@]}:own}")
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:g:n},${gpus[*]:0:g}" | sed 's/,$//') taskset -c "$mine" timeout "${LIMIT:-420}" ctest --test-dir "$build" -L gpu \
        -I $((part + parts * g)),,$((parts * n)) -j $(((jobs + n - 1) / n)) --output-on-failure >"$out/ctest-$g.log" 2>&1 &
done
wait
for ((g = 0; g < n; g++)); do cat "$out/ctest-$g.log" >>"$out/ctest.log" && rm "$out/ctest-$g.log"; done
# "  Test  #7: cli/fp8" lists one. " 3/99 Test  #7: cli/fp8 ....   Passed    1.25 sec" is its result, and a failed test's output follows.
[[ $part != 1 ]] || { echo "test,result,seconds" >"$out/tests.csv" && rm -f "$out/failed.txt" "$out/seconds"; }
awk -v failed="$out/failed.txt" -v table="$out/tests.csv" -v built="$built" '
    BEGIN { print "build,passed," built >>table; printf "" >>failed }
    /^ +Test +#[0-9]+: / { left[$3] }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
        result = /\*\*\*Skipped/ ? "skipped" : / Passed / ? "passed" : "failed"
        delete left[$4]
        print $4 "," result "," $(NF - 1) >>table
        shown = result == "failed"
    }
    / Start +[0-9]+: / || /% tests passed/ { shown = 0 }
    shown { print >>failed }
    END { for (name in left) print name ",unfinished," >>table }' "$out/ctest.log"
count() { grep -c ",$1," "$out/tests.csv" || true; }
passed=$(($(count passed) - part)) failed=$(($(count failed) + $(count unfinished)))
[[ $passed -gt 0 ]] || { tail -n 20 "$out/ctest.log" && echo "gpu_suite.sh: no test ran: $out/ctest.log" >&2 && exit 3; }

table=$results/gpu-suite.csv
[[ -s $table ]] || echo "commit,tree,device,passed,failed,seconds" >"$table"
echo $((SECONDS - start)) >>"$out/seconds"
[[ $part != "$parts" ]] || echo "$commit,$tree,\"$device\",$passed,$failed,$(awk '{ s += $1 } END { print s }' "$out/seconds")" >>"$table"
echo "the slowest tests:"
sort -t, -k3,3rg "$out/tests.csv" | head -n 12
echo "skipped: $(grep ',skipped,' "$out/tests.csv" | cut -d, -f1 | sort | paste -sd ' ')"
echo "failed: $(grep -E ',(failed|unfinished),' "$out/tests.csv" | cut -d, -f1 | sort | paste -sd ' ')"
grep -a -A 12 'Test *#[0-9]*:' "$out/failed.txt" | cut -c1-300 | head -n 150 || true
tail -n 1 "$table"
[[ $failed -eq 0 ]]
