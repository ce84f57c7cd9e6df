#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The verbs transport over Soft-RoCE, in virtual machines. As one of `make check` in a short form of less than a minute;
# `make check-vm` sets NB_VM_TESTS=long: the harness with all collectives and training in one machine with two devices
# and in two machines with a wire in between, and the bandwidth beside ib_write_bw. NB_VM_TESTS=off leaves it out.
set -u
here=$(cd "$(dirname "$0")" && pwd)
NB_BUILDDIR=$(cd "${NB_BUILDDIR:-.}" && pwd)
NB_PLUGIN=${NB_PLUGIN:-$NB_BUILDDIR/.libs/libnccl-net-nibble.so}
export NB_BUILDDIR NB_PLUGIN
form=${NB_VM_TESTS:-short}

[ "$form" != off ] || { echo "SKIP: NB_VM_TESTS=off"; exit 77; }
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: sanitizers and emulation together are too slow"
    exit 77
fi
if ! grep -q '^#define NB_HAVE_VERBS 1' "$NB_BUILDDIR/config.h"; then
    echo "SKIP: the verbs transport is not built (infiniband/verbs.h was not found)"
    exit 77
fi
ldconfig -p 2>/dev/null | grep -q libibverbs.so.1 || /sbin/ldconfig -p | grep -q libibverbs.so.1 ||
    { echo "SKIP: libibverbs is not installed"; exit 77; }

if [ "$form" = short ]; then
    # The kernel may have to be fetched first, which is not the machine's time.
    "$here/image.sh" "${NB_VM_CACHE:-$here/../../build/cache/vm}" || exit $?
    "$here/vm.sh" -t "${NB_VM_SECONDS:-300}" "$here/inside.sh" counters short
    exit $?
fi
failed=0
run()
{
    echo "== $*"
    "$here/vm.sh" "$@"
    status=$?
    [ $status != 77 ] || exit 77
    [ $status = 0 ] || failed=1
}
run -t 1500 "$here/inside.sh" counters long
run -t 1500 "$here/inside.sh" train fallback
run -t 1500 -n 2 "$here/inside.sh" counters long train
if command -v ib_write_bw >/dev/null 2>&1; then
    run -i -t 600 "$here/inside.sh" bandwidth
else
    echo "not measured: ib_write_bw (package perftest) is not installed"
fi
exit $failed
