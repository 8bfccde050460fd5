# GGUF files through the command: every format out and in again, what llama.cpp has no form for, files that are wrong; and beside the
# gguf package, where the tests' Python has it: tensors, keys, tokenizer, quantized bytes, and a file that it wrote.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
golden=$MEZZO_TESTS/golden/data
weights=checkpoints/step-00000000/model.safetensors
SIZES=(--layers 2 --heads 2 --d-model 32 --d-ff 64 --seq-len 16 --batch-size 2)

text 300 >text.txt
run 0 data text.txt --train-tokenizer 300 --pattern llama3 --special "<|endoftext|>" --out tokenizer.json

# --- every family: what comes back has the same bits, and the run the same loss and text
for model in llama mistral qwen2 qwen3 smollm3 phi3 olmo2 gpt_neox gpt2 glm4_moe mixtral qwen3_moe gemma gemma2 gemma3; do
    more=(--kv-heads 1)
    case $model in
    mistral | qwen2 | qwen3 | phi3 | smollm3) more=(--model.window 0 --kv-heads 1) ;;
    glm4_moe) more=(--experts 3 --experts-per-token 2 --d-expert 32 --kv-heads 1 --dense-layers 1) ;;
    mixtral | qwen3_moe) more=(--model.window 0 --experts 3 --experts-per-token 2 --d-expert 32 --kv-heads 1) ;;&
    qwen3_moe) more=("${more[@]:2}" --head-dim 16) ;;
    gemma*) more=(--kv-heads 1 --head-dim 16) ;;&
    gemma2 | gemma3) more+=(--model.query_scalar 16 --model.window 8) ;;
    gpt2) more=(--bias false) ;;
    gpt_neox) more=() ;;
    esac
    run 0 train "${SIZES[@]}" "${more[@]}" --model $model --steps 2 --data text.txt --tokenizer tokenizer.json --precision fp32 \
        --device cpu --out $model
    run 0 export $model --gguf f32 --out $model.gguf
    run 0 import $model.gguf --out $model-again
    run 0 export $model-again --gguf f32 --out $model-2.gguf
    run 0 import $model-2.gguf --out $model-2
    cmp $model-again/$weights $model-2/$weights || fail "$model: what was exported is not what was imported"
    # Zero biases are there after it, and a norm's weight + 1 is rounded once.
    [[ $model == gpt2 || $model == gemma* ]] || cmp $model-again/$weights $model/checkpoints/step-00000002/model.safetensors || fail "$model: other weights"
    run 0 eval $model --data text.txt --json --device cpu --precision fp32 --batch-size 2
    before=$(grep '"loss"' "$OUT")
    run 0 eval $model-again --data text.txt --json --device cpu --precision fp32 --batch-size 2
    after=$(grep '"loss"' "$OUT")
    [[ $model != gemma* ]] || before=${before:0:16} after=${after:0:16}
    [[ $before == "$after" ]] || fail "$model: the loss changed: $before"
done

# --- formats: bf16 keeps what bf16 keeps; q8_0 is smaller, and eval says what each costs
run 0 export llama --dtype bf16 --out llama-bf16
run 0 import llama-bf16 --out bf16-folder
for form in f16 bf16 q8_0; do
    run 0 export llama --gguf $form --out $form.gguf --json
    shows "$OUT" '"files": 1' "$form.gguf"
    run 0 import $form.gguf --out $form
    run 0 eval llama --as $form --data text.txt --json --device cpu --precision fp32 --batch-size 2
    grep '"loss_as"' "$OUT" | tr -dc '0-9.\n' >as
    run 0 eval $form --data text.txt --json --device cpu --precision fp32 --batch-size 2
    grep '"loss"' "$OUT" | tr -dc '0-9.\n' >after
    cmp as after || fail "--as $form says $(<as), the exported file has $(<after)"
done
for form in bf16 q8_0; do # a second time through the format changes nothing
    run 0 export $form --gguf $form --out again-$form.gguf
    run 0 import again-$form.gguf --out again-$form
