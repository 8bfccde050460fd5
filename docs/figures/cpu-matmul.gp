# gnuplot cpu-matmul.gp, in this folder, draws cpu-matmul.svg. Made by bench/cpu_plots.sh from cpu-matmul.csv.
$of1 << EOD
"1024×3072×768 linear" 0.35827 0.10997 0.12885 0.09441
"4096×1536×384 linear" 0.33272 0.1064 0.11595 0.07606
"2048×2048×2048 linear" 0.3566 0.11945 0.13878 0.09346
"1024×3072×768 dx" 0.28329 0.09398 0.10837 0
"4096×1536×384 dx" 0.32319 0.09893 0.11281 0
"2048×2048×2048 dx" 0.83673 0.32613 0.33641 0
"1024×3072×768 dw" 0.32327 0.09944 0.11705 0.0839
"4096×1536×384 dw" 0.34036 0.10287 0.12554 0.08864
"2048×2048×2048 dw" 0.28932 0.09582 0.11383 0.10853
EOD
$of2 << EOD
"1024×3072×768 linear" 0.9869 0.29389 0.3171 0.15374
"4096×1536×384 linear" 0.69225 0.22974 0.24434 0.14226
"2048×2048×2048 linear" 0.68716 0.22264 0.25529 0.16919
"1024×3072×768 dx" 1.18607 0.33242 0.32095 0
"4096×1536×384 dx" 1.14086 0.41192 0.43741 0
"2048×2048×2048 dx" 1.11649 0.37017 0.40179 0
"1024×3072×768 dw" 1.15461 0.3445 0.38906 0.18746
"4096×1536×384 dw" 1.51453 0.53362 0.55423 0.17918
"2048×2048×2048 dw" 0.38691 0.16055 0.17329 0.16444
EOD
set terminal svg size 1100,760 font "sans,12" background "white"
set output "cpu-matmul.svg"
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set xtics rotate by -30 font ",10"
set grid ytics lc rgb "#dddddd"
set ylabel "TFLOP/s"
set multiplot layout 2,1
set title "products of a linear layer, 1 thread: the axis ends at the tiles' measured peak"
set yrange [0:2.27868]
plot $of1 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
set title "products of a linear layer, 2 threads: the axis ends at the tiles' measured peak"
set yrange [0:4.68216]
plot $of2 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
unset multiplot
