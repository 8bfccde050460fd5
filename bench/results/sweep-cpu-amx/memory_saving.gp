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
$w64 << EOD
# tokens median q1 q3 pairs
64 1.26556 1.0031 1.52801 2
128 6.17387 5.93964 6.4081 2
256 13.335 12.9184 13.7516 4
512 22.0844 21.6701 22.4988 4
1024 30.568 30.3313 30.8048 2
2048 36.2598 36.0225 36.4971 2
EOD
$w128 << EOD
# tokens median q1 q3 pairs
64 -1.54125 -2.01786 -1.06464 2
128 1.64923 1.19338 2.10508 2
256 6.83117 5.98472 7.67768 4
512 14.191 13.4162 14.9661 4
1024 21.6983 21.4102 21.9864 2
2048 29.9752 29.667 30.2834 2
EOD
$w256 << EOD
# tokens median q1 q3 pairs
64 -4.41454 -5.02493 -3.80415 2
128 -2.40253 -3.01514 -1.78993 2
256 1.04094 -0.164451 2.24638 4
512 5.81447 4.79703 6.83205 4
1024 13.3139 12.8493 13.7786 2
2048 21.8317 21.4182 22.2451 2
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
set title 'Memory saved by bf16 against fp32: median and quartiles'
set ylabel 'memory saved, %'
set key outside right center
draw = "plot $w64 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w128 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_3 notitle, $w64 using 1:2 with linespoints ls 1 title 'width 64', $w128 using 1:2 with linespoints ls 2 title 'width 128', $w256 using 1:2 with linespoints ls 3 title 'width 256', 0 with lines ls 90 title 'no difference'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.svg'
@draw
unset output
