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
# log2 of batch, sequence, speedup; edges of the cell; speedup, its scatter
0 7 0.777835 -0.5 0.5 6.5 7.5 1.71 "1.71 to 1.73"
1 7 1.04213 0.5 1.5 6.5 7.5 2.06 "2.03 to 2.07"
2 7 1.22339 1.5 2.5 6.5 7.5 2.33 "2.31 to 2.38"
3 7 1.55879 2.5 3.5 6.5 7.5 2.95 "2.88 to 3.01"

0 8 1.07641 -0.5 0.5 7.5 8.5 2.11 "2.09 to 2.11"
1 8 1.28434 0.5 1.5 7.5 8.5 2.44 "2.38 to 2.44"
2 8 1.57898 1.5 2.5 7.5 8.5 2.99 "2.95 to 3.04"
3 8 1.83503 2.5 3.5 7.5 8.5 3.57 "3.50 to 3.69"

0 9 1.32148 -0.5 0.5 8.5 9.5 2.50 "2.49 to 2.53"
1 9 1.60583 0.5 1.5 8.5 9.5 3.04 "3.02 to 3.10"
2 9 1.86721 1.5 2.5 8.5 9.5 3.65 "3.61 to 3.75"
3 9 2.21054 2.5 3.5 8.5 9.5 4.63 "4.52 to 4.76"

0 10 1.69708 -0.5 0.5 9.5 10.5 3.24 "3.23 to 3.26"
1 10 1.9324 0.5 1.5 9.5 10.5 3.82 "3.79 to 3.85"
2 10 2.27093 1.5 2.5 9.5 10.5 4.83 "4.76 to 4.89"
3 10 2.46739 2.5 3.5 9.5 10.5 5.53 "5.48 to 5.69"

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
set palette defined (0 '#f7f7f7', 1.25 '#f7b799', 2.5 '#dc6e57') maxcolors 10
set cbrange [0:2.5]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5, '4.00' 2, '5.66' 2.5)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 256\nmedian and quartiles of up to 3 pairs a cell"
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
set output 'contours_d256.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d256.svg'
@draw
unset output
