# The weights' moving average: in the checkpoint beside them, resumed with the same bits, read by sample, eval and export.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
FEW=("${TINY[@]}" --tokenizer byte --data text.txt --precision bf16 --log-every 1 --checkpoint-every 5 --quiet)
ema_of() { echo "$1/checkpoints/step-0000000$2/ema.safetensors"; }

run 0 train "${FEW[@]}" --steps 8 --out plain
[[ ! -e $(ema_of plain 8) ]] || fail "an average that nobody asked for"
run 0 train "${FEW[@]}" --steps 8 --ema 0.9 --out whole
cmp {plain,whole}/checkpoints/step-00000008/model.safetensors || fail "the average changes the weights"
cmp {plain,whole}/checkpoints/step-00000008/optimizer.safetensors || fail "the average changes the moments"
cmp -s whole/checkpoints/step-00000008/{model,ema}.safetensors && fail "the average is the weights"
[[ $(wc -c <"$(ema_of whole 8)") -eq $(wc -c <whole/checkpoints/step-00000008/model.safetensors) ]] || fail "the average is not one tensor for each weight"

# Interrupted and whole are the same, killed before the first step too.
run 0 train "${FEW[@]}" --steps 3 --schedule.steps 8 --ema 0.9 --out half
run 0 train --config half/config.yaml --resume auto --steps 8 --quiet
cmp "$(ema_of whole 8)" "$(ema_of half 8)" || fail "a resumed run has another average"
run 0 train "${FEW[@]}" --steps 3 --schedule.steps 8 --out late
run 0 train --config late/config.yaml --resume auto --steps 8 --ema 0.9
shows "$ERR" "the average starts here"
[[ -s $(ema_of late 8) ]] || fail "no average of a run that took it up"
run 0 train --config late/config.yaml --resume auto --steps 9 --ema 0
shows "$ERR" "optimizer.ema is 0"
[[ ! -e $(ema_of late 9) ]] || fail "an average that was given up"

# Two ranks have the average of one.
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PARTS=("${FEW[@]}" --steps 5 --ema 0.9 --batch-size 2 --global-batch 4 --reduce canonical)
    run 0 train "${PARTS[@]}" --out one
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --out two >"$OUT" 2>"$ERR" </dev/null || fail "two ranks: exit $?"
    cmp "$(ema_of one 5)" "$(ema_of two 5)" || fail "two ranks have another average than one"
    run 0 train --config two/config.yaml --resume auto --steps 6 --out two
fi

# Who reads it, and who does not.
loss() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$OUT"; }
run 0 eval whole --json
shows "$OUT" '"ema": true'
a=$(loss)
run 0 eval whole --no-ema --json
shows "$OUT" '"ema": false'
b=$(loss)
[[ $a != "$b" ]] || fail "the average has the loss of the weights"
run 0 eval plain --json
[[ $(loss) == "$b" ]] || fail "the weights have another loss than those without an average"
run 0 export whole --out averaged --json
run 0 export whole --no-ema --out raw
run 0 export plain --out plain_raw
cmp raw/model.safetensors plain_raw/model.safetensors || fail "--no-ema exports something else"
cmp -s raw/model.safetensors averaged/model.safetensors && fail "export wrote the weights"
run 0 import averaged --out back
cmp "$(ema_of whole 8)" back/checkpoints/step-00000000/model.safetensors || fail "export wrote something else than the average"

# A damaged average is seen by who reads it; the weights are still good.
printf x | dd of="$(ema_of whole 8)" bs=1 seek=400 conv=notrunc status=none
run 0 eval whole
shows "$ERR" "ema.safetensors" "checksum"
shows "$OUT" "step 5"
run 0 eval whole --no-ema
shows "$OUT" "step 8"
refuse 2 "optimizer.ema" -- train "${FEW[@]}" --ema 1 --out none
