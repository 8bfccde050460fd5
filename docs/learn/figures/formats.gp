# gnuplot formats.gp, in this folder, draws formats.png and formats.svg.
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
set label 'fp64' at -1,10.00 right noenhanced
set object rectangle from 0,9.65 to 1,10.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,9.65 to 12,10.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '11' at 6.5,10.00 center tc rgb 'white' front
set object rectangle from 12,9.65 to 64,10.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '52' at 38.0,10.00 center tc rgb 'white' front
set label '4.94e-324 … 1.798e+308, 16.0 digits' at 65,10.00 left noenhanced
set label 'fp32' at -1,9.00 right noenhanced
set object rectangle from 0,8.65 to 1,9.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,8.65 to 9,9.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '8' at 5.0,9.00 center tc rgb 'white' front
set object rectangle from 9,8.65 to 32,9.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '23' at 20.5,9.00 center tc rgb 'white' front
set label '1.4e-45 … 3.403e+38, 7.2 digits' at 33,9.00 left noenhanced
set label 'tf32' at -1,8.00 right noenhanced
set object rectangle from 0,7.65 to 1,8.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,7.65 to 9,8.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '8' at 5.0,8.00 center tc rgb 'white' front
set object rectangle from 9,7.65 to 19,8.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '10' at 14.0,8.00 center tc rgb 'white' front
set label '1.15e-41 … 3.401e+38, 3.3 digits' at 20,8.00 left noenhanced
set label 'bf16' at -1,7.00 right noenhanced
set object rectangle from 0,6.65 to 1,7.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,6.65 to 9,7.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '8' at 5.0,7.00 center tc rgb 'white' front
set object rectangle from 9,6.65 to 16,7.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '7' at 12.5,7.00 center tc rgb 'white' front
set label '9.18e-41 … 3.39e+38, 2.4 digits' at 17,7.00 left noenhanced
set label 'fp16' at -1,6.00 right noenhanced
set object rectangle from 0,5.65 to 1,6.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,5.65 to 6,6.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '5' at 3.5,6.00 center tc rgb 'white' front
set object rectangle from 6,5.65 to 16,6.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '10' at 11.0,6.00 center tc rgb 'white' front
set label '5.96e-08 … 6.55e+04, 3.3 digits' at 17,6.00 left noenhanced
set label 'fp8_e5m2' at -1,5.00 right noenhanced
set object rectangle from 0,4.65 to 1,5.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,4.65 to 6,5.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '5' at 3.5,5.00 center tc rgb 'white' front
set object rectangle from 6,4.65 to 8,5.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '2' at 7.0,5.00 center tc rgb 'white' front
set label '1.53e-05 … 5.734e+04, 0.9 digits' at 9,5.00 left noenhanced
set label 'fp8_e4m3' at -1,4.00 right noenhanced
set object rectangle from 0,3.65 to 1,4.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,3.65 to 5,4.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '4' at 3.0,4.00 center tc rgb 'white' front
set object rectangle from 5,3.65 to 8,4.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '3' at 6.5,4.00 center tc rgb 'white' front
set label '0.00195 … 448, 1.2 digits' at 9,4.00 left noenhanced
set label 'mxfp8' at -1,3.00 right noenhanced
set object rectangle from 0,2.65 to 1,3.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,2.65 to 5,3.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '4' at 3.0,3.00 center tc rgb 'white' front
set object rectangle from 5,2.65 to 8,3.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '3' at 6.5,3.00 center tc rgb 'white' front
set label '0.00195 … 448, 1.2 digits' at 9,3.00 left noenhanced
set label 'mxfp4' at -1,2.00 right noenhanced
set object rectangle from 0,1.65 to 1,2.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,1.65 to 3,2.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '2' at 2.0,2.00 center tc rgb 'white' front
set object rectangle from 3,1.65 to 4,2.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '0.5 … 6, 0.6 digits' at 5,2.00 left noenhanced
set label 'nvfp4' at -1,1.00 right noenhanced
set object rectangle from 0,0.65 to 1,1.35 fc rgb '#666666' fs solid border lc rgb 'white' lw 1.5
set object rectangle from 1,0.65 to 3,1.35 fc rgb '#d55e00' fs solid border lc rgb 'white' lw 1.5
set label '2' at 2.0,1.00 center tc rgb 'white' front
set object rectangle from 3,0.65 to 4,1.35 fc rgb '#0072b2' fs solid border lc rgb 'white' lw 1.5
set label '0.5 … 6, 0.6 digits' at 5,1.00 left noenhanced
set title 'Sign, exponent and fraction bits; smallest and largest value, decimal digits'
unset border
unset tics
set xrange [-10:106]
set yrange [-0.2:10.7]
set lmargin 1
set rmargin 1
set key at graph 0.5,0.02 center bottom horizontal
draw = "plot NaN with boxes fs solid lc rgb '#666666' title 'sign', NaN with boxes fs solid lc rgb '#d55e00' title 'exponent', NaN with boxes fs solid lc rgb '#0072b2' title 'fraction'"
set terminal pngcairo size 1000,460 font 'DejaVu Sans,11' background rgb 'white'
set output 'formats.png'
@draw
set terminal svg size 1000,460 dynamic font 'DejaVu Sans,11' background rgb 'white'
set output 'formats.svg'
@draw
unset output
