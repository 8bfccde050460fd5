# Progress on a terminal: one line that is drawn again, no wider than the terminal, gone when results are printed.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
command -v script >/dev/null 2>&1 || exit 77
text 200 >text.txt

terminal() { # COLUMNS ARGUMENT…: the command on a terminal of that width; what the screen got is in $OUT
    local columns=$1
    shift
    last="mezzo $*, on a terminal of $columns columns"
    : >"$ERR"
    TERM=xterm script -qec "stty cols $columns; $(printf '%q ' "$MEZZO" "$@")" /dev/null >"$OUT" 2>"$ERR" </dev/null ||
        fail "exit code $?"
}

for columns in 60 80 160; do
    terminal "$columns" train "${TINY[@]}" --steps 5 --eval-every 2 --precision fp16 --data text.txt --out "run-$columns"
    # Redrawn with a carriage return and an erasure; the last one is complete.
    tr '\r' '\n' <"$OUT" | grep '^\[' >bars || fail "no bar was drawn"
    grep -qE '^\[=+\] 100%' bars || fail "the bar never got to its end"
    grep -q 'loss' bars || fail "the bar shows no loss"
    sed 's/\x1b\[K$//' bars | awk -v most="$columns" 'length($0) >= most { exit 1 }' || fail "a bar is wider than the terminal"
    ! sed 's/\x1b\[K$//' bars | grep -vE '(tok/s| left| (waits|mfu) [0-9.]+ %| mJ/tok| (loss|val|lr|scale|norm|skipped|mem) [^ ]+( [kMG]?B)?)$' || fail "a bar is cut within a field"
    shows "$OUT" "training loss" "run folder: run-$columns"
    [[ $columns -lt 80 ]] || grep -q 'tok/s .* left' bars || fail "a bar of $columns columns has no speed or time left"
done
grep -q 'tok/s .*left .*val .*lr .*scale' bars || fail "the bar of a wide terminal does not show everything"

# What takes long says how far it is, and how long it will take: on no terminal, too.
export MEZZO_PROGRESS_ALL=1
told() { # WORDS ARGUMENT…: the command's progress holds these
    local words=$1
    shift
    run 0 "$@"
    grep -qE -- "^$words  [0-9:]+ left$" "$ERR" || fail "its progress does not tell of $words"
}
told "validation 1/[0-9]+" train "${TINY[@]}" --steps 2 --eval-iters 0 --data text.txt --out told
told "validation 1/[0-9]+" eval told
told "writing tensors [0-9]+/[0-9]+" import "$MEZZO_TESTS/golden/data/hf_gpt2" --out imported
told "self-test 3/[0-9]" doctor --device cpu --threads 1
shows "$ERR" "timing precisions 1/"
told "training 3/4" lab underflow --steps 4 --count 1
told "training [0-9]+/40" lab speed --steps 20 --precision fp32,bf16 --layers 1 --d-model 16 --batch-size 1 --device cpu
told "planning 1/3" memory --model toy --precision fp32 --limit 1MiB --device cpu
run 0 verify --data text.txt --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 16 --steps 4 --device cpu --precision bf16 \
    --min-speedup 0 --min-memory-reduction -1000 --max-accuracy-difference 0.9 --seeds 1 --threads 1
grep -qE '^validation 1/[0-9]+  [0-9:]+ left$' "$ERR" || fail "verify does not tell of its validation"
grep -qE '^seed 1/1  step 4/4 .* left$' "$ERR" || fail "verify does not tell of its steps"
run 0 train "${TINY[@]}" --steps 2 --eval-iters 0 --data text.txt --out quiet --quiet --precision fp32
[[ ! -s $ERR ]] || fail "progress in spite of --quiet"
exit 0
