# gnuplot contours_d256.gp, in this folder, draws contours_d256.png and contours_d256.svg.
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
$grid << EOD
# log2(batch) log2(sequence) log2(speedup) speedup
0 7 0.777835 1.71
1 7 1.04213 2.06
2 7 1.22339 2.33
3 7 1.55879 2.95

0 8 1.07641 2.11
1 8 1.28434 2.44
2 8 1.57898 2.99
3 8 1.83503 3.57

0 9 1.32148 2.50
1 9 1.60583 3.04
2 9 1.86721 3.65
3 9 2.21054 4.63

0 10 1.69708 3.24
1 10 1.9324 3.82
2 10 2.27093 4.83
3 10 2.46739 5.53

EOD
set xtics ('1' 0, '2' 1, '4' 2, '8' 3)
set ytics ('128' 7, '256' 8, '512' 9, '1024' 10)
set palette defined (0 '#f7f7f7', 1.25 '#f7b799', 2.5 '#dc6e57') maxcolors 10
set cbrange [0:2.5]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5, '4.00' 2, '5.66' 2.5)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 256\nmedian of up to 3 pairs a cell (layers and variants together)" offset 0,1
set rmargin at screen 0.80
set lmargin at screen 0.12
set tmargin at screen 0.87
set bmargin at screen 0.13
set xlabel 'batch'
set ylabel 'sequence'
set tics out
unset key
set xrange [-0.35:3.35]
set yrange [6.75:10.25]
set pm3d map interpolate 24,24
set contour surface
set cntrparam levels discrete 0
set cntrlabel onecolor
draw = "splot $grid using 1:2:3 with pm3d nocontour, $grid using 1:2:3 with lines lc rgb 'black' lw 2.5 nosurface, $grid using 1:2:3:(sprintf('%.2f',$4)) with labels nocontour font ',10'"
set terminal pngcairo size 760,560 font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d256.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d256.svg'
@draw
unset output
