# What has which dtype, as PyTorch's autocast decides: CS336's answer for toy, rows of the golden table, overrides, passes.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

# row MODULE COLUMN: that field of the op of MODULE (its casts left out) in the last JSON result
row() {
    awk -v module="\"module\": \"$1\"," -v column="\"$2\": \"" '
        /^    \{/ { hit = 0; cast = 0; value = "" }
        index($0, module) { hit = 1 }
        /"op": "(cast|quantize)"/ { cast = 1 }
        index($0, column) { value = $0; sub(".*" column, "", value); sub("\".*", "", value) }
        /^    \}/ { if (hit && !cast) { print value; exit } }' "$OUT"
}
summary() { sed -nE "s/^ *\"$1\": \"([^\"]*)\".*/\1/p" <(sed -n '/"summary"/,$p' "$OUT"); }
is() { # WHAT GOT WANTED
    [[ $2 == "$3" ]] || fail "$1 is \"$2\", not \"$3\""
}

for low in fp16 bf16; do
    run 0 explain --model toy --precision "$low" --json
    is parameters "$(summary parameters)" fp32
    is fc1 "$(row fc1 storage)" "$low"
    is relu "$(row relu storage)" "$low"
    is layernorm "$(row ln storage)" fp32
    is "layernorm's sums" "$(row ln reduce)" fp32
    is fc2 "$(row fc2 storage)" "$low"
    is logits "$(summary logits)" "$low"
    is loss "$(row loss storage)" fp32
    is "the loss" "$(summary loss)" fp32
    is gradients "$(summary gradients)" fp32
    # Folding the cast lets the norm store what fc2 reads; its arithmetic stays.
    is "layernorm as it runs" "$(row ln fused)" "$low"
done

# Every step of both models in PyTorch's table: the same ops in the same order, each with the same dtype. Left out are casts, which
# PyTorch does inside the op that needs them, and views, which no two programs count alike.
steps() { # of the last JSON result: "op storage" a line
    awk '/^    \{/ { op = ""; storage = "" }
        match($0, /"op": "[^"]*"/) { op = substr($0, RSTART + 7, RLENGTH - 8) }
        match($0, /"storage": "[^"]*"/) { storage = substr($0, RSTART + 12, RLENGTH - 13) }
        /^    \}/ && op != "" && op !~ /^(cast|arange|reshape|split)$/ { print op, storage }' "$OUT"
}
golden() { # PRECISION CASE
    awk -F, -v precision="$1" -v case="$2" '$1 == precision && $2 == case && $3 !~ /^(parameters|reshape|split)$/ { print $3, $6 }' \
        "$MEZZO_TESTS/golden/data/autocast.csv"
}
for low in fp16 bf16; do
    run 0 explain --model toy --precision "$low" --json
    is "toy's steps" "$(steps)" "$(golden "$low" toy)"
    run 0 explain --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 8 --vocab 32 --dropout 0.1 --precision "$low" --json
    is "the block's steps" "$(steps)" "$(golden "$low" gpt2_block)"
    [[ $(steps | wc -l) -eq 19 ]] || fail "not 19 steps"
done

run 0 explain --model toy --precision fp16
shows "$OUT" storage compute rule "1  cast inserted" "parameters  fp32" "logits      fp16" "loss        fp32" "gradients   fp32"
run 0 explain --model toy --precision fp32 --json
is "fc1 under fp32" "$(row fc1 storage)" fp32

GPT=(--model gpt2 --layers 2 --heads 2 --d-model 16 --seq-len 8 --vocab 32 --batch-size 2 --precision bf16)
run 0 explain "${GPT[@]}" --json
is c_attn "$(row h.0.attn.c_attn storage)" bf16
is ln_1 "$(row h.0.ln_1 compute)" fp32
is "c_attn's sums" "$(row h.0.attn.c_attn accumulate)" fp32
is shape "$(row h.0.attn.c_attn shape)" 2x8x48
run 0 explain "${GPT[@]}" '--autocast.h.1.mlp*' fp32 --json
is "the overridden c_fc" "$(row h.1.mlp.c_fc storage)" fp32
is "the other c_fc" "$(row h.0.mlp.c_fc storage)" bf16
refuse 2 "h.7*" -- explain "${GPT[@]}" '--autocast.h.7*' fp32
# A pattern is for whole paths: a module that only holds others, or only adds, has nothing to override.
refuse 2 "h.0.mlp.*" "modules in it" -- explain "${GPT[@]}" --autocast.h.0.mlp fp32
refuse 2 "h.0.*" "modules in it" -- explain "${GPT[@]}" --autocast.h.0=fp8
run 0 explain "${GPT[@]}" --autocast.h.0.attn fp32 --autocast.wte fp32 --autocast.ln_f fp32 --json
is "the overridden attention" "$(row h.0.attn storage)" fp32
is "what is in its module" "$(row h.0.attn.c_proj storage)" bf16

