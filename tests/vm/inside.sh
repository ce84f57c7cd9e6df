#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# inside.sh PART...: the tests that run in the virtual machines of tests/vm/vm.sh. NB_BUILDDIR is the build
# folder.
#
#   counters    every table version over RDMA. The devices' counters and the plugin's own prove where the bytes went
#   short       one operation of each kind, and point-to-point traffic
#   long        the harness' programs, with all collectives, 2 to 8 nodes, and point-to-point traffic
#   train       nibble-train with 2 and with 4 nodes: the same losses, digit by digit, as over TCP
#   fallback    without settings: verbs, and TCP with one line that gives the reason once the ports are down, then gone.
#               For one machine, and as the last part, since it leaves no devices
#   bandwidth   point-to-point beside ib_write_bw, with messages and queue pairs alike, for one machine. With vm.sh -i
#               it measures the work for each byte. Without -i the distribution of processor time counts, too
#
# In one machine even nodes have rxe0 and odd ones rxe1, with the cable in between. With two machines each has
# an rxe0.
set -u
cd "$NB_BUILDDIR" || exit 1
unset NB_LONG_TESTS
export NB_HARNESS_PATIENCE=2 # emulation takes 10 to 20 times as long, other tests may run outside
failed=0
common="NIBBLE_NET=verbs NCCL_IB_GID_INDEX=1"
if [ "$VM_HOSTS" = 1 ]; then
    rdma="$common NCCL_IB_HCA==rxe0|$common NCCL_IB_HCA==rxe1"
    tcp="NIBBLE_NET=tcp"
    cables="va vb"
    metadata=lo
else
    rdma="$common NCCL_IB_HCA==rxe0 NCCL_SOCKET_IFNAME=eth0"
    tcp="NIBBLE_NET=tcp NCCL_SOCKET_IFNAME=eth0"
    cables=eth0
    metadata=
    export NB_HARNESS_HOST=$VM_HOST/2 NB_HARNESS_MEMORY=$VM_SHARED
fi

say()
{
    echo "$(cut -d' ' -f1 /proc/uptime) s: $*"
}

