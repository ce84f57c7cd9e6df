/* SPDX-License-Identifier: Apache-2.0 */
/* Retransmitted bytes of a gather, on devices that copy them when the test says so. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "coll/comm/comm.h"
#include "tests/coll/slow_nodes.h"
#include "tests/suite.h"

static void setup(void)
{
    slow_open(SLOW_RESENDS);
}

static float all[SLOW_NODES][SLOW_NODES * SLOW_VALUES];

/* Run an all-gather of blocks that have moved a little since the last one. */
static void gather(struct nb_coll_comm *const comm[SLOW_NODES], struct nb_coll_req *req[SLOW_NODES])
{
    const size_t block = SLOW_VALUES * sizeof(float);

    memset(all, 0, sizeof(all));
    for (int r = 0; r < SLOW_NODES; r++) {
        for (size_t i = 0; i < SLOW_VALUES; i++)
            slow_in[r][i] *= 1 + 0x1p-20f * (float)(i % 3);
        ck_assert_int_eq(nb_coll_iallgather(comm[r], slow_in[r], all[r], SLOW_NODES * block, block, 0,
                                            SLOW_NODES * block, &req[r]),
                         0);
        ck_assert_ptr_nonnull(req[r]);
    }
}

static void gathered(struct nb_coll_req *req[SLOW_NODES])
{
    slow_await(req);
    for (int r = 0; r < SLOW_NODES; r++)
        for (int owner = 0; owner < SLOW_NODES; owner++)
            ck_assert_mem_eq(all[r] + (size_t)owner * SLOW_VALUES, slow_in[owner],
                             SLOW_VALUES * sizeof(float));
}

/* Begin a gather in which node 1 cannot decode some segments. It asks node 0 for them. */
static void gather_amiss(struct nb_coll_req *req[SLOW_NODES])
{
    gather(slow_first, req);
    gathered(req);
    slow_first[1]->fault_ref = 1;
    gather(slow_first, req);
}

/* Return the number of slots of node 1's ring of control messages that may not be filled again. */
static unsigned slots_held(void)
{
    const struct nb_rx *rx = &slow_first[1]->peer[0].rx[NB_CLASS_CONTROL];
    unsigned n = 0;

    for (unsigned i = 0; i < rx->buffers; i++)
        n += rx->held[i];
    return n;
}

/* While a device copies such bytes, on either side, other communicators go on. */
START_TEST(resent)
{
    struct nb_coll_req *req[2][SLOW_NODES];
    uint64_t resends;
    int done;

    cluster_connect_as(&slow_cluster, 19);
    for (int r = 0; r < SLOW_NODES; r++)
        slow_second[r] = slow_cluster.node[r].comm;
    slow_device[_i][0]->held = 1;
    gather_amiss(req[0]);
    while (!slow_device[_i][0]->open || slow_device[_i][0]->questions < 2)
        slow_turn();
    for (int i = 0; i < 3; i++) {
        slow_begin(slow_second, slow_out[0], req[1]);
        slow_finish(slow_out[0], req[1]);
    }
    ck_assert_int_eq(nb_coll_test(req[0][1], &done, NULL), 0);
    ck_assert(!done);
    ck_assert_uint_eq(slow_device[_i][0]->open, 1);
    ck_assert_uint_eq(slots_held(), (unsigned)_i);
    resends = slow_first[0]->stats.resends;
    ck_assert_uint_eq(resends, _i ? 2 : 1);
    slow_device[_i][0]->held = UINT_MAX;
    gathered(req[0]);
    ck_assert_uint_eq(slots_held(), 0);
    ck_assert_uint_gt(slow_first[0]->stats.resends, resends);
    ck_assert_uint_eq(slow_device[0][0]->questions, slow_first[0]->stats.resends);
    ck_assert_uint_eq(slow_device[1][0]->questions, slow_first[0]->stats.resends);
    slow_close_all(slow_first);
    slow_close_all(slow_second);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* At first the device has no room for the copies. */
START_TEST(resent_after_refusal)
{
    struct nb_coll_req *req[SLOW_NODES];

    slow_device[0][0]->refused = slow_device[1][0]->refused = 3;
    gather_amiss(req);
    gathered(req);
    ck_assert_uint_gt(slow_device[0][0]->questions, 1);
    ck_assert_uint_eq(slow_device[0][0]->refused + slow_device[1][0]->refused, 0);
    slow_close_all(slow_first);
    ck_assert_int_eq(slow_warned(), 0);
}
END_TEST

/* NCCL aborts during the copies. */
START_TEST(resent_and_aborted)
{
    struct nb_coll_req *req[SLOW_NODES];
    void *buffer;

    ck_assert_int_eq(nb_coll_reg_mr(slow_first[_i], slow_in[_i], sizeof(slow_in[0]), NCCL_PTR_HOST, &buffer),
                     0);
    slow_device[_i][0]->held = 0;
    gather_amiss(req);
    while (!slow_device[_i][0]->open)
        slow_turn();
    ck_assert_int_eq(nb_coll_dereg_mr(slow_first[_i], buffer), 0);
    ck_assert_uint_eq(slow_device[_i][0]->quiesced, 1);
    ck_assert_uint_eq(slow_device[_i][0]->open, 0);
    slow_close_all(slow_first);
}
END_TEST

/* The device fails during a copy. */
START_TEST(resending_failed)
{
    struct nb_coll_req *req[SLOW_NODES];
    int done;

    slow_device[_i][0]->held = 0;
    gather_amiss(req);
    while (!slow_device[_i][0]->open)
        slow_turn();
    slow_device[_i][0]->error = -EIO;
    for (int r = 0; r < SLOW_NODES; r++)
        while (!nb_coll_test(req[r], &done, NULL))
            slow_turn();
    ck_assert_int_eq(nb_coll_test(req[_i], &done, NULL), -EIO);
    ck_assert(strstr(slow_log(), _i ? "cannot take" : "cannot copy bytes of all_gather 1 that node 1") !=
              NULL);
    slow_close_all(slow_first);
}
END_TEST
SUITE_MAIN("coll/resend", FIXTURE(setup, slow_close), LOOP(resent, 0, 2), TEST(resent_after_refusal),
           LOOP(resent_and_aborted, 0, 2), LOOP(resending_failed, 0, 2))
