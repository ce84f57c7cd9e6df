#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The harness over the transport `forward`, to a second copy of the plugin, which takes TCP. The short form
# runs the programs with NB_TEST_QUICK. NB_LONG_TESTS=1 runs all of them in full.
set -u
build=${NB_BUILDDIR:-.}
plugin=${NB_PLUGIN:-$build/.libs/libnccl-net-nibble.so}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
copy=$tmp/libnccl-net-copy.so
cp "$plugin" "$copy" || exit 1 # another file, so that the loader takes it for another library
NB_HARNESS_SETTINGS="NIBBLE_NET=forward NIBBLE_NET_FORWARD=$copy"
NB_PLUGIN=$plugin
export NB_HARNESS_SETTINGS NB_PLUGIN

programs="allgather bringup departures faults feedback quantized results traffic" # and lifecycle below
if [ "${NB_LONG_TESTS:-0}" != 0 ]; then
    programs="$programs control gathers records selftest stress"
else
    [ -z "${NB_SANITIZE:-}" ] || programs="quantized results traffic"
    NB_TEST_QUICK=1
    export NB_TEST_QUICK
fi

# The bytes must go through the copy.
if ! NB_HARNESS_VERBOSE=1 "$build/tests/harness/lifecycle" >"$tmp/log" 2>&1 ||
    ! grep -q 'connected over forward' "$tmp/log" ||
    ! grep -q 'point-to-point traffic goes through plugin nibble' "$tmp/log" ||
    grep -q 'connected over tcp' "$tmp/log"; then
    tail -n 50 "$tmp/log"
    echo "FAIL: the plugin does not forward to its copy"
    exit 1
fi

failed=0
for program in $programs; do
    if "$build/tests/harness/$program" >"$tmp/log" 2>&1; then
        echo "ok: $program, $(tail -n 1 "$tmp/log")"
    else
        failed=1
        cat "$tmp/log"
        echo "FAIL: $program over forward"
    fi
done
exit $failed
