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
    local fault=$1 run=run-${1//:/-} code line
    MEZZO_DRIVER_FAULT=$fault faulty timeout 60 "$MEZZO" "${TRAIN[@]}" --out "$run" >"$run.out" 2>"$run.err" </dev/null
    code=$?
    line=$(grep "^mezzo train: " "$run.err" | head -n 1)
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
    [[ -z ${MEZZO_FAULTS_ROWS:-} ]] || printf '%s,%d,"%s"\n' "$fault" $code "${line//\"/\'}" >>"$MEZZO_FAULTS_ROWS"
}
export -f one loss faulty
export MEZZO
# shellcheck disable=SC2016
faults=$(awk -v most="${MEZZO_FAULTS:-6}" -v allocs="${MEZZO_FAULTS_ALLOC:-${MEZZO_FAULTS:-6}}" '{
    n = $1 == "alloc" ? allocs : most; n = $2 < n ? $2 : n
    for (i = 0; i < n; i++) { at = 1 + int(i * $2 / n); print $1 ":" at; if (i % 2) print $1 ":" at ":lost" } }' count)
declare -p TRAIN >train.bash
xargs -P "$(nproc)" -I{} bash -c 'source train.bash; one {}' <<<"$faults" >results
grep -v "^ended" results >wrong && fail "$(wc -l <wrong) of $(wc -l <<<"$faults") faults: $(head -n 5 wrong)"
[[ $(wc -l <results) -eq $(wc -l <<<"$faults") ]] || fail "a fault left no result"
echo "$(sort results | uniq -c | tr '\n' ' ') of $(tr '\n' ' ' <count)"

# Another process has all that is left of the memory from the first steps on: the run goes on with what it has, or ends in a line.
[[ -n ${MEZZO_TAKE_MEMORY:-} ]] || exit 0
cc -std=gnu11 -O1 -I"${header%/*}" "$MEZZO_TESTS/fault/driver/take_memory.c" -o take_memory "$real" || fail "take_memory does not build"
"$MEZZO" "${TRAIN[@]}" --steps 12000 --eval-every 2000 --log-every 100 --checkpoint-every 5000 --out shared >"$OUT" 2>"$ERR" </dev/null &
job=$!
until [[ -s shared/metrics.jsonl ]]; do
    kill -0 $job 2>/dev/null || fail "the run ended before the other process began"
    sleep 0.05
done
./take_memory "$MEZZO_TAKE_MEMORY" >taken &
other=$!
sleep 2 # so long it may take to begin
"$MEZZO" "${TRAIN[@]}" --out late >late.out 2>late.err </dev/null
late=$?
wait $job
code=$?
wait $other || fail "the other process cannot take memory"
[[ $code -eq 0 || ($code -eq 3 && $(grep -c "^mezzo train: " "$ERR") -eq 1) ]] || fail "a run beside another process: exit code $code"
[[ $late -eq 0 || ($late -eq 3 && $(grep -c "^mezzo train: " late.err) -eq 1) ]] ||
    fail "a run with no memory left: exit code $late: $(tail -n 3 late.err)"
[[ $code -eq 0 ]] || run 0 "${TRAIN[@]}" --steps 12000 --eval-every 2000 --log-every 100 --checkpoint-every 5000 --out shared --resume auto
[[ -z ${MEZZO_FAULTS_ROWS:-} ]] || printf '%s,%d,"%s"\n' \
    "another process takes $(sed 's/taken //' taken) MiB in mid-run" $code "$(grep '^mezzo train: ' "$ERR" | head -n 1)" \
    "a run begun beside it" $late "$(grep '^mezzo train: ' late.err | head -n 1)" >>"$MEZZO_FAULTS_ROWS"
echo "beside a process with $(cat taken) MiB: exit code $code; a run begun then: $late"
