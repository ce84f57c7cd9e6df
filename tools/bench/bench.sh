#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble (coded, and raw), a plain TCP stream (iperf3) and Open MPI over the same links in one run. Hosts are
# network namespaces, links have a token bucket in both directions (links.sh); docs/performance.md tells the
# method.
#
#   bench.sh [-N "NODES..."] [-s MBPS] [-r ROUNDS] [-S "SETS..."] [-c "SCHEDULES..."] [-t TYPES] [-b BYTES]
#            [-W "ORDERS..."] [-o FILE] [-M]
#
#   -N  numbers of nodes, 2 to 16, for broadcast to 17 (default "4")
#   -s  rate of each host's link, Mbit/s (default 500; 0: none)
#   -r  rounds of everything, of which medians are told (default 5)
#   -S  of main large windows small p2p changed broadcast (default "main p2p"):
#         main     64 MiB, windows of 128 KiB x 8 channels, beside raw and Open MPI
#         large    512 MiB, the same, far more than NCCL keeps in flight
#         windows  64 MiB, chunks of 32, 128 and 512 KiB, 2, 8 and 16 channels
#         small    4 KiB to 4 MiB, coded beside raw: from which size on does coding pay
#         p2p      point-to-point beside iperf3, on the link and over loopback without a limit
#         changed  256 MiB of BF16 point-to-point, of which 0, 1, 3, 10 and 100 % change between transfers
#         broadcast  such values from NVIDIA's library (tests/nccl; NB_NCCL_LIBRARIES names its file) to all
#                  other nodes, over NCCL's own sockets and with each NIBBLE_P2P
#   -c  schedules (default: all that this build's NIBBLE_SCHEDULE takes)
#   -t  types (default bfloat16,float32)
#   -b  bytes of main, windows and broadcast (default 64M)
#   -W  orders of calls of broadcast, of tests/nccl/weights.c (default flat)
#   -o  samples, comma-separated, one a line (default: none kept)
#   -M  leave Open MPI out (its waiting ranks keep every processor busy)
#
# Needs root and iproute2; iperf3 and Open MPI (openmpi-bin, libopenmpi-dev) are left out with a line when
# they are not there. 77 and a reason when namespaces cannot be made.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
. "$here/links.sh"

nodes=4
mbps=500
rounds=5
sets="main p2p"
schedules=
types=bfloat16,float32
bytes=64M
output=
ways=flat
without_mpi=
while getopts N:s:r:S:c:t:b:o:W:M option; do
    case $option in
    N) nodes=$OPTARG ;;
    s) mbps=$OPTARG ;;
    r) rounds=$OPTARG ;;
    S) sets=$OPTARG ;;
    c) schedules=$OPTARG ;;
    t) types=$OPTARG ;;
    b) bytes=$OPTARG ;;
    o) output=$OPTARG ;;
    W) ways=$OPTARG ;;
    M) without_mpi=1 ;;
    *) exit 2 ;;
    esac
done
build=${NB_BUILDDIR:-.}
links_perf
links_enter "$0" "$@"

tmp=$(mktemp -d) || exit 1
mount -t tmpfs -o size=1g tmpfs "$tmp" || exit 1 # gone with the mount namespace
trap 'umount "$tmp"; rmdir "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
csv=$tmp/samples
columns=set,tool,schedule,nodes,mbps,op,type,bytes,channels,chunk,round,seconds
echo "$columns,wire_ratio,cpu,busy,link_bytes,nmse" >"$csv"

# What NIBBLE_SCHEDULE takes, from the build's own table of settings; "-" when it is no setting.
if [ -z "$schedules" ]; then
    schedules=$("$build/docs/print-parameters" 2>/dev/null | awk -F '|' '/`NIBBLE_SCHEDULE`/ { print $4 }' |
        sed 's/,/ /g; s/ or / /g')
    schedules=$(echo ${schedules:--}) # without spaces around
fi
mpi=
if [ -n "$without_mpi" ]; then
    :
elif command -v mpicc >/dev/null 2>&1 && command -v mpirun >/dev/null 2>&1; then
    mpicc -O2 -o "$tmp/mpi_coll" "$here/mpi_coll.c" && mpi=1
else
    echo "Open MPI is not installed (openmpi-bin, libopenmpi-dev): left out"
fi
iperf=
if command -v iperf3 >/dev/null 2>&1; then iperf=1; else echo "iperf3 is not installed: left out"; fi

