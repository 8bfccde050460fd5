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
$w64 << EOD
# tokens median q1 q3 pairs low high
64 1.11061 1.05209 1.16913 2 0.959972 1.2975
128 1.35021 1.30759 1.39282 2 1.16686 1.54859
256 1.27412 1.26059 1.27719 4 1.14692 1.41811
512 1.42801 1.34841 1.48676 4 1.28597 1.57144
1024 1.3271 1.31757 1.33664 2 1.16551 1.52504
2048 1.37682 1.31403 1.43961 2 1.20075 1.54425
EOD
$w128 << EOD
# tokens median q1 q3 pairs low high
64 1.3626 1.33967 1.38554 2 1.12033 1.66842
128 1.4233 1.42044 1.42617 2 1.18342 1.70897
256 1.6137 1.50214 1.69124 4 1.38436 1.87463
512 1.6343 1.59669 1.6513 4 1.4102 1.90076
1024 1.55295 1.40386 1.70203 2 1.28474 1.88386
2048 1.86273 1.74301 1.98246 2 1.53585 2.25315
EOD
$w256 << EOD
# tokens median q1 q3 pairs low high
64 1.40582 1.36564 1.44599 2 1.22688 1.6086
128 1.58743 1.57346 1.6014 2 1.39859 1.80489
256 1.6114 1.57842 1.67256 4 1.45508 1.79159
512 2.02355 1.89856 2.09417 4 1.83734 2.23653
1024 2.25075 2.16387 2.33764 2 1.96755 2.59374
2048 2.39104 2.29238 2.4897 2 2.11894 2.75227
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
set xrange [51.2:2560]
set grid ytics ls 91
set logscale y 2
set yrange [0.707107:4]
set ytics ('0.707' 0.707107, '1' 1, '1.41' 1.41421, '2' 2, '2.83' 2.82843, '4' 4)
set ylabel 'speedup (logarithmic)'
set title 'Speedup of bf16 over fp32: median and quartiles of 48 exact-shape pairs'
set key outside right center
draw = "plot $w64 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_1 notitle, $w128 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_2 notitle, $w256 using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb ls_3 notitle, $w64 using 1:2:6:7 with yerrorbars lc rgb ls_1 lw 1.2 ps 0 notitle, keyentry with yerrorbars lc rgb '#666666' lw 1.2 ps 0 title '95 % interval of the median', $w128 using 1:2:6:7 with yerrorbars lc rgb ls_2 lw 1.2 ps 0 notitle, $w256 using 1:2:6:7 with yerrorbars lc rgb ls_3 lw 1.2 ps 0 notitle, $w64 using 1:2 with linespoints ls 1 title 'width 64', $w128 using 1:2 with linespoints ls 2 title 'width 128', $w256 using 1:2 with linespoints ls 3 title 'width 256', 1 with lines ls 90 title 'equally fast'"
set terminal pngcairo size 1040,520 font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.png'
@draw
set terminal svg size 1040,520 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'decision_boundary.svg'
@draw
unset output
