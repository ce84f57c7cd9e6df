#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How fast the codecs' kernels are, beside a processor that misses no cache and guesses every branch right.
#   mca.sh [-t TYPES] [-v VARIANTS] [-o OPS] [-m MODEL]   (NB_PERF or NB_BUILDDIR says where nibble-perf is)
# The instructions that one call executes are written down one by one (nibble-perf codec --count --trace), and
# llvm-mca simulates the first 20000 of them on its model of a processor: ports, latencies and the width of the
# pipeline, and nothing else. Measured cycles are those of 64 KiB of values, which stay in the cache, at the clock of
# the same run, the fastest of some. A ratio above 1 means that the real processor is wider than the model. MODEL is
# llvm-mca's -mcpu. 77 when that cannot be done here.
set -u
types=bfloat16,float32
variants=avx2,avx512
ops=encode,encode_ef,decode,decode_add,reduce8
model=icelake-server
while getopts t:v:o:m: option; do
    case $option in
    t) types=$OPTARG ;;
    v) variants=$OPTARG ;;
    o) ops=$OPTARG ;;
    m) model=$OPTARG ;;
    *) exit 2 ;;
    esac
done
perf=${NB_PERF:-${NB_BUILDDIR:-.}/tools/nibble-perf}
[ -x "$perf" ] || { echo "$perf is not there: build it, or name it in NB_PERF or NB_BUILDDIR" >&2; exit 1; }
mca=
for name in llvm-mca llvm-mca-19 llvm-mca-16 llvm-mca-15 llvm-mca-14; do
    command -v $name >/dev/null 2>&1 && mca=$name && break
done
[ -n "$mca" ] || { echo "SKIP: llvm-mca is not installed (package llvm)"; exit 77; }
command -v objdump >/dev/null 2>&1 || { echo "SKIP: objdump is not installed (package binutils)"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# A libtool program in the build tree may be a script around the real one.
program=$perf
[ ! -x "$(dirname "$perf")/.libs/nibble-perf" ] || program=$(dirname "$perf")/.libs/nibble-perf
objdump -d --no-show-raw-insn "$program" | sed -n 's/^ *\([0-9a-f]*\):\t\(.*\)/\1\t\2/p' >"$tmp/text"

number() { sed -n "s/.*\"$2\": \([^,}]*\).*/\1/p" "$1"; }

# Words of the disassembler that the assembler does not take: comments, names of targets, hints.
assembly() {
    awk -F '\t' -v most=20000 '
        NR == FNR { code[$1] = $2; next }
        $1 == "0" { outside++; next }
        ++n <= most && ($1 in code) {
            line = code[$1]
            sub(/ *#.*/, "", line)
            sub(/ *<.*>/, "", line)
            sub(/^(notrack|bnd) /, "", line)
            if (line ~ /^(j[a-z]+|call) +[0-9a-f]+$/) sub(/[0-9a-f]+$/, "0x100", line)
            print line
        }
        END { print n, outside + 0 > "/dev/stderr" }' "$tmp/text" "$1"
}

printf '%-8s %-11s %-9s %12s %16s %16s %6s\n' variant op type instructions 'cycles simulated' 'cycles measured' ratio
for variant in $(echo "$variants" | tr , ' '); do
    for op in $(echo "$ops" | tr , ' '); do
        for type in $(echo "$types" | tr , ' '); do
            set -- --variants "$variant" --ops "$op" --types "$type" --bytes 64K
            "$perf" codec "$@" --count --trace "$tmp/trace" --json "$tmp/count" >/dev/null || exit 77
            assembly "$tmp/trace" >"$tmp/asm" 2>"$tmp/n"
            $mca -mtriple=x86_64-linux-gnu -mcpu="$model" -iterations=1 -instruction-info=false \
                -resource-pressure=false "$tmp/asm" >"$tmp/mca" 2>"$tmp/error" || {
                head -3 "$tmp/error" >&2
                exit 1
            }
            best=0
            for try in 1 2 3 4 5; do
                "$perf" codec "$@" --seconds 0.3 --json "$tmp/speed" >/dev/null || exit 1
                best=$(awk -v a="$best" -v b="$(number "$tmp/speed" gbps)" 'BEGIN { print (a + 0 > b + 0) ? a : b }')
            done
            # Of the part that was looked at, for as many instructions as the whole call has a value.
            awk -v variant="$variant" -v op="$op" -v type="$type" -v each="$(number "$tmp/count" instructions)" \
                -v gbps="$best" -v ghz="$(number "$tmp/speed" clock_ghz)" '
                /^Instructions:/ { part = $2 }
                /^Total Cycles:/ { total = $3 }
                END {
                    cycles = ghz * (type == "float32" ? 4 : 2) / gbps
                    printf "%-8s %-11s %-9s %12.2f %16.3f %16.3f %6.2f\n", variant, op, type, each,
                        total / part * each, cycles, total / part * each / cycles
                }' "$tmp/mca"
        done
    done
done
