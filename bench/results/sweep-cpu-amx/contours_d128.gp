# gnuplot contours_d128.gp, in this folder, draws contours_d128.png and contours_d128.svg.
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
0 6 0.446365 -1 1 5.5 6.5 1.36 "1.34 to 1.39"
2 6 0.550163 1 3 5.5 6.5 1.46 "1.43 to 1.50"

0 7 0.509243 -1 1 6.5 7.5 1.42 "1.42 to 1.43"
2 7 0.64274 1 3 6.5 7.5 1.56 "1.53 to 1.60"

0 8 0.761385 -1 1 7.5 8.5 1.70 "1.69 to 1.70"
2 8 0.635007 1 3 7.5 8.5 1.55 "1.40 to 1.70"

0 9 0.736478 -1 1 8.5 9.5 1.67 "1.65 to 1.68"
2 9 0.897422 1 3 8.5 9.5 1.86 "1.74 to 1.98"

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
set palette defined (0 '#f7f7f7', 0.5 '#f7b799', 1 '#dc6e57') maxcolors 4
set cbrange [0:1]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1)
set cblabel 'speedup (median)' offset 1.5,0
set title "Speedup of bf16 over fp32 at width 128\nmedian and quartiles of up to 2 pairs a cell"
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
set output 'contours_d128.png'
@draw
set terminal svg size 760,560 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'contours_d128.svg'
@draw
unset output