# limited SECONDS COMMAND...: run it as timeout does, but first print where the threads were. The seconds are
# for an idle machine, and a busy machine gets five times as many.
limited()
{
    local limit=$((5 * $1)) pid task program
    shift
    "$@" &
    pid=$!
    while [ "$limit" -gt 0 ] && kill -0 $pid 2>/dev/null; do
        sleep 1
        limit=$((limit - 1))
    done
    if kill -0 $pid 2>/dev/null; then
        echo "over the time limit; threads, where they wait, and their ticks of processor time:"
        program=$(readlink /proc/$pid/exe)
        for task in /proc/[0-9]*/task/*; do
            [ "$(readlink "${task%/task/*}/exe")" = "$program" ] || continue
            echo "$task $(cat "$task/comm" "$task/wchan" 2>/dev/null | tr '\n' ' ')" \
                "$(sed 's/.*) //' "$task/stat" 2>/dev/null | cut -d' ' -f1,12,13)"
        done
        for task in /proc/[0-9]*; do # its nodes, too
            [ "$(readlink "$task/exe")" != "$program" ] || kill "${task#/proc/}"
        done
        wait $pid
        return 124
    fi
    wait $pid
}

# try SECONDS NAME COMMAND...: run it over RDMA, and print the end of a failed command's output.
try()
{
    local limit=$1 name=$2 log
    shift 2
    log=$(mktemp)
    if NB_HARNESS_SETTINGS=$rdma limited "$limit" "$@" >"$log" 2>&1; then
        say "ok: $name, $(tail -n 1 "$log")"
    else
        say "FAIL: $name (status $?)"
        tail -n 40 "$log"
        failed=1
    fi
    rm -f "$log"
}

# sum_of FILE...: of the numbers in them
sum_of()
{
    cat "$@" | awk '{ n += $1 } END { printf "%.0f\n", n }'
}

packets()
{
    sum_of /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts
}

octets() # INTERFACE...
{
    local i
    for i in "$@"; do cat "/sys/class/net/$i/statistics/tx_bytes"; done | awk '{ n += $1 } END { printf "%.0f\n", n }'
}

segments() # that TCP has sent
{
    awk '$1 == "Tcp:" && $2 ~ /^[0-9]/ { print $12 }' /proc/net/snmp
}

counters()
{
    local log=/tmp/counters.log p0 c0 m0 s0 wire p c m s
    # shellcheck disable=SC2086
    p0=$(packets) c0=$(octets $cables) m0=$(octets $metadata) s0=$(segments)
    if ! NB_HARNESS_VERBOSE=1 NB_HARNESS_SETTINGS=$rdma limited 400 tests/harness/lifecycle versions >$log 2>&1; then
        say "FAIL: lifecycle versions"
        tail -n 40 $log
        failed=1
        return
    fi
    # shellcheck disable=SC2086
    p=$(($(packets) - p0)) c=$(($(octets $cables) - c0)) m=$(($(octets $metadata) - m0)) s=$(($(segments) - s0))
    # Bytes that the engines of this machine's nodes report as sent: wire= of the summaries.
    wire=$(grep -o 'wire=[0-9]*' $log | cut -d= -f2 | awk '{ n += $1 } END { printf "%.0f\n", n }')
    say "every table version: the engines sent $wire bytes; RDMA devices $p packets, cable $c bytes," \
        "${metadata:-no} other interface $m bytes, TCP $s segments"
    if ! grep -q 'connected over verbs' $log || grep -q 'connected over tcp' $log; then
        say "FAIL: the transport is not verbs"
        failed=1
    fi
    # At most 4096 bytes of payload a packet. Only connecting uses the sockets.
    if [ "$wire" -lt 100000 ] || [ $((p * 4096)) -lt "$wire" ] || [ "$c" -lt "$wire" ]; then
        say "FAIL: the RDMA devices have not carried these bytes"
        failed=1
    fi
    if [ -n "$metadata" ] && [ $((m * 4)) -gt "$c" ]; then
        say "FAIL: too much went by another interface"
        failed=1
    fi
}

short()
{
    export NB_TEST_QUICK=1
    try 200 "collectives" tests/harness/results exact-types-2-nodes
    try 200 "point-to-point" tests/harness/traffic p2p
}

long()
{
    local program
    export NB_TEST_QUICK=1
    for program in results quantized lifecycle traffic allgather stress; do
        try 500 $program tests/harness/$program
    done
    try 400 "4 nodes" tests/harness/results shapes-4-nodes-4-channels
    try 400 "8 nodes" tests/harness/results shapes-8-nodes-2-channels
    [ "$VM_HOSTS" = 2 ] || try 400 departures tests/harness/departures
}

train()
{
    local nodes transport settings
    # Little text, since emulated floating point is slow, and validation takes most of it.
    cat /usr/share/common-licenses/*GPL-[23] | head -c 66000 >/tmp/text
    for nodes in 2 4; do
        for transport in tcp verbs; do
            settings=$tcp
            [ $transport = tcp ] || settings=$rdma
            # Coded from the first step on. The program's own verdict is about learning, for which so few
            # steps do not suffice: 1 is expected.
            NIBBLE_GRAD=all NIBBLE_WARMUP_STEPS=0 NB_HARNESS_SETTINGS=$settings timeout 3000 \
                tools/nibble-train -n $nodes --steps 4 --layers 2 --width 32 \
                --heads 1 --context 32 --batch 1 --text /tmp/text --runs feedback -o /tmp/$transport$nodes \
                >/tmp/train.log 2>&1
            if [ $? -gt 1 ] || grep -q 'FAIL.*\(steps ran\|weights equal\)' /tmp/train.log; then
                say "FAIL: training with $nodes nodes over $transport"
                tail -n 40 /tmp/train.log
                failed=1
                return
            fi
        done
        for run in feedback; do
            if [ "$(wc -l </tmp/verbs$nodes/loss-$run.csv)" = 5 ] &&
                cmp /tmp/tcp$nodes/loss-$run.csv /tmp/verbs$nodes/loss-$run.csv; then
                say "ok: training, $nodes nodes, $run: over RDMA as over TCP," \
                    "last loss $(tail -n 1 /tmp/verbs$nodes/loss-$run.csv | cut -d, -f3)"
            else
                say "FAIL: training, $nodes nodes, $run: not the losses that TCP gives"
                failed=1
            fi
        done
    done
}

# Both alternate, and the median of the ratios is judged. 512 KiB and 128 KiB are the messages of NCCL's
# collectives and of its own sends and receives.
bandwidth()
{
    local size qps rounds=${NB_VM_ROUNDS:-3} reference own ratios i
    for size in 524288 131072; do for qps in 1 4; do
        ratios=
        for ((i = 0; i < rounds; i++)); do
            ib_write_bw -F -d rxe0 -x 1 -s $size -n $((33554432 / size)) -q $qps >/dev/null 2>&1 &
            sleep 0.5
            reference=$(ib_write_bw -F -d rxe1 -x 1 -s $size -n $((33554432 / size)) -q $qps 10.78.0.1 2>/dev/null |
                awk -v size=$size '$1 == size { print $4 * 1.048576 }')
            wait
            NB_HARNESS_SETTINGS=$rdma timeout 1000 tools/nibble-perf p2p --nocopy -b 32M -e 32M --chunk $size -n 1 -w 1 \
                --env NCCL_IB_QPS_PER_CONNECTION=$qps --json /tmp/p2p.json >/tmp/p2p.log 2>&1
            own=$(sed -n 's/.*"time_us": *\([0-9.]*\).*/\1/p' /tmp/p2p.json | awk '{ print 33554432 / $1 }')
            [ -n "$reference" ] && [ -n "$own" ] || { say "FAIL: no figures"; cat /tmp/p2p.log; failed=1; return; }
            ratios="$ratios $(awk -v a="$own" -v b="$reference" 'BEGIN { printf "%.3f", a / b }')"
            say "messages of $size bytes, $qps queue pairs: ib_write_bw $reference MB/s, point-to-point $own MB/s"
        done
        i=$(echo "$ratios" | tr ' ' '\n' | grep . | sort -n | sed -n "$((rounds / 2 + 1))p")
        if awk -v r="$i" 'BEGIN { exit !(r >= 0.9) }'; then
            say "ok: $i of ib_write_bw (median of$ratios)"
        else
            say "FAIL: $i of ib_write_bw, should be 0.9 (median of$ratios)"
            failed=1
        fi
    done; done
}

fallback()
{
    local state expected log=/tmp/fallback.log lines
    for state in active down gone; do
        expected="transport tcp: "
        case $state in
        active) expected="transport verbs: " ;;
        down) ip link set va down && ip link set vb down ;;
        gone) rdma link delete rxe0 && rdma link delete rxe1 ;;
        esac
        if NB_HARNESS_VERBOSE=1 NB_HARNESS_SETTINGS= timeout 2000 tools/nibble-perf p2p -b 64K -e 64K -n 2 -w 1 \
            --plugin "$NB_PLUGIN" >$log 2>&1; then
            lines=$(grep -c "^\[0\].*NET/nibble : transport " $log)
            if grep -q "^\[0\].*$expected" $log && [ "$lines" = 1 ]; then
                say "ok: ports $state, $(grep -o -m 1 'transport .*' $log)"
                continue
            fi
        fi
        say "FAIL: ports $state, expected \"$expected\" once a node"
        tail -n 40 $log
        failed=1
    done
}

for part in "$@"; do
    $part
done
exit $failed
