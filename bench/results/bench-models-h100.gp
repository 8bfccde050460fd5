# gnuplot bench-models-h100.gp, in this folder, draws bench-models-h100.png and bench-models-h100.svg.
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
$rows << EOD
"small" 2.449 4.585
"medium" 2.481 4.539
"large" 2.462 4.73
"xl" 2.631 4.901
"2.7B" 2.587 5.025
EOD
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.85 noborder
set title 'Speedup over fp32 of a training step: context 512, batch 4'
set ylabel 'speedup'
set yrange [0:1.2<*]
set grid ytics ls 91
set key outside top center horizontal
set xlabel 'model size'
set offsets 0,0,0.2,0
draw = "plot $rows using 2:xtic(1) ls 1 title 'tf32', $rows using 3:xtic(1) ls 2 title 'bf16', $rows using ($0+-0.1667):2:(sprintf('%.2f',$2)) with labels offset 0,0.6 font ',9' notitle, $rows using ($0+0.1667):3:(sprintf('%.2f',$3)) with labels offset 0,0.6 font ',9' notitle, 1 with lines ls 90 title 'equally fast'"
set terminal pngcairo size 900,480 font 'DejaVu Sans,11' background rgb 'white'
set output 'bench-models-h100.png'
@draw
set terminal svg size 900,480 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'bench-models-h100.svg'
@draw
unset output
