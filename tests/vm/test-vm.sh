#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The verbs transport over Soft-RoCE, in virtual machines. `make check` runs a short form of less than a
# minute. `make check-vm` sets NB_VM_TESTS=long: the harness with all collectives and training in one machine
# with two devices and in two machines with a wire in between, and the bandwidth beside ib_write_bw.
# NB_VM_TESTS=off leaves the test out.
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

failed=0
dead=
# run OPTIONS... COMMAND...: run it in virtual machines. A machine whose kernel dies says nothing about
# nibble: try it once more. If it dies again, too, this machine cannot run the test, which is a skip with its
# reason and never a pass.
run()
{
    echo "== $*"
    log=$(mktemp) || exit 1
    for try in 1 2; do
        "$here/vm.sh" "$@" 2>&1 | tee "$log"
        status=${PIPESTATUS[0]}
        [ "$status" = 99 ] || break
        cause=$(sed -n "s/^vm: the guest's kernel died: //p" "$log" | head -n 1)
        echo "the guest's kernel died (try $try of 2): $cause"
    done
    rm -f "$log"
    case $status in
    0) ;;
    77) exit 77 ;;
    99) dead=$cause ;;
    *) failed=1 ;;
    esac
}

# A known way for Soft-RoCE to die, in kernels before January 2026: a queue pair is destroyed while its
# retransmission timer runs out ("RDMA/rxe: Fix race condition in QP timer handlers"). Timers run out where
# emulation is slow and the machine is busy.
if [ "$form" = short ]; then
    # Fetching the kernel may come first, and does not count as the machine's time.
    "$here/image.sh" "${NB_VM_CACHE:-$here/../../build/cache/vm}" || exit $?
    run -t "${NB_VM_SECONDS:-3000}" "$here/inside.sh" counters short
else
    run -t 15000 "$here/inside.sh" counters long
    run -t 15000 "$here/inside.sh" train fallback
    run -t 15000 -n 2 "$here/inside.sh" counters long train
    if command -v ib_write_bw >/dev/null 2>&1; then
        run -i -t 6000 "$here/inside.sh" bandwidth
    else
        echo "not measured: ib_write_bw (package perftest) is not installed"
    fi
fi
[ $failed = 0 ] || exit 1
if [ -n "$dead" ]; then
    echo "SKIP: the guest's kernel died twice: $dead"
    exit 77
fi
exit 0
