# Every recipe with every kind of recomputation, accumulation and number of ranks, on the GPU where there is one: each run ends with numbers,
# recomputation of whole blocks keeps every bit, light recomputation the first loss (backward's activations may differ in their last bits), and two
# ranks with canonical sums have the bits of one. Ranks need a GPU each.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
export OMP_WAIT_POLICY=passive
text 300 >text.txt
device=cpu ranks="1 2"
if "$MEZZO" doctor --device cuda >"$OUT" 2>"$ERR" || [[ $? -eq 1 ]]; then
    device=cuda
    [[ $(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l) -ge 2 ]] || ranks=1
fi
recipes="fp32 tf32 bf16 fp16 fp8 fp8-dw16 fp8-block"
[[ $device == cuda ]] || recipes=${recipes/tf32 /}

one() { # RECIPE RECOMPUTE ACCUMULATION RANKS: a run
    local folder=$1-$2-$3-$4 options=() way=()
    [[ $2 == none ]] || options=("--$2")
    [[ $4 -eq 1 ]] || way=(launch -n "$4" --)
    "$MEZZO" "${way[@]}" train --model gpt2 --data text.txt --tokenizer byte --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 \
        --global-batch $((2 * $3)) --reduce canonical --precision "$1" "${options[@]}" --steps 3 --warmup 1 --log-every 1 --eval-every 0 \
        --eval-final=false --sample-every -1 --checkpoint-every 3 --device "$device" --threads 1 --seed 5 --out "$folder" --quiet \
        >"$folder.log" 2>&1 </dev/null || echo "$folder: exit $?: $(tail -n 1 "$folder.log")"
}
export -f one
export MEZZO device
for recipe in $recipes; do
    for recompute in none recompute-light recompute; do
        for accumulation in 1 4; do
            for n in $ranks; do
                [[ $n -gt 1 && $accumulation -eq 1 ]] || echo "$recipe $recompute $accumulation $n"
            done
        done
    done
done >runs
xargs -P 2 -L 1 bash -c 'one "$@"' one <runs >failures
[[ ! -s failures ]] || fail "$(cat failures)"

losses() { sed -nE 's/.*"train\/loss": *([^,}]+).*/\1/p' "$1/metrics.jsonl"; }
bits() { cat "$1"/checkpoints/step-00000003/{model,optimizer}.safetensors | sha256sum; }
while read -r recipe recompute accumulation n; do
    run=$recipe-$recompute-$accumulation-$n plain=$recipe-none-$accumulation-1
    last="$run"
    [[ $(losses "$run" | grep -cE '^[0-9.]+$') -eq 3 ]] || fail "$run: $(losses "$run" | tr '\n' ' ')"
    [[ $(losses "$run" | head -n 1) == "$(losses "$plain" | head -n 1)" ]] || fail "$run and $plain begin with other losses"
    [[ $recompute == recompute-light || $(bits "$run") == "$(bits "$plain")" ]] || fail "$run and $plain have other bits"
    # Of light recomputation the one on as many ranks is the same.
    [[ $(bits "$run") == "$(bits "$recipe-$recompute-$accumulation-1")" ]] || fail "$run: other bits than one rank has"
done <runs
