# What other programs do to the files of a run while it trains, and what schedulers and readers ask of it.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
LONG=("${TINY[@]}" --steps 100000000 --eval-every 0 --sample-every -1 --checkpoint-every 0 --log-every 100)

wait_for() { wait_until grep -qF -- "$1" "$ERR"; } # WORD: until stderr shows it

start() {
    last="mezzo train $*"
    : >"$ERR"
    "$MEZZO" train "$@" >"$OUT" 2>"$ERR" </dev/null &
    child=$!
}

ends() { # CODE
    local code
    wait "$child"
    code=$?
    [[ $code -eq $1 ]] || fail "exit code $code, not $1"
}

# A mapped shard that is cut short: an error that names it, and a checkpoint of the steps before.
run 0 data text.txt --out shards
start "${LONG[@]}" --data shards --out cut
wait_until test -s cut/metrics.jsonl
sleep 1
: >shards/train.bin
ends 3
shows "$ERR" "shards/train.bin': another program cut the file short" "the newest checkpoint is cut/checkpoints/step-"
run 0 eval cut --data text.txt --iters 1

# Removed records go on in a new file, with a warning; a removed lock is created again.
start "${LONG[@]}" --data text.txt --out moved
wait_until test -s moved/metrics.jsonl
sleep 0.5
mv moved/metrics.jsonl moved/older.jsonl
wait_for "moved/metrics.jsonl' was removed, renamed or replaced"
wait_until test -s moved/metrics.jsonl
rm moved/.lock
wait_for "moved/.lock' was removed"

# A scheduler's signal writes a checkpoint and the run goes on.
kill -s USR1 "$child"
wait_until test -e moved/checkpoints/manifest.json
kill -0 "$child" || fail "SIGUSR1 ended the run"
kill -s TERM "$child"
ends 130
refuse 2 "--signal" "NOPE" -- train "${TINY[@]}" --data text.txt --signal NOPE --out nope

# Readers of a run that drops its older checkpoints find one that is whole.
start "${LONG[@]}" --checkpoint-every 20 --keep-last 1 --data text.txt --out read
wait_until test -e read/checkpoints/manifest.json
for ((i = 0; i < 25; i++)); do
    "$MEZZO" eval read --iters 1 >"$OUT" 2>"$SCRATCH/eval" </dev/null || fail "a reader failed: $(tail -n 1 "$SCRATCH/eval")"
done
kill -s TERM "$child"
ends 130
