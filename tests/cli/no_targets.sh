# Instructions whose answers are cut off: none left refuses, some left are counted, and a step without any moves nothing and has no loss, with
# micro batches, on ranks and over a resume.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
long=$(printf 'p%.0s' {1..80})
for i in {10..29}; do printf '{"prompt": "%s%d", "completion": "answer"}\n' "$long" "$i"; done >none.jsonl
for i in {10..29}; do
    printf '{"prompt": "%s%d", "completion": "answer"}\n' "$long" "$i"
    printf '{"prompt": "what is %d", "completion": "a number"}\n' "$i"
    printf '{"prompt": "empty %d %s", "completion": "x"}\n' "$i" "$long"
done >some.jsonl
model=(--tokenizer byte --layers 1 --heads 2 --d-model 16 --seq-len 32 --batch-size 1 --warmup 0 --lr 1e-2 --weight-decay 0.5 --precision fp32
    --log-every 1 --eval-every 0 --eval-iters 0 --checkpoint-every 1 --keep-last 0 --sample-every -1 --device cpu --threads 1 --quiet)

refuse 2 "none.jsonl: none of its 18 records has a target within the context of 32 tokens" "--seq-len" -- train --data none.jsonl "${model[@]}" --out none
[[ ! -e none ]] || fail "a run folder without a run"
run 0 train --data some.jsonl "${model[@]}" --steps 40 --out some
shows "$ERR" "some.jsonl: 36 of its 54 records have no target within the context of 32 tokens"
refuse 2 "none.jsonl: none of its 20 records has a target" -- eval some --data none.jsonl --device cpu --threads 1

losses() { sed -nE 's/.*"step": *([0-9]+).*"train\/loss": *([^,}]+).*/\1 \2/p' "$1/metrics.jsonl"; }
rows=$(losses some | wc -l)
[[ $rows -gt 5 && $rows -lt 30 ]] || fail "$rows steps of 40 have a loss, where a third of the records have a target"
losses some | grep -qE ' (0|"NaN")$' && fail "a step without targets has a loss: $(losses some)"
same=0
for step in {2..40}; do
    a=$(printf 'some/checkpoints/step-%08d' $((step - 1))) b=$(printf 'some/checkpoints/step-%08d' "$step")
    if losses some | grep -q "^$step "; then
        cmp -s "$a/model.safetensors" "$b/model.safetensors" && fail "step $step has a loss and moved nothing"
    else
        cmp "$a/model.safetensors" "$b/model.safetensors" && cmp "$a/optimizer.safetensors" "$b/optimizer.safetensors" ||
            fail "step $step has no target and moved something"
        same=$((same + 1))
    fi
done
[[ $((same + rows)) -ge 39 ]] || fail "$same steps stood still, $rows had a loss"

# Stopped in the middle and resumed; micro batches; ranks: the same bits.
equal() { # FOLDER FOLDER STEP
    diff <(losses "$1") <(losses "$2") >/dev/null || fail "$1 and $2 have other losses"
    for file in model optimizer; do
        cmp "$1/checkpoints/step-$3/$file.safetensors" "$2/checkpoints/step-$3/$file.safetensors" || fail "$1, $2: $file"
    done
}
run 0 train --data some.jsonl "${model[@]}" --steps 17 --schedule-steps 40 --out halves
run 0 train --data some.jsonl "${model[@]}" --steps 40 --out halves --resume auto
equal some halves 00000040
run 0 train --data some.jsonl "${model[@]}" --steps 30 --global-batch 2 --reduce canonical --out pairs
[[ $(losses pairs | wc -l) -lt 30 ]] || fail "every step of two has a target"
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" train --data some.jsonl "${model[@]}" --steps 30 --global-batch 2 --reduce canonical \
        --out ranks >ranks.log 2>&1 || fail "ranks: $(cat ranks.log)"
    equal pairs ranks 00000030
fi
