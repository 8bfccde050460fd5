# advise --measure and train --precision auto: a precision is timed, said, kept and not chosen again. Which one depends on the machine.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

MODEL=(--model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 2 --vocab 60 --device cpu --threads 1)
run 0 advise --measure "${MODEL[@]}" --precisions fp32,bf16
[[ $(head -n 1 "$OUT") == fp32 || $(head -n 1 "$OUT") == bf16 ]] || fail "neither fp32 nor bf16"
shows "$OUT" "reason      $(head -n 1 "$OUT"): " ms/step tokens/s memory loss "x the time" "x the memory"
fits
shows "$ERR" "timing a few steps in fp32 … " "timing a few steps in bf16 … "
# A CPU without 16-bit arithmetic: what was not timed is not called slower, and what is asked for is timed.
export MEZZO_ISA=ref
run 0 advise --measure "${MODEL[@]}"
shows "$OUT" "Nothing was timed, only memory was planned." "--precisions fp32,bf16 times"
fits
run 0 advise --measure "${MODEL[@]}" --precisions fp32,bf16
! grep -q "the only precision" "$OUT" || fail "the only one of two that were timed"
shows "$OUT" "x the time"
run 0 explain --model toy --precision auto --device cpu
shows "$ERR" "precision fp32: auto: fp32, because this device has no 16-bit arithmetic"
unset MEZZO_ISA
run 0 advise --measure "${MODEL[@]}" --json
shows "$OUT" '"precision"' '"reason"' '"speedup_over_fp32"' '"candidates"' '"step_ms"' '"passed": true' "x the memory"
run 0 advise --measure "${MODEL[@]}" --precisions fp32
[[ $(head -n 1 "$OUT") == fp32 ]] || fail "not fp32"
run 3 advise --measure "${MODEL[@]}" --memory-gb 0.00001
shows "$ERR" "no precision works" "fp32: does not fit"
refuse 2 "--rules" -- advise --measure --rules t4-glm4moe "${MODEL[@]}"
refuse 2 "--steps" "--data FILE" -- advise --measure "${MODEL[@]}" --steps 40
refuse 2 "--out" "--data FILE" -- advise --rules t4-glm4moe --d-model 64 --batch-size 2 --seq-len 32 --out none
refuse 2 model -- advise --measure --model gpt2-999 --device cpu
refuse 2 "--precisions" -- advise --measure "${MODEL[@]}" --precisions fp64

text 200 >text.txt
run 0 train "${TINY[@]}" --data text.txt --steps 4 --checkpoint-every 2 --out run
shows "$ERR" "; auto: "
shows run/precision.json '"precision"' '"candidates"'
chosen=$(sed -nE 's/^  "precision": "(.*)",$/\1/p' run/precision.json)
grep -qF "\"precision\": \"$chosen\"" run/checkpoints/step-*4/state.json || fail "the checkpoint is not of $chosen"
cp run/precision.json first.json
# config.yaml holds what ran; a run that is resumed with "auto" keeps its precision too.
shows run/config.yaml "precision: $chosen" "layers: 1" "heads: 2" "d_model: 16" "name: cpu"
grep -qE 'vocab: (0|$)' run/config.yaml && fail "the vocabulary was not resolved"
for arguments in "--config run/config.yaml --steps 6" "${TINY[*]} --data text.txt --out run --checkpoint-every 2 --steps 8"; do
    run 0 train $arguments --resume auto
    grep -qF "timing a few steps" "$ERR" && fail "the resumed run chose again"
done
shows "$ERR" "auto: $chosen, as at the start of the run"
cmp -s run/precision.json first.json || fail "precision.json was written again"
run 0 train "${TINY[@]}" --data text.txt --steps 2 --out fixed --precision fp32
[[ ! -e fixed/precision.json ]] || fail "a precision that was asked for was chosen"
exit 0
