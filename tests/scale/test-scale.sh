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
