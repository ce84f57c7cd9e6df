#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run NVIDIA's own NCCL with nibble on nodes of one or two ranks, each a process with an emulated GPU
# (library.h). NCCL's host code, proxy, tuner, profiler and loading of plugins run as shipped. Two forms:
#
#   make check        one library: the first file of NB_NCCL_LIBRARIES (words), or the one of the package
#                     nvidia-nccl-* that NB_PYTHON (python3) finds. Without such a file the test is skipped.
#                     ./quickstart test downloads the package of NCCL 2.30.7 into build/nccl for it
#   make check-nccl   the files of NB_NCCL_LIBRARIES, or NCCL 2.28.9, 2.30.7, 2.31.2 and 2.32.3 from their
#                     packages, which pip downloads. Two to four nodes, all cases of cluster.c, the same over
#                     NCCL's own sockets as control, and the jobs of tests/jobs
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
unset_settings
python=${NB_PYTHON:-python3}
cluster=$builddir/tests/nccl/cluster # and jobs beside it
long=0
[ "${NB_NCCL_TESTS:-}" != long ] || long=1

skip()
{
    echo "SKIP: $*"
    exit 77
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the CUDA runtime is redirected on Linux on x86-64 only"
command -v gdb >/dev/null || skip "no gdb, which reads the layout of NCCL's structs"
[ -x "$cluster" ] || skip "no $cluster"
case ${NB_SANITIZE:-} in ?*) skip "the library's code is not instrumented" ;; esac

# The packages' libraries, one a line. pip keeps what it has downloaded once.
packages()
{
    for package in nvidia-nccl-cu13==2.28.9 nvidia-nccl-cu13==2.30.7 nvidia-nccl-cu13==2.31.2 \
        nvidia-nccl-cu13==2.32.3; do
        where=$tmp/${package#*==}
        "$python" -m pip download -q --no-deps --disable-pip-version-check -d "$where" "$package" >&2 &&
            "$python" -m zipfile -e "$where"/*.whl "$where" && rm -f "$where"/*.whl &&
            echo "$where/nvidia/nccl/lib/libnccl.so.2"
    done
}

installed()
{
    "$python" -c 'import importlib.util as u, os
try: s = u.find_spec("nvidia.nccl")
except ModuleNotFoundError: s = None
for d in list(s.submodule_search_locations or []) if s else []:
    f = os.path.join(d, "lib", "libnccl.so.2")
    if os.path.exists(f): print(f)' 2>/dev/null
}

files=${NB_NCCL_LIBRARIES:-}
if [ $long = 1 ]; then
    [ "$files" ] || files=$(packages)
    [ "$files" ] || skip "pip cannot download nvidia-nccl-cu13"
else
    [ "$files" ] || files=$(installed)
    files=$(echo "$files" | sed 's/ .*//;q')
    [ "$files" ] || skip "no NCCL library: NB_NCCL_LIBRARIES names none, Python finds no nvidia-nccl-*, \
and ./quickstart test had none (build/nccl.log says why)"
fi

ln -s "$builddir/tests/nccl/.libs/nvml.so" "$tmp/libnvidia-ml.so.1"
ln -s libnvidia-ml.so.1 "$tmp/libgdrapi.so"
# NCCL's monitoring (RAS) connects processes late where a machine is busy, which would count as left over.
export NCCL_RAS_ENABLE=0
export LD_LIBRARY_PATH="$tmp" NCCL_TOPO_FILE="$srcdir/tests/nccl/topology.xml" NCCL_SOCKET_IFNAME=lo \
    NCCL_NET_PLUGIN="$plugin" NCCL_NET_PLUGIN_REF_COUNT=1 NCCL_COLLNET_ENABLE=1 NCCL_PROTO=Simple \
    NCCL_P2P_LL_THRESHOLD=0 NCCL_DEBUG=INFO NIBBLE_MIN_BYTES=0
# A channel costs a rank a tenth of a second.
[ $long = 1 ] || export NCCL_MAX_NCHANNELS=2

# play PROGRAM "SETTING..." ARGUMENT...: run cluster or jobs on the library $file. After ten minutes they end.
# Settings may begin with options of env.
play()
{
    program=$1
    settings=$2
    shift 2
    # shellcheck disable=SC2086
    env $settings timeout 600 "$builddir/tests/nccl/$program" "$file" "$tmp/layout" "$@" >"$tmp/log" 2>&1
    rc=$?
    grep '^ok' "$tmp/log"
    [ $rc = 0 ] || fail "$file: $program $1, $settings: status $rc:
$(grep -E '^FAIL|WARN|runtime has no' "$tmp/log" | tail -n 12)"
    # Without nibble, or on another way than CollNet, the results prove nothing.
    case $settings in *NCCL_NET_PLUGIN=none*)
        # From 2.32 on gathers of windows connect nothing else than NCCL's puts over sockets.
        grep -q 'via NET/Socket\|Assigned plugin RMA_SOCKET_PROXY' "$tmp/log" ||
            fail "$file did not use its own sockets"
        return
        ;;
    esac
    grep -q "for which the tuner's table had another" "$tmp/log" &&
        fail "$file took CollNet against the tuner's table"
    grep -q 'Successfully loaded external network plugin' "$tmp/log" || fail "$file did not load nibble"
    for table in TUNER PROFILER; do
        key=$(echo $table | tr '[:upper:]' '[:lower:]')_table
        version=$(echo "$tables" | sed -n "s/.* $key=\([0-9]*\).*/\1/p")
        grep -q "$table/Plugin: .* nibble (v$version)" "$tmp/log" ||
            fail "$file did not take nibble's ${key%_*} v$version"
    done
}

# run NODES[xRANKS] "SETTING..." CASE...
run()
{
    nodes=$1
    settings=$2
    shift 2
    play cluster "$settings" "$nodes" "$@"
}

# Broadcasts that repeat cost a fraction of the bytes, on each connection of the last run: two or more for
# each of the six orders of calls.
fewer()
{
    sed -n 's/.* as deltas, .*(\([0-9.]*\) times fewer.*/\1/p' "$tmp/log" | awk '
        { n++; if ($1 < 10) bad = 1 }
        END { printf "        %d connections sent deltas\n", n; exit bad || n < 12 }' ||
        fail "$1: deltas of broadcasts: $(grep 'as deltas' "$tmp/log")"
}

# Gathers and all-to-alls of windows: exact, and from 2.32 on by copy engines and NCCL's puts over sockets.
# With NIBBLE_RMA=1 from 2.30 on by copy engines and nibble's puts, all but the first ones as deltas.
gathers_of_windows()
{
    run "$1" "$windows $2" windows exchange
    case $tables in *version=2.2?.*) return ;; esac
    case $tables in *version=2.3[01].*) ;; *)
        grep -q 'NCCL carries out all_gather with copy engines' "$tmp/log" ||
            fail "$file: nibble saw no gather by copy engines on $1 nodes"
        ;;
    esac
    run "$1" "$windows $2 $puts" windows exchange
    grep -q 'RMA/Plugin: Assigned plugin nibble to comm' "$tmp/log" ||
        fail "$file did not take nibble's table for puts"
    grep -q "bytes between nodes are nibble's puts" "$tmp/log" ||
        fail "$file: nibble saw no gather by copy engines and its puts on $1 nodes"
    sed -n 's/.* as deltas, \([0-9]*\) bytes took \([0-9]*\) .*/\1 \2/p' "$tmp/log" | awk '
        { n++; bytes += $1; took += $2 }
        END { if (n) printf "        %d connections: %d bytes of puts took %d as deltas, %.1f times fewer\n",
                  n, bytes, took, bytes / took
              exit !(n && bytes > 5 * took) }' ||
        fail "$file: deltas of puts on $1 nodes: $(grep 'as deltas' "$tmp/log")"
}

