# Ranks on this machine: they meet, exchange, and when one dies, hangs or leaves, all end with 3 and one line, and nothing stays behind.
# Seen to fail with the secret not compared.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
[[ -e $MEZZO_BUILD/mezzo_mpi.so && -e $MEZZO_BUILD/mezzo_pmix.so ]] || exit 77 # no MPI here
RANK_PROGRAM=$MEZZO_BUILD/tests/dist_rank
clean_ranks() { # a launcher that is gone takes its ranks along, and those that stand still too
    local left
    left=$(jobs -p)
    [[ -z $left ]] || kill -KILL $left 2>/dev/null
    [[ -z ${name:-} ]] || { ip netns del "${name}a" && ip netns del "${name}b"; } 2>/dev/null
    clean
}
trap clean_ranks EXIT
export CUDA_VISIBLE_DEVICES= # ranks on CPUs, also where there is a GPU
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

launch() { # CODE N WHAT: the ranks run dist_rank
    local expected=$1 code
    last="mezzo launch -n $2 -- $3"
    MEZZO_LAUNCH_PROGRAM=$RANK_PROGRAM "$MEZZO" launch -n "$2" -- "$3" cpu >"$OUT" 2>"$ERR"
    code=$?
    [[ $code -eq $expected ]] || fail "exit code $code, not $expected"
}
ranks_of() { pgrep -P "$1"; }
nothing_left() { # PROCESSES: none of them within 3 s
    local i process
    for ((i = 0; i < 30; i++)); do
        process=$(ps -o pid= -p "$(tr ' \n' ',,' <<<"$*" | sed 's/,*$//')" -o stat= 2>/dev/null | grep -v Z)
        [[ -z $process ]] && return
        sleep 0.1
    done
    fail "still there: $process"
}

# --- collectives and records
for n in 2 3 4; do
    launch 0 $n check
    shows "$OUT" "rank 0 of $n on host 0 of 1: good, Open MPI"
done
launch 0 3 records
last="mpirun"
MEZZO_PLUGINS=$MEZZO_BUILD mpirun -n 2 --oversubscribe "$RANK_PROGRAM" check cpu >"$OUT" 2>"$ERR" </dev/null || fail "mpirun: $?"
shows "$OUT" "rank 0 of 2" "rank 1 of 2"
MEZZO_PLUGINS=$SCRATCH launch 3 2 check
shows "$ERR" "mezzo_pmix.so" "MEZZO_PLUGINS"
ln -s "$MEZZO_BUILD"/mezzo_*.so .
MEZZO_PLUGINS=. launch 3 2 check # code never comes from the working folder
shows "$ERR" "(absolute path) in MEZZO_PLUGINS"
rm mezzo_*.so

# --- leaving, giving up, differing
launch 3 3 leave
shows "$ERR" "mezzo launch: rank 1 (process" "has left the job, but rank" '"never"'
launch 3 3 give-up
shows "$ERR" "gave up: cuda: out of device memory"
launch 3 3 differ
shows "$ERR" '"one thing"' '"another"' "all ranks must do the same"

