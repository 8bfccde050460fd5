# gnuplot memory_saving.gp, in this folder, draws memory_saving.png and memory_saving.svg.
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
128 -2.48527 -3.0748 -1.50063 3
256 0.775716 -0.0703174 2.19171 6
512 6.21982 5.14037 8.03459 9
1024 14.2232 13.1331 16.0599 12
2048 22.139 21.4272 22.8806 8
4096 28.8842 28.1904 29.6478 6
8192 32.2009 32.1884 32.2227 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 -7.98571 -7.98571 -7.98571 1
256 -5.20597 -5.8109 -3.96884 6
512 -1.71743 -2.51222 -0.091981 9
1024 4.20561 3.36228 5.92624 12
2048 11.5329 10.8715 11.9181 9
4096 19.5851 19.1816 19.9398 6
8192 26.4985 26.4524 26.594 3
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
set title 'Memory saved by bf16 against fp32: median and quartiles'
set ylabel 'memory saved, %'
set key outside right center
draw = "plot $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w512 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:2 with linespoints ls 1 title 'width 256', $w512 using 1:2 with linespoints ls 2 title 'width 512', 0 with lines ls 90 title 'no difference'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.svg'
@draw
unset output
