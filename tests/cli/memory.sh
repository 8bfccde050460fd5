# What training takes: the plan, its JSON, what fits, the formulas, a figure; and the plan against the measured peak.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

run 0 memory --model gpt2-124M --batch-size 8 --device cpu
shows "$OUT" "124,439,808 parameters" "474.7M" "235.8M" "949.6M" "recompute" "8 micro batches of 1" "state: the optimizer's moments"
fits
run 0 memory --model llama2-70B --batch-size 1 --device cpu --precision bf16 --optimizer adamw --json
shows "$OUT" '"parameters": 68976648192' '"precision": "bf16"' '"savings"'
run 0 memory --model gpt2-124M --batch-size 1 --device cpu --precision fp32,bf16 --optimizer adamw --limit 24GiB --json
shows "$OUT" '"largest_batch":' '"largest_batch_recompute":'

# What saves memory is listed where it does: a low residual stream and logits in rows are language models' alone.
run 0 memory --model gpt2-124M --batch-size 2 --device cpu --precision bf16
shows "$OUT" "residual low" "logits by 1,024"
for model in radio_unet-tiny kl_vae-tiny toy; do
    run 0 memory --model $model --batch-size 2 --device cpu --precision bf16
    shows "$OUT" "recompute"
    ! grep -q "residual\|logits" "$OUT" || fail "$model has no residual stream of embeddings"
done

# The same step has as many sequences: of what accumulates already, parts are that many times more micro batches.
run 0 memory --model toy --batch-size 4 --grad-accum 3 --device cpu --precision bf16 --optimizer adamw
shows "$OUT" "6 micro batches of 2" "12 micro batches of 1" "recompute, 12 micro batches of 1"
# --global-batch says how many micro batches each rank has, as it does for train.
several=(--model toy --batch-size 4 --device cpu --precision bf16 --optimizer adamw --json)
run 0 memory "${several[@]}" --grad-accum 3
cp "$OUT" accumulated
run 0 memory "${several[@]}" --global-batch 12
cmp -s accumulated "$OUT" || fail "--global-batch 12 is not three micro batches of 4"
run 0 memory "${several[@]}" --grad-accum 1
! cmp -s accumulated "$OUT" || fail "three micro batches and one take the same"
refuse 2 "train.global_batch is 13" -- memory "${several[@]}" --global-batch 13

# FP8's copies of weights in both layouts are kept where nothing is recomputed, and made where they are read where something is.
copies() { run 0 memory --model gpt2-124M --batch-size 1 --device cpu --precision fp8 --optimizer adamw --json "$@"; sed -nE 's/.*"shadows": ([0-9]+).*/\1/p' "$OUT" | head -n 1; }
kept=$(copies) made=$(copies --recompute-light)
[[ $((kept - made)) -ge 100000000 ]] || fail "--recompute-light keeps $made bytes of copies, without it $kept"
# So are the bf16 copies of its outer blocks: masters and copies take what bf16's two halves take.
stored() {
    run 0 memory --model gpt2 --layers 6 --heads 2 --d-model 256 --seq-len 64 --batch-size 1 --device cpu --optimizer adamw --recompute-light --json "$@"
    echo $(($(sed -nE 's/.*"(weights|shadows)": ([0-9]+).*/\2/p' "$OUT" | head -n 2 | paste -sd+)))
}
halves=$(stored --precision bf16 --master split) eight=$(stored --precision fp8)
[[ $eight -le $((halves + halves / 200)) ]] || fail "--recompute-light stores $eight bytes of weights in fp8, $halves in bf16"

# What is frozen has no gradient: 85,056,000 other parameters have one.
run 0 memory --model gpt2-124M --batch-size 1 --device cpu --precision bf16 --optimizer adamw --master fp32 --freeze 'wte,wpe' --json
shows "$OUT" '"parameters": 124439808' '"gradients": 340224000'

run 0 memory --params 7B
fits
shows "$OUT" 112.0 126.0 "wrong:"
run 0 memory --params 350M --json
shows "$OUT" '"bytes_a_parameter": 18' '"real": false'

