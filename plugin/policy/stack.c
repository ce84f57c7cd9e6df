/* SPDX-License-Identifier: Apache-2.0 */
/* See stack.h. */
#include "policy/stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/context.h"

/* Return addresses that were looked up: the address, and the kind of its frame in the bits that no address has. Zero: free.
 * What falls on a place that is taken replaces it. */
#define KNOWN 1024u
#define KIND_SHIFT 56
#define ADDRESS ((UINT64_C(1) << KIND_SHIFT) - 1)

static _Atomic uint64_t known[KNOWN];

static unsigned look_up(uint64_t address)
{
    struct nb_frame f = {NULL, NULL};
    Dl_info info;

    /* A return address may be the first of the next function. */
    if (dladdr((const void *)(uintptr_t)(address - 1), &info)) {
        f.module = info.dli_fname;
        f.symbol = info.dli_sname;
    }
    return nb_frame_kind(&f);
}

static unsigned kind_of(uint64_t address)
{
    _Atomic uint64_t *at = &known[(address * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
    uint64_t entry = atomic_load_explicit(at, memory_order_relaxed);

    if ((entry & ADDRESS) != address) {
        entry = address | (uint64_t)look_up(address) << KIND_SHIFT;
        atomic_store_explicit(at, entry, memory_order_relaxed);
    }
    return (unsigned)(entry >> KIND_SHIFT);
}

/* Frames that are walked first: DDP's reducer is among them, so that the rest need not be. */
#define NEAR 32u

enum nb_caller nb_stack_caller(void)
{
    struct nb_caller_scan scan = {0, NB_CALLER_UNKNOWN};
    void *address[NB_CALLER_FRAMES];
    unsigned scanned = 0;

    for (unsigned most = NEAR;; most = NB_CALLER_FRAMES) {
        /* Code without unwind tables ends the stack, too: what it hides is not found. */
        const int got = backtrace(address, (int)most);
        const unsigned n = got > 0 ? (unsigned)got : 0;

        while (scanned < n)
            if (nb_caller_scan(&scan, kind_of((uintptr_t)address[scanned++] & ADDRESS)))
                return nb_caller_scanned(&scan, 0);
        if (n < most)
            return nb_caller_scanned(&scan, 1);
        if (most == NB_CALLER_FRAMES)
            return nb_caller_scanned(&scan, 0);
    }
}
