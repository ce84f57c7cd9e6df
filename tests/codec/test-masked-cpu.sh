#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run the codecs' tests on lesser processors: without AVX-512, then without all vector extensions of x86-64.
# First masked_cpu.c hides the instructions from programs that work with the variant that this processor takes
# (the others go through all variants anyway). Then some of the programs, and the tests of other modules with
# vector code, run on an emulated processor that stops at a missing instruction.
set -u
[ "$(uname -m)" = x86_64 ] || { echo "SKIP: x86-64 only"; exit 77; }
[ -x tests/codec/test_mask ] || { echo "SKIP: built without Check"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

# judge STATUS TITLE: a test program may skip.
judge()
{
    case $1 in
    0) echo "passed: $2" ;;
    77) echo "skipped: $2: $(grep SKIP "$tmp/log")" ;;
    *)
        tail -n 40 "$tmp/log"
        echo "FAIL: $2, status $1"
        failed=1
        ;;
    esac
}

for kind in avx2 portable; do
    for test in golden hash mask quality; do
        NB_CPU=$kind "tests/codec/test_$test" >"$tmp/log" 2>&1
        judge $? "NB_CPU=$kind test_$test"
        grep -q "^NB_CPU=$kind in force" "$tmp/log" || { echo "FAIL: test_$test is not linked with masked_cpu.c"; failed=1; }
    done
done

if ! command -v qemu-x86_64 >/dev/null 2>&1; then
    echo "no emulated processor: qemu-x86_64 (Debian: qemu-user) is not installed"
else
    for processor in Haswell Nehalem; do
        tests="codec/test_golden policy/test_signs device/test_evidence"
        # Nehalem takes the portable variant, with which test_quant compares the others on any processor.
        [ $processor = Nehalem ] || tests="$tests codec/test_quant"
        for test in $tests; do
            # A few rounds of random data reach the instructions. On this processor there are more.
            NB_SEEDS=5 qemu-x86_64 -cpu $processor "tests/$test" >"$tmp/log" 2>&1
            judge $? "$processor $test"
        done
    done
fi
exit $failed
