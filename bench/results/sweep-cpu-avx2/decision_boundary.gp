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
$w128 << EOD
# tokens median q1 q3 pairs low high
64 1.10004 1.10004 1.10004 1 0.183305 6.20037
128 0.981458 0.981458 0.981458 1 0.111472 6.36033
256 1.05341 1.00194 1.10488 2 0.28297 5.84731
512 1.10556 1.10556 1.10556 1 0.150963 7.39248
1024 1.17676 1.17676 1.17676 1 0.1423 6.71977
EOD
$w256 << EOD
# tokens median q1 q3 pairs low high
64 0.79695 0.79695 0.79695 1 0.232977 2.25822
128 0.991578 0.991578 0.991578 1 0.289776 3.09526
256 0.90476 0.874792 0.934727 2 0.380419 2.01564
512 1.12912 1.12912 1.12912 1 0.345407 3.11715
1024 0.88616 0.88616 0.88616 1 0.302768 2.75011
EOD
$w512 << EOD
# tokens median q1 q3 pairs low high
64 0.850983 0.850983 0.850983 1 0.621779 1.26985
128 0.878942 0.878942 0.878942 1 0.690786 1.21659
256 0.844284 0.837129 0.851439 2 0.691167 1.00472
512 0.944667 0.944667 0.944667 1 0.714764 1.29741
1024 1.01246 1.01246 1.01246 1 0.725403 1.28791
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
set xrange [51.2:1280]
set grid ytics ls 91
set logscale y 2
set yrange [0.353553:2.82843]
set ytics ('0.354' 0.353553, '0.5' 0.5, '0.707' 0.707107, '1' 1, '1.41' 1.41421, '2' 2, '2.83' 2.82843)
set ylabel 'speedup (logarithmic)'
set title 'Speedup of bf16 over fp32: median and quartiles of 18 exact-shape pairs'
set key outside right center
draw = "plot $w128 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w512 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_3 notitle, $w128 using 1:2:6:7 with yerrorbars lc rgb ls_1 lw 1.2 ps 0 notitle, keyentry with yerrorbars lc rgb '#666666' lw 1.2 ps 0 title '95 % interval of the median', $w256 using 1:2:6:7 with yerrorbars lc rgb ls_2 lw 1.2 ps 0 notitle, $w512 using 1:2:6:7 with yerrorbars lc rgb ls_3 lw 1.2 ps 0 notitle, $w128 using 1:2 with linespoints ls 1 title 'width 128', $w256 using 1:2 with linespoints ls 2 title 'width 256', $w512 using 1:2 with linespoints ls 3 title 'width 512', 1 with lines ls 90 title 'equally fast'"
set terminal pngcairo size 1040,520 font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.png'
@draw
set terminal svg size 1040,520 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.svg'
@draw
unset output
