#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The harness with codec threads (NIBBLE_HOST_THREADS), on any number of cores: some programs as they are,
# over nodes without codec threads, with one or several, and over one buffer each. The short form runs some
# cases. NB_LONG_TESTS=1 runs all cases of more programs.
set -u
build=${NB_BUILDDIR:-.}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

some="NIBBLE_HOST_THREADS=2|NIBBLE_HOST_THREADS=0|NIBBLE_HOST_THREADS=7|NIBBLE_HOST_THREADS=1"
one_buffer="NIBBLE_HOST_THREADS=3 NIBBLE_CREDITS=1"
if [ "${NB_LONG_TESTS:-0}" != 0 ]; then
    programs="allgather departures faults feedback gathers lifecycle quantized records results stress"
    cases=
else
    programs="allgather feedback lifecycle quantized results"
    cases="cycles walk-bf16 slots-of-one-size out-of-step-two-hop asks-for-raw exact-types-2-nodes int4-two-hop
        repeatable foreign-values int4-two-level"
    if [ -n "${NB_SANITIZE:-}" ]; then
        programs="allgather lifecycle quantized"
        cases="cycles walk-bf16 asks-for-raw int4-two-hop foreign-values"
    fi
    NB_TEST_QUICK=1
    export NB_TEST_QUICK
fi

failed=0
run() { # SETTINGS PROGRAM
    chosen=
    for case in $cases; do
        "$build/tests/harness/$2" -l | grep -qx -e "$case" && chosen="$chosen $case"
    done
    # shellcheck disable=SC2086
    if NB_HARNESS_SETTINGS=$1 "$build/tests/harness/$2" $chosen >"$tmp/log" 2>&1; then
        echo "ok: $2 with $1, $(tail -n 1 "$tmp/log")"
    else
        failed=1
        cat "$tmp/log"
        echo "FAIL: $2 with $1"
    fi
}
for program in $programs; do
    run "$some" "$program"
done
run "$one_buffer" quantized
[ -n "${NB_SANITIZE:-}" ] || run "$one_buffer" allgather
exit $failed
