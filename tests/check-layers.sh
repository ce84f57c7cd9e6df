#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The code has the layers of docs/architecture.md: each file uses its own layer and lower ones, folders do not
# use each other in a circle, the headers of a folder are private except for those that it shows, and mutable
# globals are only where plugin/base/context.h says so. layers.py checks it and explains its lines. Before
# that, it must find the offences that this test makes.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
export LC_ALL=C

for tool in python3 nm make; do
    command -v $tool >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
cd "$builddir" || exit 1
objects=$(MAKEFLAGS='' make -s --no-print-directory print-objects | tr ' ' '\n' | sed 's|\([^/]*\)\.lo$|.libs/\1.o|')
[ -n "$objects" ] || { echo "FAIL: the Makefile names no objects"; exit 1; }
# layers FILE [EXTRA]...: write offences to FILE, and layers.py's counts to FILE.counts
layers()
{
    out=$1
    shift
    # shellcheck disable=SC2086
    python3 "$srcdir/tests/layers.py" "$srcdir" $objects "$@" >"$out" 2>"$out.counts" || [ $? = 1 ] ||
        { cat "$out.counts"; echo "FAIL: layers.py"; exit 1; }
}

# A file of base/ that calls coll/, includes it and has a variable. A file of policy/records that uses
# policy/job, which may use it. Two folders in base/ that call each other, and one of them includes a private
# header of the other. Two headers that include each other.
upper=$(nm -g --defined-only "$(echo "$objects" | grep -m 1 'plugin/coll/')" | awk '$2 == "T" { print $3; exit }')
cat >"$tmp/up.c" <<END
#include "coll/coll.h"
void $upper(void);
void nb_offend_up(void);
int nb_offend_variable = 1;
void nb_offend_up(void)
{
    static int calls;
    if (++calls > 1)
        $upper();
}
END
inner=$(nm -g --defined-only "$(echo "$objects" | grep -m 1 'plugin/policy/job/')" | awk '$2 == "T" { print $3; exit }')
cat >"$tmp/inner.c" <<END
#include "policy/job/job.h"
void (*nb_offend_inner(void))(void);
void (*nb_offend_inner(void))(void)
{
    return (void (*)(void))$inner;
}
END
for it in here:there there:here; do
    a=${it%:*} b=${it#*:}
    cat >"$tmp/$a.c" <<END
void nb_offend_here(int n);
void nb_offend_there(int n);
void nb_offend_$a(int n)
{
    nb_offend_$b(n + 1);
}
END
    echo "#include \"base/$b/$b.h\"" >"$tmp/$a.h"
done
echo '#include "base/here/private.h"' >"$tmp/includes.h"
: >"$tmp/private.h"
set --
for it in up=base/up inner=policy/records/inner here=base/here/here there=base/there/there; do
    name=${it%=*} place=plugin/${it#*=}.c
    # shellcheck disable=SC2086
    ${NB_CC:-cc} ${NB_SANITIZE:-} -O1 -fPIC -I"$srcdir/plugin" -I"$srcdir/include" -I"$srcdir" -D_GNU_SOURCE \
        -c -o "$tmp/$name.o" "$tmp/$name.c" || { echo "FAIL: cannot compile the offences"; exit 1; }
    set -- "$@" --extra "$place=$tmp/$name.o" --extra-source "$place=$tmp/$name.c"
done
for it in here/here there/there here/private there/includes; do
    set -- "$@" --extra-source "plugin/base/$it.h=$tmp/${it#*/}.h"
done
layers "$tmp/found"
layers "$tmp/proof" "$@"
unnoticed=0
while read -r expected; do
    grep -qE "^$expected\$" "$tmp/proof" && ! grep -qE "^$expected\$" "$tmp/found" ||
        { echo "FAIL: not noticed: $expected"; unnoticed=1; }
done <<END
symbol plugin/base/up.c -> plugin/coll/[a-z_/]*.c: $upper
include plugin/base/up.c -> plugin/coll/coll.h
symbol plugin/policy/records/inner.c -> plugin/policy/job/[a-z_]*.c: $inner
include plugin/policy/records/inner.c -> plugin/policy/job/job.h
global plugin/base/up.c: nb_offend_variable
global plugin/base/up.c: calls
cycle base/here -> base/there: plugin/base/here/here.c .*
cycle base/there -> base/here: .*plugin/base/there/there.c .*
private plugin/base/there/includes.h -> plugin/base/here/private.h
include-cycle plugin/base/here/here.h: plugin/base/there/there.h
END
[ $unnoticed = 0 ] || exit 1

if [ -s "$tmp/found" ]; then
    cat "$tmp/found"
    echo "FAIL: the lines above are not allowed"
    exit 1
fi
echo "PASS: $(cat "$tmp/found.counts")"
