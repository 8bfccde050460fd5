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
0 7 0.792375 -0.5 0.5 6.5 7.5 1.73 "1.72 to 1.75"
1 7 0.86923 0.5 1.5 6.5 7.5 1.83 "1.81 to 1.83"
2 7 1.07344 1.5 2.5 6.5 7.5 2.10 "2.10 to 2.11"
3 7 1.31412 2.5 3.5 6.5 7.5 2.49 "2.45 to 2.54"

0 8 0.997785 -0.5 0.5 7.5 8.5 2.00 "1.99 to 2.01"
1 8 1.19219 0.5 1.5 7.5 8.5 2.28 "2.28 to 2.29"
2 8 1.386 1.5 2.5 7.5 8.5 2.61 "2.58 to 2.64"
3 8 1.49297 2.5 3.5 7.5 8.5 2.81 "2.75 to 2.95"

0 9 1.35678 -0.5 0.5 8.5 9.5 2.56 "2.55 to 2.57"
1 9 1.52208 0.5 1.5 8.5 9.5 2.87 "2.86 to 2.89"
2 9 1.56476 1.5 2.5 8.5 9.5 2.96 "2.91 to 3.08"
3 9 1.78496 2.5 3.5 8.5 9.5 3.45 "3.36 to 3.61"

0 10 1.68087 -0.5 0.5 9.5 10.5 3.21 "3.20 to 3.23"
1 10 1.67901 0.5 1.5 9.5 10.5 3.20 "3.18 to 3.30"
2 10 1.80929 1.5 2.5 9.5 10.5 3.50 "3.45 to 3.68"
3 10 2.04817 2.5 3.5 9.5 10.5 4.14 "4.06 to 4.33"

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
set palette defined (0 '#f7f7f7', 1.125 '#f7b799', 2.25 '#dc6e57') maxcolors 9
set cbrange [0:2.25]
set cbtics ('1.00' 0, '1.41' 0.5, '2.00' 1, '2.83' 1.5, '4.00' 2)
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
