# Several processes train one model: the same as one process, and read what any number of them wrote.
# Seen to fail: with parts not brought to all ranks, moments not brought together, micro batches added in the order they
# come, bad bits not shared; of gradients in parts: memory given away before the sum, parts not added up, staging of
# parameters without a gradient not cleared, micro batches not dealt out; of parameters
# in parts: copies gathered from elsewhere, low halves written elsewhere, a fault looked for without them, a part of a
# padded parameter inspected as if it had the whole one's padding.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
if ! command -v mpirun >/dev/null || [[ ! -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    echo "no mpirun, or a build without MPI (Debian: openmpi-bin, libopenmpi-dev)"
    exit 77
fi
export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

awk 'BEGIN { n = split("the of and a to in he was that it his her with as had for she not at but", w, " "); x = 1
    for (i = 0; i < 5000; i++) { x = (x * 16807) % 2147483647; printf "%s%s", w[1 + x % n], i % 12 == 11 ? "\n" : " " } }' >text.txt
model="--data text.txt --device cpu --threads 1 --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --global-batch 8
    --bucket-mib 0.1 --steps 6 --log-every 1 --eval-every 0 --checkpoint-every 3 --sample-every -1 --quiet"

train() { # RANKS FOLDER OPTION…
    local ranks=$1 folder=$2
    shift 2
    if [[ $ranks -eq 1 ]]; then
        "$MEZZO" train $model --out "$folder" "$@" >"$folder.log" 2>&1
    else
        timeout 100 mpirun --oversubscribe -n "$ranks" "$MEZZO" train $model --out "$folder" "$@" >"$folder.log" 2>&1
    fi || fail "$ranks ranks, $*: exit $?: $(cat "$folder.log")"
}

losses() {
    sed -nE 's/.*"step": *([0-9]+).*"train\/loss": *([^,}]+).*/\1 \2/p' "$1/metrics.jsonl"
}

same() { # FOLDER FOLDER: losses, weights and moments, bit for bit
    [[ -n $(losses "$1") ]] || fail "$1 has no losses"
    diff <(losses "$1") <(losses "$2") >/dev/null || fail "$1 and $2 have other losses"
    local last file
    last=$(basename "$(ls -d "$1"/checkpoints/step-* | tail -1)")
    for file in model optimizer; do
        cmp "$1/checkpoints/$last/$file.safetensors" "$2/checkpoints/$last/$file.safetensors" || fail "$1, $2: $file"
    done
}

table() { # FOLDER
    sed -n '/^  "scales": {/,/^  }/p' "$1"/checkpoints/step-00000006/state.json
}

scores() { grep -o '"val/[a-z_]*loss": *[^,}]*\|"sample/text": *.*' "$1/metrics.jsonl"; }

# Canonical sums: the same bits on 1, 2 and 4 ranks, however masters are kept, with steps that overflow, with experts.
canonical() { # NAME OPTION…
    local name=$1
    shift
    train 1 "$name-1" --reduce canonical "$@"
    train 2 "$name-2" --reduce canonical "$@"
    train 4 "$name-4" --reduce canonical "$@"
    train 2 "$name-parts" --reduce canonical --shard gradients "$@"
    train $((${#name} % 2 * 2 + 2)) "$name-zero3" --reduce canonical --shard parameters "$@"
    same "$name-1" "$name-2"
    same "$name-1" "$name-4"
    same "$name-1" "$name-parts"
    same "$name-1" "$name-zero3"
}
canonical fp32 --precision fp32 --dropout 0.1
canonical fp16 --precision fp16 --init-scale 1e8
grep -q '"amp/skipped_steps": *[1-9]' fp16-1/metrics.jsonl || fail "no step overflowed"
canonical split --precision bf16 --master split
canonical stochastic --precision bf16 --master stochastic --dropout 0.1
canonical moments --precision bf16 --moments bf16
canonical moments8 --precision bf16 --moments int8 --ema 0.9
MEZZO_STORAGE=8 canonical padding --layers 3 --d-model 66 --bucket-mib 25 --precision bf16 --optimizer muon # as GPUs store it, in a build with tests
canonical experts --model glm4_moe --kv-heads 2 --d-ff 64 --d-expert 48 --experts 4 --experts-per-token 2 --precision bf16

# Each rank has whole experts, and rows travel: the bits of one rank that has all, and of checkpoints on other ranks.
# Seen to fail with what came from the only other rank taken for its own rows.
mixture="--model glm4_moe --kv-heads 2 --d-ff 64 --d-expert 128 --experts 4 --experts-per-token 2"
travel="--shard parameters --rank-experts exchange"
for precision in fp32 bf16 fp8; do
    [[ $precision == bf16 ]] && kind="--optimizer muon" || kind=
    train 1 "own-$precision-1" --reduce canonical --precision $precision $mixture $kind
    for ranks in 2 4; do
        train $ranks "own-$precision-$ranks" --reduce canonical --precision $precision $mixture $travel $kind
        same "own-$precision-1" "own-$precision-$ranks"
    done
done
cp -r own-fp8-2 own-4 && cp -r own-fp8-4 own-1
train 4 own-4 --precision fp8 --reduce canonical $mixture $travel --resume auto --steps 8 --schedule-steps 6 --eval-every 4 --sample-every 8
train 1 own-1 --precision fp8 --reduce canonical $mixture --resume auto --steps 8 --schedule-steps 6 --eval-every 4 --sample-every 8
same own-1 own-4
diff <(scores own-1) <(scores own-4) || fail "rank 0 by itself with all experts: other scores"
six="--precision fp32 --global-batch 6 $mixture --experts 6"
train 1 own-alone $six
train 3 own-three $six $travel
paste -d ' ' <(losses own-alone) <(losses own-three) |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1; n++ } END { exit n != 6 || bad }' ||
    fail "1 rank and the experts of 3: $(paste -d ' ' <(losses own-alone) <(losses own-three))"
rm -r own-*

# In 8 bits with the table of maxima, which is of all ranks; blocks of 128 have none. Seen to fail with each rank's own.
for precision in fp8 fp8-dw16 fp8-block; do
    train 1 "$precision-1" --reduce canonical --precision $precision --dropout 0.1
    train 2 "$precision-2" --reduce canonical --precision $precision --dropout 0.1
    train 2 "$precision-zero3" --reduce canonical --precision $precision --dropout 0.1 --shard parameters
    for other in 2 zero3; do
        same "$precision-1" "$precision-$other"
        [[ $precision == fp8-block || $(table "$precision-1" | wc -l) -gt 99 ]] || fail "$precision: no table of maxima"
        diff <(table "$precision-1") <(table "$precision-$other") >diff.txt || fail "$precision on 1 and 2 ranks, $other: other maxima: $(cat diff.txt)"
    done
done

# A part of the optimizer for each rank moves parameters as all of it on every rank does.
train 2 parts --precision bf16
train 2 whole --precision bf16 --shard none
same parts whole

# So does a part of the gradients, where a rank has one micro batch; with several the sums are taken in another order.
for ranks in 2 3; do
    for shard in optimizer gradients parameters; do
        train $ranks "one-$shard" --precision bf16 --global-batch $((2 * ranks)) --shard $shard
    done
    same one-optimizer one-gradients
    same one-optimizer one-parameters
    rm -r one-optimizer one-gradients one-parameters
done
train 3 scattered --precision fp32 --global-batch 12 --shard gradients --eval-every 2 --sample-every 3
train 3 sharded --precision fp32 --global-batch 12 --shard parameters --eval-every 2 --sample-every 3
same scattered sharded
[[ $(scores scattered | wc -l) -ge 4 ]] || fail "no validation and samples: $(scores scattered)"
diff <(scores scattered) <(scores sharded) || fail "rank 0 by itself: other scores"

# Three processes beside one, in FP32: the same losses but for rounding.
train 1 alone --precision fp32 --global-batch 12
train 3 three --precision fp32 --global-batch 12
paste -d ' ' <(losses alone) <(losses three) |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1; n++ } END { exit n != 6 || bad }' ||
    fail "1 and 3 ranks: $(paste -d ' ' <(losses alone) <(losses three))"

paste -d ' ' <(losses alone) <(losses scattered) |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1; n++ } END { exit n != 6 || bad }' ||
    fail "1 rank and 3 with parts of gradients: $(paste -d ' ' <(losses alone) <(losses scattered))"

# Two beside one, for longer: differences of rounding do not grow (200 steps: docs/distributed.md).
train 1 longer-1 --precision fp32 --steps 40
train 2 longer-2 --precision fp32 --steps 40 --shard parameters
paste -d ' ' <(losses longer-1) <(losses longer-2) |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1; n++ } END { exit n != 40 || bad }' ||
    fail "40 steps on 1 and 2 ranks: $(paste -d ' ' <(losses longer-1) <(losses longer-2))"

