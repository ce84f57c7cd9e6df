#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-doctor --hosts over three hosts, which are network namespaces reached by a command of the test's that passes nothing
# on but the line: variables and folder arrive whatever is in them, hosts that cannot be reached are named, and nobody stays
# behind when node 0's host fails or the caller is killed.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tools/bench/links.sh
. "$NB_SRCDIR/tools/bench/links.sh"
links_enter "$0" "$@"
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"

doctor="$builddir/tools/nibble-doctor"
unset_settings
# A folder that a shell would take apart.
odd="$tmp/it's \$HOME \"and\" \\more"
mkdir "$odd"
cp "$plugin" "$odd/libnccl-net-nibble.so"
export HOME="$tmp" NCCL_SOCKET_IFNAME==hx0 NIBBLE_NET=tcp NCCL_NET_PLUGIN="$odd/libnccl-net-nibble.so" NCCL_COLLNET_ENABLE=1 NCCL_NET=nibble

# The command for --rsh: hosts in $tmp/down are out of reach.
cat >"$tmp/rsh" <<END
#!/bin/sh
grep -qx "\$1" "$tmp/down" && { echo "\$1 is down" >&2; exit 255; }
cd /
exec env -i PATH="$PATH" HOME="$tmp" ASAN_OPTIONS="${ASAN_OPTIONS:-}" ip netns exec "\$1" sh -c "\$2"
END
chmod +x "$tmp/rsh"
: >"$tmp/down"

# run HOSTS OPTION...: $status, $tmp/out, $tmp/err
run()
{
    hosts=$1
    shift
    timeout -k 5 120 "$doctor" --hosts "$hosts" --rsh "$tmp/rsh" --root 10.77.0.1 --python "" --nccl "$tmp/none" --no-speed "$@" \
        >"$tmp/out" 2>"$tmp/err"
    status=$?
}

has()
{
    grep -q -- "$2" "$tmp/$1" || { fail "no \"$2\" in $1 (status $status):"; cat "$tmp/out" "$tmp/err"; }
}

# Nothing that was started for a run is left, or it is about to end.
nobody()
{
    for _ in $(seq 100); do
        pids=$(pidof nibble-doctor) || return
        sleep 0.1
    done
    fail "$1: processes $pids are left"
}

links_up 3 0

# ---- Well, from a file with comments and a host that is named twice, in a folder whose name must be quoted
printf '# hosts\nn0 slots=8\n\nn1 # the second\nn2\nn1\n' >"$odd/hosts"
here=$(pwd)
cd "$odd" || exit 1
export NIBBLE_METRICS=.
run hosts
cd "$here" || exit 1
unset NIBBLE_METRICS
has out '^nibble-doctor .* 3 nodes, by options'
has out '3 pairs in both directions'
has out 'settings: the same on 3 nodes: NIBBLE_METRICS=. NIBBLE_NET=tcp'
grep -q '^problem' "$tmp/out" && fail "a problem: $(cat "$tmp/out")"
[ "$status" -le 1 ] || fail "status $status"
[ -s "$tmp/err" ] && fail "on stderr: $(cat "$tmp/err")"

# ---- --json goes to the nodes like other options, with their values: here a folder that is not a system's
run n0,n1 --json --limit 20 --system "$odd"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$tmp/out" || fail "no JSON: $(cat "$tmp/out")"

# ---- A host that is down is named, with its node; the report is of the others
echo n2 >"$tmp/down"
run n0,n1,n2 --limit 10
has err '^n2: n2 is down$'
has err 'node 2 (n2): ended with status 255'
has out 'node 2 has not come'
has out '1 pairs in both directions'
[ "$status" = 2 ] || fail "status $status where a host is down"

# ---- Without node 0's host nobody waits for it
echo n0 >"$tmp/down"
run n0,n1,n2 --limit 600
has err 'node 0 (n0): ended with status 255'
[ "$status" = 2 ] || fail "status $status without node 0's host"
nobody "without node 0's host"

# ---- Who is killed leaves nothing behind: node 2 does not come, so the others wait for it
echo n2 >"$tmp/down"
"$doctor" --hosts n0,n1,n2 --rsh "$tmp/rsh" --root 10.77.0.1 --python "" --no-speed --limit 600 >"$tmp/out" 2>"$tmp/err" &
pid=$!
for _ in $(seq 300); do
    [ "$(pidof nibble-doctor | wc -w)" -ge 3 ] && grep -q 'node 2' "$tmp/err" && break
    sleep 0.1
done
[ "$(pidof nibble-doctor | wc -w)" -ge 3 ] || fail "the nodes did not start: $(cat "$tmp/err")"
kill -KILL $pid
wait $pid 2>/dev/null
nobody "the caller was killed"

# ---- A command that is not there; calls that cannot be
: >"$tmp/down"
timeout 60 "$doctor" --hosts n0,n1 --rsh "$tmp/none" >"$tmp/out" 2>"$tmp/err"
status=$?
has err 'node 0 (n0): a command was not found'
[ $status = 2 ] || fail "status $status without the command"
for call in "--hosts ," "--hosts -x" "--hosts n0 --rank 0" "--hosts n0,n1 --nodes 2"; do
    # shellcheck disable=SC2086
    timeout 60 "$doctor" $call >/dev/null 2>"$tmp/err"
    status=$?
    [ $status = 3 ] && grep -q -- '--hosts' "$tmp/err" || fail "$call: status $status, $(cat "$tmp/err")"
done

# ---- A shell that starts nothing (a disabled account, a forced command) is no report, whatever its exit status
for code in 0 1 2; do
    printf '#!/bin/sh\necho This account is currently not available.\nexit %s\n' $code >"$tmp/closed"
    chmod +x "$tmp/closed"
    for options in "--limit 10" "--limit 10 --json"; do
        # shellcheck disable=SC2086
        timeout 60 "$doctor" --no-speed $options --hosts n01,n02 --rsh "$tmp/closed" >"$tmp/out" 2>"$tmp/err"
        status=$?
        has err 'n01 ended without a report'
        [ $status = 2 ] || fail "status $status where the shells end with $code"
    done
done
# The same where only the second host is closed, and where the first's command ends in the middle
printf '#!/bin/sh\n[ "$1" = n1 ] && exit 0\nexec "%s" "$@"\n' "$tmp/rsh" >"$tmp/half"
chmod +x "$tmp/half"
run n0,n1 --limit 10 --rsh "$tmp/half"
has err 'n1 ended without a report'
has out 'node 1 has not come'
[ "$status" = 2 ] || fail "status $status where n1 starts nothing"

# ---- The user's shell on a host sees one plain line, so any shell will do
printf '#!/bin/sh\n[ "$2" = "exec /bin/sh" ] || { echo "a line for the shell: $2" >&2; exit 9; }\nexec "%s" "$@"\n' "$tmp/rsh" >"$tmp/plain"
chmod +x "$tmp/plain"
NIBBLE_GRAD='!reduce_scatter:bfloat16:7' run n0,n1 --rsh "$tmp/plain"
has out 'settings: the same on 2 nodes: .*NIBBLE_GRAD=!reduce_scatter:bfloat16:7'
[ "$status" -le 1 ] || fail "status $status through a plain line"

links_down
[ $failed = 0 ] && echo "PASS: nibble-doctor --hosts"
exit $failed
