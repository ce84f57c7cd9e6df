# SPDX-License-Identifier: Apache-2.0
# gnuplot -c times.gp FOLDER: times of operations beside NCCL's sockets and Open MPI, from FOLDER's times-*.dat, on
# stdout.
set terminal svg size 980,380 font 'sans-serif,13' background '#ffffff'
nccl = ARG1.'/times-nccl.dat'
mpi = ARG1.'/times-mpi.dat'
operation(name) = name[1:strstrt(name, '-')]."\n".name[strstrt(name, '-')+1:strstrt(name, ' ')]."\n".word(name, 2)
times(slow, fast) = sprintf('%.1fx', slow / fast)
set style data histograms
set style histogram clustered gap 1
set style fill solid 1.0 noborder
set boxwidth 0.9
set grid ytics lc rgb '#dddddd'
set border 3 lc rgb '#888888'
set tics nomirror textcolor rgb '#333333'
set xtics scale 0 font ',11'
set ylabel 'time of an operation, ms (less is better)'
set key top left reverse Left samplen 1
set tmargin 3
set bmargin 4.5
set multiplot
set size 0.34,1
set origin 0,0
set rmargin 1
set title '4 nodes, 100 Mbit/s, 4 MB, NCCL 2.30.7'
set yrange [0:740]
plot nccl using 2:xtic(operation(strcol(1))) title 'NCCL sockets' lc rgb '#9aa5b1', \
     '' using 3 title 'nibble (times as fast)' lc rgb '#0b7285', \
     '' using ($0+0.17):3:(times($2, $3)) with labels offset 0,0.6 font ',11' tc rgb '#0b7285' notitle
set size 0.66,1
set origin 0.34,0
set title '4 nodes, 500 Mbit/s, 64 MiB, test harness beside Open MPI'
set yrange [0:3400]
plot mpi using 2:xtic(operation(strcol(1))) title 'Open MPI' lc rgb '#9aa5b1', \
     '' using 3 title 'nibble, raw' lc rgb '#74b9c4', \
     '' using 4 title 'nibble, coded (times as fast as Open MPI)' lc rgb '#0b7285', \
     '' using ($0+0.32):4:(times($2, $4)) with labels offset 0,0.6 font ',11' tc rgb '#0b7285' notitle
unset multiplot
