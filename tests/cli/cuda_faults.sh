# A GPU that fails: the N-th allocation, launch, copy, wait or graph of the driver returns an error (fault/driver/faults.c), or all from there
# on do. A run ends with one line and exit code 3 or goes on as if nothing had been; what it has saved loads and is resumed. MEZZO_FAULTS
# says how many N of each kind are tried (6), spread over a whole run. Needs a GPU, and a compiler with cuda.h.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
header=$(find "${CUDA_HOME:-/usr/local/cuda}/" /usr/include -maxdepth 4 -name cuda.h -print -quit 2>/dev/null)
real=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*=> //p' | head -n 1)
before=${LD_LIBRARY_PATH:-}
for folder in ${before//:/ } /usr/local/nvidia/lib64; do
    [[ -n $real || ! -e $folder/libcuda.so.1 ]] || real=$folder/libcuda.so.1
done
[[ -n $header && -n $real ]] && command -v cc >/dev/null || exit 77

text 300 >text.txt
TRAIN=(train "${TINY[@]/#cpu/cuda}" --precision bf16 --steps 12 --eval-every 4 --sample-every 0 --checkpoint-every 3 --data text.txt)
"$MEZZO" "${TRAIN[@]}" --out clean >"$OUT" 2>"$ERR" </dev/null || exit 77
mkdir driver
echo 'int mezzo_none;' | cc -x c -shared -fPIC -Wl,-soname,libcuda_real.so -o driver/libcuda_real.so - || fail "the stand-in does not build"
cc -std=gnu11 -O1 -shared -fPIC -I"${header%/*}" "$MEZZO_TESTS/fault/driver/faults.c" -o driver/libcuda.so.1 \
    -Wl,--no-as-needed driver/libcuda_real.so -Wl,-rpath,"$PWD/driver" -ldl || fail "the driver does not build"
ln -sf "$real" driver/libcuda_real.so

loss() { grep -o '"train/loss": [^,}]*' "$1/metrics.jsonl" | tail -n 1; }
faulty() { LD_LIBRARY_PATH=$PWD/driver:${LD_LIBRARY_PATH:-} "$@"; }
MEZZO_DRIVER_COUNT=$PWD/count faulty "$MEZZO" "${TRAIN[@]}" --out counted >"$OUT" 2>"$ERR" </dev/null || fail "a driver that only counts fails"
[[ $(loss clean) == "$(loss counted)" ]] || fail "a driver that only counts changes the loss"
[[ $(awk '{n += $2 > 0} END {print n}' count) -eq 5 ]] || fail "a kind of call was never seen: $(cat count)"

# One fault: prints a line "KIND:N CODE", or what does not hold.
one() {
    local fault=$1 run=run-${1//:/-} code
    MEZZO_DRIVER_FAULT=$fault faulty timeout 60 "$MEZZO" "${TRAIN[@]}" --out "$run" >"$run.out" 2>"$run.err" </dev/null
    code=$?
    if [[ $code -eq 3 ]]; then
        [[ $(grep -c "^mezzo train: " "$run.err") -eq 1 ]] || { echo "$fault: not one line: $(tail -n 3 "$run.err")"; return; }
    elif [[ $code -ne 0 ]]; then
        echo "$fault: exit code $code: $(tail -n 3 "$run.err")"
        return
    fi
    if [[ $code -ne 0 ]]; then
        timeout 60 "$MEZZO" "${TRAIN[@]}" --out "$run" --resume auto >"$run.out" 2>"$run.err" </dev/null ||
            { echo "$fault: is not resumed: $(tail -n 2 "$run.err")"; return; }
    fi
    [[ $(loss clean) == "$(loss "$run")" ]] || { echo "$fault: $(loss "$run"), not $(loss clean)"; return; }
    rm -rf "$run"
    echo "ended $code"
}
export -f one loss faulty
export MEZZO
# shellcheck disable=SC2016
faults=$(awk -v most="${MEZZO_FAULTS:-6}" '{ n = $2 < most ? $2 : most
    for (i = 0; i < n; i++) { at = 1 + int(i * $2 / n); print $1 ":" at; if (i % 2) print $1 ":" at ":lost" } }' count)
declare -p TRAIN >train.bash
xargs -P "$(nproc)" -I{} bash -c 'source train.bash; one {}' <<<"$faults" >results
grep -v "^ended" results >wrong && fail "$(wc -l <wrong) of $(wc -l <<<"$faults") faults: $(head -n 5 wrong)"
[[ $(wc -l <results) -eq $(wc -l <<<"$faults") ]] || fail "a fault left no result"
echo "$(sort results | uniq -c | tr '\n' ' ') of $(tr '\n' ' ' <count)"
