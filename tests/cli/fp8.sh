# FP8 everywhere, the head and the outer blocks too: trained, resumed to the same bits, evaluated, sampled, benched; a head
# in blocks of rows learns as a whole one.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
TINY=(--data text.txt --tokenizer byte --model gpt2 --layers 3 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --precision fp8
    --eval-every 0 --eval-iters 1 --sample-every -1 --checkpoint-every 2 --device cpu --threads 1 --quiet)

run 0 explain "${TINY[@]:4:8}" --precision fp8 --batch-size 2 --seq-len 32 --device cpu
grep lm_head "$OUT" | grep -q e4m3 && fail "the head is in fp8 by default"
run 0 explain "${TINY[@]:4:8}" --precision fp8 --batch-size 2 --seq-len 32 --device cpu '--autocast.*' fp8
grep lm_head "$OUT" | grep -q e4m3 || fail "the head is not in fp8"

run 0 train "${TINY[@]}" '--autocast.*' fp8 --steps 4 --out all
shows all/config.yaml fp8
run 0 report all # the page names formats in full
grep -q 'fp8_e4m3' all/report.html || fail "no format of a product on the page"
grep -qE 'fp8_e[45]m([^0-9]|$)' all/report.html && fail "a format without its last digit on the page"
run 0 train "${TINY[@]}" '--autocast.*' fp8 --steps 2 --out parts
run 0 train --config parts/config.yaml --resume auto --steps 4 --quiet
for file in model optimizer; do
    cmp -s all/checkpoints/step-00000004/$file.safetensors parts/checkpoints/step-00000004/$file.safetensors || fail "$file: resumed to other bits"
done
# Frozen weights under adapters: a resume writes their codes again, and their histories of magnitudes stay as they are.
run 0 export all --out published
lora=(--init published --lora-rank 2 --lora-modules c_attn,c_proj,c_fc)
frozen() { # FOLDER: the frozen weights' entries
    sed -n '/^  "scales": {/,/^  }/p' "$1/checkpoints/step-00000004/state.json" | awk '/": \[/ { on = /\.w"/ && !/lora/ } on'
}
run 0 train "${TINY[@]}" "${lora[@]}" --steps 4 --out adapted
run 0 train "${TINY[@]}" "${lora[@]}" --steps 2 --out adapted_parts
run 0 train --config adapted_parts/config.yaml --resume auto --steps 4 --quiet
[[ $(frozen adapted | wc -l) -gt 20 ]] || fail "no scales of frozen weights"
for file in model optimizer; do # the first part ends with a validation, the whole run has none there
    cmp -s adapted/checkpoints/step-00000004/$file.safetensors adapted_parts/checkpoints/step-00000004/$file.safetensors ||
        fail "$file of adapters: resumed to other bits"
done
diff <(frozen adapted) <(frozen adapted_parts) >"$OUT" || fail "a resume changes the scales of frozen weights"
run 0 train "${TINY[@]}" --steps 4 --out default
cmp -s all/checkpoints/step-00000004/model.safetensors default/checkpoints/step-00000004/model.safetensors && fail "the head in fp8 changes nothing"
run 0 eval all --device cpu --threads 1 --csv batches.csv --json
shows "$OUT" '"loss"'
awk -F, -v "told=$(sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' "$OUT")" -v "tokens=$(sed -n 's/.*"tokens": *\([0-9]*\).*/\1/p' "$OUT")" '
    NR == 1 { bad = $0 != "batch,counted,loss"; next }
    { bad += $1 != NR - 2; counted += $2; sum += $2 * $3 }
    END { off = sum / counted - told; exit bad || NR < 4 || counted != tokens || off > 1e-5 || off < -1e-5 }' batches.csv ||
    fail "the batches of --csv do not make up the loss: $(cat batches.csv)"
refuse 3 nowhere/batches.csv -- eval all --device cpu --threads 1 --iters 1 --csv nowhere/batches.csv
run 0 sample all --device cpu --threads 1 --tokens 4 --seed 1
run 0 sample all --device cpu --threads 1 --tokens 4 --seed 1

losses() { # NAME ARGUMENT…: the losses of 40 steps, one a line
    run 0 train "${TINY[@]}" '--autocast.*' fp8 --seed 3 --lr 3e-3 --warmup 4 --steps 40 --log-every 4 --out "$1" "${@:2}"
    sed -n 's/.*"train\/loss": \([0-9.]*\).*/\1/p' "$1/metrics.jsonl" >"$1.losses"
}
losses whole --logits-rows -1
losses blocks --logits-rows 16
paste whole.losses blocks.losses |
    awk 'NR == 1 { first = $2 } $1 > $2 * 1.01 || $2 > $1 * 1.01 { off = 1 } { last = $2 } END { exit NR < 10 || off || last > 0.8 * first }' ||
    fail "a head in fp8, in blocks of rows, learns less than a whole one: $(paste whole.losses blocks.losses)"

planned() { # ARGUMENT…: MiB of activations
    run 0 memory --model gpt2 --layers 3 --heads 2 --d-model 64 --seq-len 256 --batch-size 8 --precision fp8 --optimizer adamw --master fp32 --device cpu --json "$@"
    grep -m 1 '"activations"' "$OUT" | tr -dc 0-9
}
[[ $(planned '--autocast.*' fp8) -ne $(planned) ]] || fail "memory plans fp8 everywhere as fp8 by default"
exit 0
