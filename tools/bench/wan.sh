#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble between distant hosts: nibble-perf, coded and raw, beside iperf3 with as many streams, over a path in
# user space (relay.c) with a round trip, a rate, a queue, losses, jitter and frames out of order. Hosts are
# network namespaces.
#
#   wan.sh [-s "MBPS..."] [-d "RTT_MS..."] [-l "LOSS_PERCENT..."] [-j JITTER_MS] [-r PERCENT] [-n STREAMS]
#          [-b BYTES] [-C CONTROL] [-p PERCENT] [-t SECONDS] [-x SECONDS] [-N NODES]
#          [-R TIMES]
#
#   -s  rates of each host's link (default "200")
#   -d  round trips (default "20 70")
#   -l  losses of frames of 1500 bytes (default "0 0.1")
#   -j  the delay of each direction varies by up to so much, in order (default 0)
#   -r  frames of 100 that come a quarter of their delay late, out of order (default 0)
#   -n  sockets of a connection, and streams of iperf3 (default 4)
#   -b  bytes of the all-reduce (default 64M)
#   -C  control of congestion of both (default: the system's)
#   -p  NIBBLE_TCP_PACE_MBPS over a host's share of the rate (default 92: headers take 4 % more. 0: no pace)
#   -t  seconds of iperf3 (default 8)
#   -x  the path drops everything for so long, two seconds after its beginning (default 0)
#   -N  hosts at each end, which share the path and reach each other without a limit (default 1). From 2 on
#       "rows" is a coded all-reduce whose rows of nodes lie within sites, as NIBBLE_SITE makes them
#   -R  iperf3 and the all-reduces in turns, so many times, and medians of each (default 1)
#
# "/iperf3": payload that passes a link in an all-reduce, over its time, over iperf3's rate, both without what
# is sent again. An all-reduce also waits for a round trip. Needs root, iproute2, /dev/net/tun, iperf3 and a C
# compiler. 77 and a reason without them.
#
# NB_NCCL_LIBRARIES=FILE: NVIDIA's library (tests/nccl) runs the same all-reduces, too, on two channels: over
# NCCL's own sockets, as many, in rings, and by nibble, raw and coded. Two hosts only.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
. "$here/links.sh"

rates=200
trips="20 70"
losses="0 0.1"
streams=4
bytes=64M
control=
pace=92
seconds=8
outage=0
jitter=0
late=0
nodes=1
repeats=1
while getopts s:d:l:j:r:n:b:C:p:t:x:N:R: option; do
    case $option in
    s) rates=$OPTARG ;;
    d) trips=$OPTARG ;;
    l) losses=$OPTARG ;;
    j) jitter=$OPTARG ;;
    r) late=$OPTARG ;;
    n) streams=$OPTARG ;;
    b) bytes=$OPTARG ;;
    C) control=$OPTARG ;;
    p) pace=$OPTARG ;;
    t) seconds=$OPTARG ;;
    x) outage=$OPTARG ;;
    N) nodes=$OPTARG ;;
    R) repeats=$OPTARG ;;
    *) exit 2 ;;
    esac
done
links_perf
for tool in iperf3 "${CC:-cc}"; do
    command -v "$tool" >/dev/null 2>&1 || links_skip "$tool is not installed"
done
[ -c /dev/net/tun ] || links_skip "/dev/net/tun is missing"
links_enter "$0" "$@"

tmp=$(mktemp -d) || exit 1
mount -t tmpfs -o size=1g tmpfs "$tmp" || exit 1 # gone with the mount namespace
relay=
trap '[ -z "$relay" ] || unpath; umount "$tmp"; rmdir "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns || exit 1
${CC:-cc} -O2 -o "$tmp/relay" "$here/relay.c" || exit 1
mkfifo "$tmp/end"

