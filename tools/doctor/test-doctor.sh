#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-doctor on one node: each thing that keeps a job from being compressed is made here, and has to be named with its
# remedy. A machine with adapters and GPUs is a copy of its /sys, /proc and /dev (--system).
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
interfaces=lo
# shellcheck source=tools/doctor/report.sh
. "$NB_SRCDIR/tools/doctor/report.sh"
export NCCL_COMM_SPLIT_SHARE_RESOURCES=1
report=$tmp/out

# look ARGUMENTS...: run it; $status and $tmp/out.
look()
{
    "$doctor" --no-speed --python "" --nccl "${nccl:-$tmp/none.so}" --system "$tmp/machine" "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
    [ -s "$tmp/err" ] && fail "on stderr: $(cat "$tmp/err")"
}

# put FILE TEXT: of the machine.
put()
{
    mkdir -p "$tmp/machine/$(dirname "$1")" && echo "$2" >"$tmp/machine/$1"
}

mkdir "$tmp/machine"
put proc/sys/net/ipv4/ip_local_port_range '32768	60999'
library()
{
    ${NB_CC:-cc} -shared -fPIC -o "$tmp/$1" "$tmp/$1.c" 2>"$tmp/cc" || { echo "SKIP: no compiler: $(cat "$tmp/cc")"; exit 77; }
}
for release in 22304 22809 23004 21900; do
    echo "int ncclGetVersion(int *v) { *v = $release; return 0; }" >"$tmp/nccl-$release.so.c"
    library nccl-$release.so
done
nccl=$tmp/nccl-22809.so

# ---- A node that is well: no problem, and the status says what else there is.
look
say ok 'NCCL_NET_PLUGIN='
say ok "$plugin: version .*, starts with 1 device"
say ok '2.28.9'
for what in 'reduce-scatter: gradients quantized' 'all-gather: exact' 'all-reduce: gradients quantized'; do
    say ok "$what"
done
grep -q '^problem' "$tmp/out" && { fail "a problem on a node that is well:"; cat "$tmp/out"; }
expected=0
grep -q '^warning' "$tmp/out" && expected=1
[ $status = $expected ] || fail "a node that is well: status $status, not $expected"

# ---- The environment
# variable NAME VALUE STATUS PATTERN
variable()
{
    (eval "export $1='$2'"; look; say "$3" "$4"; exit $failed) || failed=1
}
variable NCCL_COLLNET_ENABLE 0 problem 'NCCL_COLLNET_ENABLE=0: '
variable NCCL_COLLNET_ENABLE '' problem 'NCCL_COLLNET_ENABLE is not set'
variable NCCL_COLLNET_ENABLE 0 warning 'all-reduce: raw: the environment'
variable NCCL_NET Socket problem 'NCCL_NET=Socket: '
variable NCCL_NET '' warning 'NCCL_NET is not set'
variable NCCL_NET_PLUGIN ofi problem 'NCCL_NET_PLUGIN=ofi: '
variable NCCL_ALGO Ring,Tree problem 'NCCL_ALGO=Ring,Tree: it rules CollNet out'
variable NCCL_ALGO ^CollnetDirect problem 'it rules CollNet out'
variable NCCL_ALGO 'allreduce:collnetdirect;allgather:ring' warning 'overrules'
variable NCCL_PROTO LL128 problem 'NCCL_PROTO=LL128'
variable NCCL_COLLNET_NODE_THRESHOLD 8 warning 'no CollNet with fewer nodes'
variable NCCL_PROFILER_PLUGIN libother.so warning 'all-reduce: raw: another profiler'
variable NCCL_TUNER_PLUGIN libother.so warning "without nibble's tuner"
variable NIBBLE_SHADOW 1 warning 'reduce-scatter: raw: NIBBLE_SHADOW=1'
variable NIBBLE_ENABLE 0 warning 'NIBBLE_ENABLE=0'
variable NIBBLE_AR raw warning 'all-reduce: raw: NIBBLE_AR=raw'
variable NIBBLE_CREDITS many problem 'NIBBLE_CREDITS=many: it must be'
variable NIBBLE_RSS int4 problem 'did you mean NIBBLE_RS?'
variable NIBBLE_HOME /x warning 'NIBBLE_HOME is not a setting'
variable NIBBLE_HAND_BACK 8 warning 'setting NIBBLE_HAND_BACK is gone, and ignored'
for what in reduce-scatter all-gather all-reduce; do
    (export NIBBLE_LINK_MBPS=400000; look --nodes 8
        say warning "$what: raw: no gain on links of 400 Gbit/s"; exit $failed) || failed=1
