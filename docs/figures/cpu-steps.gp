# gnuplot cpu-steps.gp, in this folder, draws cpu-steps.svg. Made by bench/cpu_plots.sh from cpu-steps-amx.csv and cpu-peers-amx.csv.
$gpt6x384_2 << EOD
"Mezzo bf16" 0.502329 1
"Mezzo fp16" 0.1973 1
"Mezzo fp32" 0.138814 1
"PyTorch eager bf16" 0.320992 2
EOD
$gpt6x384_8 << EOD
"Mezzo bf16" 1.50117 1
"Mezzo fp16" 0.604954 1
"Mezzo tf32" 0.676558 1
"Mezzo fp32" 0.474734 1
"Mezzo bf16" 1.62745 1
"PyTorch eager bf16" 0.750941 2
EOD
$gpt2_124M_8 << EOD
"Mezzo bf16" 2.04788 1
"Mezzo fp32" 0.500393 1
"PyTorch eager bf16" 0.840212 2
"PyTorch eager fp32" 0.366706 2
EOD
set terminal svg size 1100,800 font "sans,12" background "white"
set output "cpu-steps.svg"
set style fill solid 0.9 noborder
set boxwidth 0.7
set xtics rotate by -30 font ",10"
set grid ytics lc rgb "#dddddd"
set ylabel "TFLOP/s of the model (6 × parameters × tokens)"
unset key
set multiplot layout 2,2
set title "gpt6x384, 2 threads"
set yrange [0:4.55736]
plot $gpt6x384_2 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable
set title "gpt6x384, 8 threads"
set yrange [0:18.2294]
plot $gpt6x384_8 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable
set title "gpt2-124M, 8 threads"
set yrange [0:18.2294]
plot $gpt2_124M_8 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable
unset multiplot
