# gnuplot cpu-matmul.gp, in this folder, draws cpu-matmul.svg. Made by bench/cpu_plots.sh from cpu-matmul.csv.
$of1 << EOD
"1024×3072×768 linear" 0.33224 0.10164 0.12024 0.13254
"4096×1536×384 linear" 0.7789 0.3231 0.32729 0.13793
"2048×2048×2048 linear" 0.73027 0.34651 0.35317 0.1269
"1024×3072×768 dx" 0.80459 0.2767 0.31329 0.09511
"4096×1536×384 dx" 0.75252 0.3134 0.32054 0.0999
"2048×2048×2048 dx" 0.72206 0.32757 0.35254 0.09999
"1024×3072×768 dw" 0.72473 0.23271 0.26057 0.09675
"4096×1536×384 dw" 0.67361 0.20099 0.22725 0.09485
"2048×2048×2048 dw" 0.54784 0.21686 0.23924 0.09909
EOD
$of2 << EOD
"1024×3072×768 linear" 1.10944 0.35506 0.35543 0.1424
"4096×1536×384 linear" 0.55798 0.37378 0.40417 0.14715
"2048×2048×2048 linear" 0.94614 0.36523 0.41714 0.14746
"1024×3072×768 dx" 1.08774 0.33637 0.35335 0.17099
"4096×1536×384 dx" 0.55776 0.30228 0.33551 0.17478
"2048×2048×2048 dx" 0.55445 0.18214 0.21319 0.17517
"1024×3072×768 dw" 0.91746 0.29048 0.32071 0.18707
"4096×1536×384 dw" 0.48604 0.30149 0.33527 0.19273
"2048×2048×2048 dw" 0.53386 0.20959 0.23638 0.1921
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
set yrange [0:2.39731]
plot $of1 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
set title "products of a linear layer, 2 threads: the axis ends at the tiles' measured peak"
set yrange [0:4.41322]
plot $of2 using 2:xtic(1) title 'BF16' lc rgb '#1b6ca8', '' using 3 title 'FP16' lc rgb '#e07b39', '' using 4 title 'TF32' lc rgb '#5a9e6f', '' using 5 title 'FP32 (AVX-512)' lc rgb '#888888'
unset multiplot
