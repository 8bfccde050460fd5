# What other formats would do to a run's operands: the run is not changed, its file ends where a resumed run begins, and
# report and watch show the summary.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
tiny=("${TINY[@]}" --layers 3 --data text.txt --precision bf16 --grad-accum 2 --quiet)

run 0 train "${tiny[@]}" --steps 8 --out with --counterfactual fp8,mxfp8,nvfp4 --counterfactual-every 2 \
    --counterfactual-ops 'attn.c_attn,h.1.mlp.*'
run 0 train "${tiny[@]}" --steps 8 --out without
losses() { sed -nE 's/.*"step": ([0-9]+).*"train\/loss": ([0-9.e+-]+).*/\1 \2/p' "$1/metrics.jsonl"; }
[[ -n $(losses with) && $(losses with) == "$(losses without)" ]] || fail "measuring changed the losses"
cmp with/checkpoints/*/model.safetensors without/checkpoints/*/model.safetensors || fail "measuring changed the weights"

file=with/counterfactual.jsonl
[[ $(grep -o '"step": [0-9]*' $file | sort -u | tr -d '\n') == '"step": 2"step": 4"step": 6"step": 8' ]] ||
    fail "other steps: $(cut -c1-20 $file | sort -u)"
# Five layers: six operands each in blocks, three with one scale for the tensor; four steps.
for want in "fp8 60" "mxfp8 120" "nvfp4 120"; do
    [[ $(grep -c "\"format\": \"${want% *}\"" $file) == "${want#* }" ]] || fail "$want: $(wc -l <$file)"
done
if grep -v '"module": "h\.[012]\.attn\.c_attn"\|"module": "h\.1\.mlp\.' $file; then fail "another module"; fi

# A run that stopped at step 4 and goes on has the file of one that did not stop.
run 0 train "${tiny[@]}" --steps 4 --schedule-steps 8 --out again --counterfactual mxfp8 --counterfactual-every 2
cp again/counterfactual.jsonl four.jsonl
echo '{"step": 6, "module": "of a lost step"}' >>again/counterfactual.jsonl
run 0 train "${tiny[@]}" --steps 8 --schedule-steps 8 --out again --counterfactual mxfp8 --counterfactual-every 2 \
    --resume auto
[[ $(head -n "$(wc -l <four.jsonl)" again/counterfactual.jsonl) == "$(cat four.jsonl)" ]] || fail "records were lost"
if grep 'lost step' again/counterfactual.jsonl; then fail "a record later than the checkpoint was kept"; fi

run 0 watch with --once
shows "$OUT" "error in nvfp4"
run 0 report with --out page.html
shows page.html '"counterfactual/mxfp8/relative_error":'

refuse 2 '"bf16" is no format of scaled operands: use mxfp8, mxfp4, nvfp4, fp8, fp8-block' -- \
    train "${tiny[@]}" --steps 8 --out wrong --counterfactual bf16
refuse 2 'train.counterfactual_ops: no linear layer is called "wte"' -- \
    train "${tiny[@]}" --steps 8 --out wrong --counterfactual fp8 --counterfactual-ops wte
refuse 2 'fp8 rounds operands itself' -- \
    train "${tiny[@]}" --steps 8 --out wrong --precision fp8 --counterfactual mxfp8
# What ranks refuse after they have met is refused by the job, too.
refuse 2 "supports one rank" -- launch -n 2 -- train "${tiny[@]}" --steps 8 --out wrong --counterfactual fp8 --device cpu
