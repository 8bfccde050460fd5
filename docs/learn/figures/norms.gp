# gnuplot norms.gp, in this folder, draws norms.png and norms.svg.
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
$fp16 << EOD
256 0.0150378 1e-09
1024 0.0679087 1e-09
4096 NaN 1e-09
16384 NaN 8.39204e-07
EOD
$bf16 << EOD
256 0.172083 1e-09
1024 0.679906 1e-09
4096 0.920024 1e-09
16384 0.980001 1e-09
EOD
set title 'Relative error of a row'."'".'s mean (a line ends where it is infinite; below 1e-9 drawn there)'
set xlabel 'width of the row'
set logscale x 2
set logscale y
set format y '10^{%T}'
set yrange [1e-9:10]
set key outside right center
set grid ytics ls 91
draw = "plot $fp16 using 1:2 with linespoints ls 1 title 'fp16, summed in fp16', $bf16 using 1:2 with linespoints ls 2 title 'bf16, summed in bf16', $fp16 using 1:3 with linespoints ls 3 title 'fp16, summed in fp32', $bf16 using 1:3 with linespoints ls 4 title 'bf16, summed in fp32'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'norms.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'norms.svg'
@draw
unset output
