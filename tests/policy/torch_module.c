/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of PyTorch and Python that policy/records/caller.c knows, under their own names, in a library
 * with the name of theirs. They call their argument, so that a stack looks as it does in PyTorch.
 * torch_stack.c loads this module. */
typedef void (*inner_fn)(void *arg);

/* The statement after the call keeps the call from being the function's last action, and so keeps its frame
 * on the stack. */
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
