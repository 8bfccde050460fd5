# A classifier by the command: the set that comes with it, a .npy of features with labels, its numbers in text and JSON, no samples, and what a bad
# batch does.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
FEW=(--batch-size 16 --log-every 10 --eval-every 0 --device cpu --threads 1 --precision fp32)

# npy FILE TYPE SHAPE: stdin as the data of a NumPy array, version 1.0
npy() {
    local header="{'descr': '$2', 'fortran_order': False, 'shape': $3, }"$'\n' n
    n=$(printf '\\x%02x\\x00' "${#header}")
    { printf '\x93NUMPY\x01\x00'; printf '%b' "$n"; printf '%s' "$header"; cat; } >"$1"
}

run 0 train --model toy "${FEW[@]}" --steps 200 --lr 1e-2 --out toy
shows "$OUT" "done: 200 steps of toy" "(accuracy " "examples/s" "mezzo eval toy"
grep -q "sample toy" "$OUT" && fail "a classifier has no samples to draw"
shows toy/metrics.jsonl '"val/accuracy"' '"perf/examples_per_second"' '"train/examples"'
run 0 eval toy --json
shows "$OUT" '"accuracy": 0.' '"examples": 410' '"examples_per_second"' '"loss"'
grep -q perplexity "$OUT" && fail "a classifier has no perplexity"
run 0 eval toy
shows "$OUT" "accuracy    0." "examples    410"
refuse 2 "no samples" classifier -- sample toy
run 0 train --model toy "${FEW[@]}" --steps 210 --lr 1e-2 --out toy --resume auto --json
shows "$OUT" '"steps": 210' '"val_accuracy": 0.' '"examples_per_second"'
run 0 watch toy --once
shows "$OUT" "accuracy" "examples/s"

# 40 rows of two bytes; the class is which of the two is bright.
for i in {0..19}; do printf '\xff\x10\x20\xf0'; done | npy x.npy '|u1' '(40, 2)'
for i in {0..19}; do printf '\x00\x01'; done | npy y.npy '|u1' '(40,)'
run 0 train --model mlp --data x.npy --labels y.npy "${FEW[@]}" --steps 100 --lr 1e-2 --out bright
shows "$OUT" "(accuracy 100.00 %"
shows "$ERR" "mlp: 2 features, width 64, 2 classes, 36 examples of 40"
run 0 eval bright --data x.npy --labels y.npy
shows "$OUT" "accuracy    1.0000" "examples    40"
refuse 2 labels -- eval bright --labels y.npy
refuse 2 data.labels -- train --model mlp --data x.npy "${FEW[@]}" --out none
refuse 2 "2 features, but toy takes 5" -- train --model toy --data x.npy --labels y.npy "${FEW[@]}" --out none
head -c 100 x.npy >cut.npy
refuse 2 cut.npy "bytes of data" -- train --model mlp --data cut.npy --labels y.npy "${FEW[@]}" --out none
refuse 2 model.experts glm4_moe -- train --model mlp --experts 4 "${FEW[@]}" --out none
refuse 2 data.labels -- train --labels y.npy --data x.npy "${FEW[@]}" --out none

if "$MEZZO" train --model toy --inject nonsense >"$OUT" 2>"$ERR" </dev/null || ! grep -q "there is no option" "$ERR"; then
    run 0 train --model toy "${FEW[@]}" --steps 8 --out bad --inject nan@4:batch
    shows "$ERR" "step 4, micro batch 1: the batch is bad: feature nan in row 0, column 0"
    shows "$OUT" "skipped steps    1"
fi
