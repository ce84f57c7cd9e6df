#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The plugin file exports the tables of the versions that the headers list and no other name. It needs only
# libc, libm, libpthread and libdl, defines all of its own names, and stays mapped when it is closed.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
export LC_ALL=C

for tool in nm readelf; do
    command -v $tool >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
[ -f "$plugin" ] || { echo "FAIL: $plugin was not built"; exit 1; }
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer adds names and libraries of its own"
    exit 77
fi

names=$(nm -D --defined-only "$plugin" | awk '{ print $NF }' | sort)
# versions LIST HEADER TABLE...: print the tables' names, of all versions in a header's list.
versions()
{
    numbers=$(sed -n "s/^#define NB_$1_VERSIONS(X) //p" "$srcdir/include/nibble/$2" | tr -dc '0-9 ')
    [ -n "$numbers" ] || echo "include/nibble/$2 has no list NB_$1_VERSIONS"
    shift 2
    for table in "$@"; do
        for number in $numbers; do
            echo "${table}_v$number"
        done
    done
}
allowed=$({
    versions NET nccl_net.h ncclNetPlugin ncclCollNetPlugin
    versions TUNER nccl_tuner.h ncclTunerPlugin
    versions PROFILER nccl_profiler.h ncclProfiler
    versions RMA nccl_rma.h ncclRmaPlugin
    echo nibbleForwarding_v1
} | sort)
if [ "$names" != "$allowed" ]; then
    echo "exported:"
    echo "$names"
    fail "the exported names are not the tables of the versions that the headers list"
fi
# Data, as NCCL expects, and read-only: an exported table never changes.
kinds=$(nm -D --defined-only "$plugin" | awk '{ print $(NF - 1) }' | sort -u | tr -d '\n')
[ "$kinds" = D ] || [ "$kinds" = R ] || fail "the tables are of kind '$kinds' instead of D or R"
nm "$plugin" >/dev/null 2>&1 && nm -a "$plugin" | grep -q ' nb_' || echo "note: stripped, local names not looked at"

needed=$(readelf -d "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
    case $library in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | ld-linux*) ;;
        *) fail "it needs $library" ;;
    esac
done

undefined=$(nm -D --undefined-only "$plugin" | awk '{ print $NF }' | grep '^nb_')
[ -z "$undefined" ] || fail "undefined: $undefined"

readelf -d "$plugin" | grep -q NODELETE || fail "it is not linked with -z nodelete"
readelf -d "$plugin" | grep -q SYMBOLIC || fail "it is not linked with -Bsymbolic"
readelf -d "$plugin" | grep -q TEXTREL && fail "it has text relocations"
readelf -lW "$plugin" | grep -q 'GNU_STACK.*RWE' && fail "it asks for an executable stack"

[ $failed = 0 ] && echo "PASS: $(echo "$names" | wc -l) names; needs $(echo $needed)"
exit $failed
