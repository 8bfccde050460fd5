#!/usr/bin/env bash
# Ranks that are killed or stopped at random moments: bench/faults.sh BUILD [KILLS [STOPS [RANKS [DEVICE]]]], one CSV row each.
# The ranks do nothing but all-reduce (tests/dist/rank.c); a moment may lie before they have met. A row is good when the launcher's code is
# 3, it wrote one line, no process is left and it took at most 15 s. Exit 1 where a row is not.
set -uo pipefail
build=$1 kills=${2:-200} stops=${3:-20} n=${4:-3} device=${5:-cpu}
export MEZZO_PLUGINS=$PWD/$build MEZZO_LAUNCH_PROGRAM=$PWD/$build/tests/dist_rank
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

bad=0
echo "signal,ranks,victim,after_ms,seconds_to_end,exit,lines,left,line"
for ((i = 0; i < kills + stops; i++)); do
    signal=KILL
    ((i < kills)) || signal=STOP
    "$build/mezzo" launch -n "$n" -- loop "$device" >"$scratch/out" 2>"$scratch/err" &
    job=$!
    ranks=()
    while ((${#ranks[@]} < n)); do mapfile -t ranks < <(pgrep -P $job); done
    # A rank that is stopped before it has joined is missed when the others have waited for it, not by its heartbeat.
    if [[ $signal == STOP ]]; then
        until grep -q '^rank 0 is' "$scratch/out"; do sleep 0.05; done
    fi
    after=$((RANDOM % 2000)) victim=$((RANDOM % n))
    sleep "$(printf '%d.%03d' $((after / 1000)) $((after % 1000)))"
    began=$(date +%s%N)
    kill -$signal "${ranks[victim]}"
    wait $job 2>/dev/null
    code=$?
    took=$(($(date +%s%N) - began))
    left=$(ps -o stat= -p "$(IFS=, && echo "${ranks[*]}")" | grep -vc Z)
    lines=$(grep -c '^mezzo launch: ' "$scratch/err")
    printf '%s,%d,%d,%d,%d.%03d,%d,%d,%d,"%s"\n' $signal "$n" $victim $after $((took / 1000000000)) $((took / 1000000 % 1000)) $code "$lines" \
        "$left" "$(grep '^mezzo launch: ' "$scratch/err" | head -1 | tr '"' "'")"
    ((code == 3 && lines == 1 && left == 0 && took <= 15000000000)) || bad=1
done 2>/dev/null
exit $bad
