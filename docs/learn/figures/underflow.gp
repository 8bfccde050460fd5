# gnuplot underflow.gp, in this folder, draws underflow.png and underflow.svg.
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
$kind0 << EOD
-46.5 0.0016587
-45.5 0.00663482
-44.5 0.00829352
-43.5 0.0157577
-42.5 0.0207338
-41.5 0.0215632
-40.5 0.016587
-39.5 0.0107816
-38.5 0.00414676
-34.5 0.000829352
-33.5 0.000829352
-32.5 0.0016587
-31.5 0.00746417
-30.5 0.0132696
-29.5 0.0157577
-28.5 0.0364915
-27.5 0.0646895
-26.5 0.126891
-25.5 0.21729
-24.5 0.326765
-23.5 0.637772
-22.5 1.20256
-21.5 1.99293
-20.5 2.00206
-19.5 1.53098
-18.5 1.61143
-17.5 2.38854
-16.5 4.3823
-15.5 6.73683
-14.5 8.70654
-13.5 14.0948
-12.5 20.7147
-11.5 15.9385
-10.5 9.22655
-9.5 4.92387
-8.5 1.7433
-7.5 0.680898
-6.5 0.335058
-5.5 0.216461
-4.5 0.0157577
-200 0
EOD
$scaled0 << EOD
-30.5 0.0016587
-29.5 0.00663482
-28.5 0.00829352
-27.5 0.0157577
-26.5 0.0207338
-25.5 0.0215632
-24.5 0.016587
-23.5 0.0107816
-22.5 0.00414676
-18.5 0.000829352
-17.5 0.000829352
-16.5 0.0016587
-15.5 0.00746417
-14.5 0.0132696
-13.5 0.0157577
-12.5 0.0364915
-11.5 0.0646895
-10.5 0.126891
-9.5 0.21729
-8.5 0.326765
-7.5 0.637772
-6.5 1.20256
-5.5 1.99293
-4.5 2.00206
-3.5 1.53098
-2.5 1.61143
-1.5 2.38854
-0.5 4.3823
0.5 6.73683
1.5 8.70654
2.5 14.0948
3.5 20.7147
4.5 15.9385
5.5 9.22655
6.5 4.92387
7.5 1.7433
8.5 0.680898
9.5 0.335058
10.5 0.216461
11.5 0.0157577
-200 0
EOD
$kind1 << EOD
-44.5 0.000304225
-42.5 0.000202817
-41.5 0.000811267
-40.5 0.00172394
-39.5 0.00304225
-38.5 0.00709859
-37.5 0.012169
-36.5 0.0275831
-35.5 0.0498929
-34.5 0.101206
-33.5 0.179594
-32.5 0.31031
-31.5 0.52276
-30.5 0.792608
-29.5 1.19053
-28.5 1.45085
-27.5 1.70711
-26.5 1.87393
-25.5 2.20573
-24.5 2.95372
-23.5 3.6936
-22.5 5.27729
-21.5 16.4118
-20.5 6.87478
-19.5 8.51181
-18.5 10.5587
-17.5 10.6196
-16.5 8.15181
-15.5 6.16806
-14.5 5.35751
-13.5 3.01812
-12.5 1.41536
-11.5 0.388597
-10.5 0.0960337
-9.5 0.0656112
-8.5 0.000101408
-200 0
EOD
$scaled1 << EOD
-28.5 0.000304225
-26.5 0.000202817
-25.5 0.000811267
-24.5 0.00172394
-23.5 0.00304225
-22.5 0.00709859
-21.5 0.012169
-20.5 0.0275831
-19.5 0.0498929
-18.5 0.101206
-17.5 0.179594
-16.5 0.31031
-15.5 0.52276
-14.5 0.792608
-13.5 1.19053
-12.5 1.45085
-11.5 1.70711
-10.5 1.87393
-9.5 2.20573
-8.5 2.95372
-7.5 3.6936
-6.5 5.27729
-5.5 16.4118
-4.5 6.87478
-3.5 8.51181
-2.5 10.5587
-1.5 10.6196
-0.5 8.15181
0.5 6.16806
1.5 5.35751
2.5 3.01812
3.5 1.41536
4.5 0.388597
5.5 0.0960337
6.5 0.0656112
7.5 0.000101408
-200 0
EOD
$kind2 << EOD
-19.5 7.75357e-05
-18.5 0.000232607
-17.5 0.000930429
-16.5 0.000930429
-15.5 0.00162825
-14.5 0.00441954
-13.5 0.0106224
-12.5 0.0186086
-11.5 0.041249
-10.5 0.0829632
-9.5 0.15259
-8.5 0.317586
-7.5 0.61827
-6.5 1.20436
-5.5 2.74221
-4.5 6.15471
-3.5 9.94055
-2.5 17.9223
-1.5 20.7859
-0.5 21.1071
0.5 8.79775
1.5 9.93613
2.5 0.11894
3.5 0.0125608
4.5 0.0269824
5.5 0.000387679
-200 0
EOD
set xrange [-47:22]
set style fill solid 0.85 border lc rgb 'white'
set boxwidth 1
set grid ytics ls 91
set yrange [0:*]
set ylabel 'per cent' offset 1
set xtics 10
set object 1 rectangle from -47, graph 0 to -25, graph 1 fc rgb '#d55e00' fs transparent solid 0.18 noborder behind
set object 2 rectangle from -25, graph 0 to -14, graph 1 fc rgb '#e69f00' fs transparent solid 0.18 noborder behind
set object 3 rectangle from 16, graph 0 to 23, graph 1 fc rgb '#d55e00' fs transparent solid 0.18 noborder behind
set label 1 'zero' at -46, graph 0.92 front
set label 2 'subnormal' at -24.5, graph 0.92 front
set label 3 'infinite' at 16.3, graph 0.92 front
set key top right at graph 0.99, graph 0.82
draw = "set multiplot layout 3,1 title 'What FP16 would make of them: log2 of the magnitude'; set title 'gradients of weights' offset 0,-0.6; plot $kind0 with boxes lc rgb '#0072b2' title 'as they are', $scaled0 with histeps lw 2 lc rgb '#009e73' title 'times 2^{16}'; set title 'gradients of activations' offset 0,-0.6; plot $kind1 with boxes lc rgb '#0072b2' title 'as they are', $scaled1 with histeps lw 2 lc rgb '#009e73' title 'times 2^{16}'; set title 'activations' offset 0,-0.6; plot $kind2 with boxes lc rgb '#0072b2' title 'as they are'; unset multiplot"
set terminal pngcairo size 900,900 font 'DejaVu Sans,11' background rgb 'white'
set output 'underflow.png'
@draw
set terminal svg size 900,900 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'underflow.svg'
@draw
unset output
