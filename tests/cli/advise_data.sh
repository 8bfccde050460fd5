# advise --data: one page in the same order on terminal, in JSON and HTML; exit code 0 with a verdict and 1 without one. No speed is asserted.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

text 200 >text.txt
SMALL=(--data text.txt --layers 1 --heads 2 --d-model 32 --seq-len 16 --batch-size 4 --device cpu --threads 1)
"$MEZZO" advise "${SMALL[@]}" --precisions fp32,bf16 --minutes 0.02 --out page >"$OUT" 2>"$ERR"
code=$?
[[ $code -le 1 ]] || fail "exit code $code"
order=$(grep -oE "^(precision|speed|memory|loss|energy|what would change it)" "$OUT" | tr '\n' ',')
[[ $order == "precision,speed,memory,loss,energy,what would change it," ]] || fail "the order: $order"
shows "$OUT" "batch 2 " "batch 8 " "width 16 " "width 64 " "bf16 against fp32" "advise.html, advise.json"
fits
order=$(grep -oE '^  "(precision|speed|memory|loss_difference|energy|what_would_change_it)"' page/advise.json | tr -d ' "\n')
[[ $order == precisionspeedmemoryloss_differenceenergywhat_would_change_it ]] || fail "the order in JSON: $order"
shows page/advise.html "<h1>mezzo advise</h1>" "text.txt" "speedup at equal quality" "what would change it" "Content-Security-Policy"
# No precision is named where the noise is larger than the difference.
if [[ $code -eq 1 ]]; then
    shows page/advise.json '"precision": null' "no verdict"
else
    ! grep -q '"precision": null' page/advise.json || fail "exit code 0 without a verdict"
fi

# Runs have as many steps as are asked for, where they fit into the minutes.
"$MEZZO" advise "${SMALL[@]}" --precisions fp32,bf16 --steps 30 --out short >"$OUT" 2>"$ERR"
shows "$OUT" " seeds of 30 steps"
refuse 2 "--steps" -- advise "${SMALL[@]}" --steps 3

# A loss that does not fall has no equal quality: a dash for each number, and nothing that could turn the answer.
run 1 advise "${SMALL[@]}" --precisions fp32,bf16 --minutes 0.02 --lr 1e-12 --out flat
shows "$OUT" "the loss did not fall enough" "learning rate (--lr)"
shows flat/advise.html ">–<"
if grep -E "value: –|turn it" "$OUT" flat/advise.html flat/advise.json; then fail "an answer that is not known"; fi

# Where nothing else is timed there is nothing to compare, and the page says so.
run 0 advise "${SMALL[@]}" --precisions fp32 --out alone --json
shows "$OUT" '"precision": "fp32"' '"speed": null' "no other precision was timed here"

# Where a precision hurts: nowhere here, and what short runs cannot explain is said.
run 0 advise "${SMALL[@]}" --per-op --precisions fp16 --steps 6
shows "$OUT" "No module has to stay in fp32" "(2 runs)"
run 0 advise "${SMALL[@]}" --per-op --precisions fp16 --steps 6 --json
shows "$OUT" '"harmless": true' '"keep_in_fp32": []' '"runs": 2'
"$MEZZO" advise "${SMALL[@]}" --per-op --precisions bf16 --lr 0.1 --steps 6 --gap 0 --runs 2 >"$OUT" 2>"$ERR"
code=$? # by chance bf16 may end below fp32, on one processor or another: then it is good enough
shows "$OUT" "(allowed: 0)" "(2 runs)"
above=$(sed -nE 's/^loss above .* nothing kept: (\S+) .*/\1/p' "$OUT")
[[ $code -eq $(awk -v x="$above" 'BEGIN { print (x > 0) }') ]] || fail "exit code $code with a loss $above above fp32's"
refuse 2 "--precisions fp8" -- advise "${SMALL[@]}" --per-op
refuse 2 "--data FILE" -- advise --per-op --precisions fp8
refuse 2 "only one of them" -- advise "${SMALL[@]}" --measure
refuse 2 nowhere.txt -- advise --data nowhere.txt
: >file
refuse 3 file -- advise "${SMALL[@]}" --precisions fp32 --out file/x
exit 0
