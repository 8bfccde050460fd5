# Weights in and out through the command: every form of source, a run that was trained here, and sources that are wrong: one line, exit
# code 2 or 3, nothing written.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
golden=$MEZZO_TESTS/golden/data

run 0 import "$golden/hf_gpt2" --out imported --json
shows "$OUT" '"parameters": 7952' '"vocab": 61'
run 0 export imported --out exported
shows "$OUT" "28 tensors"
[[ $(ls exported | xargs) == "config.json model.safetensors" ]] || fail "files of the exported folder"
run 0 import exported --out again/
cmp imported/checkpoints/step-00000000/model.safetensors again/checkpoints/step-00000000/model.safetensors ||
    fail "what was exported is not what was imported"
run 0 import "$golden/hf_gpt2_v5.bin" --out llmc --json
text 200 >text.txt

# --- the other architectures; in several files too
for model in glm4_moe llama; do
    run 0 import "$golden/hf_$model" --out "$model" --json
    shows "$OUT" '"vocab": 61'
    run 0 export "$model" --out "$model-exported"
    run 0 export "$model" --out "$model-sharded" --max-shard-size 0.00002 --json
    shows "$OUT" '"files": '
    grep -q '"files": 1[,}]' "$OUT" && fail "one file"
    [[ -s $model-sharded/model.safetensors.index.json && ! -e $model-sharded/model.safetensors ]] || fail "files of the shards"
    for folder in "$model-exported" "$model-sharded"; do
        run 0 import "$folder" --out "$folder-again"
        cmp "$model/checkpoints/step-00000000/model.safetensors" "$folder-again/checkpoints/step-00000000/model.safetensors" ||
            fail "what was exported is not what was imported"
    done
done

# --- cs336 is exported as a Llama, whose rotary pairs are halves of a head: the same loss to six digits
text 200 >pairs.txt
run 0 train "${TINY[@]}" --model cs336 --steps 3 --lr 0.01 --data pairs.txt --tokenizer byte --out pairs
run 0 export pairs --out pairs-hf
run 0 import pairs-hf --out pairs-llama --tokenizer byte
grep -q "name: llama" pairs-llama/config.yaml || fail "no Llama"
run 0 eval pairs --data pairs.txt --json --device cpu --precision fp32
before=$(grep '"loss"' "$OUT")
run 0 eval pairs-llama --data pairs.txt --json --device cpu --precision fp32
[[ ${before:0:16} == "$(grep '"loss"' "$OUT" | head -c 16)" ]] || fail "the loss changed: $before"

# --- heads that turn whole: transformers' GLM-4 turns half of one where config.json does not say
text 200 >whole.txt
run 0 train "${TINY[@]}" --model glm4_moe --steps 1 --data whole.txt --rotary 1 --experts 3 --experts-per-token 2 --out whole
run 0 export whole --out whole-exported
shows whole-exported/config.json '"partial_rotary_factor": 1.0'
run 0 import whole-exported --out whole-again --tokenizer none
grep -q "rotary: 1.0$" whole-again/config.yaml || fail "a whole head is half a head: $(grep rotary whole-again/config.yaml)"
grep -q partial_rotary_factor llama-exported/config.json && fail "Llama's heads have no part that turns"

