# Files of records as people have them: what was read of each, counted by hand; what is refused, with its line; weights, folders and gzip.
#
# Bytes are tokens, and without a template ChatML writes conversations:
#   <|im_start|>user\nU<|im_end|>\n             28 + |U| tokens
#   <|im_start|>system\nS<|im_end|>\n           30 + |S|
#   <|im_start|>assistant\nA<|im_end|>\n        33 + |A|, of which A<|im_end|>\n, |A| + 11, are targets
# Seen to fail with: the input of alpaca left out; weight 0 not read; a list's last record left out; the second member of a gzip file left out.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
MODEL=(--tokenizer byte --layers 1 --heads 1 --d-model 4 --seq-len 512 --batch-size 1 --steps 1 --split 1 --warmup 0 --precision fp32 --sample-every -1
    --checkpoint-every -1 --device cpu --threads 1)
count=0
# reads SOURCE "R records of F files, T tokens, P %" [OPTION …]
reads() {
    local source=$1 what=$2
    shift 2
    count=$((count + 1))
    run 0 train --data "$source" "${MODEL[@]}" "$@" --out "run$count"
    shows "$ERR" "'$source': $what"
}

# Stanford's alpaca: one indented list. 28+5+33+3 and, with "\n" before the input, 28+4+1+2+33+4: 141, targets 14+15.
cat >alpaca.json <<'END'
[
    {
        "instruction": "Greet",
        "input": "",
        "output": "Hi!"
    },
    {
        "instruction": "Echo",
        "input": "ab",
        "output": "a, b"
    }
]
END
reads alpaca.json "2 records of 1 file, 141 tokens, 20.6 % of them targets"
# The same with the text of alpaca's own prompt beside it, as tatsu-lab has it: 28+2+33+2, targets 13.
echo '{"instruction": "Go", "input": "", "output": "Ok", "text": "Below is an instruction ... ### Response:\nOk"}' >alpaca_text.jsonl
reads alpaca_text.jsonl "1 record of 1 file, 65 tokens, 20.0 % of them targets"
# With a system prompt and what was said before: 30+2+(28+1+33+1)+(28+1+33+1), targets 12+12.
echo '{"system": "Be", "history": [["a", "b"]], "instruction": "c", "input": null, "output": "d"}' >history.jsonl
reads history.jsonl "1 record of 1 file, 158 tokens, 15.2 % of them targets"
# Dolly: 28+3+1+4+33+5, targets 16.
echo '{"instruction": "Who", "context": "Text", "response": "Nobod", "category": "closed_qa"}' >dolly.jsonl
reads dolly.jsonl "1 record of 1 file, 74 tokens, 21.6 % of them targets"
# ShareGPT: 28+2+33+5+28+1+33+1, targets 16+12.
echo '[{"id": "x_0", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}, {"from": "human", "value": "?"},
  {"from": "gpt", "value": "!"}]}]' >sharegpt.json
reads sharegpt.json "1 record of 1 file, 131 tokens, 21.4 % of them targets"
# With the system prompt as a key, and as a message: twice 30+1+28+1+33+1, targets 24.
printf '%s\n' '{"system": "S", "conversations": [{"from": "user", "value": "u"}, {"from": "assistant", "value": "a"}]}' \
    '{"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}' >sharegpt_system.jsonl