# The plan and the peak of really running it: within one per cent. Large enough that a huge page more or less, 2 MiB, is half of that.
run 0 memory --model gpt2 --layers 6 --heads 4 --d-model 512 --vocab 8000 --seq-len 64 --batch-size 4 --device cpu \
    --precision fp32,bf16 --optimizer adamw --master fp32,split --measure --json
within='/"measured"/ { gsub(",", ""); measured = $2 } /"total"/ { gsub(",", ""); total = $2 }
    /"measured"/ { n++; d = total / measured - 1; if (d > 0.01 || d < -0.01) { print d; bad = 1 } } END { exit bad || n < 3 }'
awk "$within" "$OUT" || fail "a plan is more than 1 % from what was measured"

# What fits does so as `mezzo train` runs it: its evaluation and sampling programs are in the plan, and one sequence more is not.
number() { sed -nE 's/.*"'"$1"'": ([0-9]+),?.*/\1/p' "$OUT" | head -n 1; }
text 600 >text.txt
for shape in "gpt2 2 64 61 64" "cs336 1 48 100 128" "gpt2 1 32 500 256"; do
    read -r model layers width vocab length <<<"$shape"
    KEYS=(--model "$model" --layers "$layers" --heads 2 --d-model "$width" --vocab "$vocab" --seq-len "$length" --device cpu --threads 2)
    run 0 memory "${KEYS[@]}" --precision bf16 --optimizer adamw --master fp32 --limit 24MiB --json
    batch=$(number largest_batch)
    run 0 memory "${KEYS[@]}" --precision bf16 --optimizer adamw --master fp32 --batch-size $((batch + 1)) --json
    [[ $(number run) -gt $((24 << 20)) ]] || fail "batch $((batch + 1)) of $shape fits too"
    run 0 memory "${KEYS[@]}" --precision bf16 --optimizer adamw --master fp32 --batch-size "$batch" --json
    planned=$(number run) padding=$(number padding)
    [[ $planned -le $((24 << 20)) ]] || fail "batch $batch of $shape does not fit"
    rm -rf run
    run 0 train "${KEYS[@]}" --precision bf16 --batch-size "$batch" --steps 2 --warmup 1 --eval-iters 1 --data text.txt --tokenizer char --out run
    took=$(sed -nE 's/.*perf\/memory_bytes": ([0-9]+).*/\1/p' run/metrics.jsonl | head -n 1)
    awk -v a=$((planned - padding)) -v b="$took" 'BEGIN { exit !(a / b > 0.98 && a / b < 1.02) }' ||
        fail "$shape: planned $((planned - padding)) bytes, train took $took"
done
run 0 memory "${KEYS[@]}" --limit 24MiB --precision fp32 --optimizer adamw
shows "$OUT" "largest batch" "with recompute"
fits
refuse 1 "nothing fits in 1.0 MiB" "with recompute" -- memory "${KEYS[@]}" --limit 1MiB
refuse 1 "nothing fits in 10 bytes" -- memory "${KEYS[@]}" --limit 10

if command -v gnuplot >/dev/null; then
    run 0 memory --model gpt2-124M --batch-size 8 --device cpu --limit 24GiB --plot memory.svg
    [[ -s memory.svg && -s memory.png && -s memory.gp ]] || fail "no figure"
fi

run 0 memory --model gpt2-124M --batch-size 1 --device cpu --master split,stochastic --json
shows "$OUT" '"master": "split"' '"master": "stochastic"' '"precision": "bf16"'
! grep -q '"precision": "fp32"' "$OUT" || fail "fp32 with split masters"
refuse 2 bf16 -- memory --master split --precision fp16 --device cpu
refuse 2 stochastic -- memory --master none --device cpu
refuse 2 --limit 24GiB -- memory --limit lots --device cpu
refuse 2 --params 7B -- memory --params many
refuse 2 --limit "remove" -- memory --params 7B --limit 24GiB
refuse 2 --optimizer adamw -- memory --optimizer adam --device cpu
refuse 2 fp32 -- memory --precision fp33 --device cpu
refuse 2 gpt2-124M -- memory --model gpt2-124N --device cpu
