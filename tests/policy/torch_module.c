/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of PyTorch and Python that policy/records/caller.c knows, under their names, in a library of the name
 * of theirs: they call what they are given, so that a stack looks as it does there. Loaded by
 * torch_stack.c. */
typedef void (*inner_fn)(void *arg);

/* What follows the call keeps it from being the last thing that the function does, and so its frame on the
 * stack. */
#define STANDS_FOR(name, symbol) \
    void name(inner_fn inner, void *arg) __asm__(symbol); \
    __attribute__((visibility("default"), noinline)) void name(inner_fn inner, void *arg) \
    { \
        inner(arg); \
        __asm__ volatile("" ::: "memory"); \
    }

STANDS_FOR(all_reduce_bucket, "_ZN4c10d7Reducer17all_reduce_bucketERNS0_6BucketE")
STANDS_FOR(used_map, "_ZN4c10d7Reducer25all_reduce_local_used_mapEv")
STANDS_FOR(thread_main, "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE")
STANDS_FOR(python, "PyObject_Call")
