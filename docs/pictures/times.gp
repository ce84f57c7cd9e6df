# SPDX-License-Identifier: Apache-2.0
# gnuplot -c times.gp FOLDER: times of operations beside NCCL's sockets and Open MPI, from FOLDER's times-*.dat, on stdout.
set terminal svg size 980,380 font 'sans-serif,13' background '#ffffff'
nccl = ARG1.'/times-nccl.dat'
mpi = ARG1.'/times-mpi.dat'
set style data histograms
set style histogram clustered gap 1
set style fill solid 1.0 noborder
set boxwidth 0.9
set grid ytics lc rgb '#dddddd'
set border 3 lc rgb '#888888'
set tics nomirror
set xtics rotate by -25 scale 0 font ',11'
set ylabel 'milliseconds, less is better'
set key top left reverse Left samplen 1
set bmargin 5
set multiplot
set size 0.34,1
set origin 0,0
set rmargin 2
set title '4 nodes, 100 Mbit/s, 4 MB, under NCCL 2.30.7'
set yrange [0:680]
plot nccl using 2:xtic(1) title 'NCCL sockets' lc rgb '#9aa5b1', \
     '' using 3 title 'nibble' lc rgb '#0b7285', \
     '' using ($0-0.14):($2):(sprintf('%.0f', $2)) with labels offset 0,0.6 font ',11' notitle, \
     '' using ($0+0.2):($3):(sprintf('%.1fx', $2/$3)) with labels offset 0,0.6 font ',11' tc rgb '#0b7285' notitle
set size 0.66,1
set origin 0.34,0
set rmargin 6
unset ylabel
set title '4 nodes, 500 Mbit/s, 64 MiB, test harness beside Open MPI'
set yrange [0:3400]
plot mpi using 2:xtic(1) title 'Open MPI' lc rgb '#9aa5b1', \
     '' using 3 title 'nibble, raw' lc rgb '#74b9c4', \
     '' using 4 title 'nibble, coded' lc rgb '#0b7285', \
     '' using ($0+0.3):($4):(sprintf('%.1fx', $2/$4)) with labels offset 0,0.6 font ',11' tc rgb '#0b7285' notitle
unset multiplot
