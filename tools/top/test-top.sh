#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-top finds the running processes of a job without a setting, shows their communicators, and names a stopped node. Another
# user gets nothing, and a process with NIBBLE_LIVE=0 has no socket.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
unset_settings
top=$builddir/tools/nibble-top
perf="$builddir/tools/nibble-perf coll --ops all_reduce -N 3 -n 10000 -w 0 --reps 64 -b 64K -e 64K"
pgrep -P $$ >/dev/null 2>&1
[ $? -le 1 ] || { echo "SKIP: no pgrep"; exit 77; }

# run OPTION...: a job in the background; $nodes are its processes, once they answer.
run()
{
    $perf "$@" >"$tmp/perf" 2>&1 &
    job=$!
    for _ in $(seq 100); do
        # A tool of the build may be a script that runs the program.
        nodes=$(pgrep -P "$job" | tr '\n' ' ')
        # shellcheck disable=SC2086
        [ "$(echo $nodes | wc -w)" = 3 ] && return
        sleep 0.1
    done
    fail "no three nodes: $nodes; $(cat "$tmp/perf")"
}
finish()
{
    kill "$job" 2>/dev/null
    wait "$job" 2>/dev/null
}

run
for _ in $(seq 50); do
    # shellcheck disable=SC2086
    "$top" $nodes >"$tmp/out" 2>"$tmp/err"
    status=$?
    [ "$(grep -c '^  0x.* 3  *[0-2]  *[0-9]' "$tmp/out")" = 3 ] && break
    sleep 0.2
done
[ "$status" = 0 ] && [ "$(grep -c '^process ' "$tmp/out")" = 3 ] && [ "$(grep -c '^  0x.* 3  *[0-2]  *[0-9]' "$tmp/out")" = 3 ] ||
    fail "status $status: $(cat "$tmp/out" "$tmp/err")"
first=${nodes%% *}
"$top" --text "$first" >"$tmp/text" 2>"$tmp/err" || fail "--text: $(cat "$tmp/err")"
[ "$(grep -c "^nibble_info{.*pid=\"$first" "$tmp/text")" = 1 ] && grep -q '^nibble_operations_total{' "$tmp/text" || fail "--text: $(cat "$tmp/text")"
if command -v promtool >/dev/null 2>&1; then
    promtool check metrics <"$tmp/text" >"$tmp/out" 2>&1 || fail "promtool: $(cat "$tmp/out")"
fi
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null 2>&1; then
    cp "$(head -c 2 "$top" | grep -q '#!' && echo "$builddir/tools/.libs/nibble-top" || echo "$top")" "$tmp/top" && chmod 755 "$tmp" "$tmp/top"
    setpriv --reuid 65534 --clear-groups "$tmp/top" "$first" >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] && [ ! -s "$tmp/out" ] && grep -q 'no answer' "$tmp/err" || fail "another user gets: $(cat "$tmp/out" "$tmp/err")"
fi

# While a node is stopped the communicators of the others stand, as far as they are in an operation. The node may
# have stopped between two operations, where nobody waits for its data, so it need not be late.
stopped=$(echo "$nodes" | awk '{ print $3 }')
others=$(echo "$nodes" | awk '{ print $1, $2 }')
kill -STOP "$stopped"
for _ in $(seq 15); do
    sleep 1
    # shellcheck disable=SC2086
    "$top" $others >"$tmp/out" 2>"$tmp/err"
    grep -q '  stands [0-9]* s$' "$tmp/out" && break
done
grep -q '  stands [0-9]* s$' "$tmp/out" || fail "node 2 is stopped: $(cat "$tmp/out" "$tmp/err")"
kill -CONT "$stopped"
finish

run --env NIBBLE_LIVE=0
sleep 0.5
# shellcheck disable=SC2086
"$top" $nodes >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] && grep -q 'no process here answers' "$tmp/err" || fail "NIBBLE_LIVE=0: $(cat "$tmp/out" "$tmp/err")"
finish
"$top" many >/dev/null 2>"$tmp/err"
[ $? = 2 ] && grep -q 'a process: "many"' "$tmp/err" || fail "a process's number: $(cat "$tmp/err")"
[ $failed = 0 ] && echo "PASS: nibble-top"
exit $failed
