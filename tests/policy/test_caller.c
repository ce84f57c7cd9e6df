/* SPDX-License-Identifier: Apache-2.0 */
/* Who calls, on stacks as dladdr told them in processes of PyTorch 2.15 over gloo (the bitmap's by its sources), shortened
 * where nothing is decided. */
#include <check.h>
#include <stdlib.h>

#include "policy/caller.h"

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
    ck_assert_int_eq(nb_caller_of(bucket, N(bucket), 1), NB_CALLER_BUCKET);
    ck_assert_int_eq(nb_caller_of(bucket, N(bucket), 0), NB_CALLER_BUCKET);
    /* Cut before the reducer. */
    ck_assert_int_eq(nb_caller_of(bucket, 3, 0), NB_CALLER_UNKNOWN);
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

    ck_assert_int_eq(nb_caller_of(hook, N(hook), 1), NB_CALLER_HOOK);
    ck_assert_int_eq(nb_caller_of(within, N(within), 0), NB_CALLER_HOOK);
}
END_TEST

/* The bitmap of used parameters comes from the reducer, too, and is no bucket. */
START_TEST(ddp_bitmap)
{
    static const struct nb_frame bitmap[] = {{CPU, NULL},
                                             {CPU, REDUCER "25all_reduce_local_used_mapEv"},
                                             {CPU, REDUCER "19mark_variable_readyEm"},
                                             ENGINE,
                                             SCRIPT};

    ck_assert_int_eq(nb_caller_of(bitmap, N(bitmap), 1), NB_CALLER_BACKWARD);
}
END_TEST

START_TEST(others)
{
    static const struct nb_frame fsdp[] = {
        {CPU, NULL}, {BINDING, NULL}, {PYTHON, "_PyObject_Call"}, ENGINE, SCRIPT};
    /* At the end of a backward pass: no node of the graph is being evaluated any more. */
    static const struct nb_frame callback[] = {
        {CPU, NULL},
        {PYTHON, "_PyEval_EvalFrameDefault"},
        {BINDING, NULL},
        {CPU, "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9Gr"},
        SCRIPT};
    static const struct nb_frame script[] = {{CPU, NULL}, SCRIPT};
    static const struct nb_frame program[] = {
        {"libnccl.so.2", "ncclAllReduce"}, {"all_reduce_perf", NULL}, {NULL, NULL}};
    /* Somebody else's function of that name. */
    static const struct nb_frame other[] = {{"libmine.so", REDUCER "17all_reduce_bucketERNS0_6BucketE"}};

    ck_assert_int_eq(nb_caller_of(fsdp, N(fsdp), 1), NB_CALLER_BACKWARD);
    ck_assert_int_eq(nb_caller_of(callback, N(callback), 1), NB_CALLER_BACKWARD);
    ck_assert_int_eq(nb_caller_of(script, N(script), 1), NB_CALLER_OUTSIDE);
    ck_assert_int_eq(nb_caller_of(script, N(script), 0), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(program, N(program), 1), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(other, N(other), 1), NB_CALLER_UNKNOWN);
    ck_assert_int_eq(nb_caller_of(NULL, 0, 1), NB_CALLER_UNKNOWN);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("policy/caller");
    TCase *c = tcase_create("all");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_add_test(c, ddp);
    tcase_add_test(c, ddp_with_a_hook);
    tcase_add_test(c, ddp_bitmap);
    tcase_add_test(c, others);
    suite_add_tcase(s, c);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
