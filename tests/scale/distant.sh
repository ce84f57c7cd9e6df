#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Coded sums of distant nodes in virtual time, with the settings that the line at connect recommends: the
# table of docs/performance.md.
#
#   distant.sh [SIZES [GBPS [MS]]]     (default "256M 1G" "1 10 25 100" "0.1 1 10 35 100")
#
# A cell has the worst time of 2, 4 and 8 nodes over the floor, with NCCL's usual buffers and no setting, and
# as recommended, then raw over coded of four nodes, as recommended. The floor is the link's time for the
# coded bytes and a hop, or in an all-reduce two hops where the second is longer than the results' time.
# Codecs work at 400 GB/s, as a GPU's do. Status 1 when a recommended cell is above 1.3 (all-reduce) or 1.5
# (reduce-scatter), when the reckoning is off by more than 10 % in one, or when a run failed.
set -u
scale=${NB_BUILDDIR:-.}/tests/nibble-scale
sizes=${1:-256M 1G} rates=${2:-1 10 25 100} trips=${3:-0.1 1 10 35 100}

# run OPTION...: lines of sums as the plugin chooses their schedule.
run() {
    "$scale" --ops reduce_scatter,all_reduce --schedules auto --codec-gbps 400 --bytes "$size" \
        --gbps "$rate" --latency-us "$hop" --csv "$@"
}

for rate in $rates; do
    for trip in $trips; do
        hop=$(awk -v t="$trip" 'BEGIN { print 1000 * t }')
        rtt=$(awk -v t="$trip" 'BEGIN { print 2000 * t }')
        for size in $sizes; do
            cell="$rate,$trip,$size"
            run --nodes 2,4,8 --buffer 4M | sed "s/^/$cell,usual,/"
            run --nodes 2,4,8 --rtt-us "$rtt" --advised | sed "s/^/$cell,advised,/"
            run --nodes 4 --rtt-us "$rtt" --advised --raw | sed "s/^/$cell,raw,/"
        done
    done
done | awk -F, -v sizes="$sizes" -v rates="$rates" -v trips="$trips" '
    {
        row = $1 "," $2
        if (!(row in seen)) { seen[row] = 1; rows[++count] = row }
        key = row "," $3 "," $6
        if ($4 == "raw") { raw[key] = $10; next }
        if ($4 == "advised" && $5 == 4) coded[key] = $10
        second = $2 - 0.6 * $12
        floor = $12 + $2 + ($6 == "all_reduce" && second > 0 ? second : 0)
        over = $10 / floor
        if (over > worst[key, $4]) worst[key, $4] = over
        off = $13 < 0 ? -$13 : $13
        if (off > most[$4]) most[$4] = off
        wrong[$4] += off > 10
        cells[$4]++
        if ($4 == "advised" && over > ($6 == "all_reduce" ? 1.3 : 1.5)) missed++
        if (off > 10 && $4 == "advised") print "off:", $0 >"/dev/stderr"
    }
    END {
        n = split(sizes, size, " ")
        m = split("all_reduce reduce_scatter", op, " ")
        line = "| Gbit/s | ms one way |"
        rule = "|---|---|"
        for (f = 1; f <= m; f++)
            for (s = 1; s <= n; s++) { line = line " " op[f] ", " size[s] " |"; rule = rule "---|" }
        print line "\n" rule
        for (r = 1; r <= count; r++) {
            split(rows[r], part, ",")
            line = "| " part[1] " | " part[2] " |"
            for (f = 1; f <= m; f++)
                for (s = 1; s <= n; s++) {
                    key = rows[r] "," size[s] "," op[f]
                    line = line sprintf(" %.2f, %.2f, %.1f |", worst[key, "usual"], worst[key, "advised"],
                                        coded[key] ? raw[key] / coded[key] : 0)
                }
            print line
        }
        printf "\nReckoning: as recommended off by at most %.1f %%. With usual settings off by more " \
            "than 10 %% in %d of %d, at most %.0f %%. Bars missed: %d of %d.\n", most["advised"],
            wrong["usual"], cells["usual"], most["usual"], missed, cells["advised"]
        paths = split(rates, part, " ") * split(trips, part, " ")
        exit missed > 0 || most["advised"] > 10 || cells["advised"] != 6 * n * paths
    }'