# --- a rank that is killed, one that stands still
started() { # N: ranks in the loop
    : >"$OUT" # of the command before: its lines are not these ranks'
    MEZZO_LAUNCH_PROGRAM=$RANK_PROGRAM "$MEZZO" launch -n "$1" -- loop cpu >"$OUT" 2>"$ERR" &
    job=$!
    last="mezzo launch -n $1 -- loop"
    wait_until grep -q "^rank 0 is" "$OUT"
    mapfile -t ranks < <(ranks_of $job)
    [[ ${#ranks[@]} -eq $1 ]] || fail "${#ranks[@]} ranks, not $1"
    sleep 1
}
ended() { # SECONDS WORD…: within so many seconds, with 3, the words in the line
    local code limit=$1
    shift
    wait $job
    code=$?
    [[ $code -eq 3 ]] || fail "exit code $code, not 3"
    ((SECONDS - began <= limit)) || fail "after $((SECONDS - began)) s"
    [[ $(grep -c "^mezzo launch: " "$ERR") -eq 1 ]] || fail "not one line"
    shows "$ERR" "$@"
    nothing_left "${ranks[@]}"
}
for victim in 0 2; do
    started 3
    began=$SECONDS
    kill -KILL "${ranks[victim]}"
    ended 12 "mezzo launch: rank $victim (process ${ranks[victim]} on " "was killed or crashed" all-reduce "(step " "signal 9"
done
export MEZZO_SILENCE_SECONDS=3
for victim in 1 0; do
    started 2
    began=$SECONDS
    kill -STOP "${ranks[victim]}"
    ended 12 "mezzo launch: rank $victim (process ${ranks[victim]} on " "hangs, or its host is lost"
done
unset MEZZO_SILENCE_SECONDS

# --- signals and codes go through
cat >other <<'END'
#!/bin/bash
trap 'exit 130' INT TERM
echo "attempt $RANK" >>attempts
case $1 in
fails) exit 3 ;;
picky) exit $((WORLD_SIZE == 1 ? 0 : WORLD_SIZE)) ;; # two ranks refuse, three fail
refuses) exit 2 ;;
ignores) trap '' HUP INT TERM && exec sleep 60 ;;
waits) for ((i = 0; i < 1200; i++)); do sleep 0.1; done ;;
notes)
    for one in USR1 USR2 XCPU HUP; do trap "echo $one >>got" $one; done
    touch ready
    for ((i = 0; i < 1200; i++)); do [[ -e enough ]] && exit 3 || sleep 0.1; done
    ;;
train) # it starts slowly
    touch ready
    for ((i = 0; i < 1200; i++)); do [[ -e enough ]] && exec "$MEZZO" "$@" || sleep 0.1; done
    ;;
esac
END
chmod +x other
export MEZZO_LAUNCH_PROGRAM=$PWD/other
run 3 launch -n 2 --restarts 2 -- fails
[[ $(wc -l <attempts) -eq 6 ]] || fail "not three attempts of two ranks"
shows "$ERR" "restart 2 of 2"
run 2 launch -n 2 --restarts 2 -- refuses
rm attempts
run 3 launch -n 3 --restarts 2 --min-ranks 2 -- fails
[[ $(wc -l <attempts) -eq 7 ]] || fail "not three ranks, two and two: $(wc -l <attempts)"
shows "$ERR" "restart 1 of 2, with 2 ranks" "restart 2 of 2, with 2 ranks"
rm attempts
run 0 launch -n 3 --restarts 1 --min-ranks 1 -- picky
[[ $(wc -l <attempts) -eq 6 ]] || fail "not three ranks, two that refuse, and one: $(wc -l <attempts)"
attempts() { [[ $(wc -l <attempts) -eq $1 ]]; } # N: so many ranks have begun
for delay in 0.01 0.02 0.03 0.05 0.1 begun; do # one that comes while the ranks are being started is theirs, too
    rm -f attempts
    "$MEZZO" launch -n 2 -- waits >"$OUT" 2>"$ERR" &
    job=$!
    [[ $delay == begun ]] && wait_until attempts 2 || sleep $delay
    kill -TERM $job
    wait $job
    code=$?
    [[ $code -eq 130 || $code -eq 143 && $delay != begun ]] || fail "SIGTERM ($delay): exit code $code, not 130"
done
# Signals for a checkpoint all arrive, also three at once, and a rank that fails after them is started again; under nohup a hangup is none.
# The same where a library that PMIx loads to look at the machine takes them for itself.
rm attempts
cat >takes.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
static void lose(int number) { (void)number; }
int hwloc_topology_load(void *topology) {
    int (*load)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "hwloc_topology_load");
    static const int numbers[] = {SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
    for (int i = 0; i < 5; i++)
        signal(numbers[i], lose);
    fclose(fopen("taken", "w"));
    return load(topology);
}
END
${CC:-cc} -shared -fPIC takes.c -o takes.so -ldl && LD_PRELOAD=$PWD/takes.so "$MEZZO" --version >/dev/null 2>&1 &&
    taker=$PWD/takes.so
