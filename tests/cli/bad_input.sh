# Every wrong input: one line that names the file, key or number and what to do, the right exit code, nothing lost.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
: >empty.txt
printf 'short' >short.txt

train() { # words… -- arguments: refused with 2
    local words=()
    while [[ $1 != -- ]]; do
        words+=("$1")
        shift
    done
    shift
    refuse "${CODE:-2}" "${words[@]}" -- train "${TINY[@]}" --steps 2 "$@"
}

# --- data
train "data" -- --out run
train "absent.txt" -- --data absent.txt --out run
train "empty.txt" -- --data empty.txt --out run
train "short.txt" "16" -- --data short.txt --out run
train "$SCRATCH" -- --data "$SCRATCH/work/none/at/all.txt" --out run

# --- configuration
train "--learning-rat" -- --data text.txt --learning-rat 1
printf 'optimizer:\n  lrr: 1\n' >unknown.yaml
train "unknown.yaml" "optimizer.lrr" "optimizer.lr" -- --config unknown.yaml --data text.txt
printf 'train:\n  steps: many\n' >type.yaml
train "type.yaml" "train.steps" "many" -- --config type.yaml --data text.txt
printf 'train: [1, 2\n' >broken.yaml
train "broken.yaml" -- --config broken.yaml --data text.txt
train "absent.yaml" -- --config absent.yaml --data text.txt
train "steps" "soon" -- --data text.txt --steps soon
train "optimizer.lr" -- --data text.txt --lr nan
train "optimizer.lr" -- --data text.txt --lr -1
train "heads" "3" "16" -- --data text.txt --heads 3
train "gpt3" "gpt2" -- --data text.txt --model gpt3
train "fp61" -- --data text.txt --precision fp61
train "bpe" -- --data text.txt --tokenizer bpe
train "batch_size" -- --data text.txt --batch-size 0
train "nomodule" -- --data text.txt --autocast.nomodule.x fp32 --out run-override

# --- device
if ! command -v nvidia-smi >/dev/null 2>&1; then
    CODE=3 train "cuda" -- --data text.txt --device cuda
fi
train "gpu" -- --data text.txt --device gpu

# --- the run folder
: >file
CODE=3 train "'file'" -- --data text.txt --out file/run

# --- checkpoints
run 0 train "${TINY[@]}" --steps 3 --data text.txt --out good
refuse 2 "good" "--resume" -- train "${TINY[@]}" --steps 3 --data text.txt --out good
refuse 2 "step-00000003" "model.d_model" 16 32 -- train "${TINY[@]}" --d-model 32 --steps 6 --data text.txt --out good --resume auto
weights=$(ls good/checkpoints/*/model.safetensors | tail -n 1)
checkpoint=$(dirname "$weights")
cp -r good truncated
cp -r good corrupt
head -c 300 "$weights" >"truncated/${weights#good/}"
# One bit of the header's JSON, which is where names and shapes are.
{ head -c 20 "$weights"; printf '\001'; tail -c +22 "$weights"; } >"corrupt/${weights#good/}"
for broken in truncated corrupt; do
    for subcommand in eval sample; do
        refuse 2 "$broken" -- "$subcommand" "$broken/${checkpoint#good/}"
    done
    refuse 2 "$broken" -- train "${TINY[@]}" --steps 6 --data text.txt --out "$broken" \
        --resume "$broken/${checkpoint#good/}"
done
for subcommand in eval sample export report watch; do # a path that is not there is one thing everywhere
    refuse 2 "absent" -- "$subcommand" absent $([[ $subcommand == export ]] && echo --out new)
done
# --- what newcomers do: docs/troubleshooting.md has the list
refuse 2 'did you mean "cuda"' -- train "${TINY[@]}" --data text.txt --device gpu --out new
refuse 2 "text.txt: not a folder" "run folder" -- eval text.txt
refuse 2 "text.txt" ".safetensors" "llm.c" -- import text.txt --out new
printf 'model:\n layers: 2\n   heads: 2\n' >indent.yaml
refuse 2 "indent.yaml:3" "same column" -- train --config indent.yaml --data text.txt --out new
refuse 3 "lower the batch size" "memory --limit" -- train --model gpt2-124M --vocab 50257 --batch-size 1000000 --data text.txt --seq-len 64 --device cpu --precision auto --out new
run 0 train "${TINY[@]}" --steps 1 --data text.txt --out fresh --resume auto
shows "$ERR" "fresh has no checkpoint to resume: starting at step 0"
refuse 2 gtp2 "did you mean gpt2" -- data text.txt --tokenizer gtp2 --out new
printf 'learning_rate: 1e-3\n' >rate.yaml
refuse 2 rate.yaml:1 learning_rate "did you mean optimizer.lr" -- train --config rate.yaml --data text.txt
printf 'optimizer:\n\tlr: 1e-3\n' >tab.yaml
refuse 2 tab.yaml:2 "spaces, not tabs" -- train --config tab.yaml --data text.txt
refuse 2 init-scale "from 1.0e-30 to 1.0e+38" -- train --data text.txt --init-scale 1e300
refuse 2 "no whole checkpoint" -- eval .
printf 'caf\xe9 %.0s' {1..40} >latin.txt
run 0 data latin.txt --tokenizer gpt2 --out latin
shows "$ERR" "latin.txt: byte 3 (0xE9) is not UTF-8" "convert it"
run 0 data latin.txt --tokenizer byte --out latin
! grep -q "UTF-8" "$ERR" || fail "bytes are what a tokenizer of bytes reads"
refuse 2 "data.form is mesages" "messages" -- train "${TINY[@]}" --data text.txt --form mesages --out new
refuse 2 "data.form is mesages" -- data text.txt --form mesages --out new
refuse 2 "lora.modules is set" "--lora-rank 8" -- train "${TINY[@]}" --data text.txt --lora-modules c_attn --out new

# --- samples
refuse 2 "prompt" -- sample good --prompt '≠'
refuse 2 --temperature -1 -- sample good --temperature -1
refuse 2 --temperature nan -- sample good --temperature nan
refuse 2 --tokens none -- sample good --tokens none
for number in " 1" 0x10; do # one syntax of numbers, that of configurations
    refuse 2 "--tokens $number" -- sample good --tokens "$number"
    refuse 2 "--temperature $number" -- sample good --temperature "$number"
    refuse 2 "--limit $number" -- memory --limit "$number"
done
run 0 sample good --tokens 8 # nothing above harmed it

# --- shards
run 0 data text.txt --out shards --tokenizer byte
refuse 2 256 97 vocabulary -- train "${TINY[@]}" --vocab 97 --steps 2 --data shards --out run-shards
mkdir bare
cp shards/*.bin bare # without their tokenizer
refuse 2 "bare/train.bin" 97 -- train "${TINY[@]}" --vocab 97 --steps 2 --data bare --out run-shards
head -c 100 shards/train.bin >cut.bin
refuse 2 "cut.bin" -- train "${TINY[@]}" --vocab 256 --steps 2 --train-data cut.bin --val-data shards/val.bin --out run-cut
refuse 2 "--format" "xyz" -- data text.txt --out other --format xyz
refuse 2 "absent.txt" -- data absent.txt --out other
refuse 2 "empty.txt" -- data empty.txt --out other
refuse 3 "'file'" -- data text.txt --out file/shards
