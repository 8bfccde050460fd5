# What the tests of the command share. Each test sources it, then runs in an empty folder that is removed afterwards.
#   run CODE ARGUMENT…       runs the command; its exit code must be CODE; stdout is in $OUT, stderr in $ERR
#   refuse CODE WORD… -- ARGUMENT…   as run, and stderr must end with one line "mezzo SUBCOMMAND: …" that holds every WORD
#   shows FILE WORD…         FILE holds every WORD
#   wait_until COMMAND…      until it succeeds; the test fails if it does not within two minutes
#   fits                     stdout of the last command has at most 80 columns
# The first thing that does not hold ends the test, telling what was run and what came.
set -uo pipefail
: "${MEZZO:?the path of the command}"
SCRATCH=$(mktemp -d) || exit 1
clean() { # what a test that fails leaves running ends with it
    local left
    left=$(jobs -p)
    [[ -z $left ]] || kill $left 2>/dev/null
    chmod -R u+w "$SCRATCH" 2>/dev/null
    rm -rf "$SCRATCH"
}
trap clean EXIT
mkdir "$SCRATCH/work"
cd "$SCRATCH/work" || exit 1
OUT=$SCRATCH/out ERR=$SCRATCH/err
last="nothing yet"

fail() {
    echo "failed: $*"
    echo "after:  $last"
    echo "--- stdout"
    tail -n 20 "$OUT"
    echo "--- stderr"
    tail -n 20 "$ERR"
    exit 1
}

shows() {
    local file=$1 word
    shift
    for word in "$@"; do
        grep -qF -- "$word" "$file" || fail "\"$word\" is not in the ${file##*/} of the last command"
    done
}

wait_until() {
    local i
    for ((i = 0; i < 2400; i++)); do
        "$@" 2>/dev/null && return
        sleep 0.05
    done
    fail "it did not come within two minutes: $*"
}

# The last command's output fits 80 columns.
fits() {
    local long
    long=$(LC_ALL=C.UTF-8 awk 'length($0) > 80' "$OUT")
    [[ -z $long ]] || fail "more than 80 columns: $long"
}

run() {
    local expected=$1 code
    shift
    last="mezzo $*"
    "$MEZZO" "$@" >"$OUT" 2>"$ERR" </dev/null
    code=$?
    [[ $code -eq $expected ]] || fail "exit code $code, not $expected"
}

refuse() {
    local code=$1 words=() word line
    shift
    while [[ $1 != -- ]]; do
        words+=("$1")
        shift
    done
    shift
    run "$code" "$@"
    line=$(tail -n 1 "$ERR")
    [[ $line == "mezzo $1: "* ]] || fail "stderr does not end with a line \"mezzo $1: …\""
    [[ $(grep -c "^mezzo $1: " "$ERR") -eq 1 ]] || fail "more than one line tells the error"
    for word in "${words[@]}"; do
        [[ $line == *"$word"* ]] || fail "the error does not name \"$word\""
    done
}

# A text of N lines that a tiny model can be trained on.
text() {
    local i
    for ((i = 0; i < $1; i++)); do
        echo "the quick brown fox $((i * 7919 % 97)) jumps over the lazy dog."
    done
}

# The smallest run that is a run: about a second.
TINY=(--model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 2 --warmup 2 --eval-iters 2
    --sample-tokens 16 --log-every 1 --device cpu --threads 1)
