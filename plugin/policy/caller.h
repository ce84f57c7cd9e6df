/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who calls a collective, by the frames of the caller's stack. NCCL tells the profiler of a call on the thread that makes
 * it, so what called is still on the stack. In a job that gathers no weights this is the only thing that tells a gradient
 * from another sum of a fixed buffer for certain.
 *
 * What PyTorch's stack looks like (2.15, over gloo; ProcessGroupNCCL is called through the same dispatcher):
 *
 * - DDP with its own all-reduce: `c10d::Reducer::all_reduce_bucket` of libtorch_cpu.so, whose symbols dladdr finds, seven
 *   frames from the process group, and no Python between. Whatever it reduces is a bucket of gradients. (The reducer's
 *   bitmap of used parameters comes from another of its functions.)
 * - DDP with a hook in Python (BF16 compression, PowerSGD): the same function, but the hook's Python frames lie between, and
 *   the hook may reduce whatever it likes.
 * - Everything else that is called in a backward pass (FSDP, gradients of gathered features, SyncBatchNorm): Python or
 *   C++ functions below `torch::autograd::Engine::evaluate_function`; or, what FSDP does at the very end of a pass, below
 *   `Engine::thread_main` alone. On the CPU that is the caller's own thread; with a GPU it is one named pt_autograd_N by
 *   the sources, so that the thread's name would prove no more than the engine's frames do.
 *
 * Pure: policy/stack.h walks.
 */
#ifndef NIBBLE_POLICY_CALLER_H
#define NIBBLE_POLICY_CALLER_H

#include <stddef.h>

/* Frames that are worth walking: DDP's reducer lay at most 24 deep, below a hook in Python. */
#define NB_CALLER_FRAMES 64u

enum nb_caller {
    NB_CALLER_UNKNOWN = 0, /* nothing is recognised */
    NB_CALLER_BUCKET,      /* DDP's reducer itself: a bucket of gradients, for certain */
    NB_CALLER_HOOK,        /* a hook that DDP's reducer has called: likely a gradient, not for certain */
    NB_CALLER_BACKWARD, /* somebody else in a backward pass: a gradient of parameters, activations or anything */
    NB_CALLER_OUTSIDE /* PyTorch, outside of any backward pass */
};

/* As dladdr tells it; NULL: not known. */
struct nb_frame {
    const char *module; /* file of the shared object; folders do not matter */
    const char *symbol; /* mangled */
};

/* What a frame is: bits. */
enum nb_frame_kind {
    NB_FRAME_TORCH = 1,
    NB_FRAME_PYTHON = 2,
    NB_FRAME_BUCKET = 4, /* the reducer's function that sums a bucket */
    NB_FRAME_ENGINE = 8  /* the engine of backward passes */
};
unsigned nb_frame_kind(const struct nb_frame *frame);

/* Frames one by one, from the innermost (the collective) outwards. Zero: none yet. */
struct nb_caller_scan {
    unsigned seen; /* bits of all */
    enum nb_caller found;
};
/* 1 when no frame farther out matters: `found` is the answer. */
int nb_caller_scan(struct nb_caller_scan *scan, unsigned kind);
/* All that there is has been scanned; whole: to the end of the stack. Otherwise what is not among them may still be
 * farther out, and NB_CALLER_OUTSIDE is never said. */
enum nb_caller nb_caller_scanned(const struct nb_caller_scan *scan, int whole);

/* `frame`: of a stack, from the innermost (the collective) outwards, `n` of them. whole: as above. */
enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n, int whole);

#endif
