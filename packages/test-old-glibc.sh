#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The installed files run with the symbols of glibc 2.28 (plugin/base/old_glibc.c), and functions bound to old symbols work:
# on this machine, on aarch64 under an emulator where there are both, and with the C library in the folder NB_OLD_LIBC.
set -u
export LC_ALL=C
srcdir=${NB_SRCDIR:-$(dirname "$0")/..}
builddir=${NB_BUILDDIR:-.}
plugin=${NB_PLUGIN:-$builddir/.libs/libnccl-net-nibble.so}
command -v readelf >/dev/null 2>&1 || { echo "SKIP: no readelf"; exit 77; }
grep -q '^#define NB_OLD_GLIBC 1' "$builddir/config.h" ||
    { echo "SKIP: configured for this machine's C library (sanitizers, --disable-old-glibc or another C library)"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

fail()
{
    echo "FAIL: $*"
    failed=1
}

# newer FILE: the symbols that it takes from a C library after 2.28
newer()
{
    readelf -W --dyn-syms "$1" | sed -n 's/.* UND \([^ ]*\)@GLIBC_\([0-9.]*\)\( .*\)\{0,1\}$/\2 \1/p' |
        awk '{ split($1, v, "."); if (v[1] > 2 || v[2] > 28) print $2 " (" $1 ")" }'
}

looked=0
for file in "$plugin" $(for tool in ${NB_TOOLS:?run me by make check}; do echo "$builddir/$tool"; done); do
    # A program that is linked with a shared library of the build is a script, and the program lies beside it.
    [ -f "${file%/*}/.libs/${file##*/}" ] && file=${file%/*}/.libs/${file##*/}
    readelf -W --dyn-syms "$file" | grep -q '@GLIBC_' || { fail "$file takes nothing from glibc"; continue; }
    found=$(newer "$file")
    [ -z "$found" ] || fail "$file needs more than glibc 2.28 has:" $found "(add them to plugin/base/old_glibc.c)"
    for library in libpthread.so.0 libdl.so.2; do
        readelf -d "$file" | grep -q "NEEDED.*\[$library\]" || fail "$file does not name $library, where old systems have functions"
    done
    looked=$((looked + 1))
done

# check COMPILER RUNNER...: the functions, one by one
printf '12345 ' >"$tmp/file"
ln -s file "$tmp/link"
check()
{
    compiler=$1
    shift
    # shellcheck disable=SC2086
    $compiler -std=gnu11 -Wall -Wextra -Werror -O2 -fno-builtin -D_GNU_SOURCE -pthread -o "$tmp/program" \
        "$srcdir/packages/test_old_glibc.c" "$srcdir/plugin/base/old_glibc.c" "$srcdir/plugin/base/old_glibc_start.c" \
        -Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--pop-state -lm ||
        { fail "the functions do not compile with $compiler"; return; }
    found=$(newer "$tmp/program")
    # pthread_getname_np stands for what is not in the list: newer() must see it where glibc has moved it
    case $found in *pthread_getname_np*) seen="pthread_getname_np is found, " ;; *) seen= ;; esac
    [ "$(echo "$found" | grep -vc pthread_getname_np)" = 0 ] || [ -z "$found" ] || fail "$compiler: beyond glibc 2.28:" $found
    "$@" "$tmp/program" "$tmp/file" "$tmp/link" || { fail "the functions with $compiler and $*"; return; }
    echo "the functions answer as ever, with $compiler: $seen$*"
}
check "${NB_CC:-gcc}" env
if command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1; then
    check aarch64-linux-gnu-gcc qemu-aarch64 -L /usr/aarch64-linux-gnu
else
    echo "without aarch64-linux-gnu-gcc and qemu-aarch64: that architecture was not tried"
fi

# Of Debian 11, say: dpkg-deb -x libc6_2.31*.deb X; NB_OLD_LIBC=X/lib/x86_64-linux-gnu
if [ "${NB_OLD_LIBC:-}" ]; then
    set -- "$NB_OLD_LIBC"/ld-linux-*.so.*
    [ -f "$1" ] || fail "no ld-linux-*.so.* in NB_OLD_LIBC=$NB_OLD_LIBC"
    for tool in $NB_TOOLS; do
        "$1" --library-path "$NB_OLD_LIBC" "$builddir/$tool" --version >"$tmp/out" 2>&1 ||
            fail "$tool with the C library of $NB_OLD_LIBC: $(cat "$tmp/out")"
    done
    # The doctor loads the plugin as NCCL does, and measures the codecs.
    NCCL_NET_PLUGIN=$plugin NIBBLE_NET=tcp NCCL_SOCKET_IFNAME=lo "$1" --library-path "$NB_OLD_LIBC" "$builddir/tools/nibble-doctor" \
        --nodes 2 >"$tmp/out" 2>&1
    grep -q "^ok *library .*$plugin.* starts with" "$tmp/out" || fail "the plugin with the C library of $NB_OLD_LIBC: $(cat "$tmp/out")"
    "$1" --library-path "$NB_OLD_LIBC" "$NB_OLD_LIBC"/libc.so.6 | head -n 1
fi
[ $failed = 0 ] && echo "PASS: the plugin and the tools, $looked files, load with glibc 2.28"
exit $failed
