# train --init: the model is that of the weights, one override is one override, and what the weights cannot have is named.
# Shards that nanoGPT made: their vocabulary is meta.pkl's.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
golden=$MEZZO_TESTS/golden/data
text 60 >text.txt
small=(--data text.txt --tokenizer char --steps 1 --batch-size 2 --warmup 1 --eval-iters 1 --eval-every 0 --sample-every -1 --lr 0 --min-lr 0
    --precision fp32 --device cpu --threads 1 --quiet)
for theirs in hf_gpt2 hf_llama hf_glm4_moe; do
    run 0 train --init "$golden/$theirs" --seq-len 16 "${small[@]}" --out "$theirs-16"
    shows "$theirs-16/config.yaml" "seq_len: 16" "d_model: 16" "vocab: 61"
    run 0 train --init "$golden/$theirs" "${small[@]}" --out "$theirs"
    shows "$theirs/config.yaml" "seq_len: 24"
done
cp -r "$golden/hf_gpt2" dropping
sed -i 's/_pdrop": 0.0/_pdrop": 0.1/' dropping/config.json
run 0 train --init dropping "${small[@]}" --out dropped
shows dropped/config.yaml "dropout: 0.1" "layers: 2"
run 0 train --init dropping --dropout 0 "${small[@]}" --out undropped
shows undropped/config.yaml "dropout: 0.0" "layers: 2"
sed -i 's/attn_pdrop": 0.1/attn_pdrop": 0.2/' dropping/config.json
before=$(ls)
refuse 2 dropping/config.json attn_pdrop 0.2 -- train --init dropping "${small[@]}" --out new
printf 'model:\n  seq_len: 8\n' >eight.yaml
run 0 train --config eight.yaml --init "$golden/hf_gpt2" "${small[@]}" --out eight
shows eight/config.yaml "seq_len: 8" "layers: 2"
# Another run's weights, and a longer context where nothing depends on its length.
run 0 train --init hf_llama --seq-len 32 "${small[@]}" --out longer
shows longer/config.yaml "seq_len: 32" "layers: 2"
# A shorter context is that of training: what is exported has the weights' own. A context that is published may be too long to train on.
run 0 export hf_llama-16 --out short
shows short/config.json '"max_position_embeddings": 24'
run 0 export hf_llama-16 --gguf f32 --out short.gguf
run 0 import short.gguf --out from-gguf
shows from-gguf/config.yaml "seq_len: 24" "positions: 24"
sed -i 's/"max_position_embeddings": 24/"max_position_embeddings": 131072/' short/config.json
run 0 import short --out whole
shows "$OUT" "context 4096 of 131072"
run 0 import short --seq-len 20000 --out less --tokenizer none
shows less/config.yaml "seq_len: 20000" "positions: 131072"
# A window as long as the published context holds in a longer one, and comes out again; within the published context it shows nothing.
cp -r "$golden/hf_llama" windowed
sed -i 's/"llama"/"mistral"/; s/LlamaFor/MistralFor/; s/"mlp_bias": false/"sliding_window": 24/; /attention_bias/d; /pretraining_tp/d' windowed/config.json
for length in 24 32; do
    run 0 train --init windowed --seq-len $length "${small[@]}" --out windowed-$length
    shows windowed-$length/config.yaml "window: 24" "seq_len: $length"
    run 0 eval windowed-$length --json
    grep '"loss"' "$OUT" >windowed.loss
    run 0 train --init hf_llama --seq-len $length "${small[@]}" --out open-$length
    run 0 eval open-$length --json
    grep '"loss"' "$OUT" | cmp -s windowed.loss - && like=24 || like=32
    [[ $like == "$length" ]] || fail "$length positions: $(cat windowed.loss), without the window $(grep '"loss"' "$OUT")"
