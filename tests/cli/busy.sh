# A machine that others use too: threads that wait spin briefly before they sleep, unless the user says otherwise, and a run whose steps wait
# for cores says so once.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

# libgomp shows its settings where it is asked to; other runtimes of OpenMP have no such name.
spins() { # TURNS VARIABLE…
    local turns=$1
    shift
    last="$* mezzo --version"
    env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose "$@" "$MEZZO" --version >"$OUT" 2>"$ERR"
    grep -q GOMP_SPINCOUNT "$ERR" || return 0
    shows "$ERR" "GOMP_SPINCOUNT = '$turns'"
}
spins 2000
spins 7 GOMP_SPINCOUNT=7
spins 0 OMP_WAIT_POLICY=passive

# The place that the setting borrows in the environment is given back: what the command starts has every variable, and not this one.
mkdir bin
printf '#!/bin/sh\nenv >%s/seen\n' "$PWD" >bin/gnuplot
chmod +x bin/gnuplot
last="mezzo memory --plot"
env -i FIRST=1 "PATH=$PWD/bin:$PATH" LAST=2 "$MEZZO" memory --model gpt2 --plot bars.svg >"$OUT" 2>"$ERR"
[[ -s seen ]] || fail "gnuplot did not run"
shows seen FIRST=1 LAST=2
grep SPINCOUNT seen && fail "the command's children have its setting"

# A run that is held for longer than it computed in a window gets its cores no less than one beside other programs. What is held
# may be the time between two steps, which does not count: then it is held again.
text 300 >text.txt
last="mezzo train, held for sixteen seconds"
"$MEZZO" train "${TINY[@]}" --data text.txt --batch-size 64 --log-every 10 --steps 10000000 --eval-every 0 --sample-every -1 \
    --checkpoint-every -1 --threads 2 --out held >"$OUT" 2>"$ERR" </dev/null &
job=$!
wait_until grep -qF '"step": 100,' held/metrics.jsonl
for _ in 1 2 3 4; do
    kill -STOP $job
    sleep 16
    kill -CONT $job
    sleep 1
    ! grep -qF "warn: steps of" "$ERR" || break
done
wait_until grep -qF "warn: steps of" "$ERR"
shows "$ERR" "other programs use the cores" "--threads 1"
kill -TERM $job
wait $job
[[ $? -eq 130 ]] || fail "it does not end as one that is stopped"
[[ $(grep -c "other programs use the cores" "$ERR") -eq 1 ]] || fail "it is told more than once"
