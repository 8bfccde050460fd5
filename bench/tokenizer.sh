#!/usr/bin/env bash
# bench/tokenizer.sh TEXT [OUT.csv]: how many megabytes of text a second a core makes GPT-2's tokens of, by the processor's time (user) of
# `mezzo data`, reading and writing included, so that other work on the machine matters little. TEXT is repeated up to 20 MB; three runs.
# A row is added to OUT.csv. MEZZO names the command (build/release/mezzo).
set -euo pipefail
text=${1:?usage: bench/tokenizer.sh TEXT [OUT.csv]}
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-$root/bench/results/tokenizer-cpu.csv}
mezzo=${MEZZO:-$root/build/release/mezzo}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

until [[ $(stat -c %s "$folder/text" 2>/dev/null || echo 0) -ge 20000000 ]]; do cat "$text" >>"$folder/text"; done
bytes=$(stat -c %s "$folder/text")
device=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
[[ -s $out ]] || echo "device,commit,command,bytes,tokens,user_seconds,megabytes_per_second" >"$out"
TIMEFORMAT=%U
for _ in 1 2 3; do
    rm -rf "$folder/out"
    user=$({ time "$mezzo" data "$folder/text" --tokenizer gpt2 --format nanogpt --out "$folder/out" >/dev/null 2>&1; } 2>&1)
    tokens=$(($(cat "$folder/out"/*.bin | wc -c) / 2))
    echo "\"$device\",$(git -C "$root" rev-parse --short=12 HEAD),mezzo data $(basename "$text") x $((bytes / $(stat -c %s "$text"))) --tokenizer gpt2 --format nanogpt,$bytes,$tokens,$user,$(awk "BEGIN { printf \"%.1f\", $bytes / 1e6 / $user }")" | tee -a "$out"
done
