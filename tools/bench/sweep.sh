#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Never worse: default settings beside raw mode over links of several rates, in turn, operation by operation and size by size.
#
#   sweep.sh [-N NODES] [-s "MBPS..."] [-b "BYTES..."] [-t TYPES] [-p OPS] [-r ROUNDS] [-T SECONDS] [-m RATIO] [-o FILE]
#
#   -N  nodes (default 4)
#   -s  rates of each host's link, Mbit/s (default "50 250 1000 4000 0"; 0: none)
#   -b  sizes of the whole vector (default "4K 16K 64K 256K 1M 4M 16M 64M 256M 512M")
#   -t  types (default bfloat16,float32)
#   -p  operations (default reduce_scatter,all_gather,all_reduce)
#   -r  rounds; the median of each round's ratio counts, of an operation of default settings over one of raw mode
#       (default 5)
#   -T  sizes of which one raw operation is expected to take longer are left out at that rate (default 20)
#   -m  a ratio above this is told as lost (default 1.05)
#   -o  samples, comma-separated, one a line
#
# Rates are told to nibble as NIBBLE_LINK_MBPS, since it cannot see what a token bucket lets through; without a limit it is
# not told. Which nodes do first in a round changes from round to round. The status is 1 where default settings lose, 77
# where namespaces cannot be made (root, iproute2). Where processors are the limit, links are not: the share of them
# that was busy is told, and where it is near 1 a ratio says what the processors take.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
. "$here/links.sh"

nodes=4
rates="50 250 1000 4000 0"
sizes="4K 16K 64K 256K 1M 4M 16M 64M 256M 512M"
types=bfloat16,float32
ops=reduce_scatter,all_gather,all_reduce
rounds=5
longest=20
most=1.05
output=
while getopts N:s:b:t:p:r:T:m:o: option; do
    case $option in
    N) nodes=$OPTARG ;;
    s) rates=$OPTARG ;;
    b) sizes=$OPTARG ;;
    t) types=$OPTARG ;;
    p) ops=$OPTARG ;;
    r) rounds=$OPTARG ;;
    T) longest=$OPTARG ;;
    m) most=$OPTARG ;;
    o) output=$OPTARG ;;
    *) exit 2 ;;
    esac
done
links_perf
links_enter "$0" "$@"

tmp=$(mktemp -d) || exit 1
mount -t tmpfs -o size=64m tmpfs "$tmp" || exit 1
trap 'umount "$tmp"; rmdir "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
csv=$tmp/samples
echo "mbps,nodes,round,mode,op,type,bytes,seconds,busy" >"$csv"
failed=0

# repetitions RATE BYTES: how many operations make about half a second of raw ones; 0: one takes too long.
repetitions() {
    awk -v rate="$1" -v size="$2" -v longest="$longest" 'BEGIN {
        n = substr(size, length(size))
        bytes = size * (n == "K" ? 1024 : n == "M" ? 1048576 : n == "G" ? 1073741824 : 1)
        if (!rate) rate = 20000
        t = 2 * 8 * bytes / (1e6 * rate) + 0.0005
        n = int(0.5 / t)
        print (t > longest ? 0 : n < 1 ? 1 : n > 50 ? 50 : n)
    }'
}

# sample RATE ROUND MODE SIZE REPETITIONS
sample() {
    set -- "$@" --types "$types" --ops "$ops"
    mode=$3
    rate=$1
    round=$2
    size=$4
    n=$5
    shift 5
    if [ "$mode" = auto ]; then
        set -- --env NIBBLE_RS=auto --env NIBBLE_AR=auto --env NIBBLE_AG=exact "$@"
    else
        set -- --raw "$@"
    fi
    [ "$rate" = 0 ] || set -- --env "NIBBLE_LINK_MBPS=$rate" "$@"
    if ! timeout 900 "$perf" coll --netns n -N "$nodes" -b "$size" -e "$size" -n "$n" -w 4 --feedback --json "$tmp/json" \
        "$@" >"$tmp/out" 2>&1; then
        cat "$tmp/out" >&2
        echo "failed: $mode at $rate Mbit/s, $size" >&2
        failed=1
        return
    fi
    awk -v rate="$rate" -v round="$round" -v mode="$mode" -v nodes="$nodes" '
        function value(key) {
            if (!match($0, "\"" key "\": [^,}]*")) return ""
            v = substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4)
            gsub(/"/, "", v)
            return v
        }
        /"op"/ {
            printf "%s,%s,%s,%s,%s,%s,%s,%.9f,%s\n", rate, nodes, round, mode, value("op"), value("type"),
                value("bytes"), value("time_us") * 1e-6, value("busy")
        }' "$tmp/json" >>"$csv"
}

echo "$(nproc) processors, load $(cut -d ' ' -f 1-3 /proc/loadavg) at the start; $nodes nodes, $rounds rounds"
for rate in $rates; do
    links_up "$nodes" "$rate"
    for size in $sizes; do
        n=$(repetitions "$rate" "$size")
        if [ "$n" = 0 ]; then
            echo "$size at $rate Mbit/s would take longer than $longest s: left out"
            continue
        fi
        round=1
        while [ "$round" -le "$rounds" ]; do
            order="auto raw"
            [ $((round % 2)) = 1 ] || order="raw auto"
            for mode in $order; do sample "$rate" "$round" "$mode" "$size" "$n"; done
            round=$((round + 1))
        done
    done
done
links_down
# The ratio of each round, and medians.
awk -F , -v most="$most" '
    function median(list, count,    i, j, v) {
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && list[j - 1] > list[j]; j--) { v = list[j]; list[j] = list[j - 1]; list[j - 1] = v }
        return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
    }
    NR > 1 {
        key = $1 SUBSEP $5 SUBSEP $6 SUBSEP $7
        if (!(key in seen)) { seen[key] = 1; keys[++nkeys] = key }
        time[key, $3, $4] = $8
        busy[key] = $9 > busy[key] ? $9 : busy[key]
        rounds = $3 > rounds ? $3 : rounds
    }
    END {
        print "| Mbit/s | operation | type | bytes | auto ms | raw ms | auto/raw | busy | |\n|---|---|---|---|---|---|---|---|---|"
        for (k = 1; k <= nkeys; k++) {
            n = 0
            for (r = 1; r <= rounds; r++)
                if (((keys[k], r, "auto") in time) && ((keys[k], r, "raw") in time)) {
                    n++
                    a[n] = time[keys[k], r, "auto"]
                    b[n] = time[keys[k], r, "raw"]
                    c[n] = a[n] / b[n]
                }
            if (!n) continue
            split(keys[k], part, SUBSEP)
            ratio = median(c, n)
            lost += ratio > most
            printf "| %s | %s | %s | %s | %.3f | %.3f | %.2f | %.2f | %s |\n", part[1], part[2], part[3], part[4],
                1e3 * median(a, n), 1e3 * median(b, n), ratio, busy[keys[k]], (ratio > most ? "lost" : "")
        }
        printf "%d of %d lost\n", lost, nkeys
        exit (lost > 0)
    }' "$csv" || failed=1
echo "load $(cut -d ' ' -f 1-3 /proc/loadavg) at the end"
[ -z "$output" ] || cp "$csv" "$output" || failed=1
exit $failed
