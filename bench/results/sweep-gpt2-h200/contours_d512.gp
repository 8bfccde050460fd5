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
# log2 of batch, sequence, speedup; edges of the cell; speedup, its scatter
0 7 1.01929 -0.5 0.5 6.5 7.5 2.03 "1.98 to 2.03"
1 7 1.16806 0.5 1.5 6.5 7.5 2.25 "2.24 to 2.25"
2 7 1.34342 1.5 2.5 6.5 7.5 2.54 "2.52 to 2.54"
3 7 1.51288 2.5 3.5 6.5 7.5 2.85 "2.83 to 2.88"

0 8 1.25781 -0.5 0.5 7.5 8.5 2.39 "2.37 to 2.40"
1 8 1.39441 0.5 1.5 7.5 8.5 2.63 "2.62 to 2.64"
2 8 1.56401 1.5 2.5 7.5 8.5 2.96 "2.94 to 2.96"
3 8 1.83059 2.5 3.5 7.5 8.5 3.56 "3.56 to 3.58"

0 9 1.52284 -0.5 0.5 8.5 9.5 2.87 "2.85 to 2.88"
1 9 1.64654 0.5 1.5 8.5 9.5 3.13 "3.11 to 3.14"
2 9 1.92094 1.5 2.5 8.5 9.5 3.79 "3.78 to 3.80"
3 9 2.16165 2.5 3.5 8.5 9.5 4.47 "4.44 to 4.49"

0 10 1.80591 -0.5 0.5 9.5 10.5 3.50 "3.44 to 3.50"
1 10 2.09368 0.5 1.5 9.5 10.5 4.27 "4.19 to 4.29"
2 10 2.27922 1.5 2.5 9.5 10.5 4.85 "4.78 to 4.87"
3 10 2.51328 2.5 3.5 9.5 10.5 5.71 "5.63 to 5.74"

EOD
$missing << EOD
EOD
set contour base
set cntrparam levels discrete 0
unset surface
set table $equal
splot $grid using 1:2:3 with lines
unset table
unset contour
set surface
set xtics ('1' 0, '2' 1, '4' 2, '8' 3)
set ytics ('128' 7, '256' 8, '512' 9, '1024' 10)
set palette defined (0 '#f7f7f7', 1.375 '#f7b799', 2.75 '#dc6e57') maxcolors 11
set cbrange [0:2.75]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5, '4.00' 2, '5.66' 2.5)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 512\nmedian and quartiles of up to 3 pairs a cell"
set rmargin at screen 0.80
set lmargin at screen 0.12
set tmargin at screen 0.87
set bmargin at screen 0.13
set xlabel 'batch'
set ylabel 'sequence'
set tics out
unset key
set xrange [-0.5:3.5]
set yrange [6.5:10.5]
draw = "plot $grid using 1:2:4:5:6:7:3 with boxxyerror fs solid noborder lc palette, $equal using 1:2 with lines lc rgb 'black' lw 2.5, $grid using 1:2:(valid(3) ? sprintf('%.2f', $8) : '') with labels font ',11' offset 0,0.3, $grid using 1:2:(stringcolumn(9)) with labels font ',8' offset 0,-0.7"
set terminal pngcairo size 760,560 font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d512.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d512.svg'
@draw
unset output
