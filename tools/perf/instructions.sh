#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Instructions per value of the codecs' kernels: the figure that no other work on the machine disturbs.
#   instructions.sh [-t TYPES] [-v VARIANTS] [-o OPS]      (NB_PERF or NB_BUILDDIR says where nibble-perf is)
# One column is counted by nibble-perf itself, instruction by instruction, for every variant this CPU runs; the
# other by callgrind, which knows no AVX-512 ("-"). 77 when neither works here.
set -u
types=bfloat16,float32
variants=avx2,avx512,avx512-vbmi
ops=encode,encode_ef,decode,decode_add,reduce8,ulp_encode,ulp_decode
while getopts t:v:o: option; do
    case $option in
    t) types=$OPTARG ;;
    v) variants=$OPTARG ;;
    o) ops=$OPTARG ;;
    *) exit 2 ;;
    esac
done
perf=${NB_PERF:-${NB_BUILDDIR:-.}/tools/nibble-perf}
[ -x "$perf" ] || { echo "$perf is not there: build it, or name it in NB_PERF or NB_BUILDDIR" >&2; exit 1; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# A libtool program in the build tree may be a script around the real one.
program=$perf
[ ! -x "$(dirname "$perf")/.libs/nibble-perf" ] || program=$(dirname "$perf")/.libs/nibble-perf

# callgrind VARIANT OP TYPE: of 64 KiB of values. The operation runs once, then five times.
callgrind() {
    [ "${1#avx512}" = "$1" ] && command -v valgrind >/dev/null 2>&1 || return 1
    runs=6
    [ "$2" != reduce8 ] || runs=48 # eight contributions each
    valgrind --tool=callgrind --callgrind-out-file="$tmp/out" --collect-atstart=no --toggle-collect="op_$2" \
        "$program" codec --variants "$1" --ops "$2" --types "$3" --bytes 64K --seconds 0 >"$tmp/log" 2>&1 || return 1
    size=2
    [ "$3" != float32 ] || size=4
    awk -v calls=$runs -v values=$((65536 / size)) \
        '/^(summary|totals):/ { n = $2 } END { if (!n) exit 1; printf "%.3f", n / calls / values }' "$tmp/out"
}

printf '%-9s %-11s %-9s %14s %10s\n' variant op type instructions callgrind
"$perf" codec --count --variants "$variants" --ops "$ops" --types "$types" --bytes 64K --json "$tmp/json" \
    >/dev/null || exit 77
sed -n 's/.*"variant": "\([^"]*\)", "op": "\([^"]*\)", "type": "\([^"]*\)".*"instructions": \([^,}]*\).*/\1 \2 \3 \4/p' \
    "$tmp/json" | while read -r variant op type count; do
    other=$(callgrind "$variant" "$op" "$type") || other=-
    printf '%-9s %-11s %-9s %14.3f %10s\n' "$variant" "$op" "$type" "$count" "$other"
done
