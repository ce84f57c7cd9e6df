#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole plugin for aarch64 (Grace, Graviton): cross-built, and run by the harness under qemu-user. Its
# nodes are emulated processes over this machine's sockets. The short form runs some cases. NB_LONG_TESTS=1
# runs all cases of more programs, except monitor, which starts a tool, and programs that load another plugin.
# 77 without a cross compiler or an emulator.
set -u
srcdir=$(cd "${NB_SRCDIR:-${srcdir:-.}}" && pwd)
cross=${NB_CROSS:-aarch64-linux-gnu-}
host=${cross%-}
[ -z "${NB_SANITIZE:-}" ] || { echo "SKIP: the cross build has no sanitizers"; exit 77; }
qemu=
for program in qemu-aarch64 qemu-aarch64-static; do
    command -v $program >/dev/null 2>&1 && qemu=$program && break
done
command -v "${cross}gcc" >/dev/null 2>&1 || { echo "SKIP: ${cross}gcc is not installed"; exit 77; }
[ -n "$qemu" ] || { echo "SKIP: qemu-aarch64 (Debian: qemu-user) is not installed"; exit 77; }
[ ! -f "$srcdir/config.status" ] || { echo "SKIP: built in the source's folder, so that no second build is possible"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
echo 'int main(void) { return 0; }' >"$tmp/empty.c"
"${cross}gcc" "$tmp/empty.c" -o "$tmp/empty" 2>/dev/null && $qemu -L "/usr/$host" "$tmp/empty" ||
    { echo "SKIP: ${cross}gcc makes no programs that $qemu runs (Debian: libc6-dev-arm64-cross)"; exit 77; }

if [ "${NB_LONG_TESTS:-0}" != 0 ]; then
    programs="allgather bringup control departures faults feedback gathers lifecycle quantized records results selftest stress threads traffic"
    cases=
else
    programs="allgather feedback lifecycle records results"
    cases="unchanged walk-8-bit nan-once versions lost-record exact-types-2-nodes exact-types-two-hop"
fi
targets=
for program in $programs; do
    targets="$targets tests/harness/$program"
done
unset MAKEFLAGS MFLAGS MAKELEVEL
mkdir "$tmp/build" && cd "$tmp/build" || exit 1
# shellcheck disable=SC2086
{ "$srcdir/configure" --host="$host" --without-cuda --disable-static --disable-dependency-tracking CFLAGS="-O0" &&
    make -j2 libnccl-net-nibble.la $targets; } >"$tmp/log" 2>&1 || { tail -n 40 "$tmp/log"; echo "FAIL: it does not build"; exit 1; }

failed=0
NB_BUILDDIR=. NB_PLUGIN=$tmp/build/.libs/libnccl-net-nibble.so NB_TEST_QUICK=1
export NB_BUILDDIR NB_PLUGIN NB_TEST_QUICK
for program in $programs; do
    chosen=
    for case in $cases; do
        $qemu -L "/usr/$host" "tests/harness/$program" -l | grep -qx -e "$case" && chosen="$chosen $case"
    done
    # shellcheck disable=SC2086
    if $qemu -L "/usr/$host" "tests/harness/$program" $chosen >"$tmp/log" 2>&1; then
        echo "ok: $program, $(tail -n 1 "$tmp/log")"
    else
        failed=1
        cat "$tmp/log"
        echo "FAIL: $program"
    fi
done
exit $failed
