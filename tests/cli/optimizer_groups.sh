# Parameter groups: what is refused and how; a run with two kinds of optimizer resumes to the bit, on ranks too.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
FEW=("${TINY[@]}" --tokenizer byte --data text.txt --precision bf16 --log-every 1 --quiet)
GROUPS_OPTION=(--optimizer.groups "wte=lr_factor 0.5,*.bias=sgd lr 1e-2 momentum 0.5,*.ln_*=sgd momentum 0")
moments_of() { head -c 20000 "$1"/checkpoints/step-0000000"$2"/optimizer.safetensors | strings | head -c 20000; }

refuse 2 optimizer "\"nowhere\"" -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "nowhere=lr_factor 2"
refuse 2 wte adamax kind -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "wte=adamax"
refuse 2 wte sgd beta1 -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "wte=sgd beta1 0.9"
refuse 2 wte lr value -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "wte=lr"
refuse 2 wte lr value -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "wte=lr -1"

run 0 train "${FEW[@]}" --steps 6 --out plain
run 0 train "${FEW[@]}" "${GROUPS_OPTION[@]}" --steps 6 --out whole
cmp -s {plain,whole}/checkpoints/step-00000006/model.safetensors && fail "groups change nothing"
moments_of whole 6 >"$OUT"
shows "$OUT" wte.weight.exp_avg_sq h.0.attn.c_attn.bias.momentum_buffer
grep -q 'ln_1.weight.momentum_buffer\|bias.exp_avg' "$OUT" && fail "a moment that the group's kind does not keep"

run 0 train "${FEW[@]}" "${GROUPS_OPTION[@]}" --steps 3 --schedule.steps 6 --out half
run 0 train --config half/config.yaml --resume auto --steps 6 --quiet
for file in model optimizer; do
    cmp {whole,half}/checkpoints/step-00000006/$file.safetensors || fail "a resumed run with groups has another $file"
done
run 0 train --config half/config.yaml --resume auto --steps 6 --moments int8 --out half --quiet
refuse 2 momentum_buffer -- train --config half/config.yaml --resume auto --steps 7 --optimizer.groups "wte=sgd" --quiet

# Ranks have the bits of one, whatever they share.
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PARTS=("${FEW[@]}" "${GROUPS_OPTION[@]}" --steps 4 --batch-size 2 --global-batch 4 --reduce canonical)
    run 0 train "${PARTS[@]}" --out one
    for shard in none optimizer gradients parameters; do
        timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --shard $shard --out $shard >"$OUT" 2>"$ERR" </dev/null ||
            fail "two ranks, --shard $shard: exit $?"
        for file in model optimizer; do
            cmp {one,$shard}/checkpoints/step-00000004/$file.safetensors || fail "--shard $shard has another $file than one rank"
        done
    done
fi