done
run 0 export windowed-24 --out windowed-out
shows windowed-out/config.json '"sliding_window": 24'
# The first rows of the position table, exported and imported again.
printf '\x05\x00\x06\x00%.0s' {1..9} | head -c 34 >seventeen.bin # 17 tokens
run 0 eval hf_gpt2-16 --data seventeen.bin --json
short=$(grep '"loss"' "$OUT")
run 0 export hf_gpt2-16 --out exported
shows exported/config.json '"n_positions": 16'
run 0 import exported --out again --tokenizer none
run 0 eval again --data seventeen.bin --json
[[ $(grep '"loss"' "$OUT") == "$short" ]] || fail "the cut table changed on its way"
before=$(ls)
refuse 2 hf_gpt2/config.json "24 positions" "model.seq_len, 32" -- train --init "$golden/hf_gpt2" --seq-len 32 "${small[@]}" --out new
refuse 2 "model.seq_len is 24" -- train --init hf_gpt2 --seq-len 16 "${small[@]}" --out new
rm -rf new
refuse 2 "model.layers is 2, this run's is 3" -- train --init "$golden/hf_llama" --layers 3 "${small[@]}" --out new
rm -rf new
refuse 2 "model.rope_theta" -- train --init "$golden/hf_llama" --rope-theta 5 "${small[@]}" --out new
rm -rf new

# What a command that failed has imported serves the same source only.
cp -r "$golden/hf_llama" source
refuse 2 "model.layers is 2, this run's is 3" -- train --init source --layers 3 "${small[@]}" --out twice
refuse 2 twice/init hf_gpt2 -- train --init "$golden/hf_gpt2" "${small[@]}" --out twice
refuse 2 twice/init source -- train --init source --seq-len 16 "${small[@]}" --out twice
cp -r twice changed
touch -d '2001-02-03' source/model.safetensors
refuse 2 changed/init source -- train --init source "${small[@]}" --out changed
rm -r source && cp -rp "$golden/hf_llama" source
refuse 2 "model.layers is 2, this run's is 3" -- train --init source --layers 3 "${small[@]}" --out again-twice
run 0 train --init source "${small[@]}" --out again-twice
if [[ -e $(dirname "$MEZZO")/mezzo_pmix.so && -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then # the ranks of a job import once
    run 0 launch -n 3 -- train --init source "${small[@]}" --out of-three
fi
rm -rf twice changed again-twice

# What no loss depends on goes along: an AutoencoderKL's scale of latents.
cp -r "$golden/hf_vae" scaled
sed -i 's/"scaling_factor": 0.18215/"scaling_factor": 0.13025/' scaled/config.json
run 0 import scaled --out scaled-run
run 0 export scaled-run --out scaled-again
shows scaled-again/config.json '"scaling_factor": 0.13025' '"force_upcast": true'
# TOML is named.
printf '[training]\nsteps = 2\n' >run.toml
refuse 2 "run.toml:1" TOML YAML -- train --config run.toml --data text.txt --out new
refuse 2 "run.toml:1" TOML -- doctor --config run.toml

# nanoGPT's character shards: 65 tokens, uint16, and meta.pkl beside them.
mkdir shakespeare
for ((i = 0; i < 400; i++)); do printf "\\x$(printf %02x $((i * 7 % 65)))\\x00"; done >shakespeare/train.bin
cp shakespeare/train.bin shakespeare/val.bin
printf '\x80\x04}\x94(\x8c\nvocab_size\x94KA\x8c\x04itos\x94}\x94s.' >shakespeare/meta.pkl
tiny=(--steps 1 --batch-size 2 --warmup 1 --eval-iters 1 --eval-every 0 --sample-every -1 --precision fp32 --device cpu --threads 1 --quiet)
run 0 train --layers 1 --heads 2 --d-model 16 --seq-len 16 --data shakespeare "${tiny[@]}" --out letters
shows letters/config.yaml "vocab: 65"
run 0 train --layers 1 --heads 2 --d-model 16 --seq-len 16 --train-data shakespeare/train.bin --val-data shakespeare/val.bin --vocab 80 "${tiny[@]}" --out padded
shows padded/config.yaml "vocab: 80"
refuse 2 shakespeare/meta.pkl "vocabulary of 65" "gpt2 tokenizer has 50257" -- \
    train --layers 1 --heads 2 --d-model 16 --seq-len 16 --data shakespeare --tokenizer gpt2 "${tiny[@]}" --out new
for ((i = 0; i < 400; i++)); do printf "\\x$(printf %02x $((i * 7 % 65)))\\x00\\x00\\x00"; done >wide.bin
refuse 2 wide.bin "have 32 bits" -- train --layers 1 --heads 2 --d-model 16 --seq-len 16 --data wide.bin --vocab 65 "${tiny[@]}" --out new
