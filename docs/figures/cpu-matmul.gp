# gnuplot cpu-matmul.gp, in this folder, draws cpu-matmul.svg. Made by bench/cpu_plots.sh from cpu-matmul.csv.
$of1 << EOD
"1024×3072×768 linear" 0.75422 0.29468 0.39964 0.16646
"4096×1536×384 linear" 1.28552 0.38548 0.38539 0.17471
"2048×2048×2048 linear" 1.06619 0.39698 0.43203 0.15953
"1024×3072×768 dx" 0.657 0.21166 0.24006 0.12308
"4096×1536×384 dx" 1.11945 0.36973 0.37046 0.12549
"2048×2048×2048 dx" 1.07928 0.39789 0.42915 0.15032
"1024×3072×768 dw" 1.0388 0.36651 0.44782 0.1609
"4096×1536×384 dw" 1.07128 0.36648 0.40746 0.16179
"2048×2048×2048 dw" 0.83003 0.28289 0.31386 0.15414
EOD
$of2 << EOD
"1024×3072×768 linear" 1.88798 0.56797 0.63345 0.3092
"4096×1536×384 linear" 2.50889 0.78315 0.79795 0.33175
"2048×2048×2048 linear" 2.1797 0.72847 0.73596 0.28231
"1024×3072×768 dx" 2.37779 0.73199 0.82534 0.30762
"4096×1536×384 dx" 2.5244 0.81657 0.89668 0.32471
"2048×2048×2048 dx" 2.10877 0.67004 0.73477 0.28347
"1024×3072×768 dw" 2.04678 0.71121 0.84162 0.27476
"4096×1536×384 dw" 2.23376 0.75153 0.88754 0.30715
"2048×2048×2048 dw" 1.83182 0.62572 0.69276 0.27547
EOD
set terminal svg size 1100,760 font "sans,12" background "white"
set output "cpu-matmul.svg"
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set xtics rotate by 30 right font ",10"
set grid ytics lc rgb "#dddddd"
set ylabel "TFLOP/s"
set multiplot layout 2,1
set title "products of a linear layer, 1 thread: the axis ends at the tiles' measured peak"
set yrange [0:2.81412]
plot $of1 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
set title "products of a linear layer, 2 threads: the axis ends at the tiles' measured peak"
set yrange [0:5.64481]
plot $of2 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
unset multiplot