# Gradients that travel as BF16: whoever moves what gets the same bits, others than FP32's, and losses near them.
for shard in optimizer none gradients parameters; do
    train 2 "wire-$shard" --precision fp32 --global-batch 4 --reduce-wire bf16 --shard $shard
done
train 2 wire-fp32 --precision fp32 --global-batch 4
same wire-optimizer wire-none
same wire-optimizer wire-gradients
same wire-optimizer wire-parameters
cmp -s wire-fp32/checkpoints/step-*6/model.safetensors wire-none/checkpoints/step-*6/model.safetensors && fail "nothing was rounded on the wire"
train 3 wire-three --precision fp32 --global-batch 12 --reduce-wire bf16 --shard gradients
for pair in "wire-fp32 wire-none" "alone wire-three"; do
    paste -d ' ' <(losses ${pair% *}) <(losses ${pair#* }) |
        awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 1e-3 * $2) bad = 1; n++ } END { exit n != 6 || bad }' ||
        fail "$pair: $(paste -d ' ' <(losses ${pair% *}) <(losses ${pair#* }))"
done

# What three wrote two and one go on from, with another shard; eval reads it.
for ranks in 1 2; do
    cp -r scattered "three-$ranks"
    train "$ranks" "three-$ranks" --precision fp32 --global-batch 12 --resume auto --steps 8 --schedule-steps 6
