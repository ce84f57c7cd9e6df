/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at values before a sum, and residuals that are emptied, on a device that answers when the test says
 * so. The engine does not wait for the answer, and leaves no trace of the question when the communicator ends
 * before the answer.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "coll/decide/decide.h"
#include "tests/coll/slow_nodes.h"
#include "tests/suite.h"

static void setup(void)
{
    slow_open(SLOW_LOOKS);
}

static void setup_coded(void)
{
    slow_open(SLOW_ZEROS);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* While the device looks at an operation's values, the operations before it and other communicators go on. */
START_TEST(others_go_on)
{
    struct nb_coll_req *req[3][SLOW_NODES];
    int done;

    cluster_connect_as(&slow_cluster, 19);
    for (int r = 0; r < SLOW_NODES; r++) {
        slow_second[r] = slow_cluster.node[r].comm;
        slow_device[r][0]->held = 2 + r; /* a sample, or sums */
    }
    slow_begin(slow_first, slow_out[0], req[0]);
    slow_begin(slow_first, slow_out[1], req[1]);
    slow_finish(slow_out[0], req[0]);
    slow_await_questions();
    for (int i = 0; i < 3; i++) {
        slow_begin(slow_second, slow_out[0], req[2]);
        slow_finish(slow_out[0], req[2]);
    }
    for (int r = 0; r < SLOW_NODES; r++) {
        ck_assert_uint_eq(slow_device[r][0]->open, 1);
        ck_assert_int_eq(nb_coll_test(req[1][r], &done, NULL), 0);
        ck_assert(!done);
        slow_device[r][0]->held = UINT_MAX;
    }
    slow_finish(slow_out[1], req[1]);
    for (int r = 0; r < SLOW_NODES; r++) {
        ck_assert_uint_eq(slow_device[r][0]->questions, 4);
        ck_assert_uint_eq(slow_device[r][1]->questions, 6);
    }
    slow_close_all(slow_first);
    slow_close_all(slow_second);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* The engine asks a device without room again. */
START_TEST(refused)
{
    struct nb_coll_req *req[SLOW_NODES];

    slow_device[0][0]->refused = 3;
    slow_device[1][0]->refused = 1;
    slow_begin(slow_first, slow_out[0], req);
    slow_finish(slow_out[0], req);
    ck_assert_uint_eq(slow_device[0][0]->questions + slow_device[1][0]->questions, 4);
    slow_close_all(slow_first);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* NCCL frees its buffer, or closes, while the question (a sample or sums) is in flight. The engine withdraws
 * the question first. */
START_TEST(aborted)
{
    struct nb_coll_req *req[SLOW_NODES];
    void *buffer;
    int done;

    for (int r = 0; r < SLOW_NODES; r++)
        slow_device[r][0]->held = (unsigned)_i;
    ck_assert_int_eq(nb_coll_reg_mr(slow_first[0], slow_in[0], sizeof(slow_in[0]), NCCL_PTR_HOST, &buffer),
                     0);
    slow_begin(slow_first, slow_out[0], req);
    while (slow_device[0][0]->questions <= (unsigned)_i || slow_device[1][0]->questions <= (unsigned)_i)
        slow_turn();
    ck_assert_int_eq(nb_coll_dereg_mr(slow_first[0], buffer), 0);
    ck_assert_uint_eq(slow_device[0][0]->quiesced, 1);
    ck_assert_uint_eq(slow_device[0][0]->open, 0);
    while (!nb_coll_test(req[1], &done, NULL)) {
        ck_assert(!done);
        slow_turn();
    }
    ck_assert_uint_eq(slow_device[1][0]->open, 1); /* until its NCCL closes too */
    slow_close_all(slow_first);
}
END_TEST

/* The device fails with the question. */
START_TEST(failed)
{
    struct nb_coll_req *req[SLOW_NODES];
    int done;

    slow_device[0][0]->held = slow_device[1][0]->held = 0;
    slow_begin(slow_first, slow_out[0], req);
    slow_await_questions();
    slow_device[0][0]->error = -EIO;
    while (!nb_coll_test(req[0], &done, NULL))
        slow_turn();
    ck_assert_int_eq(nb_coll_test(req[0], &done, NULL), -EIO);
    ck_assert(strstr(slow_log(), "cannot sample the values of reduce_scatter 0") != NULL);
    while (!nb_coll_test(req[1], &done, NULL)) /* it learns of the failure */
        slow_turn();
    slow_close_all(slow_first);
}
END_TEST

/* ---- residuals -------------------------------------------------------------------------------------- */

/* Empty all residuals of these communicators. */
static void drop_errors(struct nb_coll_comm *const comm[SLOW_NODES])
{
    for (int r = 0; r < SLOW_NODES; r++)
        nb_feedback_drop_all(comm[r]->decisions->feedback);
}

/* While residuals of one communicator are emptied, new or dropped, other communicators go on. Later the
 * residuals are empty. */
START_TEST(emptied)
{
    static float before[SLOW_NODES][SLOW_VALUES];
    struct nb_coll_req *req[2][SLOW_NODES];
    int done;

    cluster_connect_as(&slow_cluster, 19);
    for (int r = 0; r < SLOW_NODES; r++)
        slow_second[r] = slow_cluster.node[r].comm;
    for (unsigned n = 0; n < 2; n++) {
        slow_device[0][0]->held = slow_device[1][0]->held = n;
        drop_errors(slow_first); /* in the first round there are none */
        drop_errors(slow_second);
        slow_begin(slow_first, slow_out[0], req[0]);
        slow_await_questions();
        for (int i = 0; i < 3; i++) {
            slow_begin(slow_second, slow_out[1], req[1]);
            slow_finish(slow_out[1], req[1]);
            if (i == 0)
                memcpy(before, slow_out[1], sizeof(before));
        }
        /* present, with the residual of the sum before */
        ck_assert(memcmp(before, slow_out[1], sizeof(before)) != 0);
        for (int r = 0; r < SLOW_NODES; r++) {
            ck_assert_uint_eq(slow_device[r][0]->open, 1);
            ck_assert_int_eq(nb_coll_test(req[0][r], &done, NULL), 0);
            ck_assert(!done);
            slow_device[r][0]->held = UINT_MAX;
        }
        slow_finish(slow_out[0], req[0]);
        ck_assert(memcmp(before, slow_out[0], sizeof(before)) == 0);
        ck_assert_uint_eq(slow_device[0][0]->questions, n + 1);
        ck_assert_uint_eq(slow_device[0][1]->questions, n + 1);
    }
    slow_close_all(slow_first);
    slow_close_all(slow_second);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* At first the device has no room for it. */
START_TEST(emptied_after_refusal)
{
    struct nb_coll_req *req[SLOW_NODES];

    slow_device[0][0]->refused = 3;
    slow_device[1][0]->refused = 1;
    slow_begin(slow_first, slow_out[0], req);
    slow_finish(slow_out[0], req);
    ck_assert_uint_eq(slow_device[0][0]->questions + slow_device[1][0]->questions, 2);
    slow_close_all(slow_first);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* NCCL frees its buffer while a residual is emptied for which an operation waits, or closes while a residual
 * is emptied for which no operation waits. In both cases the emptying ends before memory is freed. */
START_TEST(emptied_at_the_end)
{
    struct nb_coll_req *req[SLOW_NODES];
    void *buffer;

    ck_assert_int_eq(nb_coll_reg_mr(slow_first[0], slow_in[0], sizeof(slow_in[0]), NCCL_PTR_HOST, &buffer),
                     0);
    slow_device[0][0]->held = slow_device[1][0]->held = (unsigned)_i;
    slow_begin(slow_first, slow_out[0], req);
    if (_i) {
        slow_finish(slow_out[0], req);
        drop_errors(slow_first);
    }
    slow_await_questions();
    ck_assert_int_eq(nb_coll_dereg_mr(slow_first[0], buffer), 0);
    ck_assert_uint_eq(slow_device[0][0]->quiesced, _i ? 0 : 1);
    slow_close_all(slow_first);
}
END_TEST

/* The device fails with it. */
START_TEST(emptying_failed)
{
    struct nb_coll_req *req[SLOW_NODES];
    int done;

    slow_device[0][0]->held = slow_device[1][0]->held = 0;
    slow_begin(slow_first, slow_out[0], req);
    slow_await_questions();
    slow_device[0][0]->error = -EIO;
    for (int r = 0; r < SLOW_NODES; r++)
        while (!nb_coll_test(req[r], &done, NULL))
            slow_turn();
    ck_assert_int_eq(nb_coll_test(req[0], &done, NULL), -EIO);
    ck_assert(strstr(slow_log(), "cannot empty residuals") != NULL);
    slow_close_all(slow_first);
}
END_TEST
SUITE_MAIN("coll/look", FIXTURE(setup, slow_close), TEST(others_go_on), TEST(refused), LOOP(aborted, 0, 2),
           TEST(failed), FIXTURE(setup_coded, slow_close), TEST(emptied), TEST(emptied_after_refusal),
           LOOP(emptied_at_the_end, 0, 2), TEST(emptying_failed))
