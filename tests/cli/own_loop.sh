# A loop of one's own, examples/gpt.c, has the losses of mezzo train with the same seed and data, to the bit, also when it resumes from its
# checkpoint.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
GPT=$(dirname "$MEZZO")/examples/gpt
[[ -x $GPT ]] || fail "$GPT is not built"
text 300 >text.txt

losses() { # FILE: of metrics.jsonl, as numbers
    sed -nE 's/.*"train\/loss": *([-+0-9.eE]+).*/\1/p' "$1"
}

for precision in fp32 bf16 fp16; do
    run 0 train --data text.txt --out "run-$precision" --precision "$precision" --model gpt2 --layers 2 --heads 2 \
        --d-model 64 --seq-len 32 --batch-size 4 --grad-accum 2 --dropout 0 --steps 20 --lr 1e-3 --warmup 0 \
        --schedule constant --log-every 1 --seed 1 --sample-every -1 --quiet --device cpu
    losses "run-$precision/metrics.jsonl" >theirs
    [[ $(wc -l <theirs) == 20 ]] || fail "mezzo train logged $(wc -l <theirs) losses"
    last="$GPT text.txt own-$precision $precision"
    "$GPT" text.txt "own-$precision" "$precision" >ours 2>"$ERR" || fail "the example ended with $?"
    sed -E 's/.*loss ([^ ]+) .*/\1/' ours >numbers
    paste theirs numbers | awk 'NF != 2 || $1 + 0 != $2 + 0 { print; bad = 1 } END { exit bad || NR != 20 }' >"$OUT" ||
        fail "losses differ in $precision"
    rm -r "own-$precision"/step-00000020 # as if it had been stopped after its checkpoint of step 10
    "$GPT" text.txt "own-$precision" "$precision" >again 2>"$ERR" || fail "going on ended with $?"
    tail -n 10 ours | cmp -s - again || fail "a resumed loop differs in $precision"
done
