#!/usr/bin/env bash
# bench/gpu_call.sh [--seconds N] [--build FOLDER] [--debs FOLDER] [--out FOLDER] STREAM… [--after STREAM]
# Builds Mezzo for this machine's GPUs and runs measurements of bench/gpu: a STREAM is "NAME[+WORD…]:LIMIT NAME:LIMIT …", scripts bench/gpu/NAME.sh with the
# words as arguments, one after the other, none longer than LIMIT seconds. Streams run at the same time, each on its own GPU while there are as many (else in
# turns) and on its own share of the cores, so that none slows another's host; the one of --after follows with all GPUs and cores. Nothing begins that --seconds (570, with the build) leave under 15 s for.
# --out (build/gpu-call) gets results.tgz, packed anew every 30 s and as each script ends: a folder NAME+WORD for each, with its rows and stdout.txt;
# calls.csv; build.log.
#
# From a machine without a GPU to one with a GPU but no network: here, once, in the folder .debs at the root (git ignores it; it must travel too):
#   apt-get download lib{cmocka,yaml,jansson,pcre2,png,utf8proc,protobuf-c}-dev lib{cmocka0,yaml-0-2,jansson4,pcre2-8-0,pcre2-16-0,pcre2-32-0,pcre2-posix3} \
#       lib{png16-16,utf8proc2,protobuf-c1,protobuf32,protoc32,pkgconf3,js-chart.js} zlib1g-dev pkgconf pkgconf-bin protobuf-c-compiler
#   pip download --no-deps torchao        (for duel: PyTorch's float8)
# and there, in the root, with the commit named, since .git does not travel: COMMIT=$(git rev-parse --short=12 HEAD) is evaluated here:
#   COMMIT=… bench/gpu_call.sh --debs .debs --out "$OUT" "suite:330 twice:90" "duel+qwen2.5-1.5B:150 fp8:150" --after "muon_ranks:90"
# To try all of it without a GPU: DEVICE=cpu TINY=1 bench/gpu_call.sh --build build/test STREAM… (an existing build; shapes of a few seconds).
# Exit code: 0, 2 (usage), 3 (no GPU, or it does not build); a measurement that fails is a row of calls.csv.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/gpu out=$root/build/gpu-call debs="" seconds=570 after="" streams=()
usage() { sed -n '2,18s/^# \{0,1\}//p' "$0" && exit 2; }
while [[ $# -gt 0 ]]; do
    case $1 in
    --build | --out | --debs) [[ $# -gt 1 ]] || usage; declare "${1#--}=$(realpath -m "$2")"; shift 2 ;;
    --seconds | --after) [[ $# -gt 1 ]] || usage; declare "${1#--}=$2"; shift 2 ;;
    --*) usage ;;
    *) streams+=("$1"); shift ;;
    esac
done
for item in ${streams[*]} $after; do
    [[ $item =~ ^([a-z0-9_]+)(\+[^/]*)?:[0-9]+$ && -e $root/bench/gpu/${BASH_REMATCH[1]}.sh ]] || { echo "gpu_call.sh: no measurement '$item'" >&2 && usage; }
done
[[ $((${#streams[@]} + ${#after})) -gt 0 ]] || usage
all=$(mktemp -d)
mkdir -p "$out" "$build"
trap 'rm -rf "$all"' EXIT
export DEVICE=${DEVICE:-cuda} BUILD=$build DEBS=$debs COMMIT=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
gpus=1
if [[ $DEVICE == cuda ]]; then
    gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
    [[ $gpus -gt 0 ]] || { echo "gpu_call.sh: no NVIDIA GPU here (nvidia-smi shows none)" >&2 && exit 3; }
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | tee "$all/gpus.txt"
    . "$root/bench/gpu_build.sh"
    build_for_gpu "$root" "$build" "$debs" "$all/build.log" || { cp "$all/build.log" "$out/" && exit 3; }
fi
echo "built in $SECONDS s"
ln -sfn "$root/python" "$build/python"
export MEZZO=$build/mezzo MEZZO_PYTHON=$root/python PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
echo "measurement,limit_s,exit_code,began_s,seconds,gpus,commit" >"$all/calls.csv"

pack() { # what is here by now, for a call that is cut; without large files
    (
        flock 9
        cd "$all" && find . -type f \( -size -6M -o -name '*.csv' \) -print0 | tar czf "$out/results.part" --null -T - 2>/dev/null
        mv "$out/results.part" "$out/results.tgz"
    ) 9>"$build/pack.lock"
}
while sleep 30; do pack; done &
packer=$!
trap 'kill $packer; rm -rf "$all"' EXIT
run_stream() { # GPUS CORES ITEM…
    local visible=$1 cores=$2 item name limit words code began
    shift 2
    [[ $cores == all ]] || taskset -cp "$cores" $BASHPID >/dev/null
    for item in "$@"; do
        name=${item%:*} limit=${item##*:} began=$SECONDS
        ((limit > seconds - began)) && limit=$((seconds - began))
        [[ $limit -ge 15 ]] || { echo "##### $name: no time was left" && continue; }
        mkdir -p "$all/$name"
        IFS=+ read -ra words <<<"$name"
        (
            [[ $visible == all ]] || export CUDA_VISIBLE_DEVICES=$visible
            OUT=$all/$name LIMIT=$limit timeout -k 5 "$limit" bash "$root/bench/gpu/${words[0]}.sh" "${words[@]:1}"
        ) >"$all/$name/stdout.txt" 2>&1
        code=$?
        echo "\"$name\",$limit,$code,$began,$((SECONDS - began)),$visible,$COMMIT" >>"$all/calls.csv"
        echo "##### $name: exit $code after $((SECONDS - began)) s, at $SECONDS s"
        tail -n "${LINES_SHOWN:-14}" "$all/$name/stdout.txt" | cut -c1-200
        pack
    done
}
running=()
mapfile -t cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
share=$((${#streams[@]} > 1 ? ${#cores[@]} / ${#streams[@]} : 0))
for i in "${!streams[@]}"; do
    mine=all
    [[ $share -lt 4 ]] || mine=$(IFS=,; echo "${cores[*]:i * share:share}")
    # shellcheck disable=SC2086
    run_stream $((i % gpus)) "$mine" ${streams[i]} >"$build/stream-$i.txt" 2>&1 &
    running+=($!)
done
[[ ${#running[@]} -eq 0 ]] || wait "${running[@]}"
for i in "${!streams[@]}"; do cat "$build/stream-$i.txt"; done
# shellcheck disable=SC2086
[[ -z $after ]] || run_stream all all $after
pack
cat "$all/calls.csv"
