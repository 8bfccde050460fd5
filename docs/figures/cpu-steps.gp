# gnuplot cpu-steps.gp, in this folder, draws cpu-steps.svg. Made by bench/cpu_plots.sh from cpu-steps-amx.csv and cpu-peers-amx.csv.
$gpt6x384_2 << EOD
"Mezzo bf16" 1.01771 1
"Mezzo fp16" 0.455606 1
"Mezzo fp32" 0.242214 1
"PyTorch eager bf16" 0.455153 2
"PyTorch eager fp32" 0.196201 2
EOD
$gpt6x384_8 << EOD
"Mezzo bf16" 2.87141 1
"Mezzo fp16" 1.37593 1
"Mezzo tf32" 1.1615 1
"Mezzo fp32" 0.750295 1
"PyTorch eager bf16" 0.929952 2
"PyTorch eager fp32" 0.44798 2
"PyTorch compiled bf16" 1.06237 2
"PyTorch compiled fp32" 0.491343 2
EOD
$gpt2_124M_8 << EOD
"Mezzo bf16" 3.74249 1
"Mezzo fp32" 0.85739 1
"PyTorch eager bf16" 1.08593 2
"PyTorch eager fp32" 0.494418 2
EOD
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
set title "gpt6x384, 2 threads (the tiles' measured BF16 peak: 5.6)"
set yrange [0:*]
plot $gpt6x384_2 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable, '' using 0:2:(sprintf('%.2f', $2)) with labels offset 0,0.6 font ',10'
set title "gpt6x384, 8 threads (the tiles' measured BF16 peak: 22.5)"
set yrange [0:*]
plot $gpt6x384_8 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable, '' using 0:2:(sprintf('%.2f', $2)) with labels offset 0,0.6 font ',10'
set title "gpt2-124M, 8 threads (the tiles' measured BF16 peak: 22.5)"
set yrange [0:*]
plot $gpt2_124M_8 using 0:2:($3 == 1 ? 0x1b6ca8 : 0xe07b39):xtic(1) with boxes lc rgb variable, '' using 0:2:(sprintf('%.2f', $2)) with labels offset 0,0.6 font ',10'
unset multiplot
