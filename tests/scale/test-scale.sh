#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A few collectives of few nodes in virtual time: they must end, take the time of the reckoning
# (policy/reckon/reckon.c), and take the same time in a second run.
set -eu
scale=${NB_BUILDDIR:-.}/tests/nibble-scale
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

# The formula counts neither messages nor turns. On a slow link, on a fast one, with a slow codec, and raw.
"$scale" --nodes 4,8,16 --bytes 32M --tolerance 30
"$scale" --nodes 4,8 --bytes 32M --gbps 100 --tolerance 35
"$scale" --nodes 4,8 --bytes 32M --codec-gbps 4 --tolerance 35
"$scale" --nodes 4,8 --bytes 32M --gbps 1 --raw --tolerance 20
"$scale" --nodes 4,8,16 --bytes 32M --ops all_reduce --schedules direct --tolerance 2
# An operation of one window has only its own bytes to fill links. Links are idle where all nodes send to the
# same node first, or where the row is served before the column, whose nodes must pass on segments.
"$scale" --nodes 8,12 --bytes 1M --ops all_reduce --schedules direct --message-us 0 --latency-us 0 --codec-gbps 100000 --tolerance 2
"$scale" --nodes 20,32 --bytes 1M --ops all_reduce --schedules two-level --tolerance 3
# Distant nodes: NCCL's window is the limit, or with larger buffers the link.
"$scale" --nodes 2,4,8 --bytes 512M --gbps 10 --latency-us 35000 --chunk 512K --ops reduce_scatter --schedules direct,two-hop --tolerance 15
"$scale" --nodes 2,4,8 --bytes 512M --gbps 10 --latency-us 35000 --chunk 512K --ops all_reduce --schedules direct --tolerance 5
# The schedule that auto takes is the faster one or nearly, and direct sums are reckoned, whatever share of a
# block NCCL's window holds.
for bytes in 256M 512M; do
    for buffer in 4M 16M; do
        "$scale" --nodes 4,8 --bytes $bytes --gbps 10 --latency-us 1000 --rtt-us 2000 --buffer $buffer \
            --ops reduce_scatter --schedules auto,direct,two-hop --csv | sed "s/^/$bytes,$buffer,/"
    done
done | tee "$here/window"
awk -F, '{ ms[$1, $2, $3, $5] = $8; group[$1 SUBSEP $2 SUBSEP $3]; rows++
        if ($5 == "direct" && ($11 > 20 || $11 < -20)) bad = 1 }
    END {
        for (g in group) {
            best = ms[g, "direct"] < ms[g, "two-hop"] ? ms[g, "direct"] : ms[g, "two-hop"]
            bad = bad || ms[g, "auto"] > 1.1 * best
        }
        exit bad || rows != 24
    }' "$here/window"
# On a grid, too: a node that waits for other rows sums for them meanwhile.
"$scale" --nodes 4,8 --bytes 256M --gbps 10 --latency-us 10000 --rtt-us 20000 --buffer 64M \
    --ops all_reduce --schedules two-level --tolerance 20
# Two sites of four nodes behind a trunk of a node's rate. Rows within sites send less than half as much out.
"$scale" --nodes 8 --sites 2 --bytes 64M --gbps 10 --trunk-gbps 10 --latency-us 10000 --rtt-us 20000 \
    --buffer 64M --schedules auto,direct --tolerance 15 --csv >"$here/sites" || { cat "$here/sites"; exit 1; }
awk -F, '{ ms[$2, $3] = $6; out[$2, $3] = $14; rows++ }
    END {
        for (i in ms) {
            split(i, k, SUBSEP)
            f = k[1]
            bad = bad || ms[f, "auto"] > 1.05 * ms[f, "direct"] || out[f, "auto"] > 0.5 * out[f, "direct"]
        }
        exit bad || rows != 6 || ms["all_reduce", "auto"] > 0.6 * ms["all_reduce", "direct"]
    }' "$here/sites"
# With the recommended settings a distant link is busy, and the reckoning is within a tenth.
NB_BUILDDIR=${NB_BUILDDIR:-.} "${NB_SRCDIR:-.}/tests/scale/distant.sh" "256M" "10 100" "0.1 35"
# Two hops wait a round trip in each turn of NCCL's window, so distant nodes sum directly.
"$scale" --nodes 4 --bytes 512M --gbps 10 --latency-us 35000 --rtt-us 70000 --chunk 512K --ops reduce_scatter,all_gather \
    --schedules auto --csv | tee "$here/taken"
[ "$(grep -c ,direct, "$here/taken")" = 2 ]
# Compare all columns except the last, which is the real time.
for i in 1 2; do
    "$scale" --nodes 6,8 --bytes 8M --csv --late | cut -d, -f1-12 > "$here/$i"
done
cmp "$here/1" "$here/2"
# Raw values, and the memory that a run needs.
"$scale" --nodes 6 --bytes 8M --raw --type float32
"$scale" --nodes 8,32 --memory --schedules auto,direct > "$here/memory"
cat "$here/memory"
# An idle communicator takes less than 3 MiB besides its send and receive buffers: its tables grow with use.
# The sanitizers' allocators have no figures of the heap.
awk -v counted="${NB_SANITIZE:-no}" '
    /^ *[0-9]/ { rows++; if (counted == "no" && $NF > 3) bad = 1 }
    END { exit bad || rows != 4 }' "$here/memory"
