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
0 7 0.702621 -0.5 0.5 6.5 7.5 1.63 "1.59 to 1.65"
1 7 0.885719 0.5 1.5 6.5 7.5 1.85 "1.84 to 1.85"
2 7 1.03617 1.5 2.5 6.5 7.5 2.05 "2.05 to 2.09"
3 7 1.38183 2.5 3.5 6.5 7.5 2.61 "2.58 to 2.66"

0 8 0.966149 -0.5 0.5 7.5 8.5 1.95 "1.94 to 1.97"
1 8 1.0966 0.5 1.5 7.5 8.5 2.14 "2.14 to 2.17"
2 8 1.42057 1.5 2.5 7.5 8.5 2.68 "2.65 to 2.72"
3 8 1.7891 2.5 3.5 7.5 8.5 3.46 "3.41 to 3.53"

0 9 1.20206 -0.5 0.5 8.5 9.5 2.30 "2.29 to 2.30"
1 9 1.47736 0.5 1.5 8.5 9.5 2.78 "2.76 to 2.81"
2 9 1.8613 1.5 2.5 8.5 9.5 3.63 "3.56 to 3.70"
3 9 2.08484 2.5 3.5 8.5 9.5 4.24 "4.20 to 4.34"

0 10 1.56388 -0.5 0.5 9.5 10.5 2.96 "2.95 to 3.00"
1 10 1.96393 0.5 1.5 9.5 10.5 3.90 "3.86 to 3.95"
2 10 2.15471 1.5 2.5 9.5 10.5 4.45 "4.43 to 4.53"
3 10 2.30591 2.5 3.5 9.5 10.5 4.94 "4.90 to 5.02"

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
