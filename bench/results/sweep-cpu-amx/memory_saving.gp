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
64 1.45285 1.18382 1.72188 2
128 6.4296 6.18586 6.67335 2
256 13.9478 13.5583 14.3957 4
512 18.9788 17.167 20.9211 4
1024 30.0844 29.8746 30.2943 2
2048 35.6838 35.4781 35.8895 2
EOD
$w128 << EOD
# tokens median q1 q3 pairs
64 -1.33299 -1.8219 -0.844072 2
128 1.94303 1.46955 2.41651 2
256 6.44699 5.6623 7.23175 4
512 14.1123 13.5964 14.6901 4
1024 21.5456 21.2715 21.8198 2
2048 29.4349 29.1701 29.6998 2
EOD
$w256 << EOD
# tokens median q1 q3 pairs
64 -4.22986 -4.8571 -3.60261 2
128 -2.18853 -2.82 -1.55707 2
256 1.37959 0.113626 2.6456 4
512 5.85549 4.83592 6.8752 4
1024 13.308 12.8463 13.7697 2
2048 21.9778 21.5505 22.4052 2
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
