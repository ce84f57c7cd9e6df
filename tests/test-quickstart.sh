#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `./quickstart test` over a tree whose suites are small must report progress and the longest tests. After
# SIGTERM, or SIGINT to its process group as Ctrl-C sends it, it must end soon and leave no process of a
# suite.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/..}" && pwd) || exit 1
for tool in setsid pgrep make; do
    command -v $tool >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

fail()
{
    echo "FAILED: $*"
    cat "$tmp/log"
    # The remaining processes are this test's: it wrote their numbers itself.
    for pid in $(cat "$tmp"/pids/* 2>/dev/null); do
        kill -KILL "$pid" 2>/dev/null
    done
    exit 1
}

# Make a tree that has every package, where configure writes a Makefile, and "check" runs `work`.
tree=$tmp/tree
mkdir -p "$tree/bin" "$tmp/pids"
cp "$srcdir/quickstart" "$tree/"
cat >"$tree/configure" <<'END'
#!/bin/sh
cat >Makefile <<'MAKEFILE'
TESTS = tests/one tests/two
check_PROGRAMS = tests/one
check distcheck: ; @[ -z "$(TESTS)" ] || sh ../../work
MAKEFILE
END
cat >"$tree/bin/dpkg-query" <<'END'
#!/bin/sh
echo install ok installed
END
chmod +x "$tree/configure" "$tree/bin/dpkg-query"
touch "$tree/Makefile.in"

# start: run the command, which needs no NCCL here, in a separate process group, where SIGINT is not ignored
# as it is behind "&".
start()
{
    rm -rf "$tree/build" "$tmp"/pids/*
    unset MAKEFLAGS MFLAGS MAKELEVEL
    NB_NCCL_LIBRARIES=none PATH=$tree/bin:$PATH PIDS=$tmp/pids setsid env --default-signal=INT,TERM "$tree/quickstart" test >"$tmp/log" 2>&1 </dev/null &
    command=$!
}

echo "to its end"
cat >"$tree/work" <<'END'
mkdir -p tests
: >tests/one.log
sleep 2
: >tests/one.trs
echo "PASS: tests/one"
echo "# PASS: 1"
END
start
wait $command || fail "status $?"
grep -q "^4 passed, 0 failed, 0 skipped$" "$tmp/log" || fail "not 4 passed"
grep -q "s | plain: .* | sanitize-memory: .* | distribution: ended after" "$tmp/log" || fail "no progress"
grep -qE "^ +[2-9]  plain/tests/one$" "$tmp/log" || [ "$(stat -c %W "$tree/configure")" -le 0 ] || fail "no longest test"

# Each suite waits for three processes: one in its group, one in a separate group, one that ignores signals.
cat >"$tree/work" <<'END'
sleep 3000 &
echo $! >"$PIDS/$$.child"
env python3 -c 'import os, time; os.setpgid(0, 0); time.sleep(3000)' &
echo $! >"$PIDS/$$.group"
env --ignore-signal=TERM,INT,HUP sleep 3000 &
echo $! >"$PIDS/$$.deaf"
echo $$ >"$PIDS/$$.shell"
wait
END
for target in "TERM " "INT -"; do
    signal=${target% *}
    echo "SIG$signal"
    start
    for _ in $(seq 600); do
        [ "$(cat "$tmp"/pids/* 2>/dev/null | wc -l)" != 16 ] || break
        sleep 0.2
    done
    [ "$(cat "$tmp"/pids/* | wc -l)" = 16 ] || fail "not four suites with four processes"
    kill -s "$signal" -- "${target#* }$command" || fail "no signal"
    status=0
    timeout 60 tail --pid=$command -f /dev/null || fail "SIG$signal: it goes on"
    wait $command || status=$?
    [ $status = 143 ] || fail "SIG$signal: status $status"
    grep -q "^interrupted" "$tmp/log" || fail "SIG$signal: it does not say so"
    # The kernel takes a moment to end a process, and its new parent to notice.
    for file in "$tmp"/pids/*; do
        pid=$(cat "$file")
        for _ in $(seq 50); do
            grep -qs '^State:.[^Z]' "/proc/$pid/status" || continue 2
            sleep 0.2
        done
        fail "SIG$signal: process $pid goes on ($file)"
    done
done
echo "ok"
