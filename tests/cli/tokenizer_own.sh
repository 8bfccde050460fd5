# The tokenizer of trained weights is the one that their folder or run holds, through every door; another one is refused by name.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
small=(--steps 1 --batch-size 2 --warmup 1 --eval-iters 1 --sample-every -1 --device cpu --threads 1 --quiet)

# A published folder with merges of its own, 259 tokens.
printf '#version: 0.2\nt h\nth e\n' >merges.txt
run 0 train "${TINY[@]}" --steps 1 --tokenizer merges.txt --data text.txt --out first --quiet
run 0 export first --out published
rm merges.txt
head -n 40 text.txt >other.txt
printf '{"prompt": "%s", "completion": "%s"}\n' 'a b' yes 'c d' no 'e f' yes >told.jsonl
owned() { # RUN: its tokenizer is the folder's
    grep -q '"kind": "bpe"' "$1/tokenizer.json" || fail "$1 has another tokenizer: $(grep kind "$1/tokenizer.json")"
}
run 0 import published --out theirs
owned theirs
for source in "--data other.txt" "--train-data other.txt" "--data told.jsonl"; do
    for init in "--init published" "--config theirs/config.yaml --init theirs"; do
        rm -rf tuned
        # shellcheck disable=SC2086 # several words each
        run 0 train $init $source "${small[@]}" --out tuned
        owned tuned
    done
done
run 0 train --config theirs/config.yaml --init theirs --data other.txt --tokenizer published "${small[@]}" --out named
owned named
run 0 data other.txt --tokenizer theirs/tokenizer.json --out shards
run 0 train --config theirs/config.yaml --init theirs --data shards "${small[@]}" --out sharded
owned sharded
run 0 eval theirs --data shards/val.bin --json
run 0 train --init published --data other.txt "${small[@]}" --steps 2 --out tuned --resume auto
owned tuned

# Others are refused, and both are named.
before=$(ls)
for named in gpt2 byte char; do
    refuse 2 "'$named'" "theirs/tokenizer.json' (bpe, 259 tokens)" "--tokenizer none" -- \
        train --config theirs/config.yaml --init theirs --data other.txt --tokenizer $named "${small[@]}" --out new
done
refuse 2 "'gpt2' (gpt2, 50257 tokens)" "published' (bpe, 259 tokens)" -- import published --out new --tokenizer gpt2
refuse 2 "named/tokenizer.json' (bpe" "'byte'" -- train --config named/config.yaml --resume auto --tokenizer byte --steps 2
run 0 data other.txt --tokenizer byte --out bytes
refuse 2 "bytes/tokenizer.json' (byte, 256 tokens)" "theirs/tokenizer.json' (bpe, 259 tokens)" -- \
    train --config theirs/config.yaml --init theirs --data bytes "${small[@]}" --out new
refuse 2 "bytes/tokenizer.json' (byte" "theirs/tokenizer.json' (bpe" -- eval theirs --data bytes/val.bin
rm -rf bytes
[[ $(ls) == "$before" ]] || fail "a refused call left files"

# Weights that came without one: a text needs a name, and the way out of a wrong one is to import without.
run 0 import published --out bare --tokenizer none
refuse 2 "other.txt" "bare'" "came without a tokenizer" "--tokenizer" -- train --config bare/config.yaml --init bare --data other.txt "${small[@]}" --out new
refuse 2 "came without a tokenizer" -- eval bare --data other.txt
run 0 train --config bare/config.yaml --init bare --data other.txt --tokenizer byte "${small[@]}" --out bytewise

# tokenizer.json stands above the two files beside it: every digit is a token here, which GPT-2's pattern does not say. The run keeps it,
# trains, evaluates and exports with it; one that is not supported is refused, unless the weights are taken alone.
cat >digits.sed <<'SED'
s/.*/{"version": "1.0", "added_tokens": [{"id": 258, "content": "<|endoftext|>", "special": true}], "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": VOCAB, "merges": [["t", "h"], ["th", "e"]]}}/
SED
vocab=$(tr -d '\n' <published/vocab.json)
json=$(echo x | sed -f digits.sed)
printf '%s\n' "${json/VOCAB/"$vocab"}" >published/tokenizer.json
run 0 import published --out split
shows "$ERR" "tokenizer" "published" "bpe, 259 tokens"
shows split/tokenizer.json '"individual_digits": true' '"crc32c"'
run 0 train --config split/config.yaml --init published --data other.txt "${small[@]}" --out split-tuned
shows split-tuned/tokenizer.json '"individual_digits": true'
run 0 eval split-tuned --data other.txt
run 0 export split-tuned --out split-exported
shows split-exported/tokenizer.json '"individual_digits": true'
run 0 import split-exported --out split-again
cmp split/tokenizer.json split-again/tokenizer.json || fail "the tokenizer changed"
refuse 2 "theirs/tokenizer.json' (bpe, 259 tokens)" "split/tokenizer.json' (bpe, 259 tokens)" -- \
    train --config split/config.yaml --init split --data other.txt --tokenizer theirs/tokenizer.json "${small[@]}" --out new
sed 's/"individual_digits": true/"individual_digits": false/' split/tokenizer.json >flipped.json
refuse 2 flipped.json checksum -- data other.txt --tokenizer flipped.json --out new
sed -i 's/"type": "BPE"/"type": "Unigram"/' published/tokenizer.json
refuse 2 "published/tokenizer.json" "'Unigram'" "only BPE" -- import published --out new
run 0 import published --out unread --tokenizer none
rm published/tokenizer.json

# A model of sentencepiece of another kind is named.
rm published/merges.txt published/vocab.json
printf '\n\016\n\005<unk>\025\0\0\0\0\030\002' >published/tokenizer.model
refuse 2 "published/tokenizer.model" sentencepiece "Unigram" -- import published --out new
refuse 2 "tokenizer.model" sentencepiece -- data other.txt --tokenizer published/tokenizer.model --out new
run 0 import published --out weights --tokenizer none
