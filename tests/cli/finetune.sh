# A published folder is fine-tuned on instructions, resumed, asked and exported again.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
run 0 train "${TINY[@]}" --seq-len 64 --steps 2 --tokenizer byte --data text.txt --out theirs --quiet
run 0 export theirs --out published
for ((i = 0; i < 40; i++)); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i?\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]}"
done >chat.jsonl

# Its model is taken: no size is given.
tune=(--init published --data chat.jsonl --tokenizer byte --batch-size 4 --warmup 2 --lr 1e-2 --eval-iters 2 --sample-every -1 --device cpu
    --threads 1 --log-every 1 --out tuned)
run 0 train "${tune[@]}" --steps 200
shows tuned/config.yaml "d_model: 16" "seq_len: 64"
[[ -d tuned/init/checkpoints ]] || fail "nothing was imported"
run 0 train "${tune[@]}" --steps 202 --resume auto
shows tuned/metrics.jsonl '"step": 202'
run 0 eval tuned --data chat.jsonl --iters 0
run 0 sample tuned --chat "7?" --tokens 20 --temperature 0
! grep -qF "<|im_" "$OUT" || fail "the answer shows its markers"
run 0 sample tuned --chat "7?" --tokens 20 --temperature 0 --json
shows "$OUT" '"samples"'
refuse 2 "--chat" "--prompt" -- sample tuned --chat a --prompt b
refuse 2 "data.tokenizer" -- train "${TINY[@]}" --data chat.jsonl --out other
# Characters of a text without "<" can write no ChatML: said once and whole, in a question and in training.
run 0 train "${TINY[@]}" --steps 1 --tokenizer char --data text.txt --out letters --quiet
refuse 2 "a token for <|im_start|>" "prompt" -- sample letters --chat "a"
refuse 2 "chat.jsonl:1" "a token for <|im_start|>" -- train "${TINY[@]}" --data chat.jsonl --tokenizer letters/tokenizer.json --out other
run 0 export tuned --out again

# Adapters: the base stays, few numbers train; resumed, asked and exported in both forms.
run 0 train "${tune[@]}" --out adapted --steps 20 --lora-rank 2 --lora-modules c_attn,c_proj --precision bf16
shows adapted/config.yaml "rank: 2"
run 0 train "${tune[@]}" --out adapted --steps 22 --lora-rank 2 --lora-modules c_attn,c_proj --precision bf16 --resume auto
shows adapted/metrics.jsonl '"step": 22'
run 0 eval adapted --data chat.jsonl --iters 0
run 0 sample adapted --chat "7?" --tokens 8 --temperature 0
run 0 export adapted --out merged
run 0 export adapted --out adapter --adapter
[[ -f adapter/adapter_model.safetensors && -f adapter/adapter_config.json ]] || fail "no adapter files"
refuse 2 "no adapters" -- export tuned --out none --adapter
refuse 2 "lora.modules" "q_proj" -- train "${tune[@]}" --out wrong --steps 2 --lora-rank 2 --lora-modules q_proj

# A published tokenizer and its chat template: the same in training and in a question, kept by a run, given back by an export.
seed=(--model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 48 --batch-size 2 --warmup 2 --eval-iters 1 --sample-every -1 --device cpu --threads 1)
run 0 train "${seed[@]}" --vocab 50259 --steps 1 --tokenizer gpt2 --data text.txt --out first --quiet
run 0 export first --out talks
rm talks/tokenizer.json # GPT-2's two files, as older programs leave them
cat >talks/tokenizer_config.json <<'JSON'
{"bos_token": "<s>", "eos_token": {"content": "</s>"},
 "added_tokens_decoder": {"50257": {"content": "<s>"}, "50258": {"content": "</s>"}},
 "chat_template": "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] | trim + ' [/INST]' }}{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"}
JSON
for ((i = 0; i < 40; i++)); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i?\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]}"
done >chat.jsonl
run 0 train "${seed[@]}" --init talks --data chat.jsonl --lr 3e-2 --steps 60 --out talked
shows talked/tokenizer.json "chat_template" "[INST]"
run 0 sample talked --chat "7?" --tokens 20 --temperature 0
[[ $(<"$OUT") == yes* ]] || fail "the answer is not what was trained"
! grep -qF "</s>" "$OUT" || fail "the answer shows its end"
run 0 sample talked --chat "7?" --tokens 20 --temperature 0 --count 2 --json
shows "$OUT" '"chat": "7?"' '"yes '
run 0 export talked --out again2
shows again2/tokenizer_config.json "chat_template" "[INST]" "</s>"
shows again2/generation_config.json '"bos_token_id": 50257' '"eos_token_id": 50258'
# Without a template of its own a tokenizer keeps the one that its conversations were written by.
run 0 train "${seed[@]}" --tokenizer gpt2 --data chat.jsonl --steps 1 --out default
shows default/tokenizer.json "chat_template" "<|im_start|>"
run 0 export default --out default2
shows default2/tokenizer_config.json "chat_template" "<|im_start|>"
sed -i 's/m\[.content.\] | trim/m | pprint/' talks/tokenizer_config.json
refuse 3 "chat.jsonl:1" "the filter pprint is not supported" -- train "${seed[@]}" --init talks --data chat.jsonl --steps 1 --out other2
# A template that is none of these forms is no reason to take another one.
echo '{"chat_template": [{"name": "tools", "template": "x"}]}' >talks/tokenizer_config.json
refuse 2 "talks/tokenizer_config.json" "key 'chat_template'" "named default" -- train "${seed[@]}" --init talks --data chat.jsonl --steps 1 --out other3