done
cmp bf16/$weights again-bf16/$weights || fail "bf16 changed on its way"
[[ $(stat -c %s q8_0.gguf) -lt $(stat -c %s f16.gguf) ]] || fail "q8_0 is not smaller"
run 0 eval llama --as q8_0 --data text.txt --device cpu
shows "$OUT" "as q8_0, "

# --- tokenizers of characters and of bytes, a chat template, none
run 0 train "${SIZES[@]}" --model llama --kv-heads 1 --steps 1 --data text.txt --tokenizer char --out chars
run 0 export chars --gguf f32 --out chars.gguf
shows "$ERR" "no token that ends a text"
run 0 import chars.gguf --out chars-again
run 0 eval chars --data text.txt --json --device cpu --precision fp32 --batch-size 2
before=$(grep '"loss"' "$OUT")
run 0 eval chars-again --data text.txt --json --device cpu --precision fp32 --batch-size 2
[[ $before == "$(grep '"loss"' "$OUT")" ]] || fail "characters became other tokens"
run 0 train "${SIZES[@]}" --model llama --kv-heads 1 --steps 1 --data text.txt --tokenizer byte --out bytes
run 0 export bytes --gguf f32 --out bytes.gguf
run 0 import bytes.gguf --out bytes-again
run 0 import "$golden/hf_llama" --out bare --tokenizer none
run 0 export bare --gguf f32 --out bare.gguf
shows "$ERR" "no tokenizer"
run 0 import bare.gguf --out bare-again
cmp bare/$weights bare-again/$weights || fail "weights without a tokenizer changed"

# --- scaled positions and a tied head
for kind in linear llama3 yarn; do
    run 0 train "${SIZES[@]}" --model llama --kv-heads 1 --model.rope_scaling $kind --model.rope_factor 4 --model.rope_original 8 \
        --model.rope_low 1 --model.rope_high 3 --model.tie_head yes --steps 1 --data text.txt --tokenizer byte --out $kind
    run 0 export $kind --gguf f32 --out $kind.gguf
    run 0 import $kind.gguf --out $kind-again
    keys="rope_|tie_head"
    [[ $kind != linear ]] || keys="rope_(theta|scaling|factor)|tie_head" # the others count for nothing there
    grep -E "$keys" $kind/config.yaml >before.yaml
    grep -E "$keys" $kind-again/config.yaml | cmp before.yaml - || fail "$kind: other keys: $(grep -E "$keys" $kind-again/config.yaml)"
    cmp $kind/checkpoints/step-00000001/model.safetensors $kind-again/$weights || fail "$kind: other weights"
done

run 0 train "${SIZES[@]}" --model phi3 --kv-heads 1 --rotary 0.5 --model.rope_scaling longrope --model.rope_factor 4 --model.rope_original 8 --model.window 0 \
    --model.rope_short 1,1.1,1.25,1.5 --model.rope_long 1,2,3,4 --steps 1 --data text.txt --tokenizer byte --out long
run 0 export long --gguf f32 --out long.gguf
run 0 import long.gguf --out long-again
cmp long/checkpoints/step-00000001/model.safetensors long-again/$weights || fail "longrope: other weights"
for run in long long-again; do
    run 0 eval $run --data text.txt --json --device cpu --precision fp32 --batch-size 2 # rows are longer than 8 tokens
    grep '"loss"' "$OUT" >$run.loss
done
cmp long.loss long-again.loss || fail "longrope: $(cat long.loss long-again.loss)"
grep -A8 rope_scaling long-again/config.yaml >"$OUT"
shows "$OUT" "rope_original: 8" "rope_short: [1,1.1,1.25,1.5]" "rope_long: [1,2,3,4]" "rope_attention: 1.29099"
run 0 train "${SIZES[@]}" --model llama --kv-heads 1 --model.rope_scaling longrope --model.rope_factor 4 --model.rope_original 8 \
    --model.rope_short 1,1,1,1,1,1,1,2 --model.rope_long 1,2,3,4,5,6,7,8 --steps 1 --data text.txt --tokenizer byte --out llama-long