# nibble SET TOOL SCHEDULE PART OPTION...: samples of one run of nibble-perf. TOOL: coded, raw or p2p.
nibble() {
    set_=$1
    tool=$2
    schedule=$3
    part=$4
    shift 4
    [ "$tool" != raw ] || set -- --raw "$@"
    [ "$schedule" = - ] || set -- --env "NIBBLE_SCHEDULE=$schedule" "$@"
    [ "$part" != coll ] || [ "$tool" = raw ] || set -- --feedback "$@"
    if ! timeout 900 "$perf" $part --netns n --json "$tmp/json" "$@" >"$tmp/out" 2>&1; then
        cat "$tmp/out" >&2
        echo "failed: nibble-perf $part $*" >&2
        failed=1
        return
    fi
    awk -v set="$set_" -v tool="$tool" -v schedule="$schedule" -v mbps="$rate" -v round="$round" '
        function value(key) {
            if (!match($0, "\"" key "\": [^,}]*")) return ""
            v = substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4)
            gsub(/"/, "", v)
            return v == "null" ? "" : v
        }
        /"op"/ {
            printf "%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%.9f,%s,%s,%s,%s,%s\n", set, tool, schedule,
                value("nodes"), mbps, value("op"), value("type"), value("bytes"), value("channels"),
                value("chunk"), round, value("time_us") * 1e-6, value("wire_ratio"), value("cpu"),
                value("busy"), value("link_bytes"), value("nmse")
        }' "$tmp/json" >>"$csv"
}

# openmpi SET BYTES REPETITIONS OP:TYPE...
openmpi() {
    set_=$1
    size=$2
    reps=$3
    shift 3
    [ -n "$mpi" ] || return 0
    hosts=10.77.0.1
    host=2
    while [ $host -le "$n" ]; do
        hosts=$hosts,10.77.0.$host
        host=$((host + 1))
    done
    on_named 0 node1 env TMPDIR="$tmp" timeout 900 mpirun \
        --allow-run-as-root --mca plm_rsh_agent "$here/mpi_agent.sh" --mca plm_rsh_no_tree_spawn 1 \
        --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include hx0 --mca oob_tcp_if_include hx0 \
        --mca mpi_yield_when_idle 1 --bind-to none --host "$hosts" -np "$n" \
        "$tmp/mpi_coll" "$size" "$reps" 1 "$@" >"$tmp/mpi" 2>"$tmp/mpi.err" || {
        cat "$tmp/mpi" "$tmp/mpi.err" >&2
        echo "failed: Open MPI, $*" >&2
        failed=1
        return
    }
    awk -v set="$set_" -v n="$n" -v mbps="$rate" -v round="$round" 'NF == 5 {
        printf "%s,openmpi,,%s,%s,%s,%s,%s,,,%s,%s,,%s,,,\n", set, n, mbps, $1, $2, $3, round, $4, $5
    }' "$tmp/mpi" >>"$csv"
}

# stream: plain TCP from host 0 to host 1, as seconds for 64 MiB.
stream() {
    [ -n "$iperf" ] || return 0
    on "$2" iperf3 -s -1 >"$tmp/server" 2>&1 &
    server=$!
    sleep 0.3
    if on "$1" iperf3 -c "$3" -t 3 -O 1 -l 1M -J >"$tmp/iperf" 2>&1; then
        awk -v set="p2p" -v mbps="$rate" -v round="$round" '
            /"sum_received"/ { in_sum = 1 }
            in_sum && /"bits_per_second"/ { gsub(/[^0-9.e+]/, "", $2); rate = $2; in_sum = 0 }
            /"host_total"|"remote_total"/ { gsub(/[^0-9.]/, "", $2); cpu += $2 / 100 }
            END {
                printf "%s,iperf3,,2,%s,p2p,bytes,67108864,,,%s,%.9f,,%.3f,,,\n", set, mbps, round,
                    67108864 * 8 / rate, cpu
            }' "$tmp/iperf" >>"$csv"
    else
        cat "$tmp/iperf" >&2
        failed=1
    fi
    wait $server
}

