#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-perf coll over three hosts, which are network namespaces: nccl-tests' table, in place and out of place, without a wrong
# value, by --hosts and by hand; settings and warnings of the plugin arrive; a node that does not come is named.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tools/bench/links.sh
. "$NB_SRCDIR/tools/bench/links.sh"
links_enter "$0" "$@"
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"

perf=$builddir/tools/nibble-perf
unset_settings
export NCCL_SOCKET_IFNAME==hx0 NIBBLE_NET=tcp

fail()
{
    echo "FAIL: $*"
    cat "$tmp/out" "$tmp/err"
    failed=1
}

cat >"$tmp/rsh" <<END
#!/bin/sh
[ "\$1" = n9 ] && exit 255
exec env -i PATH="$PATH" ASAN_OPTIONS="${ASAN_OPTIONS:-}" ip netns exec "\$1" sh -c "\$2"
END
chmod +x "$tmp/rsh"
links_up 3 0

# ---- By a list of hosts: three operations, two sizes; a setting of the caller's arrives
NIBBLE_HOME=1 "$perf" coll --hosts n0,n1 --rsh "$tmp/rsh" --root 10.77.0.1 -b 64K -e 64K -n 1 -w 0 >"$tmp/out" 2>"$tmp/err"
grep -q '^n1: node 1: .*NIBBLE_HOME' "$tmp/err" || fail "the plugin's warning does not arrive"
timeout -k 5 120 "$perf" coll --hosts n0,n1,n2 --rsh "$tmp/rsh" --root 10.77.0.1 -b 192K -e 768K -n 2 -w 1 --types float32 \
    --json "$tmp/json" >"$tmp/out" 2>"$tmp/err" || fail "status $?"
[ "$(grep -c '^  ' "$tmp/out")" = 6 ] || fail "not six rows"
grep -q '^# nibble-perf coll [0-9]' "$tmp/out" || fail "no version"
[ "$(grep -c '^#  Rank  [0-2] Pid' "$tmp/out")" = 3 ] || fail "not three hosts"
grep -q '^# Out of bounds values : 0 OK$' "$tmp/out" || fail "wrong values"
grep -q '^# Avg bus bandwidth    : [0-9.e-]*$' "$tmp/out" || fail "no average"
# size count type redop root, then time algbw busbw #wrong twice, wire and nmse
awk '/^  /{ if (NF != 15 || $6 <= 0 || $8 <= 0 || $9 != 0 || $10 <= 0 || $12 <= 0 || $13 != 0) exit 1 }' "$tmp/out" ||
    fail "a row is not whole"
awk '/^  .* float +sum/{ n++; if (!($14 > 0.1 && $14 < 0.2 && $15 > 1e-4 && $15 < 0.05)) exit 1 } END { exit n != 4 }' "$tmp/out" ||
    fail "sums are not coded with 4 bits"
awk '/^  .* float +none/{ n++; if ($15 != 0) exit 1 } END { exit n != 2 }' "$tmp/out" || fail "gathers are not exact"
# The leak sanitizer says so of a thread that ends just when it looks; what it finds is said otherwise, and fails.
grep -v 'Running thread [0-9]* was not suspended. False leaks are possible' "$tmp/err" >"$tmp/said" && fail "on stderr"
python3 - "$tmp/json" <<'END' || fail "the JSON"
import json, sys
rows = json.load(open(sys.argv[1]))
assert len(rows) == 6 and all(r["wrong"] == 0 and r["nodes"] == 3 and r["in_place_time_us"] > 0 for r in rows), rows
END

# ---- By hand, raw: sums are right to their last bits; an all-reduce of FP16 in place is left out
for node in 0 1; do
    on $node timeout -k 5 120 "$perf" coll --rank $node --nodes 2 --root 10.77.0.1 --port 23457 --raw --ops all_reduce,reduce_scatter \
        --types float16,bfloat16 -b 64K -e 64K -n 2 -w 1 >"$tmp/out$node" 2>"$tmp/err$node" &
done
wait
cat "$tmp/out0" >"$tmp/out"
cat "$tmp/err0" "$tmp/err1" >"$tmp/err"
[ -s "$tmp/out1" ] && fail "node 1 speaks: $(cat "$tmp/out1")"
grep -q '^# Out of bounds values : 0 OK$' "$tmp/out" || fail "wrong values, raw"
grep -q ' half *sum .* N/A *N/A *N/A *N/A' "$tmp/out" || fail "an all-reduce of FP16 in place"

# ---- A host that is out of reach; calls that cannot be
timeout -k 5 120 "$perf" coll --hosts n0,n9 --rsh "$tmp/rsh" --root 10.77.0.1 -n 1 >"$tmp/out" 2>"$tmp/err" && fail "without n9: status 0"
grep -q 'node 1 (n9): ended with status 255' "$tmp/err" || fail "n9 is not named"
printf '#!/bin/sh\nexit 0\n' >"$tmp/closed"
chmod +x "$tmp/closed"
timeout -k 5 120 "$perf" coll --hosts n0,n1 --rsh "$tmp/closed" -n 1 >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "shells that start nothing: another status than 2"
grep -q 'n0 ended without a report' "$tmp/err" || fail "n0 is not named"
for call in "coll --hosts n0,n1 --nodes 2" "p2p --hosts n0,n1" "coll --rank 2 --nodes 2" "coll --rank 0"; do
    # shellcheck disable=SC2086
    timeout 60 "$perf" $call >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] || fail "$call"
done

links_down
[ $failed = 0 ] && echo "PASS: nibble-perf over hosts"
exit $failed