done
# One function pays, so the communicator connects. The others say the plugin's own sentence of the reckoning.
(export NIBBLE_LINK_MBPS=400000 NIBBLE_AG=exact; look --nodes 8; say ok 'all-gather: exact'
    say warning 'reduce-scatter: BF16 and FP16 raw: this link is faster than the codec'
    say warning 'all-reduce: BF16 and FP16 raw: this link is faster than the codec'; exit $failed) || failed=1
(export NIBBLE_LINK_MBPS=400000 NIBBLE_RS=int4; look --nodes 8; say ok 'reduce-scatter: gradients quantized, once recognised$'
    say warning 'all-reduce: BF16 and FP16 raw: this link is faster than the codec'; exit $failed) || failed=1
(export NIBBLE_LINK_MBPS=100; look --nodes 8
    say ok 'reduce-scatter: gradients quantized, once recognised: BF16 and FP16 coded from 16 KiB on'; exit $failed) || failed=1
# Between distant nodes the kernel's and NCCL's buffers count.
mkdir -p "$tmp/machine/proc/sys/net/ipv4"
(cd "$tmp/machine/proc/sys/net/ipv4" && echo '4096 131072 87500000' >tcp_rmem &&
    echo '4096 16384 4194304' >tcp_wmem && echo 1 >tcp_slow_start_after_idle)
(export NIBBLE_LINK_RTT_US=70000 NIBBLE_LINK_MBPS=10000 NIBBLE_TCP_STREAMS=2; look --nodes 4
    say ok 'net.ipv4.tcp_rmem: at most 87500000 bytes, which suffices'
    say warning 'net.ipv4.tcp_wmem: at most 4194304 bytes; a socket needs 87500000'
    say warning 'after each pause TCP starts slowly again'
    say warning 'NCCL keeps too few bytes in flight for 10 Gbit/s and a round trip of 70 ms'
    say warning 'all-reduce: BF16 and FP16 raw: NCCL.s buffers are too small .*NCCL_BUFFSIZE=134217728 would'
    export NCCL_BUFFSIZE=134217728; look --nodes 4; say ok 'NCCL_BUFFSIZE keeps enough bytes in flight'
    say ok 'all-reduce: gradients quantized'; exit $failed) || failed=1
# Where only FP32 is coded, that is no success. The settings count in the size from which on, and before --gbps.
(export NIBBLE_LINK_MBPS=25000 NIBBLE_CODEC_VARIANT=avx2 NIBBLE_HOST_THREADS=0 NIBBLE_MIN_BYTES=16777216; look --nodes 4 --gbps 1
    say warning 'reduce-scatter: BF16 and FP16 raw: .*, FP32 coded from 16 MiB on'; exit $failed) || failed=1
(export NIBBLE_GROUP=3; look --nodes 4
    say warning 'NIBBLE_GROUP=3: no grid of 4 nodes, all are connected .*: NIBBLE_GROUP=3 does not divide 4'
    export NIBBLE_GROUP=2; look --nodes 4; say warning 'NIBBLE_SCHEDULE=auto makes one from 32 nodes on'
    export NIBBLE_SCHEDULE=two-level; look --nodes 4
    ! grep 'no grid' "$tmp/out" || fail 'two rows of two nodes, and no grid'; exit $failed) || failed=1
