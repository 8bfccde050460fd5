#!/usr/bin/env bash
# bench/recipes.sh TEXT [OUT.csv]: recipes on this machine's GPU as they are, one after another, on tiny Shakespeare: a row each with the losses,
# the time, MFU and energy that the run told, beside the mean power that nvidia-smi saw while it ran (all of it, validations too).
# RECIPES names others, with their options: "NAME options;NAME options". MEZZO names the command (build/cuda/mezzo), COMMIT the commit outside of
# a repository.
set -euo pipefail
text=$(realpath "${1:?usage: bench/recipes.sh TEXT [OUT.csv]}")
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-$root/bench/results/recipes-gpu.csv}
mezzo=${MEZZO:-$root/build/cuda/mezzo}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD)}
runs=$(mktemp -d)
watch=
trap 'kill $watch 2>/dev/null || true; rm -rf "$runs"' EXIT
nvidia-smi --query-gpu=timestamp,power.draw.instant -lms 100 --format=csv,noheader,nounits >"$runs/power" &
watch=$!
"$mezzo" data "$text" --tokenizer gpt2 --out "$runs/shards" >/dev/null
list="shakespeare-char-gpu;shakespeare-char-fp8 --device cuda;glm4-moe-t4;glm4-moe-t4-fp32;gpt2-124M --steps 12 --eval-iters 4"

echo "recipe,options,device,precision,best_val_loss,val_loss,seconds,tokens_per_second,mfu,joules_per_token,skipped_steps,mean_watts,commit" >"$out"
IFS=';' read -ra each <<<"${RECIPES:-$list}"
for words in "${each[@]}"; do
    read -ra options <<<"$words"
    name=${options[0]}
    data=$text
    [[ $name != gpt2-* ]] || data=$runs/shards
    began=$(date '+%Y/%m/%d %H:%M:%S.%3N')
    "$mezzo" train --config "$root/recipes/$name.yaml" --data "$data" --out "$runs/$RANDOM" --json --quiet --sample-every -1 --checkpoint-every -1 \
        "${options[@]:1}" >"$runs/result.json"
    python3 - "$runs/result.json" "$runs/power" "$name" "${options[*]:1}" "$began" "$(date '+%Y/%m/%d %H:%M:%S.%3N')" "$commit" <<'END' | tee -a "$out"
import csv, json, sys

result, power, name, options, began, ended, commit = sys.argv[1:]
r = json.load(open(result))
watts = [float(line.split(", ")[1]) for line in open(power) if began <= line.split(", ")[0] <= ended and line.count(", ") == 1 and line.endswith("\n")]
keys = "device precision best_val_loss val_loss seconds tokens_per_second mfu joules_per_token skipped_steps".split()
mean = f"{sum(watts) / len(watts):.1f}" if watts else ""
csv.writer(sys.stdout, lineterminator="\n").writerow([name, options] + [r.get(k, "") for k in keys] + [mean, commit])
END
done
