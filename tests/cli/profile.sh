# What --profile leaves: a trace in the Trace Event Format, a table that agrees with it, a page without a network.
# Seen to fail with: a duration that ends after its outer bar, an event without "ts", a lane without a name.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
TRAIN=("${TINY[@]}" --tokenizer byte --data text.txt --device cpu --threads 1 --eval-iters 1 --steps 7 --precision fp32 --quiet)
run 0 train "${TRAIN[@]}" --out off
[[ ! -e off/profile ]] || fail "a profile that nobody asked for"
run 0 train "${TRAIN[@]}" --out on --profile 3 --eval-every 5 --checkpoint-every 5
for file in trace.json ops.csv index.html; do
    [[ -s on/profile/$file ]] || fail "no profile/$file"
done
shows on/profile/index.html "Content-Security-Policy" "<svg" "Ops worth improving" "forward" "backward" "update"
! grep -qE '(src|href)=|https?:' on/profile/index.html || fail "the page asks for something else"

# Profiled steps compute what others do.
for step in 1 4 5 7; do
    a=$(grep -m1 "\"step\": $step," off/metrics.jsonl | grep -o '"train/loss": [^,}]*')
    b=$(grep -m1 "\"step\": $step," on/metrics.jsonl | grep -o '"train/loss": [^,}]*')
    [[ -n $a && $a == "$b" ]] || fail "step $step: $a without a profile, $b with it"
done

python=${MEZZO_PYTHON:-python3}
command -v "$python" >/dev/null || exit 77
"$python" "$MEZZO_TESTS/cli/check_trace.py" on/profile 4 3 >"$OUT" 2>"$ERR" || fail "the trace breaks its format"
