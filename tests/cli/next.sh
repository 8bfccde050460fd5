# What a run offers next runs; a resumed run says where its schedule is another one, and --schedule-steps keeps it.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

text 100 >text.txt
FEW=(--precision fp32 --sample-every -1)
run 0 train "${TINY[@]}" "${FEW[@]}" --data text.txt --steps 4 --out t
shows "$OUT" " report t" " watch t" " eval t" " train --config t/config.yaml --resume auto --steps 8"
cp -r t kept
sed -nE '/^next:/,$s/^  ([^ ]*mezzo .*)/\1/p' "$OUT" >offered
[[ $(wc -l <offered) -eq 5 ]] || fail "not five commands are offered: $(<offered)"
while read -r command; do
    $command >"$OUT" 2>"$ERR" </dev/null || fail "what is offered fails: $command"
done <offered
shows "$ERR" "the schedule of 4 steps now has 8" "the learning rate of step 5 is" "--schedule-steps 4 keeps it"
run 0 train --config kept/config.yaml --out kept --resume auto --steps 8 --schedule-steps 4
! grep -q "the schedule of" "$ERR" || fail "a schedule that is kept is told as another one"
run 0 train --config t/config.yaml --resume auto --steps 8
! grep -q "the schedule of" "$ERR" || fail "the same schedule is told as another one"
