#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble's point-to-point transport beside iperf3 over loopback, with as many sockets, in turn and in one run:
#   p2p-vs-iperf3.sh [-P STREAMS]... [-t SECONDS] [-r ROUNDS] [-m MINIMUM] [-c apart|together|any]
# Prints a line for each number of streams (default: 1 2 4) with the medians over the rounds and their ratio;
# with -m the status is 1 when a ratio is below it. 77: iperf3 is not installed, or there is one CPU only.
# -c: both programs run their sender on one CPU and their receiver on another, as on two machines (apart, the
# default), both ends on one CPU (together), or where the kernel likes (any): it puts ends that sleep, iperf3's,
# on one CPU, and ends that poll, NCCL's proxies and so nibble's, on two. Then places are compared, not programs.
set -u
streams=
seconds=2
rounds=3
minimum=0
cpus=apart
while getopts P:t:r:m:c: option; do
    case $option in
    P) streams="$streams $OPTARG" ;;
    t) seconds=$OPTARG ;;
    r) rounds=$OPTARG ;;
    m) minimum=$OPTARG ;;
    c) cpus=$OPTARG ;;
    *) exit 2 ;;
    esac
done
streams=${streams:-1 2 4}
perf=${NB_PERF:-${NB_BUILDDIR:-.}/tools/nibble-perf}
[ -x "$perf" ] || { echo "$perf is not there: build it first, or name it in NB_PERF" >&2; exit 1; }
command -v iperf3 >/dev/null 2>&1 || { echo "SKIP: iperf3 is not installed"; exit 77; }
# The first two CPUs that this script may use.
set -- $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | awk -v RS='[,\n]' '
    { split($0, of, "-"); for (i = of[1]; i <= (of[2] == "" ? of[1] : of[2]) && n < 2; i++) { print i; n++ } }')
case $cpus in
apart) [ $# = 2 ] || { echo "SKIP: one CPU only"; exit 77; } ;;
together) set -- "$1" "$1" ;;
any) set -- ;;
*) exit 2 ;;
esac
pinned=${1:+--cpus $1,$2}
affine=${1:+-A $1,$2}
tmp=$(mktemp -d) || exit 1
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT

port=$((20000 + $$ % 20000))
iperf3 -s -B 127.0.0.1 -p $port >"$tmp/server" 2>&1 &
server=$!
sleep 0.3
kill -0 "$server" 2>/dev/null || { cat "$tmp/server"; echo "the iperf3 server did not start" >&2; exit 1; }

# Gbit/s of what arrived.
run_iperf3() {
    iperf3 -c 127.0.0.1 -p $port -P "$1" -t "$seconds" -f g -l 1M $affine >"$tmp/client" 2>&1 ||
        { cat "$tmp/client" >&2; return 1; }
    awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Gbits/sec") v = $(i - 1) } END { print v }' \
        "$tmp/client"
}

# transfer STREAMS MESSAGES: of 8 MiB; leaves $tmp/json.
transfer() {
    NIBBLE_TCP_STREAMS=$1 "$perf" p2p -b 8M -e 8M -n "$2" -w 4 --nocopy $pinned --json "$tmp/json" >/dev/null
}

# value KEY: of the one object in $tmp/json.
value() {
    sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$tmp/json"
}

# As many messages as take about the same time: a first run tells how many.
run_nibble() {
    transfer "$1" 20 || return 1
    n=$(awk -v s="$seconds" -v t="$(value time_us)" \
        'BEGIN { n = s * 1e6 / t; print int(n < 20 ? 20 : n > 9999 ? 9999 : n) }')
    transfer "$1" "$n" || return 1
    awk -v bw="$(value algbw)" 'BEGIN { printf "%.2f\n", 8 * bw }'
}

median() {
    sort -n "$1" |
        awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

status=0
echo "streams  iperf3 Gbit/s  nibble Gbit/s  ratio"
for p in $streams; do
    : >"$tmp/iperf3"
    : >"$tmp/nibble"
    i=0
    while [ "$i" -lt "$rounds" ]; do
        run_iperf3 "$p" >>"$tmp/iperf3" || exit 1
        run_nibble "$p" >>"$tmp/nibble" || exit 1
        i=$((i + 1))
    done
    a=$(median "$tmp/iperf3")
    b=$(median "$tmp/nibble")
    awk -v p="$p" -v a="$a" -v b="$b" 'BEGIN { printf "%7d  %13.2f  %13.2f  %5.2f\n", p, a, b, b / a }'
    awk -v a="$a" -v b="$b" -v m="$minimum" 'BEGIN { exit !(b / a < m) }' && status=1
done
[ $status = 0 ] || echo "FAIL: below $minimum of iperf3"
exit $status
