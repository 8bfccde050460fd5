#!/usr/bin/env bash
# answers [PART…]: what the answers cost here. advise: `advise --data` (advise.csv). counterfactual: steps with statistics of counterfactual formats
# beside steps without, whether weights stay the same (steps.csv, answers.csv), and where the time of a measured step goes (parts.csv; ops.csv of each
# model). transfer: 355M in fp8 predicted from smaller widths (transfer.txt).
. "$(dirname "$0")/common.sh"
small=$(pick "--layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 16" "--layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2")
large=$(pick "--model gpt2-124M --seq-len 1024 --batch-size 8" "--layers 2 --heads 2 --d-model 48 --seq-len 32 --batch-size 2")
measuring="--counterfactual fp8,mxfp8,nvfp4 --counterfactual-every"

advise() {
    local began status seconds
    began=$(date +%s.%N)
    # shellcheck disable=SC2046
    capped 90 "$mezzo" advise --data "$text" --device "$device" --out "$out/advise" $(pick "" "--minutes 0.05 --layers 1 --d-model 32") \
        >"$out/advise.txt" 2>"$out/advise.err"
    status=$? seconds=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    row answers.csv what,value,detail "advise, seconds" "$seconds" "exit code $status, $(head -n 1 "$out/advise.txt")"
}

part() { row parts.csv model,part,ms "$@"; } # MODEL PART MS
# NAME SHAPE: three profiled steps, each measured: ms of a step on the device by op, and of what the host does in it and after it.
profile_parts() {
    local name=$1 line
    # shellcheck disable=SC2086
    steps "$name-profile" $2 --precision bf16 --steps 8 --checkpoint-every 0 $measuring 1 --profile 3 || return
    cp "$name-profile/profile/ops.csv" "$out/$name-ops.csv"
    while IFS='|' read -r -a line; do part "$name" "${line[@]}"; done < <(python3 -c '
import collections, csv, json, sys
ops = list(csv.DictReader(open(sys.argv[1] + "/profile/ops.csv")))
ms = collections.Counter()
for op in ops:
    ms[op["op"] if op["op"] == "rounding" else "everything else"] += float(op["ms_per_step"])
for name, each in ms.items():
    print("profiled: device, %s|%.3f" % (name, each))
print("profiled: device, rounding in floors of memory alone|%.3f" % sum(float(o["floor_ms_per_step"]) for o in ops if o["op"] == "rounding"))
bars = [e for e in json.load(open(sys.argv[1] + "/profile/trace.json"))["traceEvents"] if e.get("cat") == "host"]
steps = sum(e["name"] == "step" for e in bars)
host = collections.Counter()
for e in bars:
    host[e["name"]] += e["dur"] / 1e3
for name, each in host.items(): # records are written between profiled steps: once less
    print("profiled: host, %s|%.3f" % (name, each / (steps - 1 if name == "counterfactual" else steps)))
' "$name-profile")
}

compare() { # NAME SHAPE STEPS
    local name=$1 shape=$2 n=$3 plain measured
    time_for 20 "$name" || return
    # shellcheck disable=SC2086
    steps "$name-without" $shape --precision bf16 --steps "$n" --checkpoint-every 0 &&
        steps "$name-every-10th" $shape --precision bf16 --steps "$n" --checkpoint-every 0 $measuring 10 || return
    cmp -s "$name"-{without,every-10th}/checkpoints/*/model.safetensors
    row answers.csv what,value,detail "$name: weights differ" $? ""
    head -n 400 "$name-every-10th/counterfactual.jsonl" >"$out/$name.jsonl"
    # The first measured step loads kernels.
    read -r plain measured < <(python3 -c '
import json, statistics, sys
rows = [r for r in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "perf/step_ms" in r and r["step"] > 10]
print(*("%.3f" % statistics.median(r["perf/step_ms"] for r in rows if (r["step"] % 10 == 0) == is_measured) for is_measured in (False, True)))
' "$name-every-10th")
    part "$name" "a step" "$plain"
    part "$name" "a measured step" "$measured"
    row answers.csv what,value,detail "$name: cost at every 100th step, percent" \
        "$(awk -v a="$plain" -v b="$measured" 'BEGIN { printf "%.2f", (b - a) / a }')" "median steps $plain and, measured, $measured ms"
    profile_parts "$name" "$shape"
    rm -rf "$name"-*
}
counterfactual() {
    compare 124M "$large" "$(pick 60 40)"
    compare 384x6 "$small" "$(pick 100 40)"
}

transfer() {
    # shellcheck disable=SC2046
    ! time_for 60 transfer || capped 600 "$mezzo" verify --matched --data "$(tokens)" --device "$device" --baseline bf16 --precision fp8 --lr 6e-4 \
        --weight-decay 0.1 --eval-iters 8 --seeds 3 \
        --minutes "$(pick "$(awk -v s="$(left)" 'BEGIN { printf "%.2f", (s - 25) / 60 }')" 0.1)" --transfer "$(pick 256,384,512 16,24,32)" \
        --out "$out/transfer" --quiet \
        $(pick "--model gpt2 --layers 24 --heads 16 --d-model 1024 --seq-len 1024 --batch-size 4 --steps 150 --warmup 30" \
        "--model gpt2 --layers 2 --heads 2 --d-model 64 --seq-len 32 --batch-size 2 --steps 12 --warmup 2") \
        >"$out/transfer.txt" 2>"$out/transfer.err"
    tail -n 12 "$out/transfer.txt" "$out/transfer.err" 2>/dev/null
}

[[ $# -gt 0 ]] || set -- advise counterfactual transfer
for part in "$@"; do
    case $part in
    advise | counterfactual | transfer) "$part" ;;
    *) echo "answers.sh: no part '$part'" >&2 && exit 2 ;;
    esac
done
exit 0