done
paste -d ' ' <(losses three-1) <(losses three-2) |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1; n++ } END { exit n != 8 || bad }' ||
    fail "going on from three ranks: $(paste -d ' ' <(losses three-1) <(losses three-2))"
"$MEZZO" eval three >eval.txt 2>&1 || fail "eval: $(cat eval.txt)"

# Canonical sums go on with other ranks, and another shard, to the bit.
train 2 go-2 --precision bf16 --reduce canonical
cp -r go-2 go-4
cp -r go-2 go-1
cp -r go-2 go-parts
cp -r go-2 go-zero3
train 1 go-1 --precision bf16 --reduce canonical --resume auto --steps 8 --schedule-steps 6
train 4 go-4 --precision bf16 --reduce canonical --shard none --resume auto --steps 8 --schedule-steps 6
train 2 go-parts --precision bf16 --reduce canonical --shard gradients --resume auto --steps 8 --schedule-steps 6
train 4 go-zero3 --precision bf16 --reduce canonical --shard parameters --resume auto --steps 8 --schedule-steps 6
cp -r go-zero3 go-on
train 2 go-zero3 --precision bf16 --reduce canonical --shard gradients --resume auto --steps 10 --schedule-steps 6
train 1 go-on --precision bf16 --reduce canonical --resume auto --steps 10 --schedule-steps 6
same go-on go-zero3
same go-1 go-4
same go-1 go-parts

# What is bad on one rank is skipped by all, and named: a NaN, and a batch that leaves gradients finite.
"$MEZZO" train --inject >inject.txt 2>&1
if ! grep -q "there is no option --inject" inject.txt; then
    cat >one.sh <<'END'
