# Ctrl-C: a checkpoint, how to go on, 130. Twice: at once, and nothing is harmed.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
LONG=("${TINY[@]}" --steps 1000000 --eval-every 0 --sample-every 0 --checkpoint-every -1 --data text.txt)

wait_for() { # WORD: until stderr shows it, at most 90 s
    local i
    for ((i = 0; i < 900; i++)); do
        grep -qF -- "$1" "$ERR" && return
        sleep 0.1
    done
    fail "\"$1\" never came"
}

# A shell without job control starts background commands with SIGINT ignored; env's default puts it back.
start() {
    last="mezzo train $*"
    : >"$ERR"
    env --default-signal=INT,HUP "$MEZZO" train "$@" >"$OUT" 2>"$ERR" </dev/null &
    child=$!
}

for signal in INT TERM HUP; do
    start "${LONG[@]}" --checkpoint-every 0 --out "run-$signal"
    wait_for "step 5/"
    kill -s "$signal" "$child"
    wait "$child"
    code=$?
    [[ $code -eq 130 ]] || fail "SIG$signal: exit code $code, not 130"
    shows "$ERR" "mezzo train: interrupted at step" "the checkpoint is run-$signal/checkpoints/step-" \
        "go on with:" "--config run-$signal/config.yaml --resume auto"
    step=$(sed -nE 's/^mezzo train: interrupted at step ([0-9]+).*/\1/p' "$ERR")
    # The command that was shown goes on from that very step.
    run 0 train --config "run-$signal/config.yaml" --resume auto --steps "$((step + 2))" --json
    shows "$OUT" "\"steps\": $((step + 2))"
done

# The second signal does not wait for the step: here one step takes long.
run 0 train "${TINY[@]}" --steps 2 --data text.txt --out twice
start --model gpt2 --layers 6 --heads 4 --d-model 512 --seq-len 256 --batch-size 16 --steps 9 --device cpu --threads 1 \
    --eval-every 0 --sample-every 0 --log-every 1 --precision fp32 --data text.txt --out slow
wait_for "gpt2"
kill -s INT "$child"
wait_for "once more leaves at once"
kill -s INT "$child"
wait "$child"
code=$?
[[ $code -eq 130 ]] || fail "twice: exit code $code, not 130"
! grep -q "interrupted at step" "$ERR" || fail "the second signal waited for the step's end"
run 0 eval twice --iters 1
