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
128 3.81697 3.6854 3.9515 3
256 9.37343 9.25359 10.023 6
512 24.3124 23.7417 25.0054 9
1024 30.4406 30.0698 30.8827 12
2048 35.799 35.4775 36.1024 9
4096 40.7774 40.5575 41.3601 6
8192 43.2662 43.0529 43.6591 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 1.38158 1.2296 2.12503 3
256 7.75477 4.97218 10.1106 6
512 24.3648 21.6401 28.3839 9
1024 43.4876 39.8424 48.6914 12
2048 53.1383 49.3227 58.6171 9
4096 61.0172 58.0175 65.2596 6
8192 60.2588 58.4275 63.0804 3
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