# Gathers by copy engines and coded sums by CollNet, of one communicator. Log, summary and metrics say which
# operations went which way, in each of two processes: four gathers, four sums of either kind.
side_by_side()
{
    case $tables in *version=2.2?.*) return ;; esac
    mkdir "$tmp/beside"
    run 2 "$windows $few $puts $coded NIBBLE_METRICS=$tmp/beside" beside
    for line in "all_gather with copy engines, past CollNet: bytes between nodes are nibble's puts" \
        'summary comm .*: past CollNet: all_gather copy_engines=4 (nibble.s puts .*) kernels=0' \
        'summary comm .*: reduce_scatter ops=4 coded=4 .* all_reduce ops=4 coded=4'; do
        [ "$(grep -c "$line" "$tmp/log")" = 2 ] || fail "$file: beside: no two lines: $line"
    done
    for line in 'past_collnet_operations_total{.*,collective="AllGather",way="copy_engines"} 4' \
        'coded_operations_total{.*,collective="ReduceScatter"} 4' \
        'coded_operations_total{.*,collective="AllReduce"} 4'; do
        [ "$(cat "$tmp"/beside/* | grep -c "^nibble_$line")" = 2 ] ||
            fail "$file: beside: no two metrics: $line"
    done
    rm -rf "$tmp/beside"
}

# A rank that ends in the middle of a gather by nibble's puts. The pace makes the middle long.
lost_in_gather()
{
    case $tables in *version=2.2?.*) return ;; esac
    run 3 "$windows $few $puts NIBBLE_TCP_PACE_MBPS=400" lost
    grep '^        a gather returns' "$tmp/log"
    [ "$(grep -c 'one-sided operations have failed' "$tmp/log")" = 2 ] ||
        fail "$file: two ranks did not say that a third one is lost"
}