# path MBPS RTT_MS LOSS: hosts, and the path between their sites. Queue: a round trip's bytes, at least 256
# KiB.
path() {
    exec 9<>"$tmp/end"
    queue=$(awk -v r="$1" -v d="$2" 'BEGIN { q = r * 125 * d; if (q < 262144) q = 262144; print q }')
    : >"$tmp/ready"
    varies=$(awk -v j="$jitter" 'BEGIN { print 1000 * j }')
    "$tmp/relay" 2 "$1" $(($2 * 500)) "$varies" "$queue" "$3" "$late" 2000 $((outage * 1000)) \
        <"$tmp/end" >"$tmp/ready" 9>&- &
    relay=$!
    while ! grep -q ready "$tmp/ready"; do
        kill -0 $relay 2>/dev/null || links_skip "no TAP interface can be made here"
        sleep 0.1
    done
    site=0
    while [ "$nodes" -gt 1 ] && [ $site -lt 2 ]; do
        ip link add name site$site type bridge &&
            ip link set dev wan$site master site$site up &&
            ip link set dev site$site up || exit 1
        site=$((site + 1))
    done
    host=0
    while [ $host -lt $((2 * nodes)) ]; do
        ip netns add n$host || exit 1
        if [ "$nodes" -gt 1 ]; then
            ip link add name port$host type veth peer name hx0 netns n$host &&
                ip link set dev port$host master site$((host / nodes)) up || exit 1
        else
            ip link set wan$host netns n$host name hx0 || exit 1
        fi
        ip -n n$host link set dev lo up &&
            ip -n n$host addr add 10.77.0.$((host + 1))/24 dev hx0 &&
            ip -n n$host link set dev hx0 up || exit 1
        on $host sysctl -q -w net.ipv4.tcp_rmem="4096 131072 67108864" \
            net.ipv4.tcp_wmem="4096 65536 67108864" net.ipv4.tcp_slow_start_after_idle=0
        # A namespace may choose by sysctl only what all users of the system may. A route may choose any.
        [ -z "$control" ] ||
            ip -n n$host route replace 10.77.0.0/24 dev hx0 src 10.77.0.$((host + 1)) congctl "$control" ||
            links_skip "this kernel has no control of congestion named $control"
        host=$((host + 1))
    done
}

unpath() {
    kill $relay
    wait $relay 2>/dev/null
    relay=
    exec 9>&-
    for host in $(ip netns list | sed 's/ .*//'); do ip netns del "$host" 2>/dev/null; done
    for site in 0 1; do ip link del site$site 2>/dev/null; done
}

# stream: iperf3's rate in Mbit/s, without its first quarter.
stream() {
    on "$nodes" iperf3 -s -1 >/dev/null 2>&1 &
    server=$!
    tries=0
    until on 0 iperf3 -c 10.77.0.$((nodes + 1)) -P "$streams" -t "$seconds" -O $((seconds / 4)) -f m \
        >"$tmp/stream" 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 20 ] || break
        sleep 0.5
    done
    awk '/receiver/ && (/SUM/ || !sum) { rate = $(NF - 2); sum = /SUM/ } END { print rate + 0 }' "$tmp/stream"
    kill $server 2>/dev/null
    wait $server 2>/dev/null
}

# sum OPTION...: milliseconds of an all-reduce, and Mbit/s that it sent.
sum() {
    timeout 300 "$perf" coll --netns n --nodes $((2 * nodes)) --ops all_reduce --types bfloat16 \
        -b "$bytes" -e "$bytes" -n 3 -w 1 --reps 1 --buffsize 64M --chunk "$chunk" \
        --env "NIBBLE_TCP_STREAMS=$streams" \
        --env "NIBBLE_LINK_MBPS=$rate" --env "NIBBLE_LINK_RTT_US=$((trip * 1000))" \
        --env "NIBBLE_TCP_CONGESTION=$control" \
        --env "NIBBLE_TCP_PACE_MBPS=$((rate * pace / 100 / nodes))" --json "$tmp/json" "$@" \
        >"$tmp/out" 2>&1 || { cat "$tmp/out" >&2; return 1; }
    number='\([0-9.]*\)'
    sed -n "s/.*\"bytes\": $number.*\"time_us\": $number.*\"wire_ratio\": $number.*/\1 \2 \3/p" "$tmp/json" |
        awk '{ printf "%.0f %.1f\n", $2 / 1000, 8 * $1 * $3 / $2 }'
}

# library SETTING...: milliseconds of an all-reduce of NVIDIA's library, and Mbit/s that it sent.
library() {
    if ! links_nccl 2 sums "$@" NB_SUMS="$count 1 3"; then
        tail -n 20 "$tmp/out" >&2
        return 1
    fi
    awk '$1 == "sums" { printf "%.0f %.1f\n", 1000 * $3, 8e-6 * $8 / $3 }' "$tmp/out"
}

