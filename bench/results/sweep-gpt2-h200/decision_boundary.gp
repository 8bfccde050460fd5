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
128 1.71456 1.71142 1.72513 3 1.6232 1.81489
256 2.08088 2.06465 2.10183 6 2.00442 2.15521
512 2.43571 2.33494 2.47412 9 2.36049 2.51633
1024 3.05682 2.9772 3.17879 12 2.977 3.14342
2048 3.76325 3.56779 3.8169 9 3.64146 3.88989
4096 4.75776 4.64365 4.86928 6 4.5824 4.92708
8192 5.53043 5.47687 5.68684 3 5.23685 5.81978
EOD
$w512 << EOD
# tokens median q1 q3 pairs low high
128 2.02692 1.98388 2.02932 3 1.86906 2.19606
256 2.30848 2.25012 2.38293 6 2.18295 2.44574
512 2.62881 2.54001 2.83125 9 2.50465 2.76704
1024 3.03402 2.91957 3.20134 12 2.912 3.17169
2048 3.7867 3.60609 4.11276 9 3.60915 3.98353
4096 4.60669 4.48252 4.81713 6 4.36217 4.89057
8192 5.70918 5.63452 5.73846 3 5.25803 6.1989
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
set yrange [0.707107:8]
set ytics ('0.707' 0.707107, '1' 1, '1.41' 1.41421, '2' 2, '2.83' 2.82843, '4' 4, '5.66' 5.65685, '8' 8)
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
