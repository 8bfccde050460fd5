# gnuplot energy_saving.gp, in this folder, draws energy_saving.png and energy_saving.svg.
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
$w256 << EOD
# tokens median q1 q3 pairs
128 40.9286 40.5992 42.6687 3
256 50.7735 49.5256 53.9226 6
512 61.5836 60.8296 62.7058 9
1024 69.5043 67.6991 69.9229 12
2048 73.4697 72.6021 74.6464 8
4096 76.377 75.7283 77.1283 6
8192 79.3672 78.4218 80.2189 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 38.4593 38.4593 38.4593 1
256 51.6621 50.8437 52.1502 6
512 62.2059 61.4629 63.5086 9
1024 71.0103 70.1479 71.8748 12
2048 77.5486 77.2815 78.1044 9
4096 81.6614 80.6118 82.545 6
8192 83.6061 83.1018 84.3137 3
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
set xrange [102.4:1.024e+04]
set grid ytics ls 91
set title 'Energy saved by bf16 against fp32: median and quartiles'
set ylabel 'energy saved, %'
set key outside right center
draw = "plot $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w512 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:2 with linespoints ls 1 title 'width 256', $w512 using 1:2 with linespoints ls 2 title 'width 512', 0 with lines ls 90 title 'no difference'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'energy_saving.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'energy_saving.svg'
@draw
unset output