refuse 3 longrope -- export llama-long --gguf f32 --out no.gguf

# --- what goes on training, and what is refused: one line, and nothing is written
run 0 train --init llama.gguf --data text.txt --steps 1 --batch-size 2 --out on
refuse 2 "there already" -- export llama --gguf f32 --out llama.gguf
refuse 2 "q4_0" -- export llama --gguf q4_0 --out no.gguf
refuse 2 "--dtype" -- export llama --gguf f32 --dtype bf16 --out no.gguf
refuse 2 "adapters alone" -- export llama --gguf f32 --adapter --out no.gguf
refuse 2 "q5" -- eval llama --as q5 --data text.txt
run 0 train "${SIZES[@]}" --model mistral --kv-heads 1 --model.window 8 --steps 1 --data text.txt --tokenizer byte --out windows
refuse 3 "sliding window" -- export windows --gguf f32 --out no.gguf
run 0 train "${SIZES[@]}" --model qwen3 --kv-heads 1 --model.window 0 --attention-bias true --steps 1 --data text.txt --tokenizer byte --out biases
refuse 3 "model.attention_bias" -- export biases --gguf f32 --out no.gguf
[[ ! -e no.gguf ]] || fail "a file was left"
head -c 3000 llama.gguf >cut.gguf
refuse 2 "cut" -- import cut.gguf --out no-run
printf 'GGUF' >short.gguf
refuse 2 "cut off" -- import short.gguf --out no-run
[[ ! -e no-run ]] || fail "a folder was left"

# --- files of others: pieces of sentencepiece come back as they were, and what is wrong is named
run 0 import "$MEZZO_TESTS/fuzz/corpus/gguf/q8_0" --out pieces
grep -A9 '"merges"' pieces/tokenizer.json | tr -d ' \n' | grep -qF '"merges":[["a","b"],["▁","a"]]' || fail "pieces are not joined by their scores"
run 0 export pieces --gguf f32 --out pieces.gguf
run 0 import pieces.gguf --out pieces-again
cmp pieces/$weights pieces-again/$weights || fail "the values of q8_0 changed on their way"
sed 's/"crc32c".*//' pieces/tokenizer.json >pieces.json
sed 's/"crc32c".*//' pieces-again/tokenizer.json | cmp pieces.json - || fail "the pieces changed"
while read -r name word; do
    refuse 2 "$word" -- import "$MEZZO_TESTS/fuzz/corpus/gguf/$name" --out no-run
done <<'WRONG'
align not a power of two
arch 'mamba'; import supports llama,
counts the file is cut off or damaged
cut it is cut off
empty key 'general.architecture' is missing
huge more elements than memory can have
long bytes after the last tensor belong to none
merge merge 0 of tokenizer.ggml.merges is not two tokens
overlap its data overlap another tensor's
rows rows that blocks of Q8_0 do not divide
shape has shape 16x32; its keys' sizes need 32x32
swapped of the other byte order
twice tensor 'a': it is there twice
type is Q4_K; only F32, F16, BF16 and Q8_0 are read
unknown the key 'llama.attention.clamp_kqv'
version GGUF of version 1;
WRONG
[[ ! -e no-run ]] || fail "a folder was left"

[[ -n ${MEZZO_PYTHON:-} ]] && "$MEZZO_PYTHON" -c 'import gguf' 2>/dev/null || exit 0
run 0 export llama --out folder
"$MEZZO_PYTHON" "$MEZZO_TESTS/cli/check_gguf.py" folder llama.gguf f16.gguf bf16.gguf q8_0.gguf written.gguf >"$OUT" 2>"$ERR" ||
    fail "the gguf package reads something else"
run 0 import written.gguf --out written
run 0 eval written --data text.txt --json --device cpu --precision fp32 --batch-size 2