for pass in autodiff recompute decompose fuse chunk transpose keep storage recompute_act gather streams choose plan; do
    run 0 explain "${GPT[@]}" --after "$pass" --device cpu
    fits
    shows "$OUT" backward linear_dw
    grep -qE "^$pass +[a-z]+" "$OUT" || fail "no sentence says what $pass does"
done

# Passes that ask the device: kernels and places, gathers of one of several ranks, activations made again.
run 0 explain "${GPT[@]}" --after storage --device cpu --json
! grep -q '"kernel"' "$OUT" || [[ $(grep -c '"kernel": "-"' "$OUT") -eq $(grep -c '"kernel"' "$OUT") ]] || fail "a kernel is chosen before choose"
run 0 explain "${GPT[@]}" --after choose --device ref
shows "$OUT" kernel linear_dw__ref
! grep -q arena "$OUT" || fail "a place is known before plan: $OUT"
run 0 explain "${GPT[@]}" --after plan --device cpu --json
shows "$OUT" '"kernel"' '"arena_offset": 0,' '"bytes"'
run 0 explain "${GPT[@]}" --after gather --device cpu --ranks 2 --shard parameters
shows "$OUT" "gather" "a micro batch gathers"
run 0 explain "${GPT[@]}" --after recompute_act --device cpu --precision bf16 --dot graph.dot
shows graph.dot digraph linear_dw
refuse 2 --after wrong recompute_act -- explain --model toy --after wrong
refuse 2 heads 3 -- explain "${GPT[@]}" --heads 3

run 0 explain --model toy --diff fp32,bf16 --json
shows "$OUT" '"casts_a": 0' '"op": "relu"' '"storage_a": "fp32"' '"storage_b": "bf16"'
! grep -q '"op": "layernorm"' "$OUT" || fail "layernorm is fp32 under both"
run 0 explain "${GPT[@]}" --diff fp32,fp8
fits
run 0 explain "${GPT[@]}" --precision fp8 --params
shows "$OUT" "gradient: dtype in which backward's"
fits
run 0 explain --model toy --diff fp16,fp16
shows "$OUT" "0 ops differ"
run 0 explain --model toy --precision bf16 --after chunk --dot graph.dot
shows graph.dot "digraph" "linear" "bf16" "computes in" '"#f6c98b"'
if command -v dot >/dev/null; then
    dot -Tsvg graph.dot >graph.svg || fail "dot refuses graph.dot"
fi
refuse 2 --diff fp32,bf16 -- explain --model toy --diff fp32
refuse 2 --diff fp61 -- explain --model toy --diff fp32,fp61
refuse 3 none -- explain --model toy --precision bf16 --dot none/graph.dot

# Operands, gradients and outputs have formats of their own, and operands scales.
run 0 explain --model toy --precision fp8
shows "$OUT" "fp8_e4m3 x2" fp8_e5m2 gradient scale tensor "masters     fp32 (4)"
run 0 explain --model toy --precision float8 --json
is "fc1's operands" "$(row fc1 operand)" fp8_e4m3
is "fc1's gradient" "$(row fc1 gradient)" fp8_e5m2
is "fc1's output" "$(row fc1 storage)" bf16
is "fc1's scales" "$(row fc1 scale)" tensor
is "relu's scales" "$(row relu scale)" -
run 0 explain --model gpt2 --layers 3 --heads 2 --d-model 64 --seq-len 16 --precision fp8
[[ $(grep -cE '^quantize +h\.1\..* (192|256|64)x(64|256) .* folded ' "$OUT") -eq 0 ]] || fail "a weight's cast is called folded: $OUT"
[[ $(grep -cE '^quantize +h\.1\..* (192|256|64)x(64|256) .* fp8_e4m3 ' "$OUT") -eq 4 ]] || fail "four weights are rounded: $OUT"
run 0 explain --model toy --precision fp8-block --after autodiff
shows "$OUT" "block 128" "tile 128" "fp8_e4m3 x2"
! grep -q fp8_e5m2 "$OUT" || fail "fp8-block is E4M3 throughout: $OUT"
run 0 memory "${GPT[@]}" --device cpu --precision fp8-block
run 0 explain --model toy --precision fp8-dw16 --after autodiff
[[ $(grep -cE '^linear_dw .* bf16 x2 ' "$OUT") -eq $(grep -cE '^linear_dw ' "$OUT") ]] || fail "a weight's gradient is not bf16's: $OUT"
run 0 explain --model toy --precision bf16
! grep -q scale "$OUT" || fail "bf16 has no scales to show"
run 0 memory "${GPT[@]}" --device cpu --precision fp8
refuse 2 "emulate mxfp4" "use bf16 or fp32" -- explain --model toy --precision fp8 --emulate mxfp4
refuse 2 '"amp"' "name one" -- explain --model toy --precision amp

