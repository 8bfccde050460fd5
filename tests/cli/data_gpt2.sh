# GPT-2's tokens through the command: a text to shards of both formats, a model that is trained on them and sampled, own merges, and files
# that are wrong.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt

# --- tinyshakespeare, split at byte 1,003,854, has the counts everybody's has; without the text there is nothing to count
for shakespeare in "$MEZZO_SOURCE"/{..,../..}/shared/data/tinyshakespeare.txt; do
    [[ -f $shakespeare ]] || continue
    run 0 data "$shakespeare" --tokenizer gpt2 --out shakespeare --json
    shows "$OUT" '"train_tokens": 301966' '"val_tokens": 36059' '"vocab": 50257' '"tokenizer": "gpt2"'
done

# --- both formats hold the same tokens: llm.c's after a header of 1024 bytes
run 0 data text.txt --tokenizer gpt2 --out llmc
run 0 data text.txt --tokenizer gpt2 --format nanogpt --out nanogpt
cmp <(tail -c +1025 llmc/train.bin) nanogpt/train.bin || fail "the two formats differ"
[[ $(od -An -td4 -N8 llmc/val.bin | tr -s ' ') == " 20240520 1" ]] || fail "llm.c's header"
# "the quick brown fox 0 jumps": 1169 2068 7586 21831 657 18045
[[ $(od -An -tu2 -N12 nanogpt/train.bin | tr -s ' ') == " 1169 2068 7586 21831 657 18045" ]] || fail "GPT-2's tokens"

# --- a run on them: the tokenizer goes along
run 0 train "${TINY[@]}" --steps 2 --data llmc --out run
run 0 sample run --tokens 4 --prompt "the quick é\"漢"
run 0 train "${TINY[@]}" --steps 2 --data text.txt --tokenizer gpt2 --out direct
cmp run/tokenizer.json direct/tokenizer.json || fail "the tokenizers differ"

# --- own merges
mkdir own
printf '#version: 0.2\nt h\nth e\n' >own/merges.txt
run 0 data text.txt --tokenizer own --out mine --json
shows "$OUT" '"vocab": 259' '"tokenizer": "bpe"'
run 0 data text.txt --tokenizer own/merges.txt --out mine2
run 0 data text.txt --tokenizer mine/tokenizer.json --out mine3
cmp mine/train.bin mine2/train.bin && cmp mine/train.bin mine3/train.bin || fail "the same merges give other tokens"

# --- wrong
printf '#version: 0.2\nt h\nthe\n' >own/merges.txt
refuse 2 own/merges.txt "line 3" "'the'" -- data text.txt --tokenizer own --out none
[[ ! -e none ]] || fail "something was written"
printf '{"a": 0}' >own/vocab.json
printf '#version: 0.2\nt h\n' >own/merges.txt
refuse 2 own/vocab.json 0x00 -- data text.txt --tokenizer own --out none
mkdir empty
refuse 2 empty merges.txt -- data text.txt --tokenizer empty --out none
refuse 2 gpt3 -- data text.txt --tokenizer gpt3 --out none
