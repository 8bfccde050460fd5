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
$w256 << EOD
# tokens median q1 q3 pairs low high
128 1.73192 1.72436 1.75121 3 1.55315 1.93956
256 1.91245 1.82937 1.99457 6 1.77145 2.05509
512 2.28499 2.10635 2.53287 9 2.14297 2.44351
1024 2.75645 2.58299 2.9793 12 2.61055 2.91806
2048 3.08311 2.85263 3.20061 9 2.88569 3.29909
4096 3.4754 3.40686 3.70142 6 3.21824 3.73305
8192 4.13582 4.05674 4.32741 3 3.70164 4.59326
EOD
$w512 << EOD
# tokens median q1 q3 pairs low high
128 1.62746 1.59398 1.64563 3 1.52579 1.73081
256 1.89465 1.85021 1.94809 6 1.81244 1.98209
512 2.1385 2.12372 2.27845 9 2.06025 2.22475
1024 2.74864 2.6653 2.86114 12 2.66241 2.84428
2048 3.63336 3.49297 3.8177 9 3.50112 3.77643
4096 4.42148 4.28335 4.4487 6 4.23748 4.6293
8192 4.94478 4.89921 5.02034 3 4.64708 5.27243
EOD
$crossings << EOD
# tokens 1 low high
EOD
$marks << EOD
# tokens 1 low high
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
set logscale y 2
set yrange [0.707107:5.65685]
set ytics ('0.707' 0.707107, '1' 1, '1.41' 1.41421, '2' 2, '2.83' 2.82843, '4' 4, '5.66' 5.65685)
set ylabel 'speedup (logarithmic)'
set title 'Speedup of bf16 over fp32: median and quartiles of 96 exact-shape pairs'
set key outside right center
draw = "plot $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w512 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:2:6:7 with yerrorbars lc rgb ls_1 lw 1.2 ps 0 notitle, keyentry with yerrorbars lc rgb '#666666' lw 1.2 ps 0 title '95 % interval of the median', $w512 using 1:2:6:7 with yerrorbars lc rgb ls_2 lw 1.2 ps 0 notitle, $w256 using 1:2 with linespoints ls 1 title 'width 256', $w512 using 1:2 with linespoints ls 2 title 'width 512', 1 with lines ls 90 title 'equally fast'"
set terminal pngcairo size 1040,520 font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.png'
@draw
set terminal svg size 1040,520 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.svg'
@draw
unset output
