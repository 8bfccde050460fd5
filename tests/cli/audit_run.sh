# audit: what honest runs wrote is confirmed bit for bit, with skips, rollbacks, resumes, other numbers of ranks, adapters and
# averages; one changed bit, record, state, key, file or byte of data is found and its place is named; nothing is written.
# Seen to fail with: a column without a form, the bytes of weights not compared, the numbers of records not compared, a rollback's data left out.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
FEW=("${TINY[@]}" --tokenizer byte --data text.txt --steps 9 --checkpoint-every 3 --eval-every 4 --keep-last 0 --quiet)

train() { # RUN OPTION…
    local folder=$1
    shift
    run 0 train "${FEW[@]}" --out "$folder" "$@"
}
sums() { (cd "$1" && find . -type f -exec cksum {} + | sort); }
audit() { # CODE RUN OPTION…
    local code=$1 folder=$2 before
    shift 2
    before=$(sums "$folder")
    run "$code" audit "$folder" --quiet "$@"
    [[ $(sums "$folder") == "$before" ]] || fail "the audit wrote into the run's folder"
}
confirmed() { # RUN
    audit 0 "$1" --intervals 0
    shows "$OUT" "confirmed: every value is the same, bit for bit"
    grep -Eq '^ +[0-9]+ +[0-9]+ +confirmed ' "$OUT" || fail "the table has no verdict"
}

# --- honest runs
train plain --precision bf16
confirmed plain
fits
audit 0 plain --json
shows "$OUT" '"verdict": "confirmed"' '"from": 6' '"to": 9' '"confirmed_to": 9' '"exact": true' '"findings": []'
! grep -q '"from": 3' "$OUT" || fail "more than one interval without being asked"
train skips --precision fp16 --init-scale 4194304 --ema 0.9
grep -q '"amp/skipped_steps": [1-9]' skips/metrics.jsonl || fail "nothing was skipped"
confirmed skips
train adapters --lora-rank 2 --grad-accum 2 --dropout 0.1
confirmed adapters
train muon --optimizer muon --moments bf16
confirmed muon
train fp8 --precision fp8
confirmed fp8
train long --log-every 4
confirmed long
train back --guard rollback --inject nan@8:loss # two steps' data is passed over
grep -q rollback back/guard.jsonl || fail "no rollback"
confirmed back
train twice --guard rollback --inject nan@5:loss --precision fp16
confirmed twice

# Another kind of device computes other bits: nothing is confirmed, and the losses have bounds.
audit 2 plain --device ref --json
shows "$OUT" '"verdict": "within_bounds"' '"confirmed_to": 6' '"exact": false' '"losses": 3' "reference (plain C"
audit 2 plain --device ref
shows "$OUT" "3 losses beside their bounds" "not confirmed: this device computes other bits"

# Resumed, with other keys from there on, and with the checkpoint between dropped.
train half --steps 4 --precision fp32
run 0 train --config half/config.yaml --resume auto --steps 9 --lr 0.002 --quiet
confirmed half
train part --steps 4 --schedule-steps 9 --keep-last 2 --checkpoint-every 4
run 0 train --config part/config.yaml --resume auto --steps 9 --quiet
confirmed part
run 0 train --config part/config.yaml --resume part/checkpoints/step-00000008 --steps 10 --quiet
confirmed part

# Ranks: the same bits on any number under canonical sums; else on as many as the run had.
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ranks() { # N CODE ARGUMENT…
        local n=$1 expected=$2 code
        shift 2
        last="mpirun -n $n mezzo $*"
        timeout 100 mpirun --oversubscribe -n "$n" "$MEZZO" "$@" >"$OUT" 2>"$ERR" </dev/null
        code=$?
        [[ $code -eq $expected ]] || fail "exit code $code, not $expected"
    }
    ranks 2 0 train "${FEW[@]}" --global-batch 4 --reduce canonical --shard parameters --out canonical
    confirmed canonical
    ranks 2 0 audit canonical --quiet --intervals 0
    shows "$OUT" "confirmed:"
    run 0 train --config canonical/config.yaml --resume auto --steps 12 --quiet
    confirmed canonical
    ranks 2 0 train "${FEW[@]}" --global-batch 8 --out fast
    ranks 2 0 audit fast --quiet --intervals 0
    audit 2 fast --json
    shows "$OUT" "--reduce fast" "mezzo launch -n 2 -- audit"
