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