reads sharegpt_system.jsonl "2 records of 1 file, 188 tokens, 12.8 % of them targets"
# OpenAI's: 30+3+28+2+33+2, targets 13.
echo '{"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}' >messages.jsonl
reads messages.jsonl "1 record of 1 file, 98 tokens, 13.3 % of them targets"
# Content in parts: 28+4+33+2, targets 13.
echo '{"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]}, {"role": "assistant",
"content": [{"type": "text", "text": "ok"}]}]}' | tr -d '\n' >parts.jsonl
reads parts.jsonl "1 record of 1 file, 67 tokens, 19.4 % of them targets"
# An answer of weight 0 is read and not learned: 28+1+33+5+28+1+33+1, targets 12.
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "wrong", "weight": 0}, {"role": "user", "content": "b"},
{"role": "assistant", "content": "c", "weight": 1}]}' | tr -d '\n' >weight.jsonl
reads weight.jsonl "1 record of 1 file, 130 tokens, 9.2 % of them targets"
# Prompt and completion, without a template: 3+2, targets 2 (the tokenizer has no end token).
echo '{"prompt": "1+1", "completion": "=2"}' >prompt.jsonl
reads prompt.jsonl "1 record of 1 file, 5 tokens, 40.0 % of them targets"
# The same as conversations, as TRL has it; what the prompt answers does not count: 28+1+33+1+28+1+33+1, targets 12.
echo '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
"completion": [{"role": "assistant", "content": "d"}]}' | tr -d '\n' >prompt_messages.jsonl
reads prompt_messages.jsonl "1 record of 1 file, 126 tokens, 9.5 % of them targets"
# Documents are a text: 600+2 tokens, all of them targets.
printf '{"text": "%600s", "meta": {"source": "pile"}}\n{"text": "ab"}\n' x >text.jsonl
reads text.jsonl "2 records of 1 file, 602 tokens, 100.0 % of them targets"
shows "$ERR" "the tokenizer has no end token"
printf '[{"text": "%600s"},\n {"text": "é"}]' x >text.json # 600+2
reads text.json "2 records of 1 file, 602 tokens, 100.0 % of them targets"
# An end token after each document, of GPT-2's tokenizer: a word is one token here, so 4 of 2 documents.
printf '{"text": "the"}\n{"text": " house"}\n' >words.jsonl
run 0 data words.jsonl --tokenizer gpt2 --split 1 --out words
shows "$OUT" "train.bin  4 tokens"
[[ $(od -An -tu2 -j1024 words/train.bin | tr -s ' ') == " 1169 50256 2156 50256" ]] || fail "$(od -An -tu2 -j1024 words/train.bin)"
# gzip, also of several members, whatever its name says.
gzip -c messages.jsonl >messages.jsonl.gz
reads messages.jsonl.gz "1 record of 1 file, 98 tokens, 13.3 % of them targets"
{ head -c 60 alpaca.json | gzip -c; tail -c +61 alpaca.json | gzip -c; } >alpaca.json.gz
reads alpaca.json.gz "2 records of 1 file, 141 tokens, 20.6 % of them targets"
cp messages.jsonl.gz packed.jsonl
reads packed.jsonl "1 record of 1 file, 98 tokens, 13.3 % of them targets"
# A byte order mark, CRLF, empty lines, no last line end.
printf '\xEF\xBB\xBF{"prompt": "a", "completion": "b"}\r\n\r\n  \n{"prompt": "c", "completion": "d"}' >windows.jsonl
reads windows.jsonl "2 records of 1 file, 4 tokens, 50.0 % of them targets"
# Several forms in one file; a document beside other records is a row, all of which counts: 5+65+3, targets 2+13+3.
{ cat prompt.jsonl alpaca_text.jsonl; echo '{"text": "abc"}'; } >mixed.jsonl
reads mixed.jsonl "3 records of 1 file, 73 tokens, 24.7 % of them targets"
# The form by its name: of alpaca_text.jsonl the text, 44 characters.
reads alpaca_text.jsonl "1 record of 1 file, 44 tokens, 100.0 % of them targets" --form text --seq-len 16
refuse 2 "data.form is alpacca" "auto, messages, sharegpt, alpaca" -- train --data alpaca.json "${MODEL[@]}" --form alpacca --out none

# A folder, a pattern, a list with weights.
mkdir -p folder && cp prompt.jsonl messages.jsonl.gz folder && echo notes >folder/README.md
reads folder/ "2 records of 2 files, 103 tokens, 14.6 % of them targets"
reads 'p*t.jsonl' "1 record of 1 file, 5 tokens, 40.0 % of them targets"
reads "prompt.jsonl:2.5,folder:0.5" "3 records of 3 files, 108 tokens, 15.7 % of them targets"
cp prompt.jsonl odd:3.jsonl
reads odd:3.jsonl "1 record of 1 file, 5 tokens, 40.0 % of them targets"
refuse 2 "prompt.jsonl:0" "weight" -- train --data prompt.jsonl:0 "${MODEL[@]}" --out none
refuse 2 "no file matches" -- train --data 'q*.jsonl' "${MODEL[@]}" --out none
refuse 2 "prompt.jsonl,' ends with a comma" -- train --data prompt.jsonl, "${MODEL[@]}" --out none
refuse 2 "notes.txt" "among files of records" -- train --data prompt.jsonl,notes.txt "${MODEL[@]}" --out none
refuse 2 "4 of its records are no documents" -- data sharegpt_system.jsonl,alpaca.json --tokenizer gpt2 --out none

