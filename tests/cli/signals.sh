# Ctrl-C: a checkpoint, how to go on, 130. Twice: at once, and nothing is harmed.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
LONG=("${TINY[@]}" --steps 1000000 --eval-every 0 --sample-every 0 --checkpoint-every -1 --data text.txt)

wait_for() { wait_until grep -qF -- "$1" "$ERR"; } # WORD: until stderr shows it

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
        "Resume with:" "--config run-$signal/config.yaml --resume auto"
    step=$(sed -nE 's/^mezzo train: interrupted at step ([0-9]+).*/\1/p' "$ERR")
    # The command that was shown goes on from that very step.
    run 0 train --config "run-$signal/config.yaml" --resume auto --steps "$((step + 2))" --json
    shows "$OUT" "\"steps\": $((step + 2))"
done

# A step that takes half a minute is left between two of its kernels, and a folder without a step is free for another run.
run 0 train "${TINY[@]}" --steps 2 --data text.txt --out twice
SLOW=(--model gpt2 --layers 6 --heads 4 --d-model 512 --seq-len 256 --batch-size 64 --steps 9 --device cpu --threads 1 --eval-every 0
    --sample-every 0 --log-every 1 --precision fp32 --data text.txt)
start "${SLOW[@]}" --out slow
wait_for "gpt2"
sleep 1
began=$SECONDS
kill -s INT "$child"
wait_for "press Ctrl-C again to quit now"
wait "$child"
code=$?
[[ $code -eq 130 ]] || fail "within a step: exit code $code, not 130"
((SECONDS - began <= 12)) || fail "within a step: $((SECONDS - began)) s"
shows "$ERR" "interrupted at step 0; wrote no checkpoint"
run 0 train "${TINY[@]}" --steps 2 --data text.txt --out slow

# The second signal leaves at once, and nothing is harmed.
start "${SLOW[@]}" --out slower
wait_for "gpt2"
kill -s INT "$child"
kill -s INT "$child" 2>/dev/null
wait "$child"
code=$?
[[ $code -eq 130 ]] || fail "twice: exit code $code, not 130"
run 0 eval twice --iters 1

# A command that has nothing to put right leaves at once, with the same code.
last="mezzo sample"
: >"$OUT"
env --default-signal=TERM "$MEZZO" sample twice --prompt a --tokens 16777216 >"$OUT" 2>"$ERR" </dev/null &
child=$!
while [[ ! -s $OUT ]] && kill -0 "$child" 2>/dev/null; do sleep 0.1; done
kill -s TERM "$child"
wait "$child"
code=$?
[[ $code -eq 130 ]] || fail "a sample: exit code $code, not 130"

# The folder is looked at before anything takes time: before the data are.
refuse 2 "already holds a run" "--resume auto" -- train --data nothing.txt --out twice
# A run without a word on the model is one of minutes, and says so; a text may be all training.
run 0 train --data text.txt --split 1 --steps 1 --batch-size 2 --sample-every -1 --device cpu --out chosen
shows "$ERR" "no --model: a GPT-2 of 4 layers, width 128 and context 128, for a CPU and this text"
run 0 train "${TINY[@]}" --steps 1 --train-data text.txt --out alone
run 0 train "${TINY[@]}" --steps 1 --data text.txt --lr 5e-5 --quiet --out tuned
[[ ! -s $ERR ]] || fail "--quiet is not quiet"