raw="NCCL_ALGO=CollnetDirect NIBBLE_FORCE_COLLNET=1 NIBBLE_AG=raw NIBBLE_RS=raw NIBBLE_AR=raw"
coded="NIBBLE_GRAD=all NIBBLE_WARMUP_STEPS=0 NIBBLE_AR=int4 NIBBLE_RS=int4"
rails="NIBBLE_DEVS_PER_NIC=2" # each of two ranks of a node is a head then
word="NIBBLE_RS=int4 NIBBLE_AR=int4 NIBBLE_WARMUP_STEPS=0 NCCL_ALGO=CollnetDirect,Ring"
few="NCCL_MAX_NCHANNELS=2"    # six ranks connect all channels for minutes
jobs="NIBBLE_RS=int4 NIBBLE_AR=int4 NCCL_ALGO=CollnetDirect,Ring $few"
# Virtual memory, which the processor reaches by GDRCopy, and gathers without a kernel.
windows="NCCL_CUMEM_ENABLE=1 NCCL_GDRCOPY_ENABLE=1 NCCL_CTA_POLICY=2"
puts="NIBBLE_RMA=1 NIBBLE_P2P=delta NCCL_GDRCOPY_ENABLE=0 NCCL_DEBUG_SUBSYS=INIT,NET"
sockets="NCCL_NET_PLUGIN=none NCCL_COLLNET_ENABLE=0 NCCL_ALGO=Ring"
known=$(sed -n 's/^\([a-z0-9-]*\):.*/\1/p' "$srcdir/tests/jobs/known-violations.txt")
# Right in tests/jobs, but not here: some forces of molecular-dynamics-beside are quantized, and 97 % of the
# late gradients of task-heads are coded.
known="$known
molecular-dynamics-beside
task-heads"
# The same plugin with another text of its rules, which nodes compare by a hash.
LC_ALL=C sed 's/wire format %u, rules %u/wire format %u; rules %u/' "$plugin" >"$tmp/libother.so"
cmp -s "$plugin" "$tmp/libother.so" && fail "the plugin has no text of its rules"
for file in $files; do
    # shellcheck disable=SC2046
    "$python" "$srcdir/tests/nccl/layout.py" "$file" $("$cluster" names) >"$tmp/layout" 2>"$tmp/log" || {
        fail "$(cat "$tmp/log")"
        continue
    }
    tables=$("$builddir/tools/nibble-info" --no-speed --python "" --nccl "$file" |
        grep ' version=.*net_table=')
    run 2 "$raw" raw again
    run 2x2 "$coded $rails" coded
    play jobs "$jobs" ddp-adamw fsdp2-muon
    run 3 "$few NCCL_DEBUG_SUBSYS=INIT,NET" weights
    fewer "$file"
    gathers_of_windows 2 "$few"
    side_by_side
    lost_in_gather
    [ $long = 1 ] || continue
    # Every case and job once, before more ranks and nodes.
    run 2 "NIBBLE_RS=int4" sharded
    run 2 "$coded NIBBLE_GRAD=all_reduce:float32:400000" named
    run 2 "$word" said
    # Calls choose from 2.31 on. NCCL ignores it where its environment names algorithms or protocols.
    case $tables in *version=2.2?.* | *version=2.30.*) ;; *) run 2 "-u NCCL_PROTO $coded" chosen ;; esac
    run 2 "$raw" again many split abort raw
    run 3 "$raw" raw many split shrink grow revoke abort
    run 2 "$sockets" raw coded named said sharded again split abort
    run 3 "$sockets" raw many weights shrink grow revoke
    # shellcheck disable=SC2046
    play jobs "$sockets $few" $("$builddir/tests/nccl/jobs" list | awk "NR % 12 == 0")
    # In parts, since play ends after ten minutes.
    for part in 0 1 2 3 4 5 6 7 8 9 10 11; do
        # shellcheck disable=SC2046
        play jobs "$jobs" $("$builddir/tests/nccl/jobs" list | grep -vxF "$known" |
            awk "NR % 12 == $part")
    done
    run 2x2 "$sockets" raw coded sharded again split abort
    gathers_of_windows 3 "$few NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE=1"
    gathers_of_windows 2x2 "$few $rails"
    run 2x2 "$sockets $windows $few" windows exchange
    run 2x2 "$word $rails" said
    run 2x2 "NIBBLE_RS=int4 $rails" sharded
    run 2x2 "$raw $rails" raw again split abort
    run 3x2 "$raw $rails $few" raw many shrink grow revoke
    run 3x2 "$coded $rails $few" coded
    run 3 "$coded" coded
    run 4 "$coded" coded
    run 4 "$raw" raw again split abort
    run 4 "NIBBLE_RS=int4" sharded
    # Versions with other rules decline together, and NCCL's rings run over the plugin's connections.
    run 3 "NCCL_ALGO=CollnetDirect,Ring NB_OTHER_PLUGIN=$tmp/libother.so" raw again
    grep -q 'CollNet is declined on all nodes' "$tmp/log" || fail "$file: two versions of nibble ran together"
done
[ $failed = 0 ] && echo "PASS: NVIDIA's library with nibble, $(echo "$files" | wc -w) versions"
exit $failed