# --- a run of ours, with GPT-2's tokenizer: its files go along, and come back as the library's own
run 0 train "${TINY[@]}" --steps 2 --data text.txt --tokenizer gpt2 --bias false --out ours
run 0 export ours --best --dtype bf16 --out ours-hf
[[ $(ls ours-hf | xargs) == "config.json merges.txt model.safetensors tokenizer.json vocab.json" ]] || fail "files of the exported run"
cmp ours-hf/merges.txt "$MEZZO_SOURCE/data/tokenizers/gpt2/merges.txt" || fail "the merges changed"
run 0 import ours-hf --out ours-again
cmp ours/tokenizer.json ours-again/tokenizer.json || fail "the tokenizer changed"
# transformers' class for GPT-2 would take the spaces out of a text of characters, so the folder names the general class.
run 0 train "${TINY[@]}" --steps 1 --data text.txt --tokenizer char --out letters
run 0 export letters --out letters-hf
shows letters-hf/tokenizer_config.json '"tokenizer_class": "PreTrainedTokenizerFast"'
run 0 import letters-hf --out letters-again
cmp letters/tokenizer.json letters-again/tokenizer.json || fail "the tokenizer of characters changed"
run 0 eval ours --data text.txt --json --device cpu --precision fp32
before=$(grep '"loss"' "$OUT")
run 0 export ours --out ours-32
run 0 import ours-32 --out ours-32-again
run 0 eval ours-32-again --data text.txt --json --device cpu --precision fp32
# Biases that are zero add nothing, but nothing fuses differently for it: the same loss to six digits.
[[ ${before:0:16} == "$(grep '"loss"' "$OUT" | head -c 16)" ]] || fail "the loss changed: $before"
run 0 sample ours-32-again --tokens 4 --temperature 0
if [[ -n ${MEZZO_PYTHON:-} ]] && "$MEZZO_PYTHON" -c 'import torch, transformers' 2>/dev/null; then
    "$MEZZO_PYTHON" "$MEZZO_TESTS/golden/make/hf_gpt2.py" --check exported >"$OUT" 2>"$ERR" || fail "transformers' logits"
    for folder in {glm4_moe,llama}-{exported,sharded}; do
        "$MEZZO_PYTHON" "$MEZZO_TESTS/golden/make/hf_rotary.py" --check "${folder%-*}" "$folder" >"$OUT" 2>"$ERR" ||
            fail "transformers' logits of $folder"
    done
fi

# --- what others have and we do not use goes through a round trip; a fine-tuned run has it too
cp -r "$golden/hf_gpt2" with_ids
sed -i 's/"eos_token_id": 0/"eos_token_id": 7/; s/"pad_token_id": null/"pad_token_id": 9/' with_ids/config.json
echo '{"temperature": 0.7, "eos_token_id": [7, 8]}' >with_ids/generation_config.json
run 0 import with_ids --out ids
shows "$OUT" "eval ids --data SHARDS"
shows "$ERR" "there is no tokenizer next to the weights" "import --tokenizer"
grep -q sample "$OUT" && fail "sampling is offered to a run without a tokenizer"
refuse 2 "no tokenizer" "tokenizer.json" "import" -- sample ids --prompt a --device cpu
run 0 export ids --out ids-exported
shows ids-exported/config.json '"bos_token_id": 0' '"eos_token_id": 7' '"pad_token_id": 9'
shows ids-exported/generation_config.json '"temperature": 0.7' 8
# --- masks of booleans, nanoGPT's layout (which is our checkpoints'), models without biases
header() { # FILE SED-SCRIPT: the JSON header of a safetensors file, changed
    local n m
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$n" | LC_ALL=C sed "$2" >header.json
    m=$(wc -c <header.json)
    { printf "$(printf '\\x%02x' $((m & 255)) $((m >> 8 & 255)) $((m >> 16)) 0 0 0 0 0)"; cat header.json; tail -c +$((9 + n)) "$1"; } >changed
    mv changed "$1"
    rm header.json
}
cp -r "$golden/hf_gpt2_old" masks
header masks/model.safetensors 's/"U8"/"BOOL"/g'
run 0 import masks --out masks-run
cmp imported/checkpoints/step-00000000/model.safetensors masks-run/checkpoints/step-00000000/model.safetensors || fail "the masks changed weights"
mkdir nano
cp llmc/checkpoints/step-00000000/model.safetensors nano/
echo '{"model_type": "nanogpt", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 24, "bias": true, "vocab_size": 61, "dropout": 0.0}' >nano/config.json
run 0 import nano --out nano-run
cmp {llmc,nano-run}/checkpoints/step-00000000/model.safetensors || fail "nanoGPT's weights changed"
run 0 train "${TINY[@]}" --steps 1 --data text.txt --tokenizer char --vocab 61 --bias false --out bare
mkdir nano-bare
cp bare/checkpoints/step-00000001/model.safetensors nano-bare/
sed 's/"n_layer": 2/"n_layer": 1/; s/"block_size": 24/"block_size": 16/' nano/config.json >nano-bare/config.json
run 0 import nano-bare --out nano-bare-run
cmp {bare/checkpoints/step-00000001,nano-bare-run/checkpoints/step-00000000}/model.safetensors || fail "a model without biases changed"

# --- training on from imported weights: a run that may not change them has them, bit for bit
tr -c 'a-z ' ' ' <text.txt >letters.txt
run 0 train --config imported/config.yaml --init imported --data letters.txt --tokenizer char --vocab 61 --steps 1 --batch-size 2 --lr 0 --min-lr 0 \
    --eval-every 0 --sample-every -1 --device cpu --out tuned
