#!/usr/bin/env bash
# bench/tokenizer_train.sh TEXT [OUT.csv]: time and memory of `mezzo data --train-tokenizer 32768` on 1 GB of text: TEXT again and again, with
# every fifth word made of one to four random syllables, so that the distinct words go on growing. A row is added to OUT.csv; `load` is the
# machine's when it began. MEZZO names the command (build/release/mezzo), OMP_NUM_THREADS the threads.
set -euo pipefail
text=${1:?usage: bench/tokenizer_train.sh TEXT [OUT.csv]}
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-$root/bench/results/tokenizer-train-cpu.csv}
mezzo=${MEZZO:-$root/build/release/mezzo}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 - "$text" "$folder/text" <<'PY'
import random
import sys

rng, base = random.Random(3), open(sys.argv[1], encoding="utf-8").read().split(" ")
syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ai", "ou")]
size = i = 0
with open(sys.argv[2], "w", encoding="utf-8") as f:
    while size < 1_000_000_000:
        words = []
        for _ in range(20000):
            if rng.random() < 0.2:
                words.append("".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3, 4)))))
            else:
                words.append(base[i % len(base)])
                i += 1
        line = " ".join(words) + "\n"
        size += len(line.encode())
        f.write(line)
PY
device=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
load=$(cut -d' ' -f1 /proc/loadavg)
/usr/bin/time -o "$folder/time" -f '%e,%U,%M' "$mezzo" data "$folder/text" --train-tokenizer 32768 --out "$folder/t.json" --json >"$folder/result"
field() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$folder/result"; }
[[ -s $out ]] || echo "device,commit,command,threads,load,bytes,distinct_words,tokens,elapsed_seconds,user_seconds,max_rss_kib" >"$out"
echo "\"$device\",$(git -C "$root" rev-parse --short=12 HEAD),mezzo data 1-GB-TEXT --train-tokenizer 32768,${OMP_NUM_THREADS:-$(nproc)},$load,$(field bytes),$(field words),$(field vocab),$(tail -n 1 "$folder/time")" | tee -a "$out"
