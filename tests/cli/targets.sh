# A step's loss is a mean over all its targets that count, of all micro batches and ranks: cut otherwise, the same losses.
# Seen to fail: with every micro batch's mean counting alike, in the gradient and in the loss that is told.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
for i in $(seq 40); do # answers of 1 to 37 letters
    printf '{"prompt": "%s: ", "completion": "%s"}\n' $i "$(printf 'x%.0s' $(seq $((i * 7 % 37 + 1))))"
done >answers.jsonl
train() { # FOLDER COMMAND…
    local folder=$1
    shift
    timeout 100 "$@" train --data answers.jsonl --tokenizer byte --device cpu --threads 1 --layers 2 --heads 2 --d-model 32 --seq-len 48 --precision fp32 --global-batch 8 \
        --steps 8 --lr 1e-2 --warmup 0 --log-every 1 --eval-every 0 --eval-final false --checkpoint-every -1 --sample-every -1 --quiet --logits-rows 16 \
        --batch-size "$rows" --out "$folder" >"$folder.log" 2>&1 || fail "$folder: $(cat "$folder.log")"
    sed -nE 's/.*"step": *([0-9]+).*"train\/loss": *([^,}]+).*/\1 \2/p' "$folder/metrics.jsonl" >"$folder.losses"
}
same() { # FOLDER FOLDER: within FP32's rounding, which 8 steps at this rate let grow
    paste -d ' ' "$1.losses" "$2.losses" | awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-5 * $2) bad = 1; n++ } END { exit n != 8 || bad }' ||
        fail "$1 and $2: $(paste -d ' ' "$1.losses" "$2.losses")"
}
rows=8 train whole "$MEZZO"
rows=2 train quarters "$MEZZO"
rows=1 train eighths "$MEZZO"
same whole quarters
same whole eighths
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    rows=2 train ranks mpirun --oversubscribe -n 2 "$MEZZO"
    same whole ranks
fi
echo "targets: ok"
