# gnuplot contours_d512.gp, in this folder, draws contours_d512.png and contours_d512.svg.
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
0 7 1.01929 2.03
1 7 1.16806 2.25
2 7 1.34342 2.54
3 7 1.51288 2.85

0 8 1.25781 2.39
1 8 1.39441 2.63
2 8 1.56401 2.96
3 8 1.83059 3.56

0 9 1.52284 2.87
1 9 1.64654 3.13
2 9 1.92094 3.79
3 9 2.16165 4.47

0 10 1.80591 3.50
1 10 2.09368 4.27
2 10 2.27922 4.85
3 10 2.51328 5.71

EOD
set xtics ('1' 0, '2' 1, '4' 2, '8' 3)
set ytics ('128' 7, '256' 8, '512' 9, '1024' 10)
set palette defined (0 '#f7f7f7', 1.375 '#f7b799', 2.75 '#dc6e57') maxcolors 11
set cbrange [0:2.75]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5, '4.00' 2, '5.66' 2.5)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 512\nmedian of up to 3 pairs a cell (layers and variants together)" offset 0,1
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
set output 'contours_d512.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d512.svg'
@draw
unset output
