# A bad step as the command shows it: the warning, guard.jsonl, exit codes, --bisect-nan, the line about the run's health.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
SMALL=("${TINY[@]}" --steps 8 --eval-every 0 --sample-every 0 --precision bf16 --data text.txt)

"$MEZZO" train "${SMALL[@]}" --out probe --inject nonsense >"$OUT" 2>"$ERR" </dev/null
grep -q "there is no option --inject" "$ERR" && exit 77 # built without MEZZO_INJECT
refuse 2 nonsense -- train "${SMALL[@]}" --out other --inject nonsense
run 0 train --help
grep -q -- --inject "$OUT" && fail "--inject is listed"

run 0 train "${SMALL[@]}" --out skip --inject nan@4:h.0.mlp.c_fc/linear
shows "$ERR" "step 4, micro batch 1: first in linear of h.0.mlp.c_fc (forward)" "the step was skipped" "--autocast.h.0.mlp.c_fc fp32"
shows "$OUT" "skipped steps    1" "health           healthy: 8 steps"
shows skip/guard.jsonl '"step": 4, "micro": 1, "kind": "activation", "action": "skip", "op": "linear", "module": "h.0.mlp.c_fc"'
shows skip/metrics.jsonl '"gradients/mean_norm"' '"gradients/max_norm"' '"gradients/norm/h.0"' '"gradients/norm/wte"' '"guard/bad_steps": 1'

# An op whose stored format is another's is not offered an override that would not change it.
run 0 train "${SMALL[@]}" --out norm --inject nan@4:h.0.ln_1/layernorm
shows "$ERR" "first in layernorm of h.0.ln_1" "comes from the ops around it"
grep -q -- "--autocast" "$ERR" && fail "an override that changes nothing is offered"

# The sample that has the first bad number, of the step: rows of [batch, time, width], and of [batch × time, experts], of the second micro batch.
moe=(--model glm4_moe --layers 2 --heads 2 --kv-heads 2 --d-ff 32 --d-expert 16 --experts 4 --experts-per-token 2 --grad-accum 2)
for at in "layers.1.self_attn.o_proj/linear#300 4" "layers.1.self_attn.o_proj/linear#200 3" "layers.1.mlp.gate/route#33 4" "layers.1.mlp.experts/grouped_linear#33 0"; do
    rm -rf sample
    run 0 train "${SMALL[@]}" "${moe[@]}" --out sample --inject "nan@2.2:${at% *}"
    shows sample/guard.jsonl "\"micro\": 2" "\"sample\": ${at#* },"
done

refuse 3 "step 4" "loss" "stop/checkpoints/step-00000003" -- train "${SMALL[@]}" --guard stop --out stop --inject inf@4:loss
run 1 train "${SMALL[@]}" --out stop --resume auto --bisect-nan --inject inf@4:loss
shows "$OUT" "step 4, micro batch 1: first in cross_entropy of loss"
run 1 train "${SMALL[@]}" --out stop --resume auto --bisect-nan --json --inject nan@5:h.0.attn/attention
shows "$OUT" '"found": true' '"step": 5' '"module": "h.0.attn"'
before=$(find stop -type f | sort | xargs cksum)
run 0 train "${SMALL[@]}" --out stop --resume auto --bisect-nan
shows "$OUT" "every step from 4 to 8 is good"
[[ $before == "$(find stop -type f | sort | xargs cksum)" ]] || fail "--bisect-nan has written something"
refuse 2 train.resume -- train "${SMALL[@]}" --out none --bisect-nan
run 0 train "${SMALL[@]}" --out stop --resume auto

run 0 train "${SMALL[@]}" --guard rollback --checkpoint-every 2 --out back --inject nan@4:batch
shows "$ERR" "step 4, micro batch 1: the batch is bad: token" "going back to the newest checkpoint"
refuse 2 guard.policy checkpoint_every -- train "${SMALL[@]}" --guard rollback --checkpoint-every -1 --out no

# Frozen parameters are looked at too, where no batch reads what is bad in them.
for master in fp32 split; do
    refuse 3 "parameter token_embeddings.weight (fp32) has 1 NaN of 8192" -- train --data text.txt --tokenizer byte --model cs336 --layers 1 \
        --heads 2 --d-model 32 --seq-len 16 --batch-size 2 --steps 6 --eval-every 0 --sample-every 0 --precision bf16 --device cpu \
        --freeze token_embeddings --master "$master" --guard.parameters_every 1 --checkpoint-every -1 --out "frozen-$master" \
        --inject "nan@4:param/token_embeddings.weight#8000"
done
