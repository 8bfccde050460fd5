#!/usr/bin/env bash
# bench/cpu_plots.sh [MATMUL.csv [STEPS.csv PEERS.csv]]
# Draws docs/figures/cpu-matmul.svg from bench/cpu.sh matmul's rows, and docs/figures/cpu-steps.svg from its steps and peers, each with the
# gnuplot script beside it. The products' axes end at the peak that was measured in the same run: what is empty is what is not reached.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/bench/results out=$root/docs/figures
matmul=${1:-$results/cpu-matmul.csv} steps=${2:-} peers=${3:-}
mkdir -p "$out"

# Fields of a CSV row whose text fields are quoted, tab-separated.
fields() { python3 -c '
import csv, sys
for row in csv.reader(open(sys.argv[1], encoding="utf-8")):
    print("\t".join(row))' "$1"; }

# One line a shape and product; columns: TFLOP/s of bf16, fp16, tf32 on tiles, fp32. The last row of a measurement counts.
table() { # threads
    fields "$matmul" | awk -F'\t' -v threads="$1" '
        $9 == threads { key = $4 "×" $5 "×" $6 " " $3
            if (!(key in seen)) { seen[key] = 1; order[++n] = key }
            rate[key, $7] = $13 / 1000 }
        END { for (i = 1; i <= n; i++) { k = order[i]
            printf "\"%s\" %s %s %s %s\n", k, rate[k, "bf16_amx"] + 0, rate[k, "fp16_amx"] + 0, rate[k, "tf32_amx"] + 0, rate[k, "fp32_avx512"] + 0 } }'
}
peak() { # threads path
    fields "$matmul" | awk -F'\t' -v threads="$1" -v path="$2" '$9 == threads && $7 == path { if ($15 > most) most = $15 } END { print most / 1000 }'
}

{
    echo "# gnuplot cpu-matmul.gp, in this folder, draws cpu-matmul.svg. Made by bench/cpu_plots.sh from $(basename "$matmul")."
    for n in 1 2; do
        echo "\$of$n << EOD"
        table $n
        echo EOD
    done
    cat <<'G'
set terminal svg size 1100,760 font "sans,12" background "white"
set output "cpu-matmul.svg"
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set xtics rotate by 30 right font ",10"
set grid ytics lc rgb "#dddddd"
set ylabel "TFLOP/s"
set multiplot layout 2,1
G
    for n in 1 2; do
        echo "set title \"products of a linear layer, $n thread$([ $n = 1 ] || echo s): the axis ends at the tiles' measured peak\""
        echo "set yrange [0:$(peak $n bf16_amx)]"
        echo "plot \$of$n using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'"
    done
    echo "unset multiplot"
} >"$out/cpu-matmul.gp"
(cd "$out" && gnuplot cpu-matmul.gp)

[[ -n $steps ]] || exit 0
# 6 operations a parameter and token, at the best of a model's rows of a kind, of the program that the last row is of; a panel a model.
bars() { # model threads
    local commit parameters
    commit=$(fields "$steps" | awk -F'\t' 'END { print $24 }')
    parameters=$(fields "$steps" | awk -F'\t' -v model="$1" '$1 == model { p = $21 } END { print p }')
    {
        fields "$steps" | awk -F'\t' -v model="$1" -v threads="$2" -v commit="$commit" \
            '$1 == model && $24 == commit && $NF ~ "--threads " threads " " { print "Mezzo " $9 "\t" $16 "\t1" }'
        fields "$peers" | awk -F'\t' -v model="$1" -v threads="$2" -v commit="$commit" \
            '$1 == model && $13 == commit && $4 == threads && $8 > 0 { print "PyTorch " $2 " " $3 "\t" $8 "\t2" }'
    } | awk -F'\t' -v p="$parameters" '
        !($1 in best) { order[++n] = $1 }
        $2 > best[$1] { best[$1] = $2; whose[$1] = $3 }
        END { for (i = 1; i <= n; i++) printf "\"%s\" %s %s\n", order[i], 6 * p * best[order[i]] / 1e12, whose[order[i]] }'
}
{
    echo "# gnuplot cpu-steps.gp, in this folder, draws cpu-steps.svg. Made by bench/cpu_plots.sh from $(basename "$steps") and $(basename "$peers")."
    for n in ${STEP_THREADS:-2 8}; do
        for model in gpt6x384 gpt2-124M; do
            name=${model//-/_}_$n
            [[ -n $(bars $model "$n") ]] || continue
            echo "\$$name << EOD"
            bars $model "$n"
            echo EOD
        done
    done
    cat <<'G'
set terminal svg size 1100,800 font "sans,12" background "white"
set output "cpu-steps.svg"
set style fill solid 0.9 noborder
set boxwidth 0.7
set xtics rotate by 30 right font ",10"
set grid ytics lc rgb "#dddddd"
set ylabel "TFLOP/s (6 × parameters × tokens)"
set bmargin 6
set offsets 0,0,graph 0.1,0
unset key
set multiplot layout 2,2
G
    for n in ${STEP_THREADS:-2 8}; do
        for model in gpt6x384 gpt2-124M; do
            name=${model//-/_}_$n
            [[ -n $(bars $model "$n") ]] || continue
            echo "set title \"$model, $n threads (the tiles' measured BF16 peak: $(awk -v one="$(peak 1 bf16_amx)" -v n="$n" 'BEGIN { printf "%.1f", one * n }'))\""
            echo "set yrange [0:*]"
            echo "plot \$$name using 0:2:(\$3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable, '' using 0:2:(sprintf('%.2f', \$2)) with labels offset 0,0.6 font ',10'"
        done
    done
    echo "unset multiplot"
} >"$out/cpu-steps.gp"
(cd "$out" && gnuplot cpu-steps.gp)