run 0 export tuned --out tuned-exported
cmp tuned-exported/model.safetensors exported/model.safetensors || fail "the weights to begin with"
refuse 2 imported layers -- train --config imported/config.yaml --init imported --layers 3 --data letters.txt --tokenizer char --out other
refuse 2 absent -- train --config imported/config.yaml --init absent --data letters.txt --tokenizer char --out other
rm -rf other

run 0 train --config ids/config.yaml --init ids --data letters.txt --tokenizer char --vocab 61 --steps 1 --batch-size 2 --eval-every 0 \
    --sample-every -1 --device cpu --out ids-tuned
run 0 export ids-tuned --out ids-tuned-exported
shows ids-tuned-exported/config.json '"eos_token_id": 7'
shows ids-tuned-exported/generation_config.json '"temperature": 0.7'

# --- wrong
last_element() { # FOLDER BYTES: the file's last FP32 value
    printf "$2" | dd of="$1/model.safetensors" bs=1 seek=$(($(wc -c <"$1/model.safetensors") - 4)) conv=notrunc status=none
}
cp -r "$golden/hf_gpt2" large
last_element large '\x00\xb8\x88\x47' # 70000
run 0 import large --out large-run
run 0 export large-run --out large-bf16 --dtype bf16
before=$(ls)
refuse 3 70000 "too large for fp16" "bf16 or fp32" -- export large-run --out new --dtype fp16
cp -r "$golden/hf_gpt2" "$SCRATCH/nan"
last_element "$SCRATCH/nan" '\x00\x00\xc0\x7f'
refuse 3 nan "must be finite" -- import "$SCRATCH/nan" --out new
last_element "$SCRATCH/nan" '\x00\x00\x80\xff'
refuse 3 "-inf" "must be finite" -- import "$SCRATCH/nan" --out new
printf 'PK\003\004archive/data.pkl' >"$SCRATCH/ckpt.pt"
refuse 2 ckpt.pt pickle torch.save save_file -- import "$SCRATCH/ckpt.pt" --out new
printf '\200\002ctorch' >"$SCRATCH/old.bin"
refuse 2 old.bin pickle -- import "$SCRATCH/old.bin" --out new
wrong() { # name sed-script file: a copy of $SOURCE, or of hf_gpt2, with one file changed
    rm -rf "$SCRATCH/$1"
    cp -r "$golden/${SOURCE:-hf_gpt2}" "$SCRATCH/$1"
    LC_ALL=C sed -i "$2" "$SCRATCH/$1/$3"
}
wrong type 's/"model_type": "gpt2"/"model_type": "mamba"/' config.json
refuse 2 config.json model_type mamba gpt2 -- import "$SCRATCH/type" --out new
wrong act 's/gelu_new/relu/' config.json
refuse 2 config.json activation_function relu -- import "$SCRATCH/act" --out new
wrong untied 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' config.json
refuse 2 config.json tie_word_embeddings -- import "$SCRATCH/untied" --out new
wrong key 's/"n_layer"/"n_laier"/' config.json
refuse 2 config.json n_layer -- import "$SCRATCH/key" --out new
wrong heads 's/"n_head": 2/"n_head": 3/' config.json
refuse 2 config.json heads 3 -- import "$SCRATCH/heads" --out new
wrong shape 's/"vocab_size": 61/"vocab_size": 62/' config.json
refuse 2 wte.weight 61x16 62x16 -- import "$SCRATCH/shape" --out new
wrong name 's/h\.0\.ln_1\.bias/h.0.ln_9.bias/' model.safetensors
refuse 2 transformer.h.0.ln_1.bias nearest -- import "$SCRATCH/name" --out new
wrong extra 's/"n_layer": 2/"n_layer": 1/' config.json
refuse 2 transformer.h.1. "is not part of" -- import "$SCRATCH/extra" --out new
SOURCE=hf_gpt2
printf '#version: 0.2\nh e\nbroken\n' >"$SCRATCH/merges.txt"
wrong merges '' config.json
cp "$SCRATCH/merges.txt" "$SCRATCH/merges"
refuse 2 merges.txt "line 3" -- import "$SCRATCH/merges" --out new
SOURCE=hf_glm4_moe
wrong arch 's/"model_type": "glm4_moe"/"model_type": "glm5_moe"/' config.json
mkdir "$SCRATCH/unet"
echo '{"_class_name": "UNet2DConditionModel", "sample_size": 16}' >"$SCRATCH/unet/config.json"
refuse 2 config.json UNet2DConditionModel "a different model from radio_unet" docs/models.md -- import "$SCRATCH/unet" --out new
refuse 2 config.json model_type glm5_moe "import supports llama, mistral" "gpt2, nanogpt or" -- import "$SCRATCH/arch" --out new
wrong experts 's/"n_routed_experts": 4/"n_routed_experts": 6/' config.json
refuse 2 gate.weight 4x16 6x16 -- import "$SCRATCH/experts" --out new
wrong fewer 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' config.json
refuse 2 model.layers.2. "is not part of" -- import "$SCRATCH/fewer" --out new
wrong expert 's/layers\.2\.mlp\.experts\.3\.up_proj/layers.2.mlp.experts.7.up_proj/' model.safetensors
refuse 2 model.layers.2.mlp.experts.3.up_proj.weight nearest -- import "$SCRATCH/expert" --out new
wrong rope 's/"rope_type": "default"/"rope_type": "yarn"/' config.json
refuse 2 config.json rope_type yarn -- import "$SCRATCH/rope" --out new
wrong tied 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' config.json
refuse 2 config.json tie_word_embeddings -- import "$SCRATCH/tied" --out new
wrong huge 's/"n_routed_experts": 4/"n_routed_experts": 400000/' config.json
refuse 2 config.json experts 400000 -- import "$SCRATCH/huge" --out new
SOURCE=hf_llama
wrong grouped 's/"num_key_value_heads": 2/"num_key_value_heads": 1/' config.json
refuse 2 self_attn.k_proj.weight 16x16 8x16 -- import "$SCRATCH/grouped" --out new
SOURCE=hf_glm4_moe_sharded
rm -rf "$SCRATCH/shard" && cp -r "$golden/$SOURCE" "$SCRATCH/shard" && rm "$SCRATCH/shard/model-00003-of-00004.safetensors"
refuse 2 model-00003-of-00004.safetensors -- import "$SCRATCH/shard" --out new
wrong form 's/"moe_intermediate_size": 12/"moe_intermediate_size": 14/' config.json
refuse 2 experts. 4x24x16 4x28x16 -- import "$SCRATCH/form" --out new
SOURCE=hf_gpt2_sharded
wrong map 's/model-00002-of-00003/model-00009-of-00003/' model.safetensors.index.json
refuse 2 model-00009-of-00003.safetensors -- import "$SCRATCH/map" --out new
wrong lost 's/model-00002-of-00003/model-00001-of-00003/' model.safetensors.index.json
refuse 2 model-00001-of-00003.safetensors "the index says" -- import "$SCRATCH/lost" --out new
head -c 300 "$golden/hf_gpt2/model.safetensors" >cut.safetensors
refuse 2 config.json -- import cut.safetensors --out new # no config.json beside it
rm cut.safetensors
head -c 30000 "$golden/hf_gpt2_v3.bin" >"$SCRATCH/cut.bin"
refuse 2 cut.bin "cut off" -- import "$SCRATCH/cut.bin" --out new
{ head -c 4 "$golden/hf_gpt2_v3.bin"; printf '\004'; tail -c +6 "$golden/hf_gpt2_v3.bin"; } >"$SCRATCH/version.bin"
refuse 2 version.bin "version 4" -- import "$SCRATCH/version.bin" --out new
mkdir "$SCRATCH/nothing"
cp "$golden/hf_gpt2/config.json" "$SCRATCH/nothing"
refuse 2 nothing model.safetensors -- import "$SCRATCH/nothing" --out new
refuse 2 absent -- import absent --out new
refuse 2 imported "not empty" -- import "$golden/hf_gpt2" --out imported
refuse 2 --out -- import "$golden/hf_gpt2"
refuse 2 "50257" "61" -- import "$golden/hf_gpt2" --tokenizer gpt2 --out new
refuse 2 --max-shard-size -1 -- export imported --out new --max-shard-size -1
refuse 2 --dtype int8 -- export imported --out new --dtype int8
refuse 2 exported "not empty" -- export imported --out exported
refuse 2 absent -- export absent --out new
[[ $(ls) == "$before" ]] || fail "something was written: $(ls)"
