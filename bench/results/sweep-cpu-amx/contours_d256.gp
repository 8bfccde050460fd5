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
0 6 0.491408 -1 1 5.5 6.5 1.41 "1.37 to 1.45"
2 6 0.737911 1 3 5.5 6.5 1.67 "1.60 to 1.74"

0 7 0.666693 -1 1 6.5 7.5 1.59 "1.57 to 1.60"
2 7 0.928773 1 3 6.5 7.5 1.90 "1.81 to 2.00"

0 8 0.688319 -1 1 7.5 8.5 1.61 "1.60 to 1.62"
2 8 1.17041 1 3 7.5 8.5 2.25 "2.16 to 2.34"

0 9 1.02482 -1 1 8.5 9.5 2.03 "2.00 to 2.07"
2 9 1.25764 1 3 8.5 9.5 2.39 "2.29 to 2.49"

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
set xtics ('1' 0, '4' 2)
set ytics ('64' 6, '128' 7, '256' 8, '512' 9)
set palette defined (0 '#f7f7f7', 0.75 '#f7b799', 1.5 '#dc6e57') maxcolors 6
set cbrange [0:1.5]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 256\nmedian and quartiles of up to 2 pairs a cell"
set rmargin at screen 0.80
set lmargin at screen 0.12
set tmargin at screen 0.87
set bmargin at screen 0.13
set xlabel 'batch'
set ylabel 'sequence'
set tics out
unset key
set xrange [-1:3]
set yrange [5.5:9.5]
draw = "plot $grid using 1:2:4:5:6:7:3 with boxxyerror fs solid noborder lc palette, $equal using 1:2 with lines lc rgb 'black' lw 2.5, $grid using 1:2:(valid(3) ? sprintf('%.2f', $8) : '') with labels font ',11' offset 0,0.3, $grid using 1:2:(stringcolumn(9)) with labels font ',8' offset 0,-0.7"
set terminal pngcairo size 760,560 font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d256.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d256.svg'
@draw
unset output