LD_PRELOAD=${taker:-} "$MEZZO" launch -n 1 --restarts 1 -- notes >"$OUT" 2>"$ERR" &
job=$!
wait_until test -e ready
kill -XCPU $job && kill -USR2 $job && kill -USR1 $job
got() { [[ $(sort -u got | wc -l) -eq $1 ]]; }
said() { # what arrived, and which signals wait (SigPnd, ShdPnd), are blocked, ignored and caught in the command and its rank
    echo "got $(sort got | tr '\n' ' ')"
    grep -HE '^(Sig|Shd)' /proc/{$job,"$(ranks_of $job)"}/status
}
(wait_until got 3) || {
    here=$(said)
    touch enough
    wait $job
    fail "$here, then exit code $? after $(wc -l <attempts) attempts"
}
touch enough
wait $job
code=$?
[[ $(sort got | tr '\n' ' ') == "USR1 USR2 XCPU " ]] || fail "not each signal once: $(cat got)"
[[ $code -eq 3 && $(wc -l <attempts) -eq 2 ]] || fail "exit code $code after $(wc -l <attempts) attempts, not 3 after two"
rm ready enough got
(trap '' HUP && exec "$MEZZO" launch -n 1 -- notes) >"$OUT" 2>"$ERR" &
job=$!
wait_until test -e ready
kill -HUP $job && kill -USR1 $job
wait_until got 1
touch enough
wait $job
code=$?
[[ $code -eq 3 && $(cat got) == USR1 ]] || fail "exit code $code, and of signals $(cat got)"
rm ready enough attempts
"$MEZZO" launch -n 2 -- ignores >"$OUT" 2>"$ERR" &
job=$!
wait_until attempts 2
mapfile -t ranks < <(ranks_of $job)
kill -KILL $job
wait $job 2>/dev/null
nothing_left "${ranks[@]}"
# Signals for a checkpoint wait for a rank that starts; SIGTERM and SIGALRM are such signals where --signal names them, and a rank that
# fails after them is started again.
text 100 >text.txt
TRAIN=(train "${TINY[@]}" --tokenizer byte --data text.txt --eval-every 0 --sample-every -1 --checkpoint-every 0)
holds() { # SIGNAL: the rank has it, and does not handle it yet
    rank=$(ranks_of $job) && [[ $((0x$(sed -n 's/^ShdPnd:\t//p' "/proc/$rank/status") >> ($1 - 1) & 1)) -eq 1 ]]
}
saved() { [[ $(ls -d "$1"/checkpoints/step-*[0-9] | wc -l) -eq $2 ]]; } # RUN CHECKPOINTS
"$MEZZO" launch -n 1 -- "${TRAIN[@]}" --steps 1000000 --out early >"$OUT" 2>"$ERR" &
job=$!
last="a signal before the rank handles it"
wait_until test -e ready
kill -USR2 $job
wait_until holds 12
touch enough
wait_until saved early 1
kill -TERM $job
wait $job
code=$?
[[ $code -eq 130 ]] || fail "exit code $code, not 130"
"$MEZZO" launch -n 1 --restarts 1 -- "${TRAIN[@]}" --steps 1000000 --signal TERM,ALRM --out named >"$OUT" 2>"$ERR" &
job=$!
last="signals of --signal"
wait_until test -s named/metrics.jsonl
kill -TERM $job
wait_until saved named 1
kill -ALRM $job
wait_until saved named 2
kill -KILL "$(ranks_of $job)"
wait_until grep -qF "restart 1 of 1" "$ERR"
kill -INT $job
wait $job
code=$?
[[ $code -eq 130 ]] || fail "exit code $code, not 130"
refuse 2 "--signal" NOPE -- launch -n 1 -- train --signal NOPE
unset MEZZO_LAUNCH_PROGRAM
refuse 2 "-n N" -- launch -- train
refuse 2 "launch: -n 0" -- launch -n 0 -- train
refuse 2 "--global-batch" -- launch -n 2 --restarts 1 --min-ranks 1 -- train
refuse 2 "--min-ranks 3 of -n 2" -- launch -n 2 --restarts 1 --min-ranks 3 -- train --global-batch 8