# by_nibble SETTING...: the same with nibble.
by_nibble() {
    library "$links_plugin" NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetDirect NCCL_BUFFSIZE=67108864 \
        NIBBLE_GRAD=all NIBBLE_WARMUP_STEPS=0 NIBBLE_TCP_STREAMS="$streams" NIBBLE_LINK_MBPS="$rate" \
        NIBBLE_LINK_RTT_US=$((trip * 1000)) NIBBLE_TCP_CONGESTION="$control" \
        NIBBLE_TCP_PACE_MBPS=$((rate * pace / 100)) "$@"
}

# medians FILE: of each column of its lines.
medians() {
    for column in $(seq "$(awk '{ print NF; exit }' "$1")"); do
        awk -v i="$column" '{ print $i }' "$1" | sort -n |
            awk '{ v[NR] = $1 } END { printf "%s ", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
    done
}

# As nibble's tuner chooses it: all of the operation in flight.
count=$(links_bytes "$bytes") || exit 2
chunk=$(((count / 64 + 65535) / 65536 * 65536))
[ $chunk -le 8388608 ] || chunk=8388608
with_nccl=
if [ "${NB_NCCL_LIBRARIES:-}" ] && [ "$nodes" = 1 ]; then
    links_library
    with_nccl=1
fi
failed=0
if [ "$nodes" -gt 1 ]; then
    printf '%7s %6s %6s %8s | %9s | %9s %9s | %9s %9s %10s\n' Mbit/s "rtt ms" "loss %" iperf3 \
        "raw ms" "coded ms" raw/coded "rows ms" raw/rows coded/rows
else
    printf '%7s %6s %6s %8s | %9s %8s %8s | %9s %8s %8s | %s\n' Mbit/s "rtt ms" "loss %" iperf3 \
        "raw ms" Mbit/s /iperf3 "coded ms" Mbit/s /iperf3 raw/coded
fi
for rate in $rates; do
    for trip in $trips; do
        for loss in $losses; do
            path "$rate" "$trip" "$loss"
            : >"$tmp/rounds"
            round=0
            while [ $round -lt "$repeats" ] && [ $failed = 0 ]; do
                rows=
                reference=$(stream)
                raw=$(sum --raw) && coded=$(sum) || failed=1
                if [ "$nodes" -gt 1 ]; then
                    rows=$(sum --env NIBBLE_SCHEDULE=two-level --env "NIBBLE_GROUP=$nodes") || failed=1
                fi
                nccl=
                if [ "$with_nccl" ]; then
                    nccl="$(library $links_sockets NCCL_ALGO=Ring NCCL_NSOCKS_PERTHREAD=1 \
                        NCCL_SOCKET_NTHREADS=$(((streams + 1) / 2)))" &&
                        nccl="$nccl $(by_nibble NIBBLE_AR=raw NIBBLE_FORCE_COLLNET=1)" &&
                        nccl="$nccl $(by_nibble NIBBLE_AR=int4)" || failed=1
                fi
                echo "${reference:-0} $raw $coded $rows $nccl" >>"$tmp/rounds"
                round=$((round + 1))
            done
            unpath
            [ $failed = 0 ] || exit 1
            row="$rate $trip $loss $(medians "$tmp/rounds")"
            if [ "$nodes" -gt 1 ]; then
                echo "$row" | awk '{
                    printf "%7s %6s %6s %8.1f | %9.0f | %9.0f %9.2f | %9.0f %9.2f %10.2f\n", $1, $2, $3, $4,
                        $5, $7, $5 / $7, $9, $5 / $9, $7 / $9 }'
                continue
            fi
            echo "$row" | awk '{
                printf "%7s %6s %6s %8.1f | %9.0f %8.1f %8.2f | %9.0f %8.1f %8.2f | %.2f\n", $1, $2, $3, $4,
                    $5, $6, $4 ? $6 / $4 : 0, $7, $8, $4 ? $8 / $4 : 0, $5 / $7
                if (NF > 8) printf "%31s | %9.0f %8.1f | %9.0f %8.1f | %9.0f %8.1f | %.2f %.2f\n",
                    "NCCL: sockets, raw, coded, ms", $9, $10, $11, $12, $13, $14, $9 / $11, $9 / $13 }'
        done
    done
done