# push TOOL WAY WARM-UP "PERCENT..." SETTING...: broadcasts of NVIDIA's library. Each node has a namespace.
push() {
    tool=$1
    way=$2
    line="$2 $(links_bytes "$bytes") $3 3 $4"
    shift 4
    if ! links_nccl "$n" push "$@" NB_PUSH="$line" NCCL_ALGO=Ring NIBBLE_P2P_MAX_MB=16384; then
        tail -n 20 "$tmp/out" >&2
        echo "failed: $tool, broadcasts to $((n - 1)) nodes, $line" >&2
        failed=1
    fi
    awk -v tool="$tool" -v way="$way" -v n="$n" -v mbps="$rate" -v round="$round" '$1 == "push" {
        sub(/:/, "", $4)
        printf "broadcast,%s,%s,%s,%s,%s,bfloat16,%s,,,%s,%s,,,,%s,\n", tool, way, n, mbps, $4, $3, round,
            $5, $10
    }' "$tmp/out" >>"$csv"
}

# Where schedules are not compared, the first of them.
first() { echo ${1%% *}; }

# collective SET TOOL SCHEDULE OPTION...: one operation at a time, in NCCL's chunks of 128 KiB.
collective() {
    kind=$1
    mode=$2
    way=$3
    shift 3
    nibble "$kind" "$mode" "$way" coll -N "$n" -n 1 --pause 1 --chunk 128K "$@"
}

run_set() {
    case $1 in
    main)
        for c in $schedules; do
            collective main coded "$c" -w 4 -b "$bytes" -e "$bytes" --types "$types"
        done
        collective main raw "$(first "$schedules")" -w 1 -b "$bytes" -e "$bytes" --types "$types"
        for op in reduce_scatter all_gather all_reduce; do
            for type in $(echo "$types" | tr , ' '); do echo $op:$type; done
        done >"$tmp/ops"
        openmpi main "$(links_bytes "$bytes")" 1 $(cat "$tmp/ops")
        ;;
    large)
        for c in $schedules; do
            collective large coded "$c" -w 2 -b 512M -e 512M --types bfloat16
        done
        collective large raw "$(first "$schedules")" -w 1 -b 512M -e 512M --types bfloat16
        ;;
    windows)
        for chunk in 32K 128K 512K; do
            for channels in 2 8 16; do
                collective windows coded "$(first "$schedules")" -w 4 -b "$bytes" -e "$bytes" \
                    --types "$types" --chunk $chunk --channels $channels
            done
        done
        ;;
    small)
        for mode in coded raw; do
            nibble small $mode "$(first "$schedules")" coll -N "$n" -b 4K -e 4M -f 2 -n 20 -w 10 \
                --types "$types" --env NIBBLE_MIN_BYTES=0
        done
        ;;
    p2p)
        stream 0 1 10.77.0.2
        nibble p2p p2p - p2p -N 2 -b 64M -e 64M -n 2 -w 1 --nocopy
        ;;
    changed)
        # The third transfer is the first one of deltas.
        set -- -N 2 -b 256M -e 256M -n 3 --env NIBBLE_P2P_MAX_MB=4096
        nibble changed plain - p2p "$@" -w 1 --changed 3 --env NIBBLE_P2P=raw
        for p in 0 1 3 10 100; do nibble changed $p - p2p "$@" -w 2 --changed $p; done
        nibble changed plain100 - p2p "$@" -w 1 --changed 100 --env NIBBLE_P2P=raw # new values, too
        ;;
    broadcast)
        # The bytes of sockets and of raw messages do not depend on the values.
        links_library
        for way in $ways; do
            push sockets "$way" 1 3 $links_sockets
            push raw "$way" 1 "3 100" "$links_plugin" NIBBLE_P2P=raw
            for mode in delta auto; do
                push $mode "$way" 2 "0 1 3 10 100" "$links_plugin" NIBBLE_P2P=$mode
            done
        done
        ;;
    *)
        echo "bench.sh: there is no set $1" >&2
        exit 2
        ;;
    esac
}

failed=0
echo "$(nproc) processors, load $(cut -d ' ' -f 1-3 /proc/loadavg) at the start;" \
    "links of $mbps Mbit/s, mtu $links_mtu; $rounds rounds"
rate=$mbps
for n in $nodes; do
    links_up "$n" "$rate"
    round=1
    while [ $round -le "$rounds" ]; do
        for s in $sets; do run_set "$s"; done
        round=$((round + 1))
    done
done
links_down
awk -f "$here/table.awk" "$csv"
echo "load $(cut -d ' ' -f 1-3 /proc/loadavg) at the end"
[ -z "$output" ] || cp "$csv" "$output" || failed=1
exit $failed
