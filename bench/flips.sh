#!/usr/bin/env bash
# bench/flips.sh [--device cpu] [--ranks N] [--flips 500] [--seed 1] [--csv bench/results/flips.csv] [--precisions "fp32 bf16 …"] [--kinds "flip flap update sum"]
#   [--shards "none optimizer …"]
# Flips one bit in every step of a small run whose every step is computed twice, in what calls write (flip: in one computation; flap: in the first and
# the third of it, so that its op can be named), in weights that an update wrote (update) and in what a rank receives (sum; sums: in
# the first and third computation). Each run is compared with
# one without flips. A row: device,commit,ranks,shard,micro,precision,recompute,kind,where,flips,changed,caught,named,undone. changed: a gradient, or in
# an update anything, differed by the test's own checksums; caught: of these, reported by the run; named: reported with the right op and module; undone:
# 1 where the run's last weights and moments are those of the run without flips.
# MEZZO: the command, of a build with tests. Exit code: 0, 1 (a flip that changed something was not caught, or not undone), 2 (usage), 3 (a run failed).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=${MEZZO:-$root/build/test/mezzo}
device=cpu ranks=1 flips=500 seed=1 csv=$root/bench/results/flips.csv precisions="fp32 tf32 bf16 fp16 fp8 fp8-block fp8-dw16" kinds="flip flap update sum sums" shards="none optimizer gradients parameters"
while [[ $# -gt 0 ]]; do
    [[ $1 =~ ^--(device|ranks|flips|seed|csv|precisions|kinds|shards)$ && $# -gt 1 ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0" && exit 2; }
    declare "${1#--}=$2"
    shift 2
done
csv=$(realpath -m "$csv") mezzo=$(realpath "$mezzo")
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && cd "$work" || exit 3
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for ((i = 0; i < 2000; i++)); do echo "the quick brown fox $((i * 7919 % 97)) jumps over the lazy dog $i."; done >text.txt
header=device,commit,ranks,shard,micro,precision,recompute,kind,where,flips,changed,caught,named,undone
[[ -s $csv ]] || echo $header >"$csv"

# RUN OPTION…
train() {
    local launch=() name=$1
    shift
    [[ $ranks -eq 1 ]] || launch=(launch -n "$ranks" --)
    "$mezzo" "${launch[@]}" train --data text.txt --tokenizer byte --layers 1 --heads 2 --d-model $width --seq-len 16 --batch-size 2 --threads 1 --device "$device" \
        --dropout 0.1 --guard off --init-scale 1024 --steps "$flips" --eval-every 0 --eval-final false --sample-every -1 --log-every 1000000 --quiet --out "$name" "$@" \
        >/dev/null 2>"$name.err" || { tail -n 2 "$name.err" >&2; exit 3; }
}
same() { # RUN RUN
    local file
    for file in model optimizer; do cmp -s "$1"/checkpoints/*/$file.safetensors "$2"/checkpoints/*/$file.safetensors || return 1; done
}
count() { # SHARD MICRO PRECISION RECOMPUTE KIND UNDONE: rows from `rows` and guard.jsonl
    python3 - "$device,$commit,$ranks,$1,$2,$3,$4,$5" "$6" "$5" >>"$csv" <<'PY'
import collections, json, os, sys
what, undone, kind = sys.argv[1:]
told = {}
for line in open("run/guard.jsonl") if os.path.exists("run/guard.jsonl") else []:
    r = json.loads(line)
    told.setdefault(r["step"], []).append((r["op"], r["module"], r["text"]))
places = {"linear": "products", "attention": "attention", "layernorm": "norms", "rmsnorm": "norms", "collective": "collectives", "update": "updates"}
rows = collections.defaultdict(lambda: [0, 0, 0, 0])
bad = 0
for line in open("rows"):
    step, op, module, changed = line.strip().split(",")
    if op == "none":
        continue
    place = next((places[p] for p in places if op.startswith(p)), "reductions" if op in ("sum", "cross_entropy", "embedding_bwd") else "others")
    r, said = rows[place], told.get(int(step), [])
    right = [s for s in said if (s[0], s[1]) == (op, module) or (op == "update" and f" of {module};" in s[2]) or
             (place == "collectives" and (s[0] == op or "of the same update" in s[2]))]
    r[0] += 1
    r[1] += int(changed)
    r[2] += int(changed) and bool(said)
    r[3] += int(changed) and bool(right) and kind not in ("flip", "sum")
    if int(changed) and not said:
        bad += 1
        print(f"not caught: step {step} {op} {module}", file=sys.stderr)
for place, r in sorted(rows.items()):
    print(",".join([what, place, *map(str, r), undone]))
sys.exit(bad > 0)
PY
}

failed=0
trial() { # SHARD MICRO PRECISION RECOMPUTE KIND
    local options=(--precision "$3" --recompute="$4" --grad-accum "$2") fault
    [[ $ranks -eq 1 ]] || options=(--precision "$3" --recompute="$4" --global-batch $((2 * ranks * $2)) --shard "$1" --reduce canonical)
    case $5 in
    flip | flap) fault="$5@0:call/0#$seed" ;;
    update) fault="flip@0:update/any#$seed" ;;
    sum) fault="flip@0:sum/0#$seed" ;;
    sums) fault="flap@0:sum/0#$seed" ;;
    esac
    local plain=plain-$1-$2-$3-$4 update=() undone=0
    [[ -d $plain ]] || train "$plain" "${options[@]}"
    [[ $5 != update && $5 != sum* ]] || update=(--replay-update)
    rm -rf run rows
    MEZZO_INJECT_RANK=$((ranks - 1)) MEZZO_INJECT_ROWS=$PWD/rows train run "${options[@]}" --replay 1 --replay-policy continue "${update[@]}" --inject "$fault"
    same "$plain" run && undone=1
    count "$1" "$2" "$3" "$4" "$5" $undone && [[ $undone -eq 1 ]] || { failed=1; echo "$1 $2 micro $3 recompute $4 $5: undone $undone" >&2; }
    seed=$((seed + 1))
}
width=96 # all ranks have a part of each region
[[ $ranks -gt 1 ]] || { shards=none width=32; }
for precision in $precisions; do
    for shard in $shards; do
        for micro in 1 2; do
            for kind in $kinds; do
                [[ $kind != sum* || $ranks -gt 1 ]] || continue
                trial "$shard" $micro "$precision" "$([[ $((micro + seed)) -eq $(((micro + seed) / 2 * 2)) ]] && echo true || echo false)" "$kind"
            done
        done
    done
done
exit $failed
