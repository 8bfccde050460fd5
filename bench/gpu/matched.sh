#!/usr/bin/env bash
# matched [PRECISION [BASELINE]]: GPT-2 124M in PRECISION (fp8) beside BASELINE (bf16) at equal quality, as many paired seeds as LIMIT has room for,
# three to six: matched.csv, and a folder with verify.json. A pair takes about 20 s on an H200, most of it not steps: 100 s are enough for three.
. "$(dirname "$0")/common.sh"
precision=${1:-fp8} baseline=${2:-bf16}
# shellcheck disable=SC2046
set -- $(pick "--model gpt2-124M --seq-len 1024 --batch-size 16 --steps 150 --warmup 20" \
    "--model gpt2 --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --steps 12 --warmup 2") \
    --lr 6e-4 --weight-decay 0.1 --eval-iters 8 --seeds 6
capped 600 "$mezzo" verify --matched --data "$(tokens)" --device "$device" --baseline "$baseline" --precision "$precision" "$@" \
    --minutes "$(awk -v s="$(left)" 'BEGIN { printf "%.2f", (s > 40 ? s - 20 : s / 2) / 60 }')" --out "$out/$precision" --quiet \
    >"$out/$precision.txt" 2>"$out/$precision.err"
echo "exit code $?, $SECONDS s: $(tail -n 1 "$out/$precision.err")"
cat "$out/$precision.txt"
found=$(python3 - "$out/$precision/verify.json" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
def three(key):
    return [d[key]["value"], *(d[key]["interval"] or [None, None])]
numbers = [x for key in ("raw_speedup", "loss_difference", "steps_for_the_same_loss", "speedup_at_equal_quality") for x in three(key)]
print(d["seeds_run"], *("-" if x is None else f"{x:.5f}" for x in numbers), d["verdict"].replace(" ", "_"))
END
) || exit 1
columns=$(for key in raw loss_difference steps_ratio at_equal_quality; do printf ',%s,%s_low,%s_high' $key $key $key; done)
# shellcheck disable=SC2086
row matched.csv "precision,baseline,seeds$columns,verdict,seconds,command" "$precision" "$baseline" ${found//_/ } $SECONDS \
    "mezzo verify --matched --baseline $baseline --precision $precision $*"
