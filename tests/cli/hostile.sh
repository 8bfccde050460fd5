# What is done to a run, its files and its process that no user means well with: each ends in words and the documented
# code, and nothing of the run is lost.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 300 >text.txt
FAST=("${TINY[@]}" --eval-every 0 --sample-every -1 --data text.txt --threads 1)
digest() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }

# --- one owner: of two trainers in one folder one works, the other is refused and told who has it
run 0 train "${FAST[@]}" --steps 2 --checkpoint-every 1 --keep-last 0 --out shared
for ((i = 0; i < ${MEZZO_TRAINER_PAIRS:-3}; i++)); do
    last="two trainers"
    for k in 1 2; do
        "$MEZZO" train --config shared/config.yaml --resume auto --steps $((10 + 8 * i)) --checkpoint-every 1 \
            --keep-last "${MEZZO_TRAINER_KEEP:-0}" >"pair-$k.out" 2>"pair-$k.err" </dev/null &
        pids[k]=$!
    done
    wait "${pids[1]}"
    codes="$?"
    wait "${pids[2]}"
    codes="$codes $?"
    case $codes in
    "0 2") loser=2 owner=${pids[1]} ;;
    "2 0") loser=1 owner=${pids[2]} ;;
    "0 0") loser=0 ;; # one was done before the other began
    *) fail "two trainers left with $codes: $(cat pair-1.err pair-2.err)" ;;
    esac
    if [[ $loser != 0 ]]; then
        grep -qF "'shared' is being written by 'process $owner on " "pair-$loser.err" || fail "the refusal is: $(cat "pair-$loser.err")"
        [[ $(grep -c '^mezzo train: ' "pair-$loser.err") -eq 1 ]] || fail "the refusal is not one line"
    fi
    for checkpoint in shared/checkpoints/step-*; do
        run 0 eval "$checkpoint" --iters 1
    done
done

# --- a reader never changes a folder, also where a replacement was interrupted
run 0 train "${FAST[@]}" --steps 2 --out read
mv read/checkpoints/step-00000002 read/checkpoints/.replaced-step-00000002
before=$(digest read)
run 0 eval read --iters 1
[[ $(digest read) == "$before" && -d read/checkpoints/.replaced-step-00000002 ]] || fail "eval changed the folder"
run 0 train --config read/config.yaml --resume auto --steps 3
[[ -d read/checkpoints/step-00000002 && ! -e read/checkpoints/.replaced-step-00000002 ]] ||
    fail "the owner did not put the interrupted replacement right"

# --- closed standard descriptors
for closed in '0<&-' '1>&-' '2>&-' '0<&- 1>&- 2>&-'; do
    last="mezzo train $closed"
    rm -rf closed
    eval '"$MEZZO" train "${FAST[@]}" --steps 6 --log-every 1 --out closed >"$OUT" 2>"$ERR" </dev/null '"$closed"
    grep -vq '^{"step": ' closed/metrics.jsonl && fail "$closed: something else is in metrics.jsonl"
    grep -rqa 'tok/s' closed && fail "$closed: progress lines are in $(grep -rla 'tok/s' closed)"
    run 0 train --config closed/config.yaml --resume auto --steps 7
done

# --- the run folder goes away in mid-run
last="mezzo train, its folder removed"
"$MEZZO" train "${FAST[@]}" --steps 100000000 --log-every 1 --checkpoint-every -1 --out gone >"$OUT" 2>"$ERR" </dev/null &
child=$!
wait_until grep -q 'step 3/' "$ERR"
rm -rf gone
wait "$child"
code=$?
[[ $code -eq 3 ]] || fail "exit code $code, not 3"
shows "$ERR" "mezzo train: 'gone': the run folder was removed, renamed or replaced"
[[ ! -e gone ]] || fail "the folder was made again"

# --- limits: a file size, a small stack, threads that cannot start
run 0 train "${FAST[@]}" --steps 2 --out limits
last="ulimit -f 1"
(ulimit -f 1 && exec "$MEZZO" train "${FAST[@]}" --steps 2 --out large >"$SCRATCH/limited" 2>&1 </dev/null)
[[ $? -eq 3 ]] || fail "ulimit -f 1 does not leave with 3: $(cat "$SCRATCH/limited")"
grep -q 'File too large' "$SCRATCH/limited" || fail "ulimit -f 1 tells nothing: $(cat "$SCRATCH/limited")"
last="ulimit -s 64"
# The environment lies on the stack too: a long one would leave no room for the program.
(env -i PATH="$PATH" OMP_WAIT_POLICY=passive bash -c 'ulimit -s 64 && exec "$@"' - \
    "$MEZZO" train "${TINY[@]}" --eval-every 0 --data text.txt --threads 4 --steps 2 --out small \
    >"$OUT" 2>"$ERR" </dev/null) || fail "ulimit -s 64: exit code $?"

