#!/usr/bin/env bash
# attention: own attention of two commits: times of backward in FP32 and TF32 in turns (times.csv), then whether losses and gradients' norms of six steps
# are the same for storages, widths of heads, dropout, windows and caps (stdout). The other commit is DEBS/old.tgz, as for bits; without it the
# command runs beside itself.
. "$(dirname "$0")/common.sh"
new=$mezzo old=$mezzo
found=$(old_build) && old=$found/mezzo
numbers() { # SIDE
    python3 -c 'import json, sys; [print(r["step"], r["train/loss"], r.get("gradients/total_norm")) for r in map(json.loads, sys.stdin) if "train/loss" in r]' \
        <"$1/metrics.jsonl"
}
for turn in 1 2; do
    for width in 128 64 32; do
        for precision in fp32 tf32; do
            time_for 8 "width $width in $precision, turn $turn" || break 3
            for side in old new; do
                capped 15 "${!side}" bench --kernels --device "$device" --op attention_bwd --shape "$(pick "4x1024x12x$width" "1x32x2x$width")" \
                    --precision "$precision" --csv "$out/$side.csv" >/dev/null 2>"$out/bench.err" || echo "FAIL: $(tail -n 1 "$out/bench.err")"
            done
        done
    done
done
python3 - "$out" <<'P' | tee "$out/times.csv"
import csv, statistics, sys
times = {}
for side in ("old", "new"):
    for r in csv.DictReader(open(f"{sys.argv[1]}/{side}.csv")):
        times.setdefault((r["op"], r["shape"], r["precision"], r["kernel"]), {}).setdefault(side, []).append(float(r["median_ms"]))
print("op,shape,precision,kernel,old_ms,new_ms,percent")
for key, t in times.items():
    if len(t) == 2:
        a, b = statistics.median(t["old"]), statistics.median(t["new"])
        print(*key, f"{a:.5f}", f"{b:.5f}", f"{100 * (b / a - 1):+.1f}", sep=",")
P
for kind in gpt2-fp32-128 gpt2-tf32-128 gpt2-fp16-64 gpt2-bf16-128 mistral-fp32-64 mistral-tf32-128 gpt2-fp32-32 gpt2-tf32-64 mistral-bf16-64 gemma2-bf16-64; do
    IFS=- read -r model precision width <<<"$kind"
    time_for 12 "$kind" || break
    width=$(pick "$width" 16) more=(--kv-heads 2 --d-ff 512)
    [[ $model != gpt2 ]] || more=(--dropout 0.1)
    [[ $model != mistral ]] || more+=(--model.window "$(pick 200 20)")
    for side in old new; do
        mezzo=${!side} ROW_LIMIT=30 steps "$side" --model "$model" --layers 2 --heads 4 --d-model $((4 * width)) "${more[@]}" --batch-size 4 \
            --seq-len "$(pick 500 50)" --precision "$precision" --steps 6 >/dev/null
        sed -i "s/^$side,/$kind-$side,/" "$out/steps.csv"
    done
    verdict "$([[ $(numbers new | wc -l) -eq 6 ]] && cmp -s <(numbers old) <(numbers new); echo $?)" "$kind: $(numbers new | wc -l) losses and norms are the same"
done
exit 0
