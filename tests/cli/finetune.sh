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
