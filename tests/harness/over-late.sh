#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The harness over a device that does its work late, in any order, and holds the engine to the rules of
# plugin/device/device.h (lib/late_device.c). The short form runs some programs with NB_TEST_QUICK.
# NB_LONG_TESTS=1 runs all in full.
set -u
build=${NB_BUILDDIR:-.}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
NB_PLUGIN=$build/.libs/libnccl-net-late.so
NB_LATE_REPORT=$tmp/report
export NB_PLUGIN NB_LATE_REPORT

if [ "${NB_LONG_TESTS:-0}" != 0 ]; then
    programs="allgather departures faults feedback late_gathers late_records lifecycle quantized results stress"
    runs=$(for p in $programs; do echo "poll:$p thread:$p thread,credits=1:$p"; done)
else
    runs="poll:late_records poll:lifecycle thread:allgather thread:feedback thread,credits=1:results thread,credits=1:quantized thread:late_gathers/delta4"
    # Some cases of each: an int4 sum, exact sums, in two hops and levels, deltas. Programs without any run all.
    cases="cycles versions walk-bf16 slots-of-one-size out-of-step-two-hop asks-for-raw
        exact-types-2-nodes int4-two-hop repeatable-two-hop foreign-values
        int4-two-level repeatable-two-level out-of-step-two-level"
    if [ -n "${NB_SANITIZE:-}" ]; then
        runs="poll:lifecycle thread:allgather thread,credits=1:results thread,credits=1:quantized"
    fi
    NB_TEST_QUICK=1
    export NB_TEST_QUICK
fi

failed=0
for run in $runs; do
    program=${run#*:}
    case $run in # one buffer each: a buffer that is reused too early is overwritten at once
    *credits=1:*) settings=NIBBLE_CREDITS=1 ;;
    *) settings= ;;
    esac
    chosen=
    case $program in # one case of it
    */*) chosen=${program#*/} program=${program%%/*} ;;
    esac
    for case in ${cases:-}; do
        "$build/tests/harness/$program" -l | grep -qx -e "$case" && chosen="$chosen $case"
    done
    # shellcheck disable=SC2086
    if NB_HARNESS_SETTINGS=$settings NB_LATE=${run%:*} "$build/tests/harness/$program" $chosen >"$tmp/log" 2>&1; then
        echo "ok: $run, $(tail -n 1 "$tmp/log")"
    else
        failed=1
        cat "$tmp/log"
        echo "FAIL: $program over a late device (NB_LATE=${run%:*})"
    fi
done

# The device must have been late, with several pieces of work at once.
most=$(sed -n 's/.* most \([0-9]*\) .*/\1/p' "$tmp/report" 2>/dev/null | sort -n | tail -n 1)
refused=$(sed -n 's/.* refused \([0-9]*\) .*/\1/p' "$tmp/report" 2>/dev/null | sort -n | tail -n 1)
echo "at most ${most:-0} works in flight, up to ${refused:-0} refused on one communicator"
if [ "${most:-0}" -lt 8 ] || [ "${refused:-0}" -lt 1 ]; then
    echo "FAIL: the device was not late"
    failed=1
fi
exit $failed
