# Every recipe is found, says what it is about, and trains, shortened; variants build upon their base.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
# The command looks for recipes beside itself; a build outside the repository has none there.
if ! "$MEZZO" recipes >"$OUT" 2>&1; then
    mkdir -p installed/build/test
    cp "$MEZZO" installed/build/test/ && cp -r "$MEZZO_SOURCE/recipes" installed/
    MEZZO=$PWD/installed/build/test/mezzo
fi
names=$(for f in "$MEZZO_SOURCE"/recipes/*.yaml; do basename "$f" .yaml; done)

run 0 recipes --json
for name in $names; do
    shows "$OUT" "\"name\": \"$name\""
done
for key in reproduces data device time reached; do
    ! grep -qE "\"$key\": (\"\"|null)" "$OUT" || fail "a recipe without \"$key\""
    [[ $(grep -c "\"$key\"" "$OUT") -eq $(wc -w <<<"$names") ]] || fail "not every recipe has \"$key\""
done

run 0 data text.txt --tokenizer gpt2 --out shards
SMALL=(--layers 2 --heads 2 --d-model 16 --seq-len 16 --batch-size 2 --grad-accum 1 --steps 2 --warmup 0 --eval-every 0 --eval-iters 1
    --eval-final false --sample-every -1 --log-every 1 --device cpu --threads 1 --quiet)
run 0 train --data shards "${SMALL[@]}" --model gpt2 --bias true --out weights
pictures=cities
"$MEZZO" data radio --maps 4 --transmitters 2 --size 16 --extent 64 --seed 1 --out cities >"$OUT" 2>"$ERR" || pictures=
[[ -n $pictures ]] || grep -q "no libpng" "$OUT" "$ERR" || fail "no cities"
for name in $names; do
    more=(--data text.txt) sizes=("${SMALL[@]}")
    case $name in
    gpt2-*-ranks) more=(--data shards --global-batch 2) ;;
    gpt2-*) more=(--data shards) ;;
    finetune-*) more=(--data shards --init weights) ;;
    radio-*)
        [[ -n $pictures ]] || continue
        more=(--data cities --split 0.75)
        sizes=(--d-model 8 --batch-size 2 --grad-accum 1 --steps 2 --warmup 0 --eval-every 0 --eval-iters 1 --log-every 1 --device cpu --threads 1 --quiet)
        ;;
    esac
    run 0 train --recipe "$name" "${more[@]}" "${sizes[@]}" --out "run-$name" --checkpoint-every -1
    shows "run-$name/metrics.jsonl" '"step": 2'
done

shows run-shakespeare-char-fp8/config.yaml "precision: fp8"
shows run-gpt2-124M-ranks/config.yaml "shard: optimizer"
[[ -z $pictures ]] || shows run-radio-unet/config.yaml "ema: 0.99" "objective: 4"
run 0 launch -n 2 -- train --recipe gpt2-124M-ranks --data shards --layers 1 --heads 2 --d-model 8 --seq-len 4 --steps 2 --warmup 0 \
    --eval-every 0 --eval-iters 1 --log-every 1 --device cpu --threads 1 --quiet --out two-ranks --checkpoint-every -1
shows two-ranks/metrics.jsonl '"step": 2' # 480 sequences a step, cut in two

# Keys come from the variant first, then from its base; the command line stands above both.
grep -qF "lr: 0.0003" run-cs336-xl/config.yaml || fail "the variant's learning rate did not win"
grep -qF "beta2: 0.95" run-cs336-xl/config.yaml || fail "the base's beta2 is missing"
grep -qF "layers: 2" run-cs336-xl/config.yaml || fail "the command line did not win"

refuse 2 "shakespeare-char-cpu" -- train --recipe shakespeare-char-cpo --data text.txt
printf 'base: b.yaml\n' >a.yaml
printf 'base: sub/../a.yaml\n' >b.yaml
mkdir sub
refuse 2 "is its own base" "b.yaml:1" -- train --config a.yaml --data text.txt
printf 'base: nowhere.yaml\n' >a.yaml
refuse 2 "a.yaml:1: base" "nowhere.yaml" -- train --config a.yaml --data text.txt
printf 'base: [x]\n' >a.yaml
refuse 2 "a.yaml:1" "base" -- train --config a.yaml --data text.txt
# A file in another folder: its base is looked for beside it.
printf 'base: c.yaml\noptimizer:\n  lr: 2e-3\n' >sub/d.yaml
printf 'optimizer:\n  lr: 5e-3\n  beta2: 0.9\nautocast:\n  "h.*": fp32\n' >sub/c.yaml
run 0 train --config sub/d.yaml --data shards "${SMALL[@]}" --out based --checkpoint-every -1
shows based/config.yaml "lr: 0.002" "beta2: 0.9" '"h.*": fp32'
