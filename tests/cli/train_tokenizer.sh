# mezzo data --train-tokenizer: a tokenizer from texts, which data and train take.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 400 >text.txt
mkdir texts
head -n 100 text.txt >texts/a.txt
printf '{"text": "a record of its own"}\n' >texts/b.jsonl

run 0 data text.txt texts --train-tokenizer 350 --pattern llama3 --special "<|endoftext|>,<|pad|>" --out own --json
shows "$OUT" '"vocab": 350' '"texts": 3' '"pattern": "llama3"'
shows own/tokenizer.json '"Regex"' '"<|pad|>"'
run 0 data text.txt --tokenizer own --out shards
shows "$OUT" "bpe, 350 tokens"
run 0 train "${TINY[@]}" --steps 1 --data shards --out first --quiet
run 0 data text.txt --train-tokenizer 300 --out one.json --threads 1
shows "$OUT" "one.json: 300 tokens"
run 0 data text.txt --train-tokenizer 100000 --out most.json
shows "$OUT" "no more pairs"

refuse 2 "special token" "twice" -- data text.txt --train-tokenizer 300 --out no.json --special "<|a|>,<|a|>"
refuse 2 "'gpt5'" -- data text.txt --train-tokenizer 300 --out no.json --pattern gpt5
refuse 2 "--train-tokenizer" -- data text.txt --train-tokenizer 100 --out no.json
refuse 2 "--format" -- data text.txt --train-tokenizer 300 --out no.json --format llmc
refuse 2 "--pattern" -- data text.txt --pattern gpt2 --out no
refuse 2 "2 texts: join them in one file" -- data text.txt texts --out no
refuse 2 "none.txt" -- data none.txt --train-tokenizer 300 --out no.json
[[ ! -e no.json && ! -e no ]] || fail "a refused call left files"