variable NIBBLE_METRICS_PERIOD 5 warning 'NIBBLE_METRICS_PERIOD=5 has no effect'
variable NIBBLE_SPIN_US 5 warning 'NIBBLE_SPIN_US is gone'
variable NIBBLE_METRICS "$tmp/absent" warning 'absent: nothing will be written there: No such file or directory'
variable NIBBLE_HANG_REPORT "$tmp/out" warning 'NIBBLE_HANG_REPORT=.*out: nothing will be written there: Not a directory'
variable NIBBLE_CONTROL "$tmp/absent/file" warning \
    'absent/file: it cannot switch compression off: No such file'
(nccl=/none.so; look; say warning 'asked for: /none.so: cannot open shared'; exit $failed) || failed=1
variable NIBBLE_CONTROL "$tmp/later" ok 'in force: NIBBLE_CONTROL='
variable NIBBLE_PROFILER_NEXT /none.so warning 'NIBBLE_PROFILER_NEXT=/none.so: cannot open it'
variable NIBBLE_TUNER_NEXT /none.so warning 'NIBBLE_TUNER_NEXT=/none.so: cannot open it'
look
! grep -q '^ok .*codecs run on the CPU' "$tmp/out" || # else this machine has a GPU
    variable NIBBLE_DEVICE cuda warning 'NIBBLE_DEVICE=cuda, but codecs run on the CPU: '
variable NIBBLE_RS_SECOND int8 warning 'NIBBLE_RS_SECOND is gone, and ignored: NIBBLE_SECOND_HOP'
(export NIBBLE_CREDITS=many; look
    grep -q '^ok *settings' "$tmp/out" && fail "a bad setting, and ok: $(cat "$tmp/out")"
    exit $failed) || failed=1
variable NCCL_SOCKET_IFNAME nowhere0 problem 'NCCL_SOCKET_IFNAME=nowhere0 matches no interface'

# NCCL's files set variables of the job, and not those that are set.
printf '# a comment\nNCCL_ALGO=Ring\nNCCL_NET=Socket\n' >"$tmp/nccl.conf"
NCCL_CONF_FILE=$tmp/nccl.conf look
say problem 'NCCL_ALGO=Ring: it rules CollNet out'
say ok 'NCCL_NET=nibble'
cp "$tmp/nccl.conf" "$tmp/.nccl.conf"
look
say problem 'NCCL_ALGO=Ring: it rules CollNet out'
rm "$tmp/.nccl.conf"

# ---- The plugin that NCCL loads
echo 'int nothing;' >"$tmp/other-nibble.so.c" && library other-nibble.so
echo '#include <signal.h>
__attribute__((constructor)) static void die(void) { raise(SIGTERM); }' >"$tmp/dying-nibble.so.c" && library dying-nibble.so
variable NCCL_NET_PLUGIN "$tmp/no/nibble.so" problem 'NCCL finds no plugin: .*no/nibble.so'
(export NCCL_NET_PLUGIN="$tmp/no/nibble.so"; look
    grep -q 'export LD_LIBRARY_PATH=.*/.libs:' "$tmp/out" || fail 'no folder'; exit $failed) || failed=1
variable NCCL_NET_PLUGIN "$tmp/other-nibble.so" problem 'NCCL loads another plugin'
variable NCCL_NET_PLUGIN "$tmp/dying-nibble.so" problem 'ends its process: Terminated'
# Another commit of nibble: the same file with other letters in the place of this one's.
version=$("$doctor" --version | sed 's/^nibble-doctor //')
letters=$(echo "$version" | sed 's/.*(\(.*\))/\1/')
other=$(echo "$letters" | tr '0-9a-z' '1-9a-z0')
if [ -z "${NB_SANITIZE:-}" ] && [ "$letters" != "$other" ]; then
    LC_ALL=C sed "s/$letters/$other/g" "$plugin" >"$tmp/libnccl-net-nibble.so"
    variable NCCL_NET_PLUGIN "$tmp/libnccl-net-nibble.so" problem "which is version .*; this is $(echo "$version" | cut -d ' ' -f 1)"
    (export NCCL_NET_PLUGIN=nibble LD_LIBRARY_PATH="$tmp:${LD_LIBRARY_PATH:-}"; look; say problem "$tmp/libnccl-net-nibble.so, which"
        exit $failed) || failed=1
