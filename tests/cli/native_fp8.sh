# On a GPU with 8-bit units no kernel that emulates FP8 serves, whatever the shape: widths, vocabularies and tokens that are multiples of nothing,
# grouped key heads, experts, adapters, whole blocks recomputed. The CPU's emulation shows that the search finds such kernels.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
TRAIN=(--data text.txt --tokenizer byte --steps 2 --warmup 1 --eval-every 0 --eval-final=false --sample-every -1 --checkpoint-every -1 --quiet --threads 1)

served() { # DEVICE OPTION…: the kernels of a run's products, one a line
    rm -rf run
    MEZZO_VERBOSE=dispatch "$MEZZO" train "${TRAIN[@]}" --device "$@" --out run 2>&1 >"$OUT" </dev/null |
        tee "$ERR" | sed -nE 's/^mezzo: dispatch: (grouped_)?linear[a-z_]* .*\): ([a-z0-9_]+)(; refused.*)?$/\2/p'
    [[ ${PIPESTATUS[0]} -eq 0 ]] || fail "train $*"
}
last="train on the CPU"
served cpu --model gpt2 --layers 1 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --precision fp8 >kernels || exit 1
grep -q _emulated__ kernels || fail "the CPU emulates no product: $(sort -u kernels)"

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
[[ $capability == 9.0 ]] && { "$MEZZO" doctor --device cuda >"$OUT" 2>"$ERR" || [[ $? -eq 1 ]]; } || exit 77
native() { # OPTION…
    local recipe
    for recipe in fp8 fp8-block fp8-dw16; do
        last="train $* --precision $recipe"
        served cuda "$@" --precision $recipe >kernels || exit 1
        ! grep _emulated__ kernels | sort | uniq -c || fail "emulated products: $*, $recipe"
        grep -qE '_fp8__|_block__|fp8' kernels || fail "no product in FP8: $*, $recipe: $(sort -u kernels)"
    done
}
native --model gpt2 --layers 3 --heads 10 --d-model 750 --seq-len 333 --batch-size 7
native --model gpt2 --layers 3 --heads 8 --d-model 1000 --seq-len 77 --batch-size 5 '--autocast.*' fp8
native --model gpt2 --layers 3 --heads 10 --d-model 750 --seq-len 77 --batch-size 5 --recompute
native --model gpt2 --layers 3 --heads 10 --d-model 750 --seq-len 77 --batch-size 5 --lora-rank 8 --lora-modules c_attn,c_fc
native --model qwen2 --layers 3 --heads 6 --kv-heads 2 --d-model 540 --d-ff 1402 --seq-len 129 --batch-size 3
native --model glm4_moe --layers 3 --heads 5 --kv-heads 1 --d-model 200 --d-ff 600 --d-expert 200 --experts 60 --experts-per-token 4 --seq-len 128 --batch-size 8
