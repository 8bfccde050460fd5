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
128 51.0728 48.4497 51.7201 3
256 61.8677 61.7733 62.2071 6
512 67.549 67.4623 68.229 9
1024 74.3827 72.778 74.8206 12
2048 77.2065 77.0173 77.5738 9
4096 80.5202 79.5291 81.0126 6
8192 81.9982 81.8331 82.9701 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 54.2231 53.3714 54.5942 3
256 63.7917 63.3699 64.4701 6
512 67.5406 66.1652 68.3715 9
1024 71.6954 70.7869 72.3476 12
2048 76.6867 75.5916 77.2205 9
4096 79.1167 77.6175 79.3299 6
8192 82.1411 81.921 82.3761 3
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
