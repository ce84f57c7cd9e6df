#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzz one target: fuzz.sh TARGET [SECONDS]. As a test it runs for NB_FUZZ_SECONDS (60), or 3 with
# NB_TEST_QUICK=1. "make fuzz NB_FUZZ_SECONDS=3600" gives all targets hours. The corpus that they find stays
# in the build folder for later runs.
#   NB_FUZZ_CC  compiler with libFuzzer (clang). Without one, the project's compiler and the driver standalone.c
#   NB_FUZZ_DIR where to build and keep the corpus (fuzz-build in the build folder)
set -u
target=${1:?target}
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/../..}" && pwd) || exit 1
out=${NB_FUZZ_DIR:-${NB_BUILDDIR:-$srcdir}/fuzz-build}
seconds=${2:-${NB_FUZZ_SECONDS:-60}}
[ "${NB_TEST_QUICK:-0}" = 0 ] || seconds=3

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 1000000; }' >"$tmp/probe.c"
echo 'int main(void) { return 0; }' >"$tmp/main.c"

sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
plain="-fsanitize=address"
run=
objects=
wanted=libfuzzer
case $target in
*_threads) # The sanitizer watches threads for races. libFuzzer's counters would be races, and
    # the sanitizer needs addresses that are not random.
    wanted=standalone
    sanitize="-fsanitize=thread"
    plain=$sanitize
    objects=-threads
    ! setarch -R true 2>/dev/null || run="setarch -R"
    export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
    ;;
esac
cc=${NB_FUZZ_CC:-clang}
engine=libfuzzer
# shellcheck disable=SC2086
if [ $wanted = standalone ] || ! { $cc $sanitize -fsanitize=fuzzer -o "$tmp/probe" "$tmp/probe.c" && "$tmp/probe" -runs=1; } \
    >/dev/null 2>&1; then
    [ $wanted = standalone ] && command -v "$cc" >/dev/null 2>&1 || cc=${NB_CC:-cc}
    engine=standalone
    if ! command -v "${cc%% *}" >/dev/null 2>&1; then
        echo "SKIP: neither clang with libFuzzer nor $cc is here to build the fuzz target"
        exit 77
    fi
    for sanitize in "$sanitize" "$plain" ""; do
        { $cc $sanitize -o "$tmp/main" "$tmp/main.c" && $run "$tmp/main"; } >/dev/null 2>&1 && break
    done
fi
command -v make >/dev/null 2>&1 || { echo "SKIP: no make to build the fuzz target"; exit 77; }

objects=$engine$objects
mkdir -p "$out/$objects" "$out/corpus/$target" || exit 1
# Several targets may be tested at once, and they share objects. One builds while the others wait, so it uses
# their processors, too. Some objects take minutes.
build() {
    MAKEFLAGS='' make -s -j"$(nproc 2>/dev/null || echo 1)" -f "$srcdir/tests/fuzz/fuzz.mk" \
        SRCDIR="$srcdir" OUT="$out/$objects" FUZZ_CC="$cc" ENGINE=$engine SANITIZE="$sanitize" "$out/$objects/fuzz_$target" "$out/$objects/seeds"
}
if command -v flock >/dev/null 2>&1; then
    (flock 9 && build) 9>"$out/lock" || { echo "FAIL: the fuzz target does not build"; exit 1; }
else
    build || { echo "FAIL: the fuzz target does not build"; exit 1; }
fi
"$out/$objects/seeds" "$tmp/seeds" || { echo "FAIL: the program that makes the seeds"; exit 1; }

cd "$out" || exit 1
echo "fuzzing $target for $seconds s: $cc, $engine, sanitizers: ${sanitize:-none}"
export UBSAN_OPTIONS=print_stacktrace=1
if [ $engine = libfuzzer ]; then
    $run "./$objects/fuzz_$target" -seed=1 -max_len=40000 -timeout=600 -max_total_time="$seconds" \
        -print_final_stats=1 -artifact_prefix="$out/crash-$target-" \
        "corpus/$target" "$tmp/seeds/$target" >"$tmp/log" 2>&1
else
    $run "./$objects/fuzz_$target" -seconds="$seconds" -crash="$out/crash-$target" "$tmp/seeds/$target" \
        "corpus/$target" >"$tmp/log" 2>&1
fi
status=$?
if [ $status != 0 ]; then
    tail -n 60 "$tmp/log"
    echo "FAIL: $target; the input that did it is in $out"
    exit 1
fi
grep -E "stat::number_of_executed_units|stat::new_units_added|cov: .*DONE|DONE|runs in" "$tmp/log" | tail -n 4
exit 0
