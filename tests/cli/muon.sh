# Muon and NorMuon: what is refused and how; a run with every storage of moments resumes to the bit; a frozen or adapted model.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
FEW=("${TINY[@]}" --tokenizer byte --data text.txt --precision bf16 --log-every 1 --quiet --optimizer muon)

refuse 2 ns_steps -- train "${FEW[@]}" --steps 1 --out none --ns-steps 0
refuse 2 ns-format bf16 fp32 -- train "${FEW[@]}" --steps 1 --out none --ns-format fp64
refuse 2 muon beta1 -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "h.0.mlp.c_fc.weight=muon beta1 0.9"
refuse 2 bias dimensions group -- train "${FEW[@]}" --steps 1 --out none --optimizer.groups "*.bias=muon,wte=lr_factor 0.5"

run 0 train "${FEW[@]}" --steps 6 --out whole
for file in whole/checkpoints/step-00000006/optimizer.safetensors; do
    head -c 20000 $file | strings | head -c 20000 >"$OUT"
    shows "$OUT" wte.weight.exp_avg_sq h.0.attn.c_attn.weight.momentum_buffer h.0.mlp.c_fc.bias.exp_avg_sq
    grep -q 'c_attn.weight.exp_avg\|wte.weight.momentum' "$OUT" && fail "a moment that the parameter's kind does not keep"
done
for other in "--ns-format fp32" "--ns-steps 4" "--ns-coefficients polar_express" "--update-scale original" "--ns-split false" \
    "--nesterov false" "--optimizer adamw"; do
    # shellcheck disable=SC2086
    run 0 train "${FEW[@]}" $other --steps 6 --out other
    cmp -s {whole,other}/checkpoints/step-00000006/model.safetensors && fail "$other changes nothing"
    rm -r other
done

for moments in fp32 bf16 int8; do
    run 0 train "${FEW[@]}" --moments $moments --steps 6 --out long
    run 0 train "${FEW[@]}" --moments $moments --steps 3 --schedule.steps 6 --out half
    run 0 train --config half/config.yaml --resume auto --steps 6 --quiet
    for file in model optimizer; do
        cmp {long,half}/checkpoints/step-00000006/$file.safetensors || fail "a resumed run with moments in $moments has another $file"
    done
    rm -r long half
done
for moments in fp32 int8; do
    NOR=("${FEW[@]}" --optimizer normuon --moments $moments)
    run 0 train "${NOR[@]}" --steps 6 --out long
    cmp -s {whole,long}/checkpoints/step-00000006/model.safetensors && fail "NorMuon is Muon"
    strings long/checkpoints/step-00000006/optimizer.safetensors | head -c 20000 >"$OUT"
    shows "$OUT" h.0.attn.c_attn.weight.row_exp_avg_sq h.0.attn.c_attn.weight.momentum_buffer wte.weight.exp_avg_sq
    run 0 train "${NOR[@]}" --steps 3 --schedule.steps 6 --replay 1 --replay-update --out half
    run 0 train --config half/config.yaml --resume auto --steps 6 --quiet
    for file in model optimizer; do
        cmp {long,half}/checkpoints/step-00000006/$file.safetensors || fail "NorMuon, moments in $moments: a resumed run has another $file"
    done
    run 0 train "${FEW[@]}" --steps 6 --moments $moments --optimizer adamw --optimizer.groups "@matrices=normuon" --out other
    cmp {long,other}/checkpoints/step-00000006/model.safetensors || fail "NorMuon is not its group"
    rm -r long half other
done
run 0 train "${FEW[@]}" --steps 3 --out half
for other in normuon adamw; do
    matrices=${other/adamw/none}
    refuse 2 half/checkpoints/step-00000003/state.json muon "$matrices" optimizer.kind -- train --config half/config.yaml --resume auto --steps 6 --optimizer $other
done
rm -r half
# The weights' average and adapters resume to the bit too.
run 0 train "${FEW[@]}" --ema 0.9 --steps 6 --out long
cmp {whole,long}/checkpoints/step-00000006/model.safetensors || fail "the average changes the weights"
cmp -s long/checkpoints/step-00000006/{model,ema}.safetensors && fail "the average is the weights"
run 0 train "${FEW[@]}" --ema 0.9 --steps 3 --schedule.steps 6 --out half
run 0 train --config half/config.yaml --resume auto --steps 6 --quiet
for file in model optimizer ema; do
    cmp {long,half}/checkpoints/step-00000006/$file.safetensors || fail "a resumed run with an average has another $file"
done
rm -r long half
run 0 train "${FEW[@]}" --init whole --lora-rank 2 --steps 6 --out long
run 0 train "${FEW[@]}" --init whole --lora-rank 2 --steps 3 --schedule.steps 6 --out half
run 0 train --config half/config.yaml --resume auto --steps 6 --quiet
for file in model optimizer; do
    cmp {long,half}/checkpoints/step-00000006/$file.safetensors || fail "resumed adapters have another $file"
