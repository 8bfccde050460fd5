#!/usr/bin/env bash
# Sourced by the measurements of this folder, which bench/gpu_call.sh runs. From the environment: BUILD, a build with tests; OUT, a folder for rows
# and logs; LIMIT, seconds; DEVICE (cuda); COMMIT; TEXT, a text to train on (else the documents and sources here); TINY=1, shapes that a CPU runs in
# seconds. A measurement does first what matters most, and writes each row when it has it.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath "${BUILD:-$root/build/gpu}") out=$(realpath -m "${OUT:-$root/build/gpu-call}") device=${DEVICE:-cuda} limit=${LIMIT:-600}
mezzo=$build/mezzo commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)} card=CPU gpus=1
if [[ $device == cuda ]]; then
    gpus=$(nvidia-smi -L | wc -l)
    [[ -z ${CUDA_VISIBLE_DEVICES:-} ]] || gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
fi
export MEZZO_SOURCE=$root MEZZO_TESTS=$root/tests MEZZO_TEST_DEVICE=$device OMP_WAIT_POLICY=passive
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 3
text=${TEXT:-$work/text.txt}
[[ -n ${TEXT:-} ]] || find "$root"/{docs,src,include,tests} -name '*.md' -o -name '*.[ch]' -size -200k | LC_ALL=C sort | xargs cat >"$text"

left() { echo $((limit - SECONDS)); }
pick() { if [[ ${TINY:-0} == 1 ]]; then echo "$2"; else echo "$1"; fi; } # SHAPE TINY_SHAPE
time_for() { [[ $(left) -ge $1 ]] || { echo "no time for $2" && return 1; }; } # SECONDS WHAT
capped() { local most=$1 && shift && timeout -k 2 $(($(left) - 1 < most ? ($(left) > 2 ? $(left) - 1 : 1) : most)) "$@"; } # SECONDS COMMAND…
verdict() { if [[ $1 -eq 0 ]]; then echo "OK: $2"; else echo "FAIL: $2"; fi; } # STATUS WHAT
tokens() { # [TOKENIZER]: the text's folder of tokens
    [[ -d $work/tokens ]] || "$mezzo" data "$text" --tokenizer "${1:-gpt2}" --out "$work/tokens" >/dev/null 2>"$out/tokens.err"
    echo "$work/tokens"
}

old_build() { # where DEBS holds old.tgz (git archive of another commit), builds its command and prints the folder
    [[ $device == cuda && -s ${DEBS:-}/old.tgz ]] || return 1
    mkdir -p "$build/old/source"
    tar xzf "$DEBS/old.tgz" -C "$build/old/source"
    cmake -S "$build/old/source" -B "$build/old/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=OFF -DMEZZO_TESTS=OFF -DMEZZO_CUDA=ON \
        "-DMEZZO_CUDA_ARCH=$("$root/scripts/gpu-arch.sh")" >"$out/old.log" &&
        cmake --build "$build/old/build" --target mezzo >>"$out/old.log" 2>&1 || { tail -n 3 "$out/old.log" >&2 && return 1; }
    echo "$build/old/build"
}

two_commits() { # old and new are commands: where there is no other commit, both are this one
    local found
    new=$mezzo old=$mezzo
    found=$(old_build) && old=$found/mezzo
    return 0
}
numbers() { # FOLDER: step, loss and gradients' norm of a run's steps
    python3 -c 'import json, sys; [print(r["step"], r["train/loss"], r.get("gradients/total_norm")) for r in map(json.loads, sys.stdin) if "train/loss" in r]' \
        <"$1/metrics.jsonl"
}

row() { # FILE HEADER VALUE…: appends a row, which card and commit end
    local file=$out/$1 header=$2 line="" value
    shift 2
    [[ -s $file ]] || echo "$header,device,commit" >"$file"
    for value in "$@" "$card" "$commit"; do
        [[ $value != *[,\"]* ]] || value="\"${value//\"/\"\"}\""
        line+=,$value
    done
    echo "${line:1}" | tee -a "$file" | cut -c1-170
}

# NAME OPTION…: trains in the folder NAME, at most ROW_LIMIT (60) seconds, and adds a row to steps.csv: the steps' times without the first third of them, also
# of a run that is cut or fails. Text is read in bytes unless DATA names other data. RANKS: so many, by mezzo launch.
steps() {
    local name=$1 command=() launch=() found code
    shift
    [[ -z ${RANKS:-} ]] || launch=(launch -n "$RANKS" --)
    command=("${launch[@]}" train --data "${DATA:-$text}" --device "$device" --warmup 2 --log-every 1 --eval-every 0 --eval-iters 1
        --eval-final=false --sample-every -1 --checkpoint-every -1 --quiet "$@")
    [[ -n ${DATA:-} ]] || command+=(--tokenizer byte)
    rm -rf "$name"
    capped "${ROW_LIMIT:-60}" "$mezzo" "${command[@]}" --out "$name" >"$out/$name.log" 2>&1
    code=$?
    [[ $code -eq 0 ]] || echo "FAIL: $name: exit code $code, $(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c1-300)"
    found=$(python3 "$root/bench/gpu/steps.py" "$name/metrics.jsonl") || return 1
    # shellcheck disable=SC2086
    row steps.csv name,median_ms,min_ms,max_ms,mean_ms,mib,first_loss,last_loss,tokens_per_s,steps,exit_code,command "$name" $found "$code" \
        "mezzo ${command[*]//$work\//}"
    return $code
}
