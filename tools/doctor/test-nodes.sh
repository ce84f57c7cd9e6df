#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-doctor over three hosts, which are network namespaces: a job that is well, and each thing that can be wrong between
# nodes, made here: it has to be named, on time, and all nodes end with the same status.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tools/bench/links.sh
. "$NB_SRCDIR/tools/bench/links.sh"
links_enter "$0" "$@"

interfaces==hx0
# shellcheck source=tools/doctor/report.sh
. "$NB_SRCDIR/tools/doctor/report.sh"
report=$tmp/out0
limit=60

# start NODE: the doctor there, with what is in $extra_NODE as words before it (an environment, another binary).
start()
{
    eval "extra=\${extra_$1:-}"
    # shellcheck disable=SC2086
    on "$1" env $extra "${binary:-$doctor}" --rank "$1" --nodes 3 --root 10.77.0.1 --port 23456 --limit "$limit" --python "" --nccl "$tmp/none" \
        ${options:---no-speed} >"$tmp/out$1" 2>"$tmp/err$1"
    echo $? >"$tmp/status$1"
}

# job NODE...: all of them; node 0's report in $tmp/out0.
job()
{
    rm -f "$tmp"/status*
    for node in "$@"; do
        start "$node" &
    done
    wait
    for node in "$@"; do
        [ -s "$tmp/err$node" ] && fail "node $node on stderr: $(cat "$tmp/err$node")"
        [ "$(cat "$tmp/status$node")" = "$(cat "$tmp/status0")" ] ||
            fail "node $node ends with $(cat "$tmp/status$node"), node 0 with $(cat "$tmp/status0")"
    done
}

# ---- Well: measured, and only node 0 speaks.
links_up 3 0
options=' ' job 0 1 2
silent '^problem'
say ok '3 pairs in both directions, 1 device: connected over tcp'
say ok 'Gbit/s into the slowest of 3 nodes'
say ok 'us from node to node'
grep -q '64 MiB BF16, 3 nodes at' "$tmp/out0" || fail "no gain"
[ -s "$tmp/out1" ] && fail "node 1 speaks: $(cat "$tmp/out1")"

# ---- Other settings, another NCCL variable, a setting that is bad, on one node
extra_2="NIBBLE_RS=int8 NCCL_BUFFSIZE=65536" extra_1="NIBBLE_CREDITS=none" job 0 1 2
say problem 'node 2 .*: compared settings: NIBBLE_RS=int8; 2 nodes have: (none)'
say warning "node 2 .*: NCCL's variables: .*NCCL_BUFFSIZE=65536"
say problem 'node 1 .*NIBBLE_CREDITS=none: it must be'
say ok '3 pairs in both directions'

# ---- Another build on one node
version=$("$doctor" --version | sed 's/^nibble-doctor //')
letters=$(echo "$version" | sed 's/.*(\(.*\))/\1/')
other=$(echo "$letters" | tr '0-9a-z' '1-9a-z0')
if [ "$letters" != "$other" ]; then
    LC_ALL=C sed "s/$letters/$other/g" "$doctor" >"$tmp/other" && chmod +x "$tmp/other"
    cat >"$tmp/which" <<END
#!/bin/sh
case " \$* " in *" --rank 1 "*) exec $tmp/other "\$@" ;; esac
exec $doctor "\$@"
END
    chmod +x "$tmp/which"
    binary=$tmp/which job 0 1 2
    say problem 'node 1 .*: version: 0.*; 2 nodes have: 0'
fi

# ---- Interfaces of different MTU
ip -n n2 link set dev hx0 mtu 1500
job 0 1 2
say warning 'node 2 .*: MTU: 1500; 2 nodes have: 9000'
say ok '3 pairs in both directions'
ip -n n2 link set dev hx0 mtu 9000

# ---- A host at 5 Mbit/s is measured, too, and named in both directions
links_limit n2 hx0 5
links_limit switch port2 5
limit=24
job 0 1 2
say ok ' 0.00[0-9]* Gbit/s into the slowest of 3 nodes'
say warning 'node 1 .* -> node 2 .*: 0.00[0-9]* Gbit/s: less than half'
say warning 'node 2 .* -> node 0 .*: 0.00[0-9]* Gbit/s: less than half'
tc -n n2 qdisc del dev hx0 root
tc -n switch qdisc del dev port2 root

# ---- A bridge with one address on all nodes: one line, the device that works, and its rates
for node in 0 1 2; do
    ip -n n$node link add hb0 type veth peer name hb1
    ip -n n$node address add 192.0.2.1/24 dev hb0
    ip -n n$node link set hb0 up
    ip -n n$node link set hb1 up
done
limit=12
NCCL_SOCKET_IFNAME='=hb0,hx0' job 0 1 2
say problem 'every pair of nodes: device [01] at 192.0.2.1<.*: cannot connect: .*a bridge or a management'
[ "$(grep -c '192.0.2.1<' "$tmp/out0")" = 1 ] || fail "not one line a device: $(cat "$tmp/out0")"
say warning '1 of 2 devices connects all pairs, by their names on node 0: hx0'
say ok 'Gbit/s into the slowest of 3 nodes'
for node in 0 1 2; do
    ip -n n$node link del hb0
done

# ---- The pair 1, 2 is cut, which is named in both directions, with its addresses; and the way from node 0 to node 2
# carries less than the interfaces say. Other pairs are well.
limit=24
ip -n n1 route add unreachable 10.77.0.3
ip -n switch link set dev port2 mtu 1500
for node in 0 1 2; do
    ip -n n$node link set dev hx0 gso_max_segs 1
done
job 0 1 2
say problem 'node 1 .* -> node 2 .*: device 0 at 10.77.0.3<.*cannot connect: '
say problem 'node 2 .* -> node 1 .*: device 0 at 10.77.0.2<.*cannot connect: '
say problem 'node 0 .* -> node 2 .*: .*64 bytes arrive, 64 KiB do not: .*MTU'
say warning 'of 3 nodes have no rate, since nothing arrived there in time: .*node 2'
silent 'problem .*node 0 .* -> node 1'
silent 'problem .*node 1 .* -> node 0'
[ "$(cat "$tmp/status0")" = 2 ] || fail "status $(cat "$tmp/status0")"
ip -n n1 route del unreachable 10.77.0.3
ip -n switch link set dev port2 mtu 9000

# ---- A node does not come, for it has another key: the others are done in time, and say which.
begin=$(date +%s)
options="--no-speed --key 7" start 2 &
job 0 1
say problem 'node 2 has not come'
say ok '1 pairs in both directions'
[ $(($(date +%s) - begin)) -lt 120 ] || fail "it took $(($(date +%s) - begin)) s"
[ "$(cat "$tmp/status0")" = 2 ] || fail "status $(cat "$tmp/status0") without node 2"
grep -q 'does not take this node' "$tmp/out2" || fail "node 2 with another key says: $(cat "$tmp/out2")"

# ---- Slurm's environment instead of options
limit=60
for node in 0 1 2; do
    on $node env SLURM_PROCID=$node SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NODELIST='10.77.0.[1-3],m7' SLURM_JOB_ID=7 SLURM_STEP_ID=1 \
        "$doctor" --no-speed --limit $limit --python "" --nccl "$tmp/none" >"$tmp/out$node" 2>&1 &
done
wait
say ok '3 pairs in both directions'
head -n 1 "$tmp/out0" | grep -q '3 nodes, by Slurm' || fail "not by Slurm: $(head -n 1 "$tmp/out0")"

links_down
[ $failed = 0 ] && echo "PASS: nibble-doctor over nodes"
exit $failed