fi

# ---- NCCL
nccl=$tmp/nccl-22304.so
look
say warning 'all-reduce: raw: this NCCL reports no calls'
say warning "without nibble's tuner"
nccl=$tmp/nccl-23004.so
look
say ok 'symmetric memory'
nccl=$tmp/nccl-21900.so
look
say problem 'older than 2.20'
[ $status = 2 ] || fail "a problem: status $status"
nccl=$tmp/nowhere.so
look
say warning 'nowhere.so'
nccl=$tmp/nccl-22809.so

# ---- Loopback, and files for the number of nodes
look --nodes 4
say problem 'lo: no other machine can be reached'
(ulimit -n 600; look --nodes 31; say problem '600 may be open .* takes 180'; exit $failed) || failed=1
(ulimit -n 1000; look --nodes 31; say warning '1000 may be open .* takes 180'; exit $failed) || failed=1
(ulimit -n 1000; look --nodes 64; say ok '1000 may be open; .* takes 108'; exit $failed) || failed=1
put proc/sys/net/ipv4/ip_local_port_range '50000	50100'
look
say warning '50000 to 50100'

# ---- Adapters
port=sys/class/infiniband/mlx5_0/ports/1
zero=0000:0000:0000:0000:0000:0000:0000:0000
local=fe80:0000:0000:0000:0a00:27ff:fe11:2233
routed=0000:0000:0000:0000:0000:ffff:0a4d:0001
gid()
{
    put $port/gids/"$1" "$2"
    put $port/gid_attrs/types/"$1" "$3"
}
put $port/state '4: ACTIVE'
put $port/rate '100 Gb/sec (2X NDR)'
put $port/link_layer Ethernet
put $port/gid_attrs/ndevs/0 eth7
put sys/class/net/eth7/mtu 1500
gid 0 $local 'IB/RoCE v1'
gid 1 $zero ''
look
say problem 'no GID of RoCE version 2'
say problem '/dev/infiniband has none'
say warning '1 adapter, but the transport is tcp'
say warning 'MTU 1500 under RoCE'
gid 1 $local 'RoCE v2'
look
say problem 'its GIDs are link local: eth7 has no address'
gid 2 $routed 'IB/RoCE v1'
gid 3 $routed 'RoCE v2'
put sys/class/net/eth7/mtu 9000
put dev/infiniband/uverbs0 ''
look
say ok 'GIDs: 2 of version 1, 2 of version 2, 1 of them routable'
silent 'link local'
silent 'under RoCE:'
silent '/dev/infiniband'
variable NCCL_IB_GID_INDEX 1 problem 'NCCL_IB_GID_INDEX=1 is link local'
variable NCCL_IB_GID_INDEX 2 problem 'NCCL_IB_GID_INDEX=2 is of RoCE version 1'
variable NCCL_IB_GID_INDEX 9 problem 'NCCL_IB_GID_INDEX=9 is empty'
(NCCL_IB_GID_INDEX=3; export NCCL_IB_GID_INDEX; look; silent 'NCCL_IB_GID_INDEX=3'; exit $failed) || failed=1
(ulimit -l 64 2>/dev/null || exit 0; look; say problem '65536 bytes may be locked'; exit $failed) || failed=1
put $port/state '1: DOWN'
look
say warning 'mlx5_0:1: Ethernet, .*, 1: DOWN'