# How masters are kept, overrides included.
run 0 explain "${GPT[@]}" --master split --params --autocast.h.0.mlp.c_fc fp32
shows "$OUT" "only its bf16 copy is read" "its master is also read" "masters     fp32"
grep -qE "^h.0.mlp.c_fc.weight +64x16 +fp32 +- " "$OUT" || fail "an override to fp32 leaves another master than fp32"
grep -qE "^h.1.mlp.c_fc.weight +64x16 +split +bf16 " "$OUT" || fail "a master that only its copy stands for is not split"
refuse 2 "optimizer.master is split" "fp8" -- explain "${GPT[@]}" --precision fp8 --master split
refuse 2 "optimizer.master is stochastic" "fp16" -- explain "${GPT[@]}" --precision fp16 --master stochastic
run 0 explain "${GPT[@]}" --precision fp8 --master fp32
run 0 explain "${GPT[@]}" --master split --json
shows "$OUT" '"parameters"' '"master": "split"' '"copy": "bf16"' '"why": '

# CS336's question: which tensor has which dtype.
run 0 explain --toy
fits
shows "$OUT" "the layer norm's output    fp32   fp32   fp32   fp32" "the logits                 fp32   fp32   bf16   fp16"
run 0 explain --toy --json
shows "$OUT" '"the gradients": "fp32"' '"the first layer'
refuse 2 "--toy does not take --model" -- explain --toy --model gpt2
if command -v dot >/dev/null; then
    run 0 explain --model toy --precision fp16 --dot toy.svg
    [[ -s toy.svg && -s toy.dot ]] && grep -q "f2a9a0" toy.svg || fail "no picture, or not coloured"
else
    refuse 3 graphviz -- explain --model toy --precision fp16 --dot toy.svg
    [[ -s toy.dot ]] || fail "no text beside"
fi

# One of several ranks holds its part, and gathers what it reads: forward, and again backward.
run 0 explain --model gpt2 --layers 8 --precision bf16 --batch-size 1 --ranks 4 --shard parameters --bucket-mib 32 --device cpu
shows "$OUT" "one of 4 ranks, --shard parameters" "a micro batch gathers"
held() { run 0 explain --model gpt2 --layers 8 --precision bf16 --batch-size 1 --ranks "$1" --shard "$2" --bucket-mib 32 --device cpu --json && sed -nE "s/^ *\"$3\": ([0-9]+),?/\1/p" "$OUT"; }
[[ $(held 4 parameters gathers_backward) -gt 3 && $(held 4 gradients gathers_backward) -eq 0 ]] || fail "gathers: $(held 4 parameters gathers_backward)"
# All in FP32 masters and BF16 copies, but for what is between parameters: less than a bucket's unit for each bucket.
whole=$(held 4 gradients copies_bytes) part=$(held 4 parameters copies_bytes)
((part * 4 <= whole + whole / 20 && part * 4 > whole / 2)) || fail "copies: $part of $whole"
# Rows travel to experts, whose weights are then not gathered: 6 products of each of the layers with experts.
moe=(--model glm4_moe --layers 3 --d-model 64 --d-ff 64 --d-expert 64 --experts 8 --experts-per-token 2 --seq-len 16 --batch-size 1
    --ranks 2 --shard parameters --bucket-mib 0.1 --device cpu)
run 0 explain "${moe[@]}" --precision bf16 --rank-experts exchange
shows "$OUT" "a micro batch exchanges rows with the owners of their experts in 12 products"
gathered() { run 0 explain "${moe[@]}" --precision bf16 --rank-experts "$1" --json && sed -nE 's/^ *"gathered_bytes": ([0-9]+),?/\1/p' "$OUT"; }
(($(gathered exchange) + 2 * 2 * 8 * 3 * 64 * 64 * 2 <= $(gathered gather))) || fail "experts are gathered: $(gathered exchange) of $(gathered gather)"
refuse 2 "needs ranks.shard parameters" -- explain --model glm4_moe --ranks 2 --rank-experts exchange
refuse 2 "no experts are trained" -- explain --model gpt2 --ranks 2 --rank-experts exchange --shard parameters --device cpu
refuse 2 "--ranks 1" -- explain --model gpt2 --ranks 1
