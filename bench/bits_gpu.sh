#!/usr/bin/env bash
# bench/bits_gpu.sh BUILD [OLD…]: why a step of GPT-2 124M (32 x 1,024, BF16, no dropout) has other bits in some runs on a GPU. BUILD holds mezzo
# and bench_repeat; OLD are build folders of other commits, of which mezzo is enough. One line for each suspect that is left out in turn:
#   REPEAT  the same step computed again and again in one process (bench/repeat.c), how often its gradients differed, and in which calls first
#   TWICE   two runs side by side: the first step that differs, and how many of the library's products have other algorithms in the two
#   REPLAY  mezzo train --replay 1: how many steps differed, and what the first line says of them
#   CONTROL products of the step's shapes by PyTorch, where there is one: they are the library's and the machine's alone
# A suspect that is at fault has 0 where the line `default` has more. About 200 s on one GPU; LIMIT (s) ends it earlier, most telling lines first.
# DEVICE=cpu tries the script with a tiny model. OUT: a folder for the logs. Exit code: 0 where every line is 0 or equal, else 1.
set -uo pipefail
[[ $# -ge 1 && -x $1/mezzo && -x $1/bench_repeat ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
device=${DEVICE:-cuda} limit=${LIMIT:-230} keep=${OUT:-} builds=()
for build in "$@"; do builds+=("$(realpath "$build")"); done
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && cd "$work" || exit 3
export OMP_WAIT_POLICY=passive
awk 'BEGIN { for (i = 0; i < 20000; i++) print "the quick brown fox " i * 7919 % 97 " jumps over the lazy dog " i "." }' >text.txt
size=(--model gpt2-124M --model.vocab 50304 --batch-size 32 --seq-len 1024) repeats=100 steps=60 replays=12
[[ $device != cpu ]] || { size=(--model gpt2 --layers 2 --heads 2 --d-model 64 --model.vocab 256 --batch-size 4 --seq-len 64 --threads 1) repeats=4 steps=6 replays=3; }
train=("${size[@]}" --data text.txt --tokenizer byte --precision bf16 --device "$device" --eval-every 0)
quiet=(--eval-final false --sample-every -1 --checkpoint-every -1 --quiet)
result=0

left() { echo $((limit - SECONDS)); }
cap() { echo $((limit - SECONDS < 45 ? limit - SECONDS : 45)); } # s of one line
say() { # KIND NAME SINCE TEXT
    printf '%-6s %-24s %s (%d s)\n' "$1" "$2" "$4" $((SECONDS - $3))
}
repeat() { # NAME ALONE [VARIABLE=VALUE…] [-- OPTION…]
    local name=$1 alone=$2 since=$SECONDS variables=() line rc
    shift 2
    while [[ $# -gt 0 && $1 != -- ]]; do variables+=("$1"); shift; done
    [[ $# -eq 0 ]] || shift
    [[ $(left) -gt 8 ]] || { say REPEAT "$name" $since "no time"; return; }
    env MEZZO_VERBOSE=dispatch "${variables[@]}" timeout -k 2 "$(cap)" "${builds[0]}/bench_repeat" 5 $repeats "$alone" "${train[@]}" --steps 1000 "$@" --out none >"repeat-$name.txt" 2>"repeat-$name.err"
    rc=$?
    line=$(tail -n 1 "repeat-$name.txt")
    [[ $rc -eq 0 ]] || : >failed # it may run in the background
    [[ $rc -le 1 ]] || line="exit $rc: $(tail -n 1 "repeat-$name.err" | cut -c1-200)"
    say REPEAT "$name" $since "$line"
    grep '^alone' "repeat-$name.txt" | head -n 5 | cut -c1-200
}
twice() { # NAME BUILD [OPTION…]
    local name=$1 build=$2 since=$SECONDS i pids=() line plans
    shift 2
    [[ $(left) -gt 8 ]] || { say TWICE "$name" $since "no time"; return; }
    for i in 1 2; do
        MEZZO_VERBOSE=dispatch timeout -k 2 "$(cap)" "$build/mezzo" train "${train[@]}" "${quiet[@]}" --steps $steps --log-every 1 "$@" --out "twice-$name-$i" >/dev/null 2>"twice-$name-$i.err" &
        pids+=($!)
    done
    wait "${pids[0]}"; local one=$?
    wait "${pids[1]}"; local two=$?
    for i in 1 2; do grep -o 'cuda: product .*algorithm [^,]*' "twice-$name-$i.err" | sort >"plans-$i"; done
    plans=$(comm -3 plans-1 plans-2 | grep -c .)
    [[ $plans -eq 0 ]] || plans+=" ($(comm -3 plans-1 plans-2 | head -n 2 | grep -o 'product [^:]*: algorithm .*' | tr '\n' ' '))"
    line=$(python3 - "$name" 2>/dev/null <<'P'
import json, sys
rows = []
for i in 1, 2:
    with open(f"twice-{sys.argv[1]}-{i}/metrics.jsonl") as file:
        rows.append({r["step"]: (r["train/loss"], r["gradients/total_norm"]) for r in map(json.loads, file) if "train/loss" in r})
both = sorted(set(rows[0]) & set(rows[1]))
first = next((s for s in both if rows[0][s] != rows[1][s]), None)
print(f"{len(both)} steps equal" if first is None else f"step {first} of {len(both)} is the first that differs: {rows[0][first]} and {rows[1][first]}")
P
    ) || line="no metrics: $(tail -n 1 "twice-$name-1.err" | cut -c1-160)"
    [[ $line == *equal && $one$two == 00 ]] || result=1
    [[ $one$two == 00 ]] || line+="; exits $one and $two: $(tail -qn 1 "twice-$name-1.err" "twice-$name-2.err" | cut -c1-120 | tr '\n' ' ')"
    say TWICE "$name" $since "$line; lines of products that differ: $plans"
}
replay() { # NAME BUILD
    local name=$1 build=$2 since=$SECONDS rc n
    [[ $(left) -gt 8 ]] || { say REPLAY "$name" $since "no time"; return; }
    timeout -k 2 "$(cap)" "$build/mezzo" train "${train[@]}" "${quiet[@]}" --steps $replays --log-every 20 --replay 1 --replay-policy continue --out "replay-$name" >/dev/null 2>"replay-$name.err"
    rc=$?
    n=$(grep -c 'two different' "replay-$name.err")
    [[ $rc -eq 0 && $n -eq 0 ]] || result=1
    say REPLAY "$name" $since "exit $rc, $n of $replays steps differed $(grep -m1 -o 'same step: .*' "replay-$name.err" | cut -c12-220)"
}

control() { # SECONDS
    local since=$SECONDS line
    [[ $(left) -gt 8 ]] || { say CONTROL torch $since "no time"; return; }
    line=$(python3 - "$device" "$1" 2>&1 <<'P'
import sys, time
try:
    import torch
except ImportError:
    sys.exit("no PyTorch")
device, seconds = sys.argv[1], float(sys.argv[2])
rows, shapes = (32768, [(768, 768), (768, 3072), (3072, 768), (2304, 768)]) if device != "cpu" else (64, [(32, 64)])
torch.manual_seed(1)
runs, other = 0, 0
cases = []
for n, k in shapes:
    x, w, dy = (torch.randn(size, device=device, dtype=torch.bfloat16) for size in ((rows, k), (n, k), (rows, n)))
    cases += [lambda x=x, w=w: x @ w.t(), lambda dy=dy, w=w: dy @ w, lambda dy=dy, x=x: dy.t() @ x]
firsts = [case() for case in cases]
end = time.time() + seconds
while time.time() < end:
    for case, first in zip(cases, firsts):
        other += not torch.equal(case(), first)
        runs += 1
print(f"{other} of {runs} products have other bits than the first time")
P
    ) || true
    [[ $line == 0\ of* || $line == no* ]] || result=1
    say CONTROL torch $since "$line"
}

[[ $device == cpu ]] || nvidia-smi --query-gpu=name,uuid,driver_version,ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.volatile.total --format=csv,noheader
without() { [[ $device == cpu ]] && echo MEZZO_CUDA_WITHOUT= || echo MEZZO_CUDA_WITHOUT="$1"; }
repeat default 20
for ((k = 1; k < ${#builds[@]}; k++)); do twice "old$k" "${builds[k]}"; done
twice default "${builds[0]}"
repeat no-wgmma-backward 0 "$(without attention_bwd_16bit__wgmma,attention_bwd_16bit__wgmma_any)"
repeat no-early-launches 0 "$(without early_launches)"
repeat no-cudnn-forward 0 "$(without attention_16bit__cudnn,attention_16bit__cudnn_any)"
repeat first-plans 0 MEZZO_CUDA_PLANS=first
repeat no-own-products 0 "$(without linear__cuda_product,linear_dx__cuda_product)"
control 8
repeat slowest-plans 0 MEZZO_CUDA_PLANS=slowest
repeat dropout 0 -- --dropout 0.1
repeat small-vocab 0 -- --model.vocab 256
repeat default-again 0
repeat beside-1 0 & repeat beside-2 0 & wait # which share the GPU
twice call-by-call "${builds[0]}" --inject flip@100000:call/0#1
for ((k = 1; k < ${#builds[@]}; k++)); do replay "old$k" "${builds[k]}"; done
replay default "${builds[0]}"
[[ -z $keep ]] || cp ./*.txt ./*.err "$keep"/
[[ ! -e failed ]] || result=1
exit $result
