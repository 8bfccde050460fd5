# gnuplot nanogpt-cpu.gp, in this folder, draws nanogpt-cpu.svg from bench/results/nanogpt-cpu.csv.
set datafile separator ","
set terminal svg size 800,480 font "sans,12" background "white"
set output "nanogpt-cpu.svg"
set xlabel "step (16 × 256 characters)"
set ylabel "loss (nats)"
set yrange [1.4:3.5]
set grid ytics lc rgb "#dddddd"
set label "nanoGPT's best after 5,000 steps of 64 × 256: 1.4697" at 990,1.54 right
csv = "../../bench/results/nanogpt-cpu.csv"
of(precision, column) = sprintf("< grep '^%s,' %s | awk -F, '$%d != \"\"'", precision, csv, column)
plot of("fp32", 3) using 2:3 with lines lc rgb "#e07b39" title "training, fp32", \
     of("bf16", 3) using 2:3 with lines lc rgb "#1b6ca8" title "training, bf16", \
     of("fp32", 4) using 2:4 with points pt 7 ps 0.9 lc rgb "#e07b39" title "validation, fp32", \
     of("bf16", 4) using 2:4 with points pt 6 ps 1.3 lc rgb "#1b6ca8" title "validation, bf16", \
     1.4697 with lines dt 2 lc rgb "#888888" notitle