# libgomp ends the process where it cannot start a thread; so does a descriptor too few in the middle of a run.
last="threads that cannot start"
OMP_STACKSIZE=200000G "$MEZZO" train "${FAST[@]}" --threads 4 --steps 2 --out threads >"$OUT" 2>"$ERR" </dev/null
[[ $? -eq 3 ]] || fail "threads that cannot start: exit code $?"
grep -q '^mezzo' "$ERR" || fail "threads that cannot start: no line of ours"
last="ulimit -n"
for descriptors in 4 5 6; do # and none that this test was started with
    bash -c 'for ((i = 3; i < 30; i++)); do eval "exec $i>&-"; done; ulimit -n "$1" && shift && exec "$@"' - $descriptors "$MEZZO" train "${FAST[@]}" --steps 2 --out "few-$descriptors" \
        >"$OUT" 2>"$ERR" </dev/null
    [[ $? -eq 3 && $(tail -n 1 "$ERR") == "mezzo train: "*"Too many open files" ]] || fail "$descriptors descriptors: exit code $?"
done

# --- outputs: only files are replaced
run 0 train "${FAST[@]}" --steps 4 --log-every 1 --out paths
run 0 report paths --out /dev/null
[[ -c /dev/null ]] || fail "/dev/null was replaced"
echo precious >precious
ln -s "$PWD/precious" page.html.tmp
run 0 report paths --out page.html
[[ $(cat precious) == precious && -f page.html && ! -L page.html.tmp ]] || fail "a link beside the output was followed"
echo old >target.html
ln -s target.html link.html
run 0 report paths --out link.html
[[ -L link.html && $(head -c 2 target.html) == "<!" ]] || fail "the target of a link was not replaced"
ln -s nowhere dangling.html
refuse 3 "a link to a file that does not exist" -- report paths --out dangling.html
mkfifo pipe
cat pipe >from-pipe &
run 0 report paths --out pipe
wait
[[ -p pipe && $(head -c 2 from-pipe) == "<!" ]] || fail "a pipe was not written to"
refuse 3 "it is a folder" -- report paths --out paths
run 0 report paths --out -
[[ $(head -c 2 "$OUT") == "<!" && $(tail -n 1 "$OUT") == "</html>" && ! -e - ]] || fail "the page is not all that stdout has"
shows "$ERR" "wrote standard output"
run 0 explain --model gpt2 --layers 1 --dot -
head -n 1 "$OUT" | grep -q '^digraph' || fail "the graph is not on stdout"
refuse 2 "name a file" -- sweep --out -

# --- text from files never drives a terminal
escape=$(printf '\033]0;pwned\007\033[31m')
cp -r paths hostile
sed -i 's/mezzo-checkpoint/mezzo\\u001b[31m/; /"crc32c": "/d' hostile/checkpoints/step-00000004/state.json
sed -i ':a;N;$!ba;s/},\n}/}\n}/' hostile/checkpoints/step-00000004/state.json
run 2 eval hostile/checkpoints/step-00000004
grep -q "$(printf '[\033\007]')" "$OUT" "$ERR" && fail "state.json's control bytes reach the terminal"
printf '{"step": 5, "run/device": "\\u001b]0;pwned\\u0007", "amp/precision": "\\u001b[31m", "train/loss": 1}\n' \
    >>hostile/metrics.jsonl
run 0 watch hostile --once
grep -q "$(printf '[\033\007]')" "$OUT" "$ERR" && fail "watch prints control bytes raw"
# Neither do invisible tags (U+E0041) and what turns the line around (U+202E).
printf '{"step": 6, "run/device": "cpu\\udb40\\udc41\\u202e", "train/loss": 1}\n' >>hostile/metrics.jsonl
run 0 watch hostile --once
grep -qE "$(printf '\363\240|\342\200\256')" "$OUT" "$ERR" && fail "watch prints invisible tags"
run 2 eval "$(printf 'a\363\240\201\201\342\200\256b')"
grep -qE "$(printf '\363\240|\342\200\256')" "$OUT" "$ERR" && fail "an error prints invisible tags"
mkdir -p 'esc-'"$escape"
run 2 eval 'esc-'"$escape"
grep -q "$(printf '[\033\007]')" "$OUT" "$ERR" && fail "an error prints control bytes raw"
# Nor do names that were typed; the commands to run next can be pasted all the same.
name=$(printf 'to\033[31m\007 go')
for call in "train $(printf '%q ' "${TINY[@]}") --tokenizer byte --data $PWD/typed.txt --steps 1 --out NAME" "eval NAME" "data $PWD/typed.txt --out NAME-data" \
    "report NAME --out NAME.html" "export NAME --out NAME-hf" "import NAME-hf --out NAME-in" "NAME" "doctor --config NAME/config.yaml" \
    "verify --model toy --steps 2 --pairs 1 --device cpu --out NAME-verify"; do
    [[ -e typed.txt ]] || text 30 >typed.txt
    words=()
    for word in $call; do words+=("${word//NAME/$name}"); done
    "$MEZZO" "${words[@]}" >"$OUT" 2>"$ERR" </dev/null
    last="mezzo $call"
    grep -q "$(printf '[\033\007]')" "$OUT" "$ERR" && fail "a name's control bytes reach the terminal"
    [[ -s $OUT || -s $ERR ]] || fail "nothing was printed"
    if [[ $call == train* ]]; then
        next=$(sed -n 's/^  [^ ]* eval //p' "$OUT")
        eval "ls -d -- $next" >/dev/null || fail "the quoted name names nothing: $next"
    fi
