#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench.sh measures what it says on links as slow as it says, and leaves nothing behind.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
bench=$srcdir/tools/bench/bench.sh

# A folder of namespaces that is empty is as good as none.
interfaces() {
    ls /sys/class/net
    ls /run/netns 2>/dev/null
}

interfaces >"$tmp/before"
sets="main small"
[ "${NB_TEST_QUICK:-0}" = 0 ] || sets=main
"$bench" -N 2 -s 1000 -r 1 -S "$sets" -b 1M -t bfloat16 -o "$tmp/csv" >"$tmp/out" 2>&1
status=$?
[ $status != 77 ] || { cat "$tmp/out"; exit 77; }
[ $status = 0 ] || { cat "$tmp/out"; fail "bench.sh ended with $status"; }

# sample TOOL OP COLUMN: of the set main.
sample() {
    awk -F , -v tool="$1" -v op="$2" -v column="$3" \
        '$1 == "main" && $2 == tool && $6 == op { print $column; exit }' "$tmp/csv"
}

# 1 MiB: half of it passes each link, less the bucket of 128 KiB; raw that takes 3.1 ms at least. How much more it takes
# is the machine's affair, as long as they are seconds.
for op in reduce_scatter all_gather all_reduce; do
    awk -v t="$(sample raw $op 12)" 'BEGIN { exit !(t > 0.003 && t < 3) }' ||
        fail "raw $op took $(sample raw $op 12) s"
    awk -v a="$(sample raw $op 16)" 'BEGIN { exit !(a > 524288 && a < 1500000) }' ||
        fail "raw $op moved $(sample raw $op 16) bytes through a link"
    awk -v a="$(sample coded $op 16)" -v b="$(sample raw $op 16)" 'BEGIN { exit !(a > 0 && a < 0.4 * b) }' ||
        fail "coded $op moved $(sample coded $op 16) bytes, raw $(sample raw $op 16)"
done
[ "$sets" = main ] || [ "$(grep -c '^small,' "$tmp/csv")" -ge 66 ] || fail "not all sizes were measured"
grep -q '^main' "$tmp/out" && grep -q 'raw/it' "$tmp/out" || fail "no table"

# Ended in the middle, it takes its processes and namespaces along.
"$bench" -N 2 -s 5 -r 1 -S main -b 8M -t bfloat16 >"$tmp/cut" 2>&1 &
pid=$!
tries=0
while ! grep -q '^[0-9]* processors' "$tmp/cut" && [ $tries -lt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
sleep 0.5
children=$(ps -o pid= --ppid $pid)
kill -TERM $pid
wait $pid
[ $? != 0 ] || fail "a cut run ended with 0"
for child in $children; do
    tries=0
    while kill -0 "$child" 2>/dev/null && [ $tries -lt 200 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ $tries -lt 200 ] || fail "process $child is left"
done
interfaces >"$tmp/after"
cmp -s "$tmp/before" "$tmp/after" || fail "interfaces or namespaces are left"

# A long path: a stream and an all-reduce take at least the time of its rate and its round trip. Coded sums
# send fewer bytes (rate times time), however fast the machine is.
"$srcdir/tools/bench/wan.sh" -s 200 -d 20 -l 0 -b 4M -n 2 -t 1 >"$tmp/wan" 2>&1
status=$?
cat "$tmp/wan"
[ $status = 0 ] || [ $status = 77 ] || fail "wan.sh ended with $status"
[ $status = 77 ] || awk '
    $1 == 200 { n++; good = $4 > 2 && $4 < 210 && $6 > 150 && $10 > 40 && $6 * $7 > 2.5 * $10 * $11 }
    END { exit n != 1 || !good }' "$tmp/wan" || fail "wan.sh measured what 200 Mbit/s and 20 ms do not allow"
interfaces >"$tmp/after"
cmp -s "$tmp/before" "$tmp/after" || fail "wan.sh leaves interfaces or namespaces"

# Without root it says so.
if command -v setpriv >/dev/null 2>&1; then
    setpriv --reuid 65534 --clear-groups sh "$bench" >"$tmp/user" 2>&1
    status=$?
    [ $status = 77 ] || grep -q "Permission denied" "$tmp/user" || fail "without root: $status"
fi
exit $failed
