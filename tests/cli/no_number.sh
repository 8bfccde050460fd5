# A value that is not finite is no result: eval, sample, verify and the validations of a run name the op, write no picture and no score, and end
# with 3.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
export OMP_WAIT_POLICY=passive
awk 'BEGIN { n = split("the of and a to in he was that it his her", w, " "); x = 1
    for (i = 0; i < 3000; i++) { x = (x * 16807) % 2147483647; printf "%s%s", w[1 + x % n], i % 12 == 11 ? "\n" : " " } }' >text.txt
ONE=(--device cpu --threads 1)
model=(--data text.txt --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 4 --warmup 0 --clip 0 "${ONE[@]}")

# Weights that FP32 holds and FP16 does not.
run 0 train "${model[@]}" --precision fp32 --steps 20 --lr 10 --schedule constant --out wide
run 0 eval wide --precision fp32 "${ONE[@]}"
run 0 train "${model[@]}" --steps 1 --eval-every 0 --out unsampled # one kind of validation, and no best of the other
grep -q nan "$OUT" && fail "a number that is none is shown"
refuse 3 "loss is not finite: first in" "x (fp16)" "use --precision fp32 or bf16" -- eval wide --precision fp16 "${ONE[@]}" --csv scores.csv
[[ ! -e scores.csv ]] || fail "scores of no numbers were written"
refuse 3 "loss is not finite" -- eval wide --precision fp16 "${ONE[@]}" --json
refuse 3 "logit is not finite: first in" -- sample wide --precision fp16 "${ONE[@]}"

refuse 3 "run of seed" "is not finite: first in" -- verify "${model[@]}" --precision fp16 --steps 20 --lr 300 --schedule constant --seeds 1 \
    --min-speedup 0 --min-memory-reduction -1000 --out v

# A validation that is no number: training goes on to its end and keeps its checkpoint, "best" is none of it.
run 3 train "${model[@]}" --precision fp16 --guard off --steps 20 --eval-every 5 --eval-iters 2 --lr 300 --schedule constant \
    --out diverged
shows "$ERR" "warn: step 20: validation: the model's loss is not finite: first in" "mezzo train: step 20: validation:"
ls diverged/checkpoints | grep -q step-00000020 || fail "the last checkpoint is missing"
grep -q '"val/best_sampled_loss": "' diverged/metrics.jsonl && fail "a best loss that is no number"
shows diverged/guard.jsonl '"kind": "validation"'

# Pictures: neither files nor scores, and no sheet of a run.
run 0 data radio --maps 6 --size 32 --extent 64 --seed 3 --out cities
radio=(--model radio_unet-tiny --model.image_size 32 --data cities --batch-size 2 --warmup 0 --schedule constant --lr 3 "${ONE[@]}")
run 0 train "${radio[@]}" --steps 12 --precision fp32 --sample-every -1 --out maps
refuse 3 "prediction is not finite: first in" -- sample maps --out black --precision fp16 "${ONE[@]}"
[[ -z $(ls black 2>/dev/null) ]] || fail "pictures of no numbers: $(ls black)"
refuse 3 "is not finite: first in" -- eval maps --precision fp16 "${ONE[@]}"
