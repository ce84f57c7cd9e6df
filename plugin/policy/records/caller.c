/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the caller of a collective by the frames of its stack. NCCL calls the profiler on the thread that
 * makes the call, so that the caller is still on the stack. In a job that gathers no weights only the caller
 * tells a gradient for certain from another sum of a fixed buffer.
 *
 * PyTorch's stack (2.15 over gloo; the same dispatcher calls ProcessGroupNCCL):
 *
 *  - DDP with its own all-reduce: `c10d::Reducer::all_reduce_bucket` of libtorch_cpu.so, whose symbols
 *    dladdr finds, seven frames from the process group, without Python between. It reduces only buckets of
 *    gradients. The reducer's bitmap of used parameters comes from another of its functions.
 *  - DDP with a hook in Python (BF16 compression, PowerSGD): the same function with the hook's Python frames
 *    between. The hook may reduce any data.
 *  - All other calls in a backward pass (FSDP, gradients of gathered features, SyncBatchNorm): Python or C++
 *    functions below one of `torch::autograd::Engine`. The reducer would lie further in, so the walk ends.
 *
 * Each return address is looked up once and remembered for the process. A lookup costs far more than a step
 * of the walk: the loader searches all symbols of a library, and PyTorch's has hundreds of thousands.
 */
#include "policy/records/records.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "base/context.h"

/* Kinds of a frame, as bits. */
enum frame_kind {
    FRAME_PYTHON = 1,
    FRAME_BUCKET = 2, /* the reducer's function that sums a bucket */
    FRAME_ENGINE = 4  /* the engine of backward passes */
};

/* Scan of frames, one by one, from the innermost (the collective) outwards. Zero: no frame yet. */
struct scan {
    unsigned seen; /* bits of all frames so far */
    enum nb_caller found;
};

/* c10d::Reducer::all_reduce_bucket(Bucket &): without its arguments, which change with releases. */
#define ALL_REDUCE_BUCKET "_ZN4c10d7Reducer17all_reduce_bucketE"
/* Functions of torch::autograd::Engine. A thread that walks the graph always has one of them on its stack. */
#define ENGINE "_ZN5torch8autograd6Engine"

static int begins(const char *text, const char *prefix)
{
    return text && strncmp(text, prefix, strlen(prefix)) == 0;
}

static int module_begins(const struct nb_frame *f, const char *prefix)
{
    const char *slash = f->module ? strrchr(f->module, '/') : NULL;

    return begins(slash ? slash + 1 : f->module, prefix);
}

/* Return 1 for a frame of the interpreter, or of PyTorch's bindings to it. A statically linked interpreter
 * has frames of a program of any name, but exports its functions. */
static int is_python(const struct nb_frame *f)
{
    return module_begins(f, "libpython") || module_begins(f, "libtorch_python") ||
           begins(f->symbol, "_PyEval_") || begins(f->symbol, "PyEval_") || begins(f->symbol, "_PyObject_") ||
           begins(f->symbol, "PyObject_");
}

static unsigned kind_of_frame(const struct nb_frame *f)
{
    unsigned kind = 0;

    if (is_python(f))
        kind |= FRAME_PYTHON;
    if (module_begins(f, "libtorch_cpu.") && begins(f->symbol, ALL_REDUCE_BUCKET))
        kind |= FRAME_BUCKET;
    if (module_begins(f, "libtorch_cpu.") && begins(f->symbol, ENGINE))
        kind |= FRAME_ENGINE;
    return kind;
}

/* Add a frame. Return 1 when the frames farther out do not matter: `found` is the answer. */
static int scan_frame(struct scan *scan, unsigned kind)
{
    if (kind & FRAME_BUCKET)
        scan->found = scan->seen & FRAME_PYTHON ? NB_CALLER_HOOK : NB_CALLER_BUCKET;
    scan->seen |= kind;
    return (kind & (FRAME_BUCKET | FRAME_ENGINE)) != 0;
}

enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n)
{
    struct scan scan = {0, NB_CALLER_UNKNOWN};

    for (size_t i = 0; i < n && !scan_frame(&scan, kind_of_frame(&frame[i])); i++)
        ;
    return scan.found;
}

/* Table of looked-up return addresses: the address, with the kind of its frame in the address's unused bits.
 * Zero: a free entry. A new address replaces the one in its entry. */
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
    return kind_of_frame(&f);
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

/* Frames of the first, short walk. DDP's reducer is among them, so that most walks end there. */
#define NEAR 32u

enum nb_caller nb_stack_caller(void)
{
    struct scan scan = {0, NB_CALLER_UNKNOWN};
    void *address[NB_CALLER_FRAMES];
    unsigned scanned = 0;

    for (unsigned most = NEAR; most <= NB_CALLER_FRAMES; most += NB_CALLER_FRAMES - NEAR) {
        /* Code without unwind tables also ends the stack, and hides the frames behind it. */
        const int got = backtrace(address, (int)most);

        while ((int)scanned < got)
            if (scan_frame(&scan, kind_of((uintptr_t)address[scanned++] & ADDRESS)))
                return scan.found;
        if (got < (int)most)
            break;
    }
    return NB_CALLER_UNKNOWN;
}
