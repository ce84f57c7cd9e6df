#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A new user's first hour, with the installed package alone, over three hosts that are network namespaces:
# install, nibble-info, nibble-doctor on healthy hosts and with a host broken in twelve ways, each named with its remedy,
# nibble-perf, metrics while it runs, the dashboard over a Prometheus that reads them, a host that hangs and that
# nibble-hang names, and removal.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/..}" && pwd)
builddir=$(cd "${NB_BUILDDIR:-.}" && pwd)
export NB_SRCDIR="$srcdir" NB_BUILDDIR="$builddir"
[ -z "${NB_SANITIZE:-}" ] || { echo "SKIP: packages are not built with sanitizers"; exit 77; }
for program in dpkg dpkg-deb objdump; do
    command -v $program >/dev/null 2>&1 || { echo "SKIP: no $program"; exit 77; }
done
# shellcheck source=tools/bench/links.sh
. "$srcdir/tools/bench/links.sh"
links_enter "$0" "$@"

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
for name in $(env | sed -n 's/^\(NIBBLE_[A-Z0-9_]*\|NCCL_[A-Z0-9_]*\|SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
failed=0

fail()
{
    echo "FAIL: $*"
    failed=1
}

# ---- Install
deb=$(sh "$srcdir/packages/deb.sh" --built "$builddir" "$tmp") || { echo "FAIL: deb.sh"; exit 1; }
root=$tmp/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
: >"$root/var/lib/dpkg/status"
(cd "$root" && find . | sort) >"$tmp/before"
dpkg --root="$root" --force-depends --log="$tmp/log" -i "$deb" >"$tmp/out" 2>&1 || fail "dpkg -i: $(cat "$tmp/out")"
bin=$root/usr/bin
lib=$(dirname "$(find "$root/usr/lib" -name libnccl-net-nibble.so)")
export HOME="$tmp" LD_LIBRARY_PATH="$lib" NCCL_NET_PLUGIN=nibble NCCL_COLLNET_ENABLE=1 NCCL_NET=nibble \
    NCCL_SOCKET_IFNAME==hx0 NIBBLE_NET=tcp

# A shell on a host, as ssh would give one; what breaks host n1 is in $tmp/break, lines for its shell.
cat >"$tmp/rsh" <<END
#!/bin/sh
broken=:
[ "\$1" = n1 ] && [ -s "$tmp/break" ] && broken=\$(cat "$tmp/break")
exec env -i PATH="$PATH" HOME="$tmp" ip netns exec "\$1" unshare --uts sh -c "hostname \$1; \$broken; \$(echo "\$2" | sed 's/^exec //')"
END
chmod +x "$tmp/rsh"
hosts="--hosts n0,n1,n2 --rsh $tmp/rsh --root 10.77.0.1"
links_up 3 0

# ---- Look
on 1 "$bin/nibble-info" --no-speed --python "" >"$tmp/out" 2>&1 || fail "nibble-info: $(cat "$tmp/out")"
grep -q '^  hx0  transport=tcp' "$tmp/out" || fail "nibble-info finds no hx0: $(cat "$tmp/out")"

# ---- Ask the doctor. doctor: $tmp/out; said WHAT: a line that has it, with a remedy behind it.
doctor()
{
    # shellcheck disable=SC2086
    timeout -k 5 200 "$bin/nibble-doctor" $hosts --no-speed --python "" --nccl "$tmp/none" --limit "${limit:-20}" \
        >"$tmp/out" 2>"$tmp/err"
    status=$?
    : >"$tmp/break"
}
said()
{
    grep -A 1 -E "^(problem|warning) .*$1" "$tmp/out" >"$tmp/line" || { fail "not named: $1"; cat "$tmp/out" "$tmp/err"; return; }
    grep -q '^ *-> .' "$tmp/line" || fail "no remedy: $(cat "$tmp/line")"
    named=$((named + 1))
}
named=0
: >"$tmp/break"
doctor
grep -q '^problem' "$tmp/out" && fail "a problem where there is none: $(cat "$tmp/out" "$tmp/err")"
grep -q '3 pairs in both directions' "$tmp/out" || fail "not all pairs: $(cat "$tmp/out")"
[ "$status" -le 1 ] || fail "status $status while all is well"

# 1 to 6: another setting, another NCCL variable, no CollNet, a folder that is not there, few files, another MTU.
# The line that the host's shell gets sets variables by env, so n1's variables are changed by an env of its own.
mkdir "$tmp/n1"
cat >"$tmp/n1/env" <<END
#!/bin/sh
while [ \$# -gt 0 ]; do case \$1 in *=*) export "\$1"; shift ;; *) break ;; esac; done
. "$tmp/variables"
exec "\$@"
END
chmod +x "$tmp/n1/env"
broken_with()
{
    echo "$1" >"$tmp/variables"
    echo "PATH=$tmp/n1:$PATH; export PATH; ${2:-:}" >"$tmp/break"
}
broken_with "export NIBBLE_RS=int8 NCCL_BUFFSIZE=65536 NCCL_COLLNET_ENABLE=0 NIBBLE_METRICS=/nowhere" \
    "ulimit -n 20; ip link set dev hx0 mtu 1500"
doctor
said 'node 1 .*: compared settings: .*NIBBLE_RS=int8'
said "node 1 .*NCCL's variables: .*NCCL_BUFFSIZE=65536"
said 'node 1 .*NCCL_COLLNET_ENABLE'
said 'node 1 .*NIBBLE_METRICS=/nowhere'
said 'node 1 .*files|files .*node 1'
said 'node 1 .*: MTU: 1500'
ip -n n1 link set dev hx0 mtu 9000
[ "$status" = 2 ] || fail "status $status with a broken host"

# 7, 8: no plugin there, a bad value
broken_with "export LD_LIBRARY_PATH=/nowhere NIBBLE_CREDITS=none"
doctor
said 'node 1 .*finds no plugin'
said 'node 1 .*NIBBLE_CREDITS=none: it must be'

# 9: no interface of that name
broken_with "export NCCL_SOCKET_IFNAME==hx7"
doctor
said 'node 1 .*NCCL_SOCKET_IFNAME==hx7 matches no interface'

# 10, 11: a pair that does not reach each other; a path that carries less than its interfaces say
ip -n n1 route add unreachable 10.77.0.3
ip -n switch link set dev port2 mtu 1500
for node in 0 1 2; do
    ip -n n$node link set dev hx0 gso_max_segs 1
done
limit=12 doctor
said 'node 1 .* -> node 2 .*cannot connect: '
said 'node 0 .* -> node 2 .*64 KiB do not: .*MTU'
ip -n n1 route del unreachable 10.77.0.3
ip -n switch link set dev port2 mtu 9000
links_up 3 0

# 12: a host that does not come
echo "exit 255" >"$tmp/break"
limit=5 doctor
said 'node 1 has not come'
grep -q 'node 1 (n1): ended with status 255' "$tmp/err" || fail "n1 is not named on stderr"
[ "$named" = 12 ] || fail "$named of twelve faults are named"

# ---- Measure, and watch it
mkdir "$tmp/metrics"
export NIBBLE_METRICS="$tmp/metrics" NIBBLE_METRICS_PERIOD=1 NIBBLE_HANG_REPORT="$tmp/metrics" NIBBLE_LATE_REPORT=1
# shellcheck disable=SC2086
"$bin/nibble-perf" coll $hosts --ops all_reduce --types bfloat16 -b 768K -e 768K -n 10000 -w 0 --reps 64 >"$tmp/out" 2>"$tmp/err" &
perf=$!
for _ in $(seq 600); do
    [ "$(cat "$tmp"/metrics/*.prom 2>/dev/null | grep -c '^nibble_coded_operations_total{.*collective="AllReduce"} [1-9]')" = 3 ] && break
    sleep 0.1
done
for host in n0 n1 n2; do
    grep -q "^nibble_coded_operations_total{.*node=\"$host\".*collective=\"AllReduce\"} [1-9]" "$tmp"/metrics/*.prom ||
        fail "no metrics of $host while it runs: $(ls "$tmp/metrics"; cat "$tmp/err")"
done
if command -v promtool >/dev/null 2>&1; then
    for file in "$tmp"/metrics/*.prom; do
        promtool check metrics <"$file" >"$tmp/line" 2>&1 || fail "promtool: $(cat "$tmp/line")"
    done
fi
ip link set dev lo up # Prometheus and what it asks are on this side
python3 "$root/usr/share/nibble/grafana/try_dashboard.py" "$tmp/metrics" >"$tmp/line" 2>&1
case $? in
0 | 77) cat "$tmp/line" ;;
*) fail "dashboard: $(cat "$tmp/line")" ;;
esac

# ---- A host hangs
for pid in $(ip netns pids n1); do
    kill -STOP "$pid"
done
for _ in $(seq 600); do
    "$bin/nibble-hang" "$tmp/metrics" >"$tmp/line" 2>&1
    sed -n '/^all wait for/{n;p;}' "$tmp/line" | grep -q 'node 1 (n1,' && break
    sleep 0.1
done
sed -n '/^all wait for/{n;p;}' "$tmp/line" | grep -q 'node 1 (n1,' || fail "nibble-hang does not name n1: $(cat "$tmp/line")"
for pid in $(ip netns pids n1); do
    kill -CONT "$pid"
done
kill $perf
wait $perf 2>/dev/null

# ---- Out again: the variables, and the package
unset NIBBLE_METRICS NIBBLE_METRICS_PERIOD NIBBLE_HANG_REPORT NIBBLE_LATE_REPORT
# shellcheck disable=SC2086
timeout -k 5 100 "$bin/nibble-perf" coll $hosts --ops all_reduce -b 192K -e 192K -n 1 -w 0 --env NIBBLE_ENABLE=0 >"$tmp/out" 2>"$tmp/err"
grep -q 'CollNet is declined\|NIBBLE_ENABLE=0\|the communicator cannot be connected' "$tmp/out" "$tmp/err" ||
    fail "NIBBLE_ENABLE=0 does not switch it off: $(cat "$tmp/out" "$tmp/err")"
dpkg --root="$root" --log="$tmp/log" -P nibble-nccl >"$tmp/out" 2>&1 || fail "dpkg -P: $(cat "$tmp/out")"
(cd "$root" && find . | grep -v '^./var/lib/dpkg' | sort) >"$tmp/after"
grep -v '^./var/lib/dpkg' "$tmp/before" | cmp -s - "$tmp/after" || fail "left behind: $(cat "$tmp/after")"

links_down
[ $failed = 0 ] && echo "PASS: a new user's hour"
exit $failed
