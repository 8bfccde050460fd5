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
128 -2.28174 -2.8905 -1.26632 3
256 0.818433 -0.0331613 2.24273 6
512 16.8885 13.9523 21.5276 9
1024 21.9754 19.5103 25.9251 12
2048 27.1833 25.8643 28.3945 9
4096 32.2163 31.2756 32.9077 6
8192 34.6018 34.3428 35.042 3
EOD
$w512 << EOD
# tokens median q1 q3 pairs
128 -3.86205 -4.67081 -2.24791 3
256 0.829817 -0.854648 4.12395 6
512 16.5012 11.8172 24.8532 9
1024 35.2492 28.8073 45.5564 12
2048 47.8835 41.4889 57.2724 9
4096 49.9339 45.8183 56.2462 6
8192 47.1286 45.0419 50.5931 3
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
