#!/usr/bin/env bash
# kernels [OP[:SHAPE[:PRECISION]]…]: kernels of two commits in turns: rows of mezzo bench --kernels for these ops (OP-SIDE.csv; default: those of rows),
# and each kernel's time in steps in fp8 of GPT-2 124M, of two layers of Qwen 2.5's widths and of experts, and in bf16 of the two image models, from profiles
# (KIND-SIDE-TURN-ops.csv); kernels.csv has the medians side by side. Says whether losses and gradients' norms are the same (stdout).
# The other commit is DEBS/old.tgz, as for bits; without it the command runs beside itself.
. "$(dirname "$0")/common.sh"
two_commits
[[ $# -gt 0 ]] || set -- "softmax:$(pick 65536x1024 64x64)" cross_entropy cross_entropy_dx embedding embedding_bwd layernorm layernorm_bwd grad_stats adamw
text_tokens=$(tokens "$(pick gpt2 byte)") cities=$work/cities
"$mezzo" data radio --maps 12 --transmitters 4 --size "$(pick 80 16)" --extent "$(pick 160 64)" --out "$cities" >/dev/null 2>"$out/cities.err"
texts="--precision $(pick "fp8 --vocab 50304" fp32) --dropout 0" images="--precision $(pick bf16 fp32)"
unet="--model radio_unet-$(pick radiodiff tiny) --batch-size $(pick 8 2) $images" vae="--model kl_vae-$(pick radiodiff tiny) --batch-size $(pick 4 2) $images"
gpt2=$(pick "--model gpt2-124M --batch-size 16 --seq-len 1024" "--model gpt2 --layers 2 --heads 2 --d-model 64 --batch-size 2 --seq-len 64")
qwen=$(pick "--model qwen2 --layers 2 --heads 12 --kv-heads 2 --d-model 1536 --d-ff 8960 --batch-size 8 --seq-len 1024" \
    "--model qwen2 --layers 2 --heads 2 --kv-heads 1 --d-model 64 --d-ff 128 --batch-size 2 --seq-len 64")
experts=$(pick "--model glm4_moe --layers 4 --heads 8 --d-model 768 --d-ff 2048 --d-expert 768 --experts 16 --experts-per-token 4 --batch-size 16 --seq-len 512" \
    "--model glm4_moe --layers 2 --heads 2 --d-model 32 --d-ff 64 --d-expert 32 --experts 4 --experts-per-token 2 --batch-size 2 --seq-len 32")
for turn in 1 2 3; do
    for kind in gpt2 qwen experts unet vae; do
        DATA=$text_tokens more=$texts
        [[ $kind != unet && $kind != vae ]] || DATA=$cities more=''
        time_for 20 "$kind, turn $turn" || break
        for side in old new; do
            # shellcheck disable=SC2086
            mezzo=${!side} ROW_LIMIT=30 steps "$side" ${!kind} $more --steps 12 --profile 3
            sed -i "s/^$side,/$kind-$side-$turn,/" "$out/steps.csv"
            cp "$side/profile/ops.csv" "$out/$kind-$side-$turn-ops.csv"
        done
        [[ $turn -gt 1 ]] || verdict "$(cmp -s <(numbers old) <(numbers new); echo $?)" "$kind: $(numbers new | wc -l) losses and norms are the same"
    done
    for op; do
        time_for 10 "$op, turn $turn" || break
        what=(--op "${op%%:*}" --model "$(pick gpt2-124M gpt)")
        IFS=: read -r _ shape precision <<<"$op"
        [[ -z $shape ]] || what=(--op "${op%%:*}" --shape "$shape" ${precision:+--precision "$precision"})
        for side in old new; do
            capped 20 "${!side}" bench --kernels --device "$device" "${what[@]}" --csv "$out/${what[1]}-$side.csv" >/dev/null 2>"$out/bench.err" ||
                echo "FAIL: $op: $(tail -n 1 "$out/bench.err")"
        done
    done
done
python3 - "$out" <<'P'
import csv, glob, statistics, sys
times = {}
for side in ("old", "new"):
    for path in glob.glob(f"{sys.argv[1]}/*-{side}.csv"):
        for r in csv.DictReader(open(path)):
            times.setdefault((r["op"], r["shape"], r["precision"], r["kernel"]), {}).setdefault(side, []).append(float(r["median_ms"]))
    for path in glob.glob(f"{sys.argv[1]}/*-{side}-*-ops.csv"):
        each, kind = {}, path.rsplit("/", 1)[-1].split("-")[0]
        for r in csv.DictReader(open(path)):
            key = r["op"], f"{kind}: {r['phase']}", "", r["kernel"]
            each[key] = each.get(key, 0) + float(r["ms_per_step"] or 0)
        for key, ms in each.items():
            times.setdefault(key, {}).setdefault(side, []).append(ms)
with open(f"{sys.argv[1]}/kernels.csv", "w") as f:
    print("op,shape,precision,kernel,old_ms,new_ms,percent", file=f)
    for key, t in sorted(times.items()):
        if len(t) == 2 and statistics.median(t["old"]) > 0:
            a, b = statistics.median(t["old"]), statistics.median(t["new"])
            print(*key, f"{a:.5f}", f"{b:.5f}", f"{100 * (b / a - 1):+.1f}", sep=",", file=f)
P
sort -t, -k7,7gr "$out/kernels.csv" | head -n 20
exit 0