# --- meeting by TCP, without MPI: records
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) MEZZO_JOB_SECRET=one MEZZO_JOIN_SECONDS=20
rank() { # RANK [VARIABLE=VALUE …]
    local r=$1
    shift
    last="rank $r"
    env RANK="$r" LOCAL_RANK="$r" "$@" "$RANK_PROGRAM" records >>"out$r" 2>>"err$r" &
}
both() { # CODE0 CODE1: of the ranks begun last, 1 before 0
    local a b
    wait "$second"
    b=$?
    wait "$first"
    a=$?
    cat err0 err1 >"$ERR"
    cat out0 out1 >"$OUT"
    [[ $a -eq $1 && $b -eq $2 ]] || fail "exit codes $a and $b, not $1 and $2"
}
meet() { # CODE0 CODE1 [VARIABLE=VALUE …]: of rank 1
    local a=$1 b=$2
    shift 2
    rm -f out? err?
    rank 1 "$@"
    second=$!
    rank 0
    first=$!
    both "$a" "$b"
}
meet 0 0
meet 0 0 MEZZO_HOST=elsewhere
shows "$OUT" "rank 1 of 2 on host 1 of 2"
export MEZZO_JOIN_SECONDS=2
meet 3 3 MEZZO_JOB_SECRET=two
shows err1 "refused rank 1: its secret differs"
shows err0 "1 of 2 ranks have not come within 2 s: 1"
meet 3 3 WORLD_SIZE=3
shows err1 "a job of 2 ranks, this is rank 1 of 3"
meet 3 3 MEZZO_JOB_SECRET=
shows err1 "MEZZO_JOB_SECRET"
rm err?
touch out1 err1
rank 0
first=$!
sleep 0.5
rank 0 MEZZO_JOIN_SECONDS=9
second=$!
both 3 3
shows err0 "port $MASTER_PORT of 127.0.0.1, where the ranks meet, is taken"
rank 1
wait $!
shows err1 "cannot reach rank 0 at 127.0.0.1:$MASTER_PORT"

# --- by a file; an older job's is no obstacle
unset MASTER_ADDR MASTER_PORT MEZZO_JOB_SECRET
export MEZZO_RENDEZVOUS=file:$PWD/meeting MEZZO_JOIN_SECONDS=20
echo "127.0.0.1 9 stale" >meeting
rank 1
second=$!
sleep 0.5
rank 0
first=$!
both 0 0
[[ ! -e meeting ]] || fail "the rendezvous file stays"

# --- two hosts, as far as one machine has them: network namespaces with a cable between, which is then cut
name=mezzo$$
if command -v ip >/dev/null && ip netns add ${name}a 2>/dev/null; then
    ip netns add ${name}b
    ip link add va netns ${name}a type veth peer name vb netns ${name}b || fail "no cable"
    ip -n ${name}a addr add 10.7.0.1/24 dev va && ip -n ${name}a link set va up
    ip -n ${name}b addr add 10.7.0.2/24 dev vb && ip -n ${name}b link set vb up
    unset MEZZO_RENDEZVOUS
    export MASTER_ADDR=10.7.0.1 MASTER_PORT=29400 MEZZO_JOB_SECRET=x MEZZO_SILENCE_SECONDS=3
    for r in 0 1; do
        ip netns exec ${name}$([[ $r -eq 0 ]] && echo a || echo b) env RANK=$r LOCAL_RANK=0 MEZZO_HOST=host$r "$RANK_PROGRAM" reduce \
            >"out$r" 2>"err$r" &
        pids[r]=$!
    done
    wait_until grep -q "rank 0 is process" out0
    sleep 1
    ip -n ${name}b link set vb down
    wait "${pids[0]}"
    [[ $? -eq 3 ]] || fail "rank 0 of a lost host: not 3"
    wait "${pids[1]}"
    [[ $? -eq 3 ]] || fail "rank 1 of a lost host: not 3"
    shows err0 "rank 1 (process" "on host1) hangs, or its host is lost"
    shows err1 "rank 0 (process" "on host0) hangs, or its host is lost"
fi
unset WORLD_SIZE MASTER_ADDR MASTER_PORT MEZZO_RENDEZVOUS

# --- the doctor
run 0 launch -n 2 -- doctor --ranks --device cpu
shows "$OUT" "2 ranks on 1 host by Open MPI" "bytes/s" ok
run 0 launch -n 2 -- doctor --ranks --device cpu --json
shows "$OUT" '"passed": true' '"bandwidth"' '"clock_skew"'
refuse 2 "mezzo launch -n 2 -- doctor --ranks" -- doctor --ranks --device cpu