# --epochs: 5 tokens of 40 records in rows of 4, twice 10 steps; with micro batches half of that; half a pass.
for _ in {1..40}; do cat prompt.jsonl; done >forty.jsonl
passes=(--tokenizer byte --layers 1 --heads 1 --d-model 4 --seq-len 16 --batch-size 4 --split 1 --warmup 0 --precision fp32 --sample-every -1
    --checkpoint-every 0 --device cpu --threads 1)
run 0 train --data forty.jsonl "${passes[@]}" --epochs 2 --out twice
shows "$OUT" "done: 20 steps"
shows twice/config.yaml "steps: 20"
run 0 train --data forty.jsonl "${passes[@]}" --epochs 2 --grad-accum 2 --out halves
shows "$OUT" "done: 10 steps"
run 0 train --data forty.jsonl:0.5 "${passes[@]}" --epochs 1 --out half
shows "$OUT" "done: 5 steps"
run 0 train --config twice/config.yaml --epochs 3 --resume auto
shows "$OUT" "done: 30 steps"
echo 'train: {epochs: 9}' >nine.yaml
run 0 train --config nine.yaml --data forty.jsonl "${passes[@]}" --steps 3 --out three
shows "$OUT" "done: 3 steps"
refuse 2 "--epochs 0 trains nothing" -- train --data forty.jsonl "${passes[@]}" --epochs 0 --out none
refuse 2 "train.steps (--steps) and train.epochs (--epochs)" -- train --data forty.jsonl "${passes[@]}" --epochs 2 --steps 3 --out none

# What cannot be used is left out and told, the first ones with their lines; a file of which most cannot is refused. 4 of 5 tokens, and 2 targets each.
for _ in 1 2 3 4; do cat prompt.jsonl; done >some.jsonl
cat >>some.jsonl <<'END'
{"messages": [{"role": "tool", "content": "x"}]}
{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
{"messages": [{"role": "assistant", "content": null}]}
{"prompt": "cut of
END
reads some.jsonl "4 records of 1 file, 20 tokens, 40.0 % of them targets; 4 cannot be used and are left out"
shows "$ERR" "left out: some.jsonl:5: the role \"tool\" is not one of" "left out: some.jsonl:6: a message's content has a part of the type \"image_url\"" \
    "left out: some.jsonl:7: key 'content': expected a string" "left out: 1 more records of 'some.jsonl'"
echo '{"question": "?"}' >>some.jsonl
refuse 2 "some.jsonl:5: the role" "(5 of the 9 records of this file cannot be used)" -- train --data some.jsonl "${MODEL[@]}" --out none
[[ ! -e none ]] || fail "a run folder without a run"

# A text is read as it is, so a compressed one is refused.
echo "words of a text" | gzip -c >words.txt.gz
refuse 2 "words.txt.gz: a text that gzip compressed" gunzip -- train --data words.txt.gz "${MODEL[@]}" --out none

# Damaged files.
head -c 50 messages.jsonl.gz >cut.jsonl.gz
refuse 2 "cut.jsonl.gz: the compressed data are cut off" -- train --data cut.jsonl.gz "${MODEL[@]}" --out none
{ head -c 30 messages.jsonl.gz; printf '\xff\xff\xff\xff'; tail -c +35 messages.jsonl.gz; } >bad.jsonl.gz
refuse 2 "bad.jsonl.gz" "compressed data are" -- train --data bad.jsonl.gz "${MODEL[@]}" --out none
head -c 120 alpaca.json >cut.json
refuse 2 "cut.json:7: the list has no end" -- train --data cut.json "${MODEL[@]}" --out none
printf '\xff\xfe[\0' >wide.json
refuse 2 "wide.json" "UTF-16" -- train --data wide.json "${MODEL[@]}" --out none
# A record of more than 16 MiB is passed over; the next one is read.
{ printf '{"prompt": "%017000000d", "completion": "x"}\n' 0; cat prompt.jsonl prompt.jsonl; } >long.jsonl
reads long.jsonl "2 records of 1 file, 10 tokens, 40.0 % of them targets; 1 cannot be used and is left out"
shows "$ERR" "long.jsonl:1: a record of more than 16 MiB"
{ printf '[{"prompt": "%017000000d", "completion": "x"},\n' 0; printf '%s,%s]' "$(<prompt.jsonl)" "$(<prompt.jsonl)"; } >long.json
reads long.json "2 records of 1 file, 10 tokens, 40.0 % of them targets; 1 cannot be used and is left out"
[[ $count -ge 20 ]] || fail "$count files"
