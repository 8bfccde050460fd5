#!/usr/bin/env bash
# bench/pack.sh MEZZO [ROUNDS [OPTION …]]: targets a second with a record in each row and packed (--pack), in turns: 4,000 prompts of 10 to 40
# bytes with answers of 20 to 400, all bytes tokens. The options are `mezzo train`'s: model, device, precision, batch, steps. Rows go to
# stdout in the columns of bench/results/pack-cpu.csv: of a run, the median of its reports. COMMIT names the commit outside of a repository.
set -euo pipefail
mezzo=$(realpath "${1:?usage: bench/pack.sh MEZZO [ROUNDS [OPTION …]]}") rounds=${2:-3}
shift $(($# > 1 ? 2 : 1))
options=("$@")
[[ $# -gt 0 ]] || options=(--layers 4 --heads 4 --d-model 128 --seq-len 1024 --batch-size 4 --steps 20 --precision fp32 --device cpu --threads 2)
commit=${COMMIT:-$(git -C "$(dirname "$0")" rev-parse --short=12 HEAD)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
awk 'BEGIN { x = 3; for (i = 0; i < 4000; i++) { printf "{\"prompt\": \""; x = x * 16807 % 2147483647; n = 10 + x % 31; words(n)
    printf "\", \"completion\": \""; x = x * 16807 % 2147483647; n = 20 + x % 381; words(n); print "\"}" } }
    function words(n, j) { for (j = 0; j < n; j++) { x = x * 16807 % 2147483647; printf "%c", j % 6 == 5 ? 32 : 97 + x % 26 } }' >answers.jsonl
echo "device,commit,command,round,form,padding_percent,positions_per_second,targets_per_second"
for ((round = 1; round <= rounds; round++)); do
    for form in apart packed; do
        pack=()
        [[ $form == apart ]] || pack=(--pack)
        "$mezzo" train --data answers.jsonl --tokenizer byte --split 1 "${options[@]}" "${pack[@]}" --warmup 0 --log-every 1 --eval-every 0 \
            --no-eval-final --sample-every -1 --checkpoint-every -1 --out run 2>log >out || { cat log >&2; exit 1; }
        device=$(sed -nE 's/^[^:]+: .* parameters; ([^;]*);.*/\1/p' log | head -1)
        padding=$(sed -nE 's/.* ([0-9.]+)% of a batch is padding.*/\1/p' log | head -1)
        share=$(sed -nE 's/.* ([0-9.]+) % of them targets.*/\1/p' log | head -1)
        rate=$(sed -nE 's/.*"perf\/tokens_per_second": *([0-9.e+]+).*/\1/p' run/metrics.jsonl | tail -n +4 | sort -g | awk '{ r[NR] = $1 } END { print r[int((NR + 1) / 2)] }')
        awk -v d="$device; $("$mezzo" --version | head -1)" -v c="$commit" -v m="mezzo train --data answers.jsonl --tokenizer byte ${options[*]}${pack[*]:+ ${pack[*]}}" -v n=$round \
            -v f=$form -v p="$padding" -v s="$share" -v r="$rate" 'BEGIN { printf "\"%s\",%s,\"%s\",%d,%s,%s,%.1f,%.1f\n", d, c, m, n, f, p, r, r * (1 - p / 100) * s / 100 }'
        rm -rf run
    done
done