done

# --- a histogram's exponent that has no absolute value
mkdir out-of-range
printf '{"step": 1, "gradients/log2_counts": "-9223372036854775808:1 0:1"}\n' >out-of-range/metrics.jsonl
run 0 report out-of-range

# --- a bad line in the middle is passed over and kept
sed -i '2i garbage in the middle' paths/metrics.jsonl
run 0 report paths
run 0 watch paths --once
run 0 train --config paths/config.yaml --resume auto --steps 6
[[ $(sed -n 2p paths/metrics.jsonl) == "garbage in the middle" ]] || fail "the bad line is gone"
# Readers wait for no pipe, and a line without end takes no memory: it is one bad line.
mkdir piped long
mkfifo piped/metrics.jsonl
for reader in "watch piped --once" "report piped --out page.html"; do
    last="mezzo $reader"
    timeout 60 "$MEZZO" $reader >"$OUT" 2>"$ERR" </dev/null
    [[ $? == 2 ]] && grep -q "it is a device or pipe" "$ERR" || fail "a pipe as metrics.jsonl"
done
{
    printf '{"step": 1, "train/loss": 2.5}\n'
    head -c 300000000 /dev/zero
    printf '\n{"step": 2, "train/loss": 1.5}\n'
} >long/metrics.jsonl
(
    grep -qa __asan_init "$MEZZO" || ulimit -v 250000 # sanitizers reserve terabytes
    run 0 watch long --once
) || exit 1
shows "$ERR" "long/metrics.jsonl:2: a line of 16 MiB or more is not a record: left out"
rm long/metrics.jsonl
run 0 eval paths --iters 1

# --- what is named is checked: an edited state, a tokenizer elsewhere
checkpoint=$(ls -d paths/checkpoints/step-*6)
sed -i 's/"batches": [0-9]*/"batches": 999/' "$checkpoint/state.json"
refuse 2 "state.json: checksum" "corrupted" -- eval "$checkpoint"
sed -i 's/"version": 2/"version": 1/; /"crc32c": "/d; s/"tokenizer": "[^"]*"/"tokenizer": "..\/x"/' "$checkpoint/state.json"
sed -i ':a;N;$!ba;s/},\n}/}\n}/' "$checkpoint/state.json"
refuse 2 "not a file name in the run folder" -- sample "$checkpoint"
sed -i 's/d_model: 16/d_model: 17/' paths/config.yaml
refuse 2 "'paths/config.yaml' was modified" "remove the first line" -- train --config paths/config.yaml --resume auto
refuse 2 "config.yaml' was modified" -- eval paths
sed -i '1d; s/d_model: 17/d_model: 16/; s/batch_size: .*/batch_size: 1/' paths/config.yaml
rm -r "$checkpoint"
run 0 eval paths
run 0 train --config paths/config.yaml --resume auto --steps 6
head -n 1 paths/config.yaml | grep -q '^# crc32c [0-9a-f]\{8\} ' || fail "the resumed run's config.yaml has no checksum"
sed -i 's/a/b/' limits/tokenizer.json
refuse 2 "tokenizer.json: checksum" -- sample limits

# --- sizes that took minutes to plan (a second now; the limit is for a loaded machine)
last="memory --batch-size 1048576"
timeout 120 "$MEZZO" memory --model gpt2 --layers 1 --batch-size 1048576 --device cpu >"$OUT" 2>"$ERR" || fail "exit code $?"

last="train with 65,536 experts in 32,768 groups" # a step took 5 minutes
timeout 120 "$MEZZO" train --model glm4_moe --layers 2 --heads 2 --d-model 16 --seq-len 8 --batch-size 1 --device cpu --threads 1 \
    --precision fp32 --experts 65536 --d-expert 1 --experts-per-token 64 --model.expert_groups 32768 --model.expert_groups_used 16384 \
    --steps 2 --eval-every 0 --eval-final false --sample-every -1 --data text.txt --out experts >"$OUT" 2>"$ERR" </dev/null || fail "exit code $?"
rm -r experts
timeout 120 "$MEZZO" memory --model glm4_moe --layers 2 --experts 65536 --device cpu >"$OUT" 2>"$ERR" || fail "exit code $?"

# --- a figure's name is a name
if command -v gnuplot >/dev/null; then
    run 0 memory --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --device cpu --plot "a'.system('touch pwned').'b.svg"
    [[ ! -e pwned && -s "a'.system('touch pwned').'b.svg" ]] || fail "a file name ran a command"
    run 0 memory --model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --device cpu --plot "it's.svg"
    [[ -s it\'s.svg ]] || fail "it's.svg is empty"
fi
exit 0
