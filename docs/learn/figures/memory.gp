# gnuplot memory.gp, in this folder, draws memory.png and memory.svg.
set encoding utf8
set style line 1 lc rgb '#0072b2' lw 2.5 pt 7 ps 1.1
set style line 2 lc rgb '#d55e00' lw 2.5 pt 5 ps 1.1
set style line 3 lc rgb '#009e73' lw 2.5 pt 9 ps 1.3
set style line 4 lc rgb '#cc79a7' lw 2.5 pt 11 ps 1.3
set style line 5 lc rgb '#e69f00' lw 2.5 pt 13 ps 1.3
set style line 6 lc rgb '#56b4e9' lw 2.5 pt 2 ps 1.1
set style line 90 lc rgb '#666666' lw 1.5 dt 2
set style line 91 lc rgb '#dddddd' lw 1
set border lw 1.2
set tics nomirror
$bars << EOD
"fp32 adamw" 0.463574 0 0.463574 0.927392 5.79935 0.0319594
"fp32 sgd" 0.463574 0 0.463574 0.463817 5.79935 0.03069
"fp32 sgd-plain" 0.463574 0 0.463574 0.000242986 5.79935 0.0294207
"bf16 adamw" 0.463574 0.230251 0.463574 0.927392 3.03444 0.03146
"bf16 adamw split" 0.305217 0.230251 0.463574 0.927392 3.03145 0.0326521
"bf16 adamw stochastic" 0.146859 0.230251 0.463574 0.927392 3.03145 0.0328066
"bf16 sgd" 0.463574 0.230251 0.463574 0.463817 3.03444 0.0301907
"bf16 sgd split" 0.305217 0.230251 0.463574 0.463817 3.03145 0.0313828
"bf16 sgd stochastic" 0.146859 0.230251 0.463574 0.463817 3.03145 0.0315373
"bf16 sgd-plain" 0.463574 0.230251 0.463574 0.000242986 3.03444 0.0289214
"bf16 sgd-plain split" 0.305217 0.230251 0.463574 0.000242986 3.03145 0.0301135
"bf16 sgd-plain stochastic" 0.146859 0.230251 0.463574 0.000242986 3.03145 0.030268
"fp16 adamw" 0.463574 0.230251 0.463574 0.927392 3.03444 0.03146
"fp16 sgd" 0.463574 0.230251 0.463574 0.463817 3.03444 0.0301907
"fp16 sgd-plain" 0.463574 0.230251 0.463574 0.000242986 3.03444 0.0289214
EOD
set title 'gpt2-124M, 124,439,808 parameters, 8 x 1024 tokens' noenhanced
set ylabel 'GiB'
set style data histograms
set style histogram rowstacked
set style fill solid 0.95 border lc rgb 'white'
set boxwidth 0.72
set grid ytics ls 91
set key outside right center noenhanced invert
set yrange [0:8.30072]
set xtics rotate by -35 noenhanced
draw = "plot $bars using 2:xtic(1) lc rgb '#0072b2' title 'weights', $bars using 3 lc rgb '#56b4e9' title 'low-precision copies', $bars using 4 lc rgb '#009e73' title 'gradients', $bars using 5 lc rgb '#e69f00' title 'optimizer', $bars using 6 lc rgb '#d55e00' title 'activations', $bars using 7 lc rgb '#999999' title 'workspace'"
set terminal pngcairo size 960,540 font 'DejaVu Sans,11' background rgb 'white'
set output 'memory.png'
@draw
set terminal svg size 960,540 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'memory.svg'
@draw
unset output
