# gnuplot decision_boundary.gp, in this folder, draws decision_boundary.png and decision_boundary.svg.
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
$w64 << EOD
# tokens median q1 q3 pairs
64 1.39445 1.39364 1.39527 2
128 1.27021 1.2597 1.28072 2
256 1.32827 1.23833 1.41204 4
512 1.32869 1.25482 1.79276 4
1024 0.897799 0.823491 0.972108 2
2048 1.26726 1.17837 1.35615 2
EOD
$w128 << EOD
# tokens median q1 q3 pairs
64 1.44576 1.38757 1.50395 2
128 1.61147 1.59378 1.62916 2
256 1.62369 1.56078 1.76177 4
512 1.5942 1.51467 1.72125 4
1024 2.45597 2.26251 2.64943 2
2048 1.9699 1.96929 1.97052 2
EOD
$w256 << EOD
# tokens median q1 q3 pairs
64 1.27701 1.05264 1.50139 2
128 1.62524 1.57989 1.6706 2
256 1.71789 1.66811 2.39754 4
512 1.9842 1.87155 2.11611 4
1024 2.76211 2.63703 2.88718 2
2048 2.46606 2.32089 2.61124 2
EOD
$crossings << EOD
# tokens 1 low high
846.274 1 686.166 962.861
1271.92 1 1198.09 1747.59
EOD
ls_1 = '#0072b2'
ls_2 = '#d55e00'
ls_3 = '#009e73'
ls_4 = '#cc79a7'
ls_5 = '#e69f00'
ls_6 = '#56b4e9'
set logscale x 2
set format x '%.0f'
set xlabel 'tokens per step'
set xrange [51.2:2560]
set grid ytics ls 91
set title 'Speedup of bf16 over fp32: median and quartiles of 48 exact-shape pairs'
set ylabel 'speedup'
set key top left Left reverse
set yrange [0:1.2<*]
draw = "plot $w64 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w128 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_3 notitle, $w64 using 1:2 with linespoints ls 1 title 'width 64', $w128 using 1:2 with linespoints ls 2 title 'width 128', $w256 using 1:2 with linespoints ls 3 title 'width 256', 1 with lines ls 90 title 'equally fast', $crossings using 1:2:3:4 with xerrorbars lc rgb 'black' lw 2 pt 6 ps 1.6 title 'crossing, 95 % interval'"
set terminal pngcairo size 900,560 font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.png'
@draw
set terminal svg size 900,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.svg'
@draw
unset output
