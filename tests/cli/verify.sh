# verify: blocks, verdicts, exit codes, the two reports. No time is asserted but that of a threshold nobody can miss.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

# 256 tokens a step: of fewer, the workspace of AMX's kernels takes more memory than BF16 saves.
text 200 >text.txt
RUN=(verify --data text.txt --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 16 --steps 20 --warmup 2 --device cpu --threads 1
    --precision bf16 --min-speedup 0 --min-memory-reduction 1 --max-accuracy-difference 0.9)

run 0 "${RUN[@]}" --seeds 2 --out report
# Progress compares the two runs after the same step, and says how long it has taken.
[[ $(grep -c '^seed ./2  step 20/20  loss fp32 [0-9.]*, bf16 [0-9.]*  [0-9:]*, [0-9:]* left$' "$ERR") -eq 2 ]] || fail "progress: $(<"$ERR")"
shows "$OUT" "bit for bit" "peak memory" "validation accuracy" "skipped steps" "loss scale" "All requirements are met" "report/verify.json"
shows report/verify.md "# fp32 against bf16: every requirement is met" "| speedup |" "**met**" "Seed by seed"
for key in speedup memory_reduction_percent accuracy_difference loss_difference fp32_time_seconds amp_time_seconds requirements_met; do
    shows report/verify.json "\"$key\""
done
shows report/verify.json '"all": true' '"same_data_and_weights": true'

# A requirement that is not met is exit code 1, and the reports are there all the same.
run 1 "${RUN[@]}" --seeds 1 --out failed --min-memory-reduction 99.9
shows "$OUT" "memory reduction" "not met" "One seed gives no interval"
shows failed/verify.json '"all": false' '"memory_reduction": false'
run 1 "${RUN[@]}" --seeds 1 --out failed --min-speedup 1000 --json
shows "$OUT" '"speedup": false' '"memory_reduction": true'
run 1 "${RUN[@]}" --seeds 2 --out failed --max-accuracy-difference 0 # not even two equal runs differ by less than nothing
shows "$OUT" "accuracy difference" "within ±0"

# What is emulated is in one of the two runs alone: fp32 against fp32 with rounded operands differ.
run 0 "${RUN[@]}" --precision fp32 --emulate mxfp4 --min-memory-reduction -100 --seeds 1 --out emulated
shows emulated/verify.json '"emulate": "mxfp4"'
shows emulated/verify.md "emulated: mxfp4"
! grep -q '"loss_difference": 0[.0]*,' emulated/verify.json || fail "both runs were emulated"

# A run folder's configuration says what is trained.
run 0 train "${TINY[@]}" --data text.txt --steps 4 --out trained --precision fp32
run 0 verify --config trained/config.yaml --steps 10 --precision fp16 --min-speedup 0 --min-memory-reduction -1000 \
    --max-accuracy-difference 0.9 --seeds 1 --quiet
shows "$OUT" "1 layers, 2 heads, width 16, context 16" "fp16"
[[ ! -s $ERR ]] || fail "progress in spite of --quiet"

# At equal quality: against any precision, and a single seed gives no interval, so no verdict: exit code 1.
MATCHED=("${RUN[@]:0:21}" --matched --quiet)
run 1 "${MATCHED[@]}" --seeds 1 --out matched
shows "$OUT" "bf16 against fp32" "raw speedup" "steps for the same loss" "speedup at equal quality" "No verdict" "one seed does not show"
shows matched/verify.md "at equal quality: undecided" "mezzo verify"
run 0 "${MATCHED[@]}" --seeds 4 --baseline fp16 --within 0.99 --out matched --json
shows "$OUT" '"baseline": "fp16"' '"candidate": "bf16"' '"decided": true' '"level_over_all_looks": 0.95'
shows matched/verify.json '"baseline_losses"' '"same_data_and_weights": true'
# What is emulated is judged by its steps alone: the times are the emulation's.
"$MEZZO" "${MATCHED[@]}" --seeds 3 --baseline bf16 --emulate mxfp4 --lr 0.01 --out matched >"$OUT" 2>"$ERR"
[[ $? -le 1 ]] || fail "emulated"
shows "$OUT" "mxfp4 against bf16" "steps for the same loss"
! grep -q "raw speedup  \|equal quality  " "$OUT" || fail "an emulation's times"
shows matched/verify.json '"emulate": "mxfp4"'
# Widths predict the model's own: whatever the times are, the measured value is said to be inside or outside, and the exit code says the same.
"$MEZZO" "${MATCHED[@]}" --seeds 2 --steps 60 --lr 0.01 --transfer 8,12,20 --json >"$OUT" 2>"$ERR"
code=$?
[[ $code -le 1 ]] || fail "--transfer: exit code $code"
shows "$OUT" '"predicted"' '"slope_by_ln_parameters"' '"d_model": 20' "\"inside\": $([[ $code -eq 0 ]] && echo true || echo false)"
refuse 2 "3 to 8" -- "${MATCHED[@]}" --transfer 8,12
refuse 2 "--transfer 8,x" -- "${MATCHED[@]}" --transfer 8,x
refuse 2 "--min-speedup" "--matched" -- "${MATCHED[@]}" --min-speedup 1
refuse 2 "--baseline" "--matched" -- "${RUN[@]}" --baseline bf16
refuse 2 "nothing to compare with bf16" -- "${MATCHED[@]}" --baseline bf16
refuse 2 "nothing to compare" -- "${RUN[@]}" --precision fp32
refuse 2 --seeds -- "${RUN[@]}" --seeds 0
refuse 2 data.path -- verify --precision bf16
refuse 2 autocast -- "${RUN[@]}" --autocast.h.0=bf16
: >file
refuse 3 file -- "${RUN[@]}" --seeds 1 --out file/x
exit 0