fi

# --- changed runs
[[ -n $MEZZO_PYTHON ]] || exit 0
change() { # CODE ARGUMENT…: of change_run.py, on a copy
    local code=$1
    shift
    rm -rf changed
    cp -a skips changed
    "$MEZZO_PYTHON" "$MEZZO_TESTS/cli/change_run.py" changed "$@" >place || fail "change_run.py $*"
    cmp -s <(sums skips) <(sums changed) && fail "change_run.py $* changed nothing"
    audit "$code" changed --intervals 0 --json
    last="change_run.py $*; $last"
}
change 1 weight 6 2 7 0
shows "$OUT" "step-00000006: model.safetensors: $(cat place) element 7"
change 1 --raw weight 6 2 7 0
shows "$OUT" checksum "step-00000006: model.safetensors: $(cat place) element 7"
change 1 weight 3 3 5 22
shows "$OUT" "metrics.jsonl has train/loss" "the earlier checkpoint or the configuration is not"
change 1 moment 9 3 1 1
shows "$OUT" "step-00000009: optimizer.safetensors: $(cat place) element 1"
change 1 average 9 3 1 1
shows "$OUT" "step-00000009: ema.safetensors: $(cat place) element 1"
change 1 state 6 scale 2048.0
shows "$OUT" "state.json: scaler.scale is 2048.0"
change 1 state 6 batches 7
shows "$OUT" "state.json: batches is 7"
change 1 record 5 train/loss 5.4
shows "$OUT" "step 5: metrics.jsonl has train/loss 5.4" "the records were changed"
shows "$OUT" '"kind": "record"' '"step": 5' '"place": "train/loss"' '"saved": "5.4"'
change 1 --raw record 8 gradients/total_norm 1.0
shows "$OUT" "metrics.jsonl is not what it was when step-00000009" "gradients/total_norm 1.0"
change 1 record 8 val/sampled_loss 5.0
shows "$OUT" "val/sampled_loss 5.0"
change 1 forget 8
shows "$OUT" "step 8: metrics.jsonl has train/loss nothing"
change 1 key optimizer.lr 0.5
shows "$OUT" "config.yaml has optimizer.lr: 0.5" "computed with 0.001"
change 1 keys optimizer.beta2 0.9
shows "$OUT" '"verdict": "differs"'
change 1 keys train.seed 7
shows "$OUT" "train.seed is 7 in the configuration, and 1 in step-00000006"
change 1 record 8 train/loss 5.0
audit 1 changed --device ref --json
shows "$OUT" "rounding does not explain" '"step": 8'
rm changed/checkpoints/step-00000006/run.json # as in runs of older versions
audit 1 changed --intervals 0
rm -rf changed
cp -a plain changed
rm changed/checkpoints/*/run.json
confirmed changed

# --- what is missing
rm -rf changed
cp -a plain changed
rm -r changed/checkpoints/step-00000006
audit 2 changed
shows "$OUT" "missing: step-00000006: the checkpoint is missing"
rm -r changed/checkpoints/step-00000003
audit 2 changed
shows "$OUT" "an interval needs two checkpoints"
sed -i '3s/quick/quack/' text.txt
audit 2 plain
shows "$OUT" "missing: 'text.txt': the training data is missing"
mv text.txt elsewhere.txt
audit 2 plain
shows "$OUT" "cannot be opened here" "text.txt"
refuse 2 nowhere -- audit nowhere
refuse 2 "name a run folder" -- audit
exit 0
