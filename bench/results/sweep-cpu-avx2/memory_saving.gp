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
$w128 << EOD
# tokens median q1 q3 pairs
64 -0.327336 -0.327336 -0.327336 1
128 4.25628 4.25628 4.25628 1
256 14.4781 14.4627 14.4935 2
512 22.6742 22.6742 22.6742 1
1024 30.777 30.777 30.777 1
EOD
$w256 << EOD
# tokens median q1 q3 pairs
64 -3.28527 -3.28527 -3.28527 1
128 -2.7451 -2.7451 -2.7451 1
256 7.38556 7.37659 7.39452 2
512 16.9339 16.9339 16.9339 1
1024 24.4254 24.4254 24.4254 1
EOD
$w512 << EOD
# tokens median q1 q3 pairs
64 -1.94385 -1.94385 -1.94385 1
128 -1.81925 -1.81925 -1.81925 1
256 -1.30439 -1.30572 -1.30306 2
512 7.23693 7.23693 7.23693 1
1024 18.1339 18.1339 18.1339 1
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
set title 'Memory saved by bf16 against fp32: median and quartiles'
set ylabel 'memory saved, %'
set key outside right center
draw = "plot $w128 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w512 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_3 notitle, $w128 using 1:2 with linespoints ls 1 title 'width 128', $w256 using 1:2 with linespoints ls 2 title 'width 256', $w512 using 1:2 with linespoints ls 3 title 'width 512', 0 with lines ls 90 title 'no difference'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'memory_saving.svg'
@draw
unset output
