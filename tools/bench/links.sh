# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that measure over links of a known rate. Hosts are network namespaces n0, n1, ..., each
# with an interface hx0 (10.77.0.1, 10.77.0.2, ...), joined by a bridge in a namespace of its own; a token
# bucket limits each link in both directions.
#
# links_enter SCRIPT ARGUMENTS...  runs SCRIPT again in private network, mount and process namespaces and ends
#   with its status. Everything in there, processes and namespaces, ends with this shell, whatever ends it. 77
#   after a line with the reason when that cannot be. Call it first; it returns in the inner shell.
# links_up NODES MBPS  makes the hosts, or makes them anew.
# links_down
# links_perf  sets `perf`, the nibble-perf to use: NB_PERF, else that of the build in NB_BUILDDIR or in ".".
# links_library  prepares NVIDIA's library, the first file of NB_NCCL_LIBRARIES, and sets links_plugin.
# links_nccl NODES CASE SETTING...  runs a case of tests/nccl on that library, each node in its namespace, and
#   writes to $tmp/out. One SETTING is $links_plugin (nibble) or $links_sockets (NCCL's own sockets).
# links_bytes SIZE  prints the bytes of a size such as 64M.
# on NODE COMMAND...  runs a command on a host.
# on_named NODE NAME COMMAND...  the same, where the host is called NAME.

links_mtu=${NB_BENCH_MTU:-9000}

links_skip() {
    echo "SKIP: $*"
    exit 77
}

links_perf() {
    perf=${NB_PERF:-${NB_BUILDDIR:-.}/tools/nibble-perf}
    [ -x "$perf" ] && return
    echo "$perf is not there: build it, or name it in NB_PERF or NB_BUILDDIR" >&2
    exit 1
}

links_enter() {
    [ -n "${NB_BENCH_INSIDE:-}" ] && return 0
    [ "$(id -u)" = 0 ] || links_skip "network namespaces need root"
    for tool in ip tc unshare setpriv; do
        command -v $tool >/dev/null 2>&1 || links_skip "$tool is not installed"
    done
    unshare --net --mount --pid --fork true 2>/dev/null || links_skip "namespaces cannot be made here"
    # The inner shell is process 1 of its process namespace: when it goes, all others go. It goes when
    # unshare does, and that when this shell does.
    NB_BENCH_INSIDE=1 setpriv --pdeathsig KILL unshare --net --mount --pid --mount-proc --fork --kill-child \
        /bin/sh "$@" &
    links_child=$!
    trap 'kill -KILL $links_child 2>/dev/null; wait $links_child 2>/dev/null; exit 130' INT TERM HUP
    wait $links_child
    exit $?
}

# A bucket of 128 KiB lets two large segments through at once and is little beside what is measured; the queue
# is that of a switch port: 20 ms, at least 1 MiB.
links_limit() {
    limit=$(($3 * 2500))
    [ $limit -ge 1048576 ] || limit=1048576
    tc -n "$1" qdisc add dev "$2" root tbf rate "$3"mbit burst 131072 limit $limit ||
        links_skip "this kernel has no queueing discipline tbf"
}

links_up() {
    if [ -z "${links_ready:-}" ]; then
        mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns || exit 1
        links_ready=1
    fi
    links_down
    ip netns add switch &&
        ip -n switch link add name bridge0 type bridge &&
        ip -n switch link set dev bridge0 mtu "$links_mtu" up ||
        links_skip "a bridge cannot be made here"
    links_nodes=$1
    host=0
    while [ $host -lt "$1" ]; do
        ip netns add n$host &&
            ip -n switch link add name port$host mtu "$links_mtu" type veth peer name hx0 mtu "$links_mtu" \
                netns n$host &&
            ip -n switch link set dev port$host master bridge0 up &&
            ip -n n$host link set dev lo up &&
            ip -n n$host addr add 10.77.0.$((host + 1))/24 dev hx0 &&
            ip -n n$host link set dev hx0 up || exit 1
        if [ "$2" -gt 0 ]; then
            links_limit n$host hx0 "$2"
            links_limit switch port$host "$2"
        fi
        host=$((host + 1))
    done
}

links_down() {
    for name in $(ip netns list | cut -d ' ' -f 1); do
        ip netns del "$name"
    done
    links_nodes=0
}

links_bytes() {
    numfmt --from=iec "$(echo "$1" | tr kmg KMG)"
}

links_sockets="NCCL_NET_PLUGIN=none"

# What the library needs beside its file.
links_library() {
    [ -z "${links_file:-}" ] || return 0
    links_build=$(realpath "${NB_BUILDDIR:-.}")
    links_plugin=NCCL_NET_PLUGIN=$links_build/.libs/libnccl-net-nibble.so
    links_file=${NB_NCCL_LIBRARIES%% *}
    "${NB_PYTHON:-python3}" "$here/../../tests/nccl/layout.py" "$links_file" \
        $("$links_build/tests/nccl/cluster" names) >"$tmp/layout" || exit 1
    ln -s "$links_build/tests/nccl/.libs/nvml.so" "$tmp/libnvidia-ml.so.1"
}

links_nccl() {
    links_nodes_of=$1
    links_case=$2
    shift 2
    env LD_LIBRARY_PATH="$tmp" NB_NETNS=n NCCL_SOCKET_IFNAME=hx0 \
        NCCL_TOPO_FILE="$here/../../tests/nccl/topology.xml" NCCL_PROTO=Simple NCCL_P2P_LL_THRESHOLD=0 \
        NCCL_MAX_NCHANNELS=2 "$@" timeout 900 "$links_build/tests/nccl/cluster" "$links_file" "$tmp/layout" \
        "$links_nodes_of" "$links_case" >"$tmp/out" 2>&1
}

on() {
    where=n$1
    shift
    ip netns exec "$where" "$@"
}

on_named() {
    where=n$1
    name=$2
    shift 2
    ip netns exec "$where" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$name" "$@"
}
