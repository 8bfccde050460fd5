# text → shards → training → resume → evaluation → samples, as a user goes through it.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt

number() { # KEY: the number of "KEY": … in the last JSON result
    sed -nE "s/^ *\"$1\": ([-+0-9.eE]+),?$/\1/p" "$OUT" | head -n 1
}

# Progress goes to stderr, the result to stdout, and what to do next is told.
run 0 train "${TINY[@]}" --steps 6 --checkpoint-every 3 --precision fp32 --data text.txt --out run
shows "$ERR" "step 1/6" "step 6/6" "loss" "val loss" "lr" "tok/s" "left" "checkpoint run/checkpoints/"
shows "$OUT" "training loss" "validation loss" "run folder: run" "sample run" "eval run" "--resume auto" "tensorboard --logdir run"
for file in config.yaml metrics.jsonl checkpoints/manifest.json tokenizer.json; do
    [[ -s run/$file ]] || fail "run/$file is missing"
done
shows run/metrics.jsonl train/loss val/loss gradients/total_norm amp/enabled amp/precision amp/loss_scale \
    amp/skipped_steps perf/tokens_per_second perf/memory_bytes
compgen -G "run/*tfevents*" >/dev/null || fail "no TensorBoard events in the run folder"
run 0 train "${TINY[@]}" --steps 2 --quiet --data text.txt --out quiet
! grep -q "step 1/2" "$ERR" || fail "--quiet shows progress"

# The saved configuration alone resumes the run; going on equals never having stopped.
run 0 train --config run/config.yaml --resume auto --schedule-steps 6 --steps 10 --json
[[ $(number steps) == 10 ]] || fail "the resumed run did not do 10 steps in all"
resumed=$(number loss)
run 0 train "${TINY[@]}" --schedule-steps 6 --steps 10 --precision fp32 --data text.txt --out whole --json
[[ $(number loss) == "$resumed" ]] || fail "loss $(number loss) uninterrupted, $resumed resumed"

# With no steps left a run says so, and tells neither a loss nor a speed that it has not seen.
run 0 train --config run/config.yaml --resume auto --steps 10
shows "$ERR" "the checkpoint is at step 10, train.steps is 10: nothing is left to train"
! grep -qE "training loss|speed|nan" "$OUT" || fail "a run without a step tells a loss or a speed"
shows "$OUT" "validation loss" "eval run"

