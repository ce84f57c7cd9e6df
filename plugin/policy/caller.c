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

enum nb_caller nb_caller_of(const struct nb_frame *frame, size_t n, int whole)
{
    int torch = 0, python = 0;

    for (size_t i = 0; i < n; i++) {
        const struct nb_frame *f = &frame[i];

        torch |= module_begins(f, "libtorch");
        python |= is_python(f);
        if (!module_begins(f, "libtorch_cpu."))
            continue;
        if (begins(f->symbol, ALL_REDUCE_BUCKET))
            return python ? NB_CALLER_HOOK : NB_CALLER_BUCKET;
        if (begins(f->symbol, ENGINE)) /* the reducer would lie further in */
            return NB_CALLER_BACKWARD;
    }
    return torch && whole ? NB_CALLER_OUTSIDE : NB_CALLER_UNKNOWN;
}
