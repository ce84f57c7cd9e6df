# SPDX-License-Identifier: Apache-2.0
# gnuplot -c loss.gp FOLDER: losses of the demo's three runs, from FOLDER/loss.csv, on stdout.
set terminal svg size 980,340 font 'sans-serif,13' background '#ffffff'
data = ARG1.'/loss.csv'
set datafile separator ','
set datafile missing ''
set grid ytics lc rgb '#dddddd'
set border 3 lc rgb '#888888'
set tics nomirror
set xlabel 'step'
set ylabel 'loss, nats a byte'
set key top right Right samplen 2
set multiplot layout 1,2
set title 'training loss'
plot data using 1:2 every ::1 with lines lw 5 lc rgb '#c9d1d9' title 'uncompressed', \
     '' using 1:3 every ::1 with lines lw 2.2 lc rgb '#e8a33d' title '4 bits, no feedback', \
     '' using 1:4 every ::1 with lines lw 1 lc rgb '#0b7285' title '4 bits, feedback'
set title 'validation loss'
plot data using 1:5 every ::1 with linespoints lw 5 pt 7 ps 0.9 lc rgb '#c9d1d9' title 'uncompressed', \
     '' using 1:6 every ::1 with linespoints lw 2.2 pt 7 ps 0.6 lc rgb '#e8a33d' title '4 bits, no feedback', \
     '' using 1:7 every ::1 with linespoints lw 1 pt 7 ps 0.4 lc rgb '#0b7285' title '4 bits, feedback'
unset multiplot