# The same text as shards, in both formats, trains to the same loss.
for format in llmc nanogpt; do
    run 0 data text.txt --out "shards-$format" --tokenizer char --format "$format" --json
    shows "$OUT" '"train_tokens"' '"val_tokens"' '"vocab"'
    sum=$(cksum "shards-$format"/*)
    for source in "shards-$format/train.bin" "shards-$format" "./shards-$format/../shards-$format/val.bin"; do
        refuse 2 "shards-$format" "choose another folder" -- data "$source" --out "shards-$format"
    done
    [[ $(cksum "shards-$format"/*) == "$sum" ]] || fail "a refused call changed the folder"
    run 0 train "${TINY[@]}" --schedule-steps 6 --steps 10 --precision fp32 --data "shards-$format" --out "from-$format" --json
    [[ $(number loss) == "$resumed" ]] || fail "$format shards give loss $(number loss), the text $resumed"
done

# Shards have their tokenizer beside them, and the same one may be named.
refuse 2 "'gpt2' (gpt2, 50257 tokens)" "shards-llmc/tokenizer.json' (char," -- train "${TINY[@]}" --steps 1 --data shards-llmc --tokenizer gpt2 --out misread
refuse 2 "shards-llmc/tokenizer.json" -- data shards-llmc/train.bin --tokenizer gpt2 --out misread
run 0 train "${TINY[@]}" --steps 1 --data shards-llmc --tokenizer shards-nanogpt/tokenizer.json --out read

# Evaluation of the same checkpoint gives the same number, and the run's own.
run 0 train "${TINY[@]}" --steps 4 --precision fp32 --data text.txt --out again --json
final=$(number val_loss)
run 0 eval again --json
[[ $(number loss) == "$final" ]] || fail "eval gives $(number loss), training gave $final"
run 0 eval "$(ls -d again/checkpoints/step-* | tail -n 1)" --data text.txt
shows "$OUT" loss perplexity tokens checkpoint
refuse 2 "'shards-llmc' is a folder" shards-llmc/val.bin -- eval again --data shards-llmc
run 0 eval again --data shards-llmc/val.bin --json
[[ $(number loss) == "$final" ]] || fail "eval of the shards gives $(number loss), training gave $final"
run 0 eval again --precision bf16 --iters 2

# A perplexity says of what, and bits per byte are the loss over ln 2 where a character is a byte: the same for any tokenizer of such a text.
run 0 eval again --json
shows "$OUT" '"perplexity_per": "character"'
awk -v loss="$(number loss)" -v bits="$(number bits_per_byte)" 'BEGIN { off = loss / log(2) - bits; exit off > 1e-6 || off < -1e-6 }' ||
    fail "a loss of $(number loss) is not $(number bits_per_byte) bits per byte"
run 0 eval again
shows "$OUT" "per character" "bits/byte"
run 0 train "${TINY[@]}" --steps 1 --tokenizer byte --data text.txt --out bytes
shows "$OUT" "per byte; " " bits per byte"

# Validations on a sample and on the whole set have names of their own, and the best is the lowest of the former alone.
run 0 train "${TINY[@]}" --steps 6 --eval-every 2 --eval-iters 2 --checkpoint-every 2 --data text.txt --out kinds --json
[[ $(grep -c '"val/sampled_loss"' kinds/metrics.jsonl) -eq 3 && $(grep -c '"val/loss"' kinds/metrics.jsonl) -eq 1 ]] || fail "not three samples and one whole set"
least=$(sed -nE 's/.*"val\/sampled_loss": ([0-9.]+).*/\1/p' kinds/metrics.jsonl | sort -g | head -n 1)
awk -v a="$(number best_val_loss)" -v b="$least" 'BEGIN { exit a - b > 1e-6 || b - a > 1e-6 }' || fail "best is $(number best_val_loss), the lowest sample $least"
[[ $(grep -c '"sampled_val_loss"' kinds/checkpoints/manifest.json) -eq 3 ]] || fail "the manifest has other kinds"

# A resume that has nothing left to train changes no setting; a copied folder goes on where it is.
cp kinds/config.yaml before.yaml
run 0 train --config kinds/config.yaml --resume auto --steps 3
shows "$ERR" "nothing is left to train"
cmp kinds/config.yaml before.yaml || fail "a resume without a step changed the configuration"
cp -r kinds copied
run 0 train --config copied/config.yaml --resume auto --steps 8
shows "$ERR" "resuming copied, where this config.yaml is (it names kinds as its folder)"
[[ -d copied/checkpoints/step-00000008 && ! -e kinds/checkpoints/step-00000008 ]] || fail "the folder that was copied went on"
cmp kinds/config.yaml before.yaml || fail "the folder that was copied was changed"
run 0 train --config copied/config.yaml --resume auto --steps 9 --out kinds
[[ -d kinds/checkpoints/step-00000009 ]] || fail "--out does not count"

# A seed is a text; another seed is another.
run 0 sample again --prompt "the " --tokens 40 --seed 3
cp "$OUT" first
run 0 sample again --prompt "the " --tokens 40 --seed 3
cmp -s "$OUT" first || fail "the same seed gave another text"
[[ $(head -c 4 "$OUT") == "the " ]] || fail "the text does not begin with the prompt"
run 0 sample again --prompt "the " --tokens 40 --seed 4
! cmp -s "$OUT" first || fail "another seed gave the same text"
run 0 sample again --tokens 12 --count 3 --json
[[ $(tr -d ' \n' <"$OUT") == *'"samples":["'*'","'*'","'*'"]}' ]] || fail "not three samples"
run 0 sample again --tokens 12 --count 2 --temperature 0
[[ $(sed '/^----$/,$d' "$OUT") == $(sed '1,/^----$/d' "$OUT") ]] || fail "temperature 0 gave two texts"
run 0 sample again --tokens 12 --top-k 1 --best
