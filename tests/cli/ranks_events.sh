# What one rank meets, all ranks answer at the same step: a signal, a jump of the loss, a rollback; adapters and pictures.
# Seen to fail: with moments planned whole, with the wish to stop not shared, with a rank that does not load the checkpoint that the others go back to.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
if ! command -v mpirun >/dev/null || [[ ! -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    echo "no mpirun, or a build without MPI (Debian: openmpi-bin, libopenmpi-dev)"
    exit 77
fi
export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

awk 'BEGIN { n = split("the of and a to in he was that it his her with as had for she not at but", w, " "); x = 1
    for (i = 0; i < 5000; i++) { x = (x * 16807) % 2147483647; printf "%s%s", w[1 + x % n], i % 12 == 11 ? "\n" : " " } }' >text.txt
size="--device cpu --threads 1 --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --global-batch 4 --bucket-mib 0.1
    --log-every 1 --eval-every 0 --eval-final false --sample-every -1 --quiet"
model="--data text.txt --precision bf16 $size" # auto would choose by time
ranks="timeout 100 mpirun --oversubscribe -n 2"
losses() { sed -nE 's/.*"step": *([0-9]+).*"train\/loss": *([^,}]+).*/\1 \2/p' "$1/metrics.jsonl"; }

"$MEZZO" train --inject >inject.txt 2>&1
injects() { ! grep -q "there is no option --inject" inject.txt; } # the faults are rank 1's alone, which is not the one that writes
export MEZZO_INJECT_RANK=1

# A signal to one rank alone: a checkpoint after the same step, from which the run goes on to what it would have been.
if injects; then
    $ranks "$MEZZO" train $model --steps 40 --checkpoint-every 0 --out whole >whole.log 2>&1 || fail "$(cat whole.log)"
    $ranks "$MEZZO" train $model --steps 40 --checkpoint-every 0 --out signal --inject signal@4:batch#15 >signal.log 2>&1
    [[ $(grep -o 'interrupted at step [0-9]*' signal.log | sort -u | wc -l) -eq 1 ]] || fail "ranks stop at no step or at several: $(cat signal.log)"
    $ranks "$MEZZO" train $model --steps 40 --checkpoint-every 0 --out signal --resume auto >again.log 2>&1 || fail "$(cat again.log)"
    diff <(losses whole) <(losses signal) >/dev/null || fail "after a signal: $(diff <(losses whole) <(losses signal) | head -4)"
fi

# A bad step and a jump, rolled back by both: the same as one process does.
if injects; then
    $ranks "$MEZZO" train $model --precision bf16 --steps 12 --checkpoint-every 4 --guard rollback --out back \
        --inject "nan@9.1:h.1.attn/attention" >back.log 2>&1 || fail "rollback: $(cat back.log)"
    grep -q '"action": *"rollback"' back/guard.jsonl || fail "no rollback: $(cat back/guard.jsonl)"
    [[ $(losses back | tail -1 | cut -d ' ' -f 1) -eq 12 ]] || fail "the run did not come to its end: $(losses back | tail -2)"
fi
cat >jump.yaml <<'END2'
guard:
  spike: rollback
  spike_score: 1.5
  spike_window: 16
END2
jump="$model --config jump.yaml --steps 60 --schedule-steps 60 --checkpoint-every 5 --reduce canonical --precision fp32 --lr 0.1 --warmup 0"
$ranks "$MEZZO" train $jump --out jumps-2 >jumps.log 2>&1
two=$?
rm -f one.log
"$MEZZO" train $jump --out jumps-1 >one.log 2>&1
[[ $two -eq $? ]] || fail "spikes: 2 ranks ended with $two: $(tail -3 jumps.log) $(tail -3 one.log)"
grep -q '"kind": *"spike"' jumps-1/guard.jsonl || fail "no jump was seen"
diff <(grep -o '"step": *[0-9]*' jumps-1/guard.jsonl) <(grep -o '"step": *[0-9]*' jumps-2/guard.jsonl) || fail "jumps at other steps"
diff <(losses jumps-1) <(losses jumps-2) >/dev/null || fail "other losses behind jumps"

# A rank that is killed, and the job goes on with those that are left: to what it would have been.
if injects; then
    alone="$model --steps 40 --checkpoint-every 10 --keep-last 2 --reduce canonical"
    "$MEZZO" train $alone --out undisturbed >undisturbed.log 2>&1 || fail "$(cat undisturbed.log)"
    "$MEZZO" launch -n 2 --restarts 1 --min-ranks 1 -- train $alone --shard parameters --out fewer --inject signal@16:batch#9 >fewer.log 2>&1 ||
        fail "with fewer ranks: exit $?: $(cat fewer.log)"
    grep -q 'restart 1 of 1, with 1 rank$' fewer.log || fail "nothing was started again: $(cat fewer.log)"
    diff <(losses undisturbed) <(losses fewer) >/dev/null || fail "with fewer ranks: $(diff <(losses undisturbed) <(losses fewer) | head -4)"
fi

# Adapters: what is trained is small, what is frozen lies after it, whole on every rank.
for n in 1 2; do
    run=$([[ $n -eq 1 ]] || echo "$ranks")
    $run "$MEZZO" train $model --shard parameters --lora-rank 4 --steps 4 --reduce canonical --checkpoint-every 0 --out lora-$n >lora.log 2>&1 || fail "lora on $n: $(cat lora.log)"
done
diff <(losses lora-1) <(losses lora-2) || fail "adapters on 1 and 2 ranks"
cmp lora-1/checkpoints/step-*4/model.safetensors lora-2/checkpoints/step-*4/model.safetensors || fail "adapters on 1 and 2 ranks"

# Pictures.
"$MEZZO" data radio --maps 10 --size 16 --extent 64 --out maps >maps.log 2>&1 || grep -q "no libpng" maps.log || fail "$(cat maps.log)"
for model_of in radio_unet kl_vae; do
    pictures="--model $model_of-tiny --data maps --precision bf16 --device cpu --threads 1 --batch-size 1 --global-batch 2 --steps 3
        --log-every 1 --eval-every 0 --eval-final false --checkpoint-every 0 --sample-every -1 --quiet --reduce canonical --shard parameters"
    for n in 1 2; do
        [[ -d maps ]] || continue
        run=$([[ $n -eq 1 ]] || echo "$ranks")
        $run "$MEZZO" train $pictures --out $model_of-$n >pictures.log 2>&1 || fail "$model_of on $n: $(cat pictures.log)"
    done
    [[ ! -d maps ]] || cmp $model_of-[12]/checkpoints/step-*3/model.safetensors || fail "$model_of on 1 and 2 ranks"
done

# What a rank holds is planned to the byte.
for way in "optimizer fast 1" "optimizer fast 1 bf16" "none canonical 1" "optimizer canonical 2" "gradients fast 1" "gradients fast 2 bf16" "gradients canonical 2" \
    "parameters fast 1" "parameters canonical 2"; do
    set -- $way
    $ranks "$MEZZO" train $model --precision fp32 --shard "$1" --reduce "$2" --reduce-wire "${4:-fp32}" --global-batch $((4 * $3)) --steps 1 --checkpoint-every -1 --out held >held.log 2>&1 || fail "$(cat held.log)"
    took=$(sed -nE 's/.*"perf\/memory_bytes": *([0-9]+).*/\1/p' held/metrics.jsonl | tail -1)
    "$MEZZO" memory --model gpt2 ${size%%--global*} --vocab "$(sed -nE 's/ *vocab: *([0-9]+)/\1/p' held/config.yaml)" --precision fp32 --optimizer adamw \
        --master fp32 --bucket-mib 0.1 --ranks 2 --shard "$1" --reduce "$2" --reduce-wire "${4:-fp32}" --grad-accum "$3" --json >plan.json || fail "memory --ranks"
    awk -v took="$took" '{ gsub(/[",:]/, " "); for (i = 1; i < NF; i++) if (!($i in at)) at[$i] = $(i + 1) }
        END { exit took == 0 || at["total"] - at["padding"] + at["evaluation"] != took }' plan.json || fail "$way: took $took: $(cat plan.json)"
    rm -rf held
done
echo "ranks_events: ok"
