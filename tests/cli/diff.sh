# diff: equal runs have no difference, another precision parts at the first op that rounds, a changed kernel's op is named, and what does not fit is refused.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

text 200 >text.txt
small() { run 0 train "${TINY[@]}" --data text.txt --steps 4 --device cpu --threads 1 --quiet "$@"; }
small --precision fp32 --out a
small --precision fp32 --out b
small --precision bf16 --out low
small --precision fp32 --seed 2 --out other
small --precision fp32 --autocast.h.0.mlp* bf16 --out module

run 0 diff a b --ulp 0
shows "$OUT" "are equal in both checkpoints" "after step 4" "None differs by more than 0 ulp"
run 0 diff a b --ulp 0 --json
shows "$OUT" '"found": false' '"weights_that_differ": 0' '"results_of_one_run_only": 0'
# From the same weights, one module in another precision is where the results part, not what follows it.
run 1 diff a module --ulp 0 --json
shows "$OUT" '"found": true' '"module": "h.0' '"phase": "forward"'
run 1 diff a low --ulp 0
shows "$OUT" "differ between the checkpoints, first" "first to differ by more than 0 ulp" "(forward)"
# A tolerance that rounding stays below: what is left are sums of errors.
run 0 diff a low --ulp 1e6

refuse 2 "different batches" -- diff a other
refuse 2 "two run folders" -- diff a
refuse 2 nowhere -- diff a nowhere
run 0 train "${TINY[@]}" --data text.txt --steps 1 --layers 2 --device cpu --threads 1 --quiet --out deep
refuse 2 "models differ" -- diff a deep
exit 0