done
rm -r long half

# Rows of q, k and v that begin where no moment can.
for moments in fp32 int8; do
    run 0 train "${FEW[@]}" --d-model 66 --heads 2 --moments $moments --steps 4 --out odd
    run 0 train "${FEW[@]}" --d-model 66 --heads 2 --moments $moments --steps 2 --schedule.steps 4 --out half
    run 0 train --config half/config.yaml --resume auto --steps 4 --quiet
    for file in model optimizer; do
        cmp {odd,half}/checkpoints/step-00000004/$file.safetensors || fail "width 66, moments in $moments: a resumed run has another $file"
    done
    rm -r odd half
done
run 0 train "${FEW[@]}" --freeze "h.0.attn" --steps 3 --out frozen
run 0 train "${FEW[@]}" --precision fp16 --init-scale 1e30 --steps 3 --out skipped
run 0 train "${FEW[@]}" --steps 3 --init whole --lora-rank 2 --out adapted

run 0 explain --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --vocab 64 --device cpu --optimizer muon --params
shows "$OUT" "adamw (12), muon (4)"
grep -q "c_fc.weight .* muon" "$OUT" || fail "the table does not say which parameters Muon updates"
run 0 explain --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --vocab 64 --device cpu --optimizer.groups "h.0.mlp=lion" --params
shows "$OUT" "adamw (12), lion (4)"
run 0 memory --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --vocab 64 --device cpu --optimizer adamw,muon
shows "$OUT" "muon"

# Ranks have the bits of one, whatever they share; a checkpoint of two ranks resumes on one.
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PARTS=("${FEW[@]}" --batch-size 2 --global-batch 4 --reduce canonical)
    run 0 train "${PARTS[@]}" --steps 4 --out one
    for shard in none optimizer gradients parameters; do
        timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --steps 4 --shard $shard --out $shard >"$OUT" 2>"$ERR" </dev/null ||
            fail "two ranks, --shard $shard: exit $?"
        for file in model optimizer; do
            cmp {one,$shard}/checkpoints/step-00000004/$file.safetensors || fail "--shard $shard has another $file than one rank"
        done
    done
    # Four ranks whose shards end within matrices, in regions of half a layer.
    DEALT=("${FEW[@]}" --layers 3 --batch-size 1 --global-batch 4 --reduce canonical --bucket-mib 0.05)
    run 0 train "${DEALT[@]}" --steps 3 --out dealt
    for shard in gradients parameters; do
        timeout 100 mpirun --oversubscribe -n 4 "$MEZZO" train "${DEALT[@]}" --steps 3 --shard $shard --out dealt-$shard >"$OUT" 2>"$ERR" </dev/null ||
            fail "four ranks, --shard $shard: exit $?"
        cmp {dealt,dealt-$shard}/checkpoints/step-00000003/model.safetensors || fail "four ranks, --shard $shard, have other weights than one"
    done
    run 0 train "${PARTS[@]}" --d-model 66 --heads 2 --steps 4 --out one66
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --d-model 66 --heads 2 --steps 4 --shard gradients --out two66 >"$OUT" \
        2>"$ERR" </dev/null || fail "two ranks, width 66: exit $?"
    cmp {one66,two66}/checkpoints/step-00000004/model.safetensors || fail "two ranks have other weights of width 66"
    run 0 train "${PARTS[@]}" --optimizer normuon --d-model 66 --heads 2 --steps 4 --out nor
    for shard in none gradients; do
        timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --optimizer normuon --d-model 66 --heads 2 --steps 4 --shard $shard \
            --out nor-$shard >"$OUT" 2>"$ERR" </dev/null || fail "two ranks, NorMuon, --shard $shard: exit $?"
        for file in model optimizer; do
            cmp {nor,nor-$shard}/checkpoints/step-00000004/$file.safetensors || fail "NorMuon, --shard $shard: another $file than one rank"
        done
    done
    run 0 train "${PARTS[@]}" --steps 4 --moments int8 --out one8
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --steps 4 --moments int8 --shard gradients --out two8 >"$OUT" 2>"$ERR" \
        </dev/null || fail "two ranks, moments in 8 bits: exit $?"
    cmp {one8,two8}/checkpoints/step-00000004/optimizer.safetensors || fail "two ranks have other moments in 8 bits"
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train "${PARTS[@]}" --steps 2 --schedule-steps 4 --out two >"$OUT" 2>"$ERR" </dev/null ||
        fail "two ranks: exit $?"
    run 0 train --config two/config.yaml --resume auto --steps 4 --quiet
    for file in model optimizer; do
        cmp {one,two}/checkpoints/step-00000004/$file.safetensors || fail "two ranks, resumed on one: another $file"
    done
fi
