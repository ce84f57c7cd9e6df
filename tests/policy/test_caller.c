/* SPDX-License-Identifier: Apache-2.0 */
/* Find the caller, on stacks that dladdr reported in processes of PyTorch 2.15 over gloo. The bitmap's stack
 * follows PyTorch's sources. Stacks are shortened where they decide no case. */
#include <stdlib.h>

#include "policy/records/records.h"
#include "tests/suite.h"
#include "torch_stack.h"

#define CPU "/usr/lib/python3/site-packages/torch/lib/libtorch_cpu.so"
#define BINDING "/usr/lib/python3/site-packages/torch/lib/libtorch_python.so"
#define PYTHON "/usr/lib/libpython3.11.so.1.0"
#define REDUCER "_ZN4c10d7Reducer"
#define ENGINE \
    {CPU, "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_" \
          "11InputBuffer"}, \
    { \
        CPU, "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE" \
    }
#define SCRIPT \
    {BINDING, NULL}, {PYTHON, "_PyObject_Call"}, {PYTHON, "_PyEval_EvalFrameDefault"}, \
    { \
        "/usr/bin/python3", "_start" \
    }
#define N(frames) (sizeof(frames) / sizeof((frames)[0]))

static const struct nb_frame bucket[] = {{"libnccl.so.2", "ncclAllReduce"},
                                         {CPU, NULL},
                                         {CPU, NULL},
                                         {CPU, REDUCER "18run_allreduce_hookERNS_10GradBucketE"},
                                         {CPU, REDUCER "13run_comm_hookERNS_10GradBucketE"},
                                         {CPU, REDUCER "17all_reduce_bucketERNS0_6BucketE"},
                                         {CPU, REDUCER "17mark_bucket_readyEm"},
                                         {CPU, REDUCER "12autograd_hookEm"},
                                         {CPU, NULL},
                                         ENGINE,
                                         SCRIPT};

START_TEST(ddp)
{
    ck_assert_int_eq(nb_caller_of(bucket, N(bucket)), NB_CALLER_BUCKET);
    /* Cut the stack before the reducer. */
    ck_assert_int_eq(nb_caller_of(bucket, 3), NB_CALLER_UNKNOWN);
}
END_TEST

START_TEST(ddp_with_a_hook)
{
    static const struct nb_frame hook[] = {{"libnccl.so.2", "ncclAllReduce"},
                                           {CPU, NULL},
                                           {BINDING, NULL},
                                           {PYTHON, "_PyEval_EvalFrameDefault"},
                                           {BINDING, NULL},
                                           {CPU, REDUCER "13run_comm_hookERNS_10GradBucketE"},
                                           {CPU, REDUCER "17all_reduce_bucketERNS0_6BucketE"},
                                           ENGINE,
                                           SCRIPT};
    /* An interpreter that is part of the program. */
    static const struct nb_frame within[] = {{CPU, NULL},
                                             {"/usr/bin/python3", "_PyEval_EvalFrameDefault"},
                                             {CPU, REDUCER "17all_reduce_bucketERNS0_6BucketE"}};

    ck_assert_int_eq(nb_caller_of(hook, N(hook)), NB_CALLER_HOOK);
    ck_assert_int_eq(nb_caller_of(within, N(within)), NB_CALLER_HOOK);
}
END_TEST

/* The reducer also sends the bitmap of used parameters, which is not a bucket. */
START_TEST(ddp_bitmap)
{
    static const struct nb_frame bitmap[] = {{CPU, NULL},
                                             {CPU, REDUCER "25all_reduce_local_used_mapEv"},
                                             {CPU, REDUCER "19mark_variable_readyEm"},
                                             ENGINE,
                                             SCRIPT};

    ck_assert_int_eq(nb_caller_of(bitmap, N(bitmap)), NB_CALLER_UNKNOWN);
}
END_TEST

START_TEST(others)
{
    static const struct nb_frame fsdp[] = {
        {CPU, NULL}, {BINDING, NULL}, {PYTHON, "_PyObject_Call"}, ENGINE, SCRIPT};
    /* At the end of a backward pass the engine evaluates no node of the graph. */
    static const struct nb_frame callback[] = {
        {CPU, NULL},
        {PYTHON, "_PyEval_EvalFrameDefault"},
        {BINDING, NULL},
        {CPU, "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9Gr"},
        SCRIPT};
    static const struct nb_frame script[] = {{CPU, NULL}, SCRIPT};
    static const struct nb_frame program[] = {
        {"libnccl.so.2", "ncclAllReduce"}, {"all_reduce_perf", NULL}, {NULL, NULL}};
    /* Another library's function of that name. */
    static const struct nb_frame other[] = {{"libmine.so", REDUCER "17all_reduce_bucketERNS0_6BucketE"}};

    ck_assert_int_eq(nb_caller_of(fsdp, N(fsdp)), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(callback, N(callback)), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(script, N(script)), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(program, N(program)), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(other, N(other)), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(NULL, 0), NB_CALLER_UNKNOWN);
}
END_TEST

/* The same from stacks that the code walks. */

static enum nb_caller seen;

static void look(void *arg)
{
    (void)arg;
    seen = nb_stack_caller();
}

static enum nb_caller walk(const enum torch_function *function, unsigned n)
{
    seen = NB_CALLER_UNKNOWN;
    torch_call(function, n, look, NULL);
    return seen;
}

START_TEST(walked)
{
    static const enum torch_function bucket_of_ddp[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_BUCKET},
                                     hook[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_BUCKET, TORCH_PYTHON},
                                     used[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_USED},
                                     fsdp[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_PYTHON},
                                     script[] = {TORCH_PYTHON, TORCH_USED};

    for (int twice = 0; twice < 2; twice++) { /* addresses are known the second time */
        ck_assert_int_eq(walk(bucket_of_ddp, 3), NB_CALLER_BUCKET);
        ck_assert_int_eq(walk(hook, 4), NB_CALLER_HOOK);
        ck_assert_int_eq(walk(used, 3), NB_CALLER_UNKNOWN);
        ck_assert_int_eq(walk(fsdp, 3), NB_CALLER_UNKNOWN);
        ck_assert_int_eq(walk(script, 2), NB_CALLER_UNKNOWN);
        ck_assert_int_eq(nb_stack_caller(), NB_CALLER_UNKNOWN);
    }
}
END_TEST

/* Call from deeper than the walk looks. */
static void deep(void *arg)
{
    unsigned *left = arg;

    if (*left) {
        (*left)--;
        torch_call((const enum torch_function[]){TORCH_USED}, 1, deep, arg);
    } else {
        look(NULL);
    }
}

START_TEST(walked_far)
{
    static const enum torch_function bucket_of_ddp[] = {TORCH_ENGINE, TORCH_BUCKET};
    unsigned few = 8, many = NB_CALLER_FRAMES;

    torch_call(bucket_of_ddp, 2, deep, &few);
    ck_assert_int_eq(seen, NB_CALLER_BUCKET);
    torch_call(bucket_of_ddp, 2, deep, &many);
    ck_assert_int_eq(seen, NB_CALLER_UNKNOWN);
}
END_TEST

SUITE_MAIN("policy/caller", TEST(ddp), TEST(ddp_with_a_hook), TEST(ddp_bitmap), TEST(others), TEST(walked),
           TEST(walked_far))
