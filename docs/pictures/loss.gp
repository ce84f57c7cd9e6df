# SPDX-License-Identifier: Apache-2.0
# gnuplot -c loss.gp FOLDER: losses of the demo's three runs, from FOLDER/loss.csv, on stdout. Its last column is the
# standard deviation of the uncompressed validation loss between seeds.
set terminal svg size 980,340 font 'sans-serif,13' background '#ffffff'
data = ARG1.'/loss.csv'
set datafile separator ','
set datafile missing ''
set grid ytics lc rgb '#dddddd'
set border 3 lc rgb '#888888'
set tics nomirror textcolor rgb '#333333'
set xlabel 'step'
set xrange [0:245]
set key top right Right samplen 2
set multiplot layout 1,2
set title 'training loss'
set ylabel 'loss, nats a byte'
plot data using 1:2 every ::1 with lines lw 6 lc rgb '#c9d1d9' title 'uncompressed', \
     '' using 1:4 every ::1 with lines lw 1.3 lc rgb '#0b7285' title '4 bits, feedback'
set title 'validation loss: 4 bits less uncompressed'
set ylabel 'difference, nats a byte'
set format y '%+.3f'
set yrange [-0.06:0.09]
set key top left Left reverse
plot data using 1:(-$8):8 every ::1 with filledcurves lc rgb '#e9ecef' title "noise: +- one deviation of five seeds", \
     0 lc rgb '#868e96' lw 1 notitle, \
     data using 1:($6-$5) every ::1 with linespoints lw 1.5 pt 6 ps 1.1 lc rgb '#e8a33d' title 'no feedback', \
     '' using 1:($7-$5) every ::1 with linespoints lw 1.5 pt 7 ps 0.3 lc rgb '#0b7285' title 'feedback'
unset multiplot
