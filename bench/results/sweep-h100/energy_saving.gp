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
128 39.3158 38.2554 39.4329 3
256 53.614 52.6475 54.0617 6
512 61.5788 58.7203 62.2277 9
1024 68.5194 67.9024 69.322 12
2048 71.9602 71.494 72.1536 9
4096 74.7686 74.2399 75.2793 6
8192 77.8083 77.3208 78.8911 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 41.0366 40.4307 42.2837 3
256 52.9873 52.7681 53.3781 6
512 60.2919 59.7983 60.977 9
1024 68.2449 67.5181 68.8051 12
2048 75.3696 75.2997 76.7087 9
4096 78.1647 77.6818 78.7234 6
8192 80.1778 78.611 81.1177 3
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
