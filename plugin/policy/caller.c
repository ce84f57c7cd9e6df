/* SPDX-License-Identifier: Apache-2.0 */
/* See caller.h. */
#include "policy/caller.h"

#include <string.h>

/* c10d::Reducer::all_reduce_bucket(Bucket &): the prefix without its arguments, which change with releases. */
#define ALL_REDUCE_BUCKET "_ZN4c10d7Reducer17all_reduce_bucketE"
/* Functions of torch::autograd::Engine. Of a thread that walks the graph one is always on the stack. */
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

/* Of the interpreter, or of PyTorch's bindings to it. An interpreter that is linked statically has frames of a program of any
 * name, but its functions are exported. */
static int is_python(const struct nb_frame *f)
{
    return module_begins(f, "libpython") || module_begins(f, "libtorch_python") ||
           begins(f->symbol, "_PyEval_") || begins(f->symbol, "PyEval_") || begins(f->symbol, "_PyObject_") ||
           begins(f->symbol, "PyObject_");
}

unsigned nb_frame_kind(const struct nb_frame *f)
{
    unsigned kind = 0;

    if (module_begins(f, "libtorch"))
        kind |= NB_FRAME_TORCH;
    if (is_python(f))
        kind |= NB_FRAME_PYTHON;
    if (module_begins(f, "libtorch_cpu.") && begins(f->symbol, ALL_REDUCE_BUCKET))
        kind |= NB_FRAME_BUCKET;
    if (module_begins(f, "libtorch_cpu.") && begins(f->symbol, ENGINE))
        kind |= NB_FRAME_ENGINE;
    return kind;
}

int nb_caller_scan(struct nb_caller_scan *scan, unsigned kind)
{
    if (kind & NB_FRAME_BUCKET)
        scan->found = scan->seen & NB_FRAME_PYTHON ? NB_CALLER_HOOK : NB_CALLER_BUCKET;
    else if (kind & NB_FRAME_ENGINE) /* the reducer would lie further in */
        scan->found = NB_CALLER_BACKWARD;
    scan->seen |= kind;
    return scan->found != NB_CALLER_UNKNOWN;
}

enum nb_caller nb_caller_scanned(const struct nb_caller_scan *scan, int whole)
{
    if (scan->found == NB_CALLER_UNKNOWN && whole && scan->seen & NB_FRAME_TORCH)
        return NB_CALLER_OUTSIDE;
    return scan->found;
}

enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n, int whole)
{
    struct nb_caller_scan scan = {0, NB_CALLER_UNKNOWN};

    for (size_t i = 0; i < n && !nb_caller_scan(&scan, nb_frame_kind(&frame[i])); i++)
        ;
    return nb_caller_scanned(&scan, whole);
}