[[ $OMPI_COMM_WORLD_RANK -ne 1 ]] || set -- "$@" --inject "nan@2.1:$FAULT"
exec "$@"
END
    shard=optimizer
    for FAULT in h.1.attn/attention#1500 batch h.0.attn/attention#1500; do
        export FAULT
        rm -rf bad
        timeout 100 mpirun --oversubscribe -n 2 bash one.sh "$MEZZO" train $model --precision bf16 --shard $shard --out bad >bad.log 2>&1 ||
            fail "$FAULT on rank 1: $(cat bad.log)"
        grep -q "\"step\": 2, \"micro\": 1.*\"op\": \"\(attention\)\?\".*rank 1: step 2" bad/guard.jsonl || fail "$(cat bad/guard.jsonl)"
        [[ $FAULT == batch ]] || grep -q "\"sample\": $([[ $shard == optimizer ]] && echo 6 || echo 4), .*, sample" bad/guard.jsonl || fail "$(cat bad/guard.jsonl)"
        grep -q '"step": *6.*"amp/skipped_steps": *1[,}]' bad/metrics.jsonl || fail "the step was not skipped once"
        [[ $shard == optimizer ]] && shard=gradients || shard=parameters
    done
    FAULT=layers.1.mlp.experts/grouped_linear#150
    rm -rf bad
    timeout 100 mpirun --oversubscribe -n 2 bash one.sh "$MEZZO" train $model $mixture $travel --precision bf16 --out bad >bad.log 2>&1 ||
        fail "$FAULT on rank 1: $(cat bad.log)"
    grep -q '"step": 2, .*"action": "skip".*ranks.experts gather would name the op' bad/guard.jsonl || fail "$(cat bad/guard.jsonl)"
fi

# A parameter in parts that is bad is told by the rank that has it, though all read it.
if ! grep -q "there is no option --inject" inject.txt; then
    rm -rf bad
    FAULT=param/h.1.mlp.c_fc.weight
    sed -i 's/nan@2.1:/nan@5:/' one.sh
    timeout 100 mpirun --oversubscribe -n 2 bash one.sh "$MEZZO" train $model --precision bf16 --shard parameters --guard.parameters_every 1 --out bad >bad.log 2>&1 ||
        fail "$FAULT on rank 1: $(cat bad.log)"
    grep -q '"action": "rollback".*"module": "h.1.mlp.c_fc.weight".*"text": "rank 1: step 5: parameter h.1.mlp.c_fc.weight' bad/guard.jsonl || fail "$(cat bad/guard.jsonl)"
fi

# What does not fit together is one line.
refused() { # RANKS TEXT OPTION…
    local ranks=$1 text=$2
    shift 2
    timeout 100 mpirun --oversubscribe -n "$ranks" "$MEZZO" train $model --out refused "$@" >refused.log 2>&1 &&
        fail "$*: was not refused"
    grep -q "$text" refused.log || fail "$*: $(cat refused.log)"
}
refused 3 'train.global_batch is 8, not a multiple of the micro batches of 2 on 3 ranks (6 together)'
refused 3 'canonical sums need a power of two' --global-batch 6 --reduce canonical
refused 2 'ranks.experts is exchange, which needs ranks.shard parameters' $mixture --rank-experts exchange
refused 2 'no experts are trained here' $travel
refused 3 '3 ranks do not divide the 4 experts of layers.1.mlp.experts' $mixture $travel --global-batch 6
refused 2 'are not a multiple of 4096' $mixture $travel --d-expert 48
refused 2 'remove --reduce-wire bf16' --reduce canonical --reduce-wire bf16
# The settings that came with other weights are written by the rank that writes the folder: another rank's relative
# paths may be elsewhere.
mkdir here there
cp -r "$MEZZO_TESTS/golden/data/hf_llama" theirs
sed -i 's/"bos_token_id": null/"bos_token_id": 1/' theirs/config.json
begins="$MEZZO train --data $PWD/text.txt --init $PWD/theirs --tokenizer char --device cpu --threads 1 --seq-len 16
    --batch-size 2 --steps 1 --eval-every 0 --sample-every -1 --quiet --out begun"
timeout 100 mpirun --oversubscribe -n 1 -wdir "$PWD/here" $begins : -n 1 -wdir "$PWD/there" $begins >begun.log 2>&1 ||
    fail "two ranks from weights of others: exit $?: $(cat begun.log)"
[[ -s here/begun/huggingface.json ]] || fail "the settings of the weights are not in the run's folder"
[[ ! -e there/begun/huggingface.json ]] || fail "a rank that does not write the folder wrote the settings, too"
echo "ranks: ok"
