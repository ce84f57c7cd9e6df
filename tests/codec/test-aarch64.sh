#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Test the codecs for aarch64, cross-built and run under qemu-user. The codecs' tests are unchanged: golden
# vectors, and on random data the variants against the reference. emulated/check.h replaces Check, which is
# missing for another processor. Exit with 77 without a cross compiler or an emulator. NB_CROSS_CFLAGS
# replaces -O1, which compiles fastest.
set -u
srcdir=${NB_SRCDIR:-${srcdir:-.}}
cross=${NB_CROSS:-aarch64-linux-gnu-}
qemu=
for program in qemu-aarch64 qemu-aarch64-static; do
    command -v $program >/dev/null 2>&1 && qemu=$program && break
done
command -v "${cross}gcc" >/dev/null 2>&1 || { echo "SKIP: ${cross}gcc is not installed"; exit 77; }
[ -n "$qemu" ] || { echo "SKIP: qemu-aarch64 (Debian: qemu-user) is not installed"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
echo 'int main(void) { return 0; }' >"$tmp/empty.c"
"${cross}gcc" -static "$tmp/empty.c" -lm -o "$tmp/empty" 2>/dev/null && $qemu "$tmp/empty" ||
    { echo "SKIP: ${cross}gcc makes no programs that $qemu runs (Debian: libc6-dev-arm64-cross)"; exit 77; }

cc="${cross}gcc"
command -v ccache >/dev/null 2>&1 && cc="ccache $cc"
flags="-std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror -ffp-contract=off -fno-math-errno"
flags="$flags -I$srcdir/include -I$srcdir/plugin -I$srcdir -I$srcdir/tests/codec/emulated -I$srcdir/tests/codec"
objects=
for source in "$srcdir"/plugin/codec/*.c "$srcdir"/tests/codec/reference_*.c; do
    object=$tmp/$(basename "$source" .c).o
    # shellcheck disable=SC2086
    $cc ${NB_CROSS_CFLAGS:--O1} $flags -c "$source" -o "$object" || { echo "FAIL: $source does not compile"; exit 1; }
    objects="$objects $object"
done

# emulated PROGRAM TESTS [FLAG...]: run these tests of the program, all of them if the list is empty.
failed=0
emulated()
{
    name=$1
    tests=$2
    shift 2
    # shellcheck disable=SC2086
    if ! $cc -O1 $flags "$@" "$srcdir/tests/codec/$name.c" $objects -static -lm -o "$tmp/$name"; then
        echo "FAIL: $name does not compile"
        failed=1
    elif ! NB_SRCDIR=$srcdir ONLY=$tests $qemu "$tmp/$name" >"$tmp/log" 2>&1; then
        cat "$tmp/log"
        echo "FAIL: $name"
        failed=1
    else
        cat "$tmp/log"
    fi
}

emulated test_golden ""
emulated test_quant variants_agree,bound_is_met_exactly,sixteen_bit_outputs,sum_of_mixed_codecs,caller_rounding_mode,strange_records -DROUNDS=4
emulated test_ulp frozen,equal_is_one_byte,limit_stops_early
emulated test_hash frozen,variants_agree
exit $failed