# ---- GPUs
look --gpus 1
say problem 'one GPU, no NVSwitch'
say warning 'reduce-scatter: raw: NCCL rules CollNet out'
say ok 'all-reduce: gradients quantized'
(NIBBLE_FORCE_COLLNET=1; export NIBBLE_FORCE_COLLNET; look --gpus 1; say ok 'reduce-scatter: gradients quantized'; exit $failed) || failed=1
for gpu in 0 1 2 3; do
    mkdir -p "$tmp/machine/proc/driver/nvidia/gpus/0000:0$gpu:00.0"
done
look
say problem '1 network device for 4 GPUs'
grep -q 'NIBBLE_DEVS_PER_NIC=4' "$tmp/out" || fail "the remedy of too few devices"
say warning 'no NVSwitch is seen'
put dev/nvidia-nvswitch0 ''
(NIBBLE_DEVS_PER_NIC=4; export NIBBLE_DEVS_PER_NIC; look; say ok '4 network devices for 4 GPUs'; say ok '  NVSwitch'; exit $failed) ||
    failed=1

# ---- mpirun's processes on one machine find each other; on several, node 0 has to be named. The slower link decides what is
# coded, as in a job.
for rank in 0 1; do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$doctor" --no-speed --python "" \
        --nccl "$nccl" --port 23457 --gbps $((400 - 399 * rank)) >"$tmp/of$rank" 2>&1 &
done
wait
cp "$tmp/of0" "$tmp/out"
say ok '1 pairs in both directions'
say ok 'all-reduce: gradients quantized, once recognised: BF16 and FP16 coded from 16 KiB on: '
silent 'raw: no gain on links'
grep -q '2 nodes, by Open MPI' "$tmp/out" || fail "not by Open MPI: $(head -n 1 "$tmp/out")"
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 "$doctor" >"$tmp/out" 2>&1
[ $? = 3 ] || fail "nobody knows where node 0 is, and the status is $?"
grep -q 'where is node 0? --root HOST' "$tmp/out" || fail "where node 0 is was not asked: $(cat "$tmp/out")"

# ---- The call
"$doctor" --nonsense >"$tmp/out" 2>&1
[ $? = 3 ] || fail "a wrong option"
"$doctor" --nodes 1e9 >"$tmp/out" 2>&1
[ $? = 3 ] || fail "a wrong number"
"$doctor" --version | grep -q '^nibble-doctor [0-9]' || fail "--version"
"$doctor" --help | grep -q 'Exit status' || fail "--help"

# ---- JSON, and the gain: what a slow link gains is more than what a fast one does.
if command -v python3 >/dev/null 2>&1; then
    for gbps in 1 400; do
        "$doctor" --python "" --nccl "$nccl" --nodes 4 --gbps $gbps --json >"$tmp/json.$gbps"
        [ $? = 2 ] || fail "the status with --json"
    done
    python3 - "$tmp/json.1" "$tmp/json.400" <<'END' || fail "the JSON"
import json, re, sys
slow, fast = (json.load(open(p)) for p in sys.argv[1:])
head = slow["doctor"][0]
assert head["status"] == "problem" and head["whole"], head
assert head["problems"] == sum(c["status"] == "problem" for c in slow["checks"])
assert all(c["remedy"] for c in slow["checks"] if c["status"] != "ok")
def gains(report):
    found = [re.search(r"^(\S+) of .* nodes at .*: ([\d.]+) times", c["found"]) for c in report["checks"] if c["subject"] == "gain"]
    return {m[1]: float(m[2]) for m in found}
a, b = gains(slow), gains(fast)
assert set(a) == set(b) == {"reduce-scatter", "all-gather", "all-reduce"}, (a, b)
assert all(a[k] > b[k] for k in a), (a, b)
gain = [c["found"] for c in fast["checks"] if c["subject"] == "gain"]
assert all("if it were coded" in text for text in gain), gain
END
fi
[ $failed = 0 ] && echo "PASS: nibble-doctor"
exit $failed
