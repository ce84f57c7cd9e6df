/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at values before a sum, residuals that are emptied, and bytes that are sent once more, on a device that answers
 * when the test says so: nobody waits for the answer, and nothing is left of the question when the communicator ends
 * before it comes.
 */
#include <check.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm.h"
#include "device/device.h"
#include "tests/base/capture.h"
#include "tests/coll/cluster.h"
#include "tests/device/call.h"

#define NODES 2
#define QUESTIONS 4 /* in flight on a device */

static struct cluster cluster;
static bool coded; /* sums are, with residuals */
static enum {
    LOOKS,
    ZEROS,
    RESENDS /* copies of bytes that a receiver of a gather asks for */
} questions;

/* ---- the device ------------------------------------------------------------------------------------- */

struct question {
    struct device_call what;
    struct nb_work *work; /* NULL: free */
    unsigned number;
};

struct slow {
    struct asked_device asked; /* first */
    unsigned questions;        /* so many were asked */
    unsigned held;             /* those from this number on are not answered */
    unsigned refused;          /* so many are, before one is taken */
    unsigned open, quiesced;
    int error;
    struct question question[QUESTIONS];
};

/* Of each node, in the order in which its communicators connect. */
static struct slow *device[NODES][2];
static struct nb_coll_comm *first[NODES], *second[NODES];

/* A copy out of a control message, or into an answer. */
static bool is_resend(const struct device_call *what)
{
    for (int r = 0; r < NODES; r++) {
        const struct nb_peer *peer = &first[r]->peer[1 - r];
        const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
        if ((uintptr_t)what->src - (uintptr_t)rx->mem < rx->slot * rx->slots ||
            what->dst == peer->raw.answer.buf + NB_CTL_BYTES)
            return true;
    }
    return false;
}

static struct slow *slow_of(struct nb_device *dev)
{
    return (struct slow *)dev;
}

static bool is_question(const struct device_call *what)
{
    switch (questions) {
    case LOOKS: return what->kind == SAMPLE || what->kind == SUMS;
    case ZEROS: return what->kind == ZERO;
    default: return what->kind == COPY && is_resend(what);
    }
}

static ssize_t ask(struct asked_device *dev, struct nb_work *work, const struct device_call *what)
{
    struct slow *d = slow_of(&dev->device);
    struct question *q = d->question;

    if (!is_question(what))
        return device_call_perform(what);
    ck_assert_msg(work, "the engine waits for the answer");
    if (d->refused) {
        d->refused--;
        return -EAGAIN;
    }
    while (q->work)
        ck_assert(++q < d->question + QUESTIONS);
    *q = (struct question){*what, work, d->questions++};
    work->at = q;
    d->open++;
    return -EINPROGRESS;
}

static ssize_t answer(struct slow *d, struct question *q)
{
    q->work = NULL;
    d->open--;
    return device_call_perform(&q->what);
}

static ssize_t slow_poll(struct nb_device *dev, struct nb_work *work)
{
    struct slow *d = slow_of(dev);
    struct question *q = work->at;

    ck_assert_ptr_eq(q->work, work);
    if (d->error)
        return d->error;
    return q->number >= d->held ? -EINPROGRESS : answer(d, q);
}

/* What is in flight is done all the same: a sanitizer tells whether what it reads and writes is still there. */
static void slow_quiesce(struct nb_device *dev)
{
    struct slow *d = slow_of(dev);

    for (int i = 0; i < QUESTIONS; i++)
        if (d->question[i].work)
            answer(d, &d->question[i]);
    d->quiesced++;
}

static int slow_failed(struct nb_device *dev)
{
    return slow_of(dev)->error;
}

static void slow_close(struct nb_device *dev)
{
    ck_assert_uint_eq(slow_of(dev)->open, 0);
    for (int i = 0; i < NODES; i++)
        for (int c = 0; c < 2; c++)
            if (device[i][c] == slow_of(dev))
                device[i][c] = NULL;
    free(dev);
}

/* Whoever reads what is not zeroed yet finds something. */
static void *slow_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    void *p = nb_host_device()->ops->alloc(nb_host_device(), place, bytes);

    (void)dev;
    ck_assert_ptr_nonnull(p);
    return memset(p, 0xa5, bytes);
}

static int slow_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    static struct nb_device_ops ops;
    const int r = (int)((struct cluster_node *)ctx - cluster.node); /* its first member */
    struct slow *d = calloc(1, sizeof(*d));

    (void)wish;
    ck_assert_ptr_nonnull(d);
    ops = *nb_host_device()->ops;
    ops.quiesce = slow_quiesce;
    ops.failed = slow_failed;
    ops.close = slow_close;
    ops.poll = slow_poll;
    ops.zeroes = false;
    ops.alloc = slow_alloc;
    ops.zero = device_call_zero;
    ops.copy = device_call_copy;
    ops.sample = device_call_sample;
    ops.sums = device_call_sums;
    d->asked.device.ops = &ops;
    d->asked.ask = ask;
    d->held = UINT_MAX;
    device[r][device[r][0] != NULL] = d;
    *dev = &d->asked.device;
    return 0;
}

/* ---- operations ------------------------------------------------------------------------------------- */

#define VALUES 40000u /* of a block: several wire units */

static struct cluster_node *const node = cluster.node;
static float in[NODES][NODES * VALUES], out[2][NODES][VALUES];

static void open_nodes(void)
{
    capture_reset();
    nb_log_set(capture_log);
    cluster_open(&cluster, NODES);
    cluster.most_rounds = 100000;
    for (int r = 0; r < NODES; r++) {
        node[r].ctx.open_device = slow_open;
        node[r].params.ag_min_bytes = 0;
        if (coded) {
            node[r].params.grad = "all";
            node[r].params.rs = 1; /* int4 */
            node[r].params.rs_min_bytes = 0;
            node[r].params.warmup_steps = 0;
            node[r].params.ef_identity = 1; /* signature */
        }
        for (size_t i = 0; i < NODES * VALUES; i++)
            in[r][i] = (float)((i * 7 + (size_t)r * 13) % 1001) - 500;
    }
    cluster_connect_as(&cluster, 17);
    for (int r = 0; r < NODES; r++)
        first[r] = node[r].comm;
}

static void setup(void)
{
    coded = false;
    questions = LOOKS;
    open_nodes();
}

static void setup_coded(void)
{
    coded = true;
    questions = ZEROS;
    open_nodes();
}

static void setup_gathers(void)
{
    coded = false;
    questions = RESENDS;
    open_nodes();
}

static void teardown(void)
{
    cluster_close(&cluster);
    nb_log_set(NULL);
}

static void turn(void)
{
    ck_assert_msg(cluster_turn(&cluster), "nothing moves, and nothing is due");
}

static void begin(struct nb_coll_comm *const comm[NODES], float to[NODES][VALUES],
                  struct nb_coll_req *req[NODES])
{
    const size_t block = VALUES * sizeof(float);

    memset(to, 0, sizeof(out[0]));
    for (int r = 0; r < NODES; r++) {
        ck_assert_int_eq(nb_coll_ireducescatter(comm[r], in[r], NODES * block, to[r], block, 0, NODES * block,
                                                ncclFloat32, ncclSum, &req[r]),
                         0);
        ck_assert_ptr_nonnull(req[r]);
    }
}

static void finish(float to[NODES][VALUES], struct nb_coll_req *req[NODES])
{
    for (int r = 0; r < NODES; r++) {
        int done = 0;
        while (!done) {
            ck_assert_int_eq(nb_coll_test(req[r], &done, NULL), 0);
            if (!done)
                turn();
        }
    }
    for (int r = 0; r < NODES; r++) {
        double signal = 0, noise = 0;
        for (size_t i = 0; i < VALUES; i++) {
            const float sum = in[0][(size_t)r * VALUES + i] + in[1][(size_t)r * VALUES + i];
            signal += (double)sum * (double)sum;
            noise += ((double)to[r][i] - (double)sum) * ((double)to[r][i] - (double)sum);
        }
        ck_assert(coded ? noise > 0 && noise < 0.02 * signal : noise == 0);
    }
}

/* Turns until the first communicator of every node has a question in flight that is held. */
static void await_questions(void)
{
    while (!device[0][0]->open || !device[1][0]->open)
        turn();
}

static void close_all(struct nb_coll_comm *comm[NODES])
{
    for (int r = 0; r < NODES; r++)
        node[r].comm = comm[r];
    cluster_disconnect(&cluster);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* While an operation's values are looked at, those before it and other communicators go on. */
START_TEST(others_go_on)
{
    struct nb_coll_req *req[3][NODES];
    int done;

    cluster_connect_as(&cluster, 19);
    for (int r = 0; r < NODES; r++) {
        second[r] = node[r].comm;
        device[r][0]->held = 2 + r; /* a sample, or sums */
    }
    begin(first, out[0], req[0]);
    begin(first, out[1], req[1]);
    finish(out[0], req[0]);
    await_questions();
    for (int i = 0; i < 3; i++) {
        begin(second, out[0], req[2]);
        finish(out[0], req[2]);
    }
    for (int r = 0; r < NODES; r++) {
        ck_assert_uint_eq(device[r][0]->open, 1);
        ck_assert_int_eq(nb_coll_test(req[1][r], &done, NULL), 0);
        ck_assert(!done);
        device[r][0]->held = UINT_MAX;
    }
    finish(out[1], req[1]);
    for (int r = 0; r < NODES; r++) {
        ck_assert_uint_eq(device[r][0]->questions, 4);
        ck_assert_uint_eq(device[r][1]->questions, 6);
    }
    close_all(first);
    close_all(second);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* A device without room is asked again. */
START_TEST(refused)
{
    struct nb_coll_req *req[NODES];

    device[0][0]->refused = 3;
    device[1][0]->refused = 1;
    begin(first, out[0], req);
    finish(out[0], req);
    ck_assert_uint_eq(device[0][0]->questions + device[1][0]->questions, 4);
    close_all(first);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* NCCL frees its buffer, or closes, while the question (a sample; sums) is in flight: it is withdrawn before. */
START_TEST(aborted)
{
    struct nb_coll_req *req[NODES];
    void *buffer;
    int done;

    for (int r = 0; r < NODES; r++)
        device[r][0]->held = (unsigned)_i;
    ck_assert_int_eq(nb_coll_reg_mr(first[0], in[0], sizeof(in[0]), NCCL_PTR_HOST, &buffer), 0);
    begin(first, out[0], req);
    while (device[0][0]->questions <= (unsigned)_i || device[1][0]->questions <= (unsigned)_i)
        turn();
    ck_assert_int_eq(nb_coll_dereg_mr(first[0], buffer), 0);
    ck_assert_uint_eq(device[0][0]->quiesced, 1);
    ck_assert_uint_eq(device[0][0]->open, 0);
    while (!nb_coll_test(req[1], &done, NULL)) {
        ck_assert(!done);
        turn();
    }
    ck_assert_uint_eq(device[1][0]->open, 1); /* until its NCCL closes, too */
    close_all(first);
}
END_TEST

/* The device fails with the question. */
START_TEST(failed)
{
    struct nb_coll_req *req[NODES];
    int done;

    device[0][0]->held = device[1][0]->held = 0;
    begin(first, out[0], req);
    await_questions();
    device[0][0]->error = -EIO;
    while (!nb_coll_test(req[0], &done, NULL))
        turn();
    ck_assert_int_eq(nb_coll_test(req[0], &done, NULL), -EIO);
    ck_assert(strstr(capture_text, "cannot look at the values of reduce_scatter 0") != NULL);
    while (!nb_coll_test(req[1], &done, NULL)) /* is told */
        turn();
    close_all(first);
}
END_TEST

/* ---- residuals -------------------------------------------------------------------------------------- */

/* All of these are emptied. */
static void drop_errors(struct nb_coll_comm *const comm[NODES])
{
    for (int r = 0; r < NODES; r++)
        nb_feedback_drop_all(comm[r]->decisions.feedback);
}

/* While residuals of one communicator are emptied, new or dropped, others go on. They are empty then. */
START_TEST(emptied)
{
    static float before[NODES][VALUES];
    struct nb_coll_req *req[2][NODES];
    int done;

    cluster_connect_as(&cluster, 19);
    for (int r = 0; r < NODES; r++)
        second[r] = node[r].comm;
    for (unsigned n = 0; n < 2; n++) {
        device[0][0]->held = device[1][0]->held = n;
        drop_errors(first); /* the first time there are none */
        drop_errors(second);
        begin(first, out[0], req[0]);
        await_questions();
        for (int i = 0; i < 3; i++) {
            begin(second, out[1], req[1]);
            finish(out[1], req[1]);
            if (i == 0)
                memcpy(before, out[1], sizeof(before));
        }
        ck_assert(memcmp(before, out[1], sizeof(before)) != 0); /* there, with what was left before */
        for (int r = 0; r < NODES; r++) {
            ck_assert_uint_eq(device[r][0]->open, 1);
            ck_assert_int_eq(nb_coll_test(req[0][r], &done, NULL), 0);
            ck_assert(!done);
            device[r][0]->held = UINT_MAX;
        }
        finish(out[0], req[0]);
        ck_assert(memcmp(before, out[0], sizeof(before)) == 0);
        ck_assert_uint_eq(device[0][0]->questions, n + 1);
        ck_assert_uint_eq(device[0][1]->questions, n + 1);
    }
    close_all(first);
    close_all(second);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* The device has no room for it at first. */
START_TEST(emptied_after_refusal)
{
    struct nb_coll_req *req[NODES];

    device[0][0]->refused = 3;
    device[1][0]->refused = 1;
    begin(first, out[0], req);
    finish(out[0], req);
    ck_assert_uint_eq(device[0][0]->questions + device[1][0]->questions, 2);
    close_all(first);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* NCCL frees its buffer while a residual is emptied that an operation waits for; or closes while one is that nobody waits
 * for: in both cases that is over before memory is freed. */
START_TEST(emptied_at_the_end)
{
    struct nb_coll_req *req[NODES];
    void *buffer;

    ck_assert_int_eq(nb_coll_reg_mr(first[0], in[0], sizeof(in[0]), NCCL_PTR_HOST, &buffer), 0);
    device[0][0]->held = device[1][0]->held = (unsigned)_i;
    begin(first, out[0], req);
    if (_i) {
        finish(out[0], req);
        drop_errors(first);
    }
    await_questions();
    ck_assert_int_eq(nb_coll_dereg_mr(first[0], buffer), 0);
    ck_assert_uint_eq(device[0][0]->quiesced, _i ? 0 : 1);
    close_all(first);
}
END_TEST

/* The device fails with it. */
START_TEST(emptying_failed)
{
    struct nb_coll_req *req[NODES];
    int done;

    device[0][0]->held = device[1][0]->held = 0;
    begin(first, out[0], req);
    await_questions();
    device[0][0]->error = -EIO;
    for (int r = 0; r < NODES; r++)
        while (!nb_coll_test(req[r], &done, NULL))
            turn();
    ck_assert_int_eq(nb_coll_test(req[0], &done, NULL), -EIO);
    ck_assert(strstr(capture_text, "cannot empty residuals") != NULL);
    close_all(first);
}
END_TEST

/* ---- bytes that are sent once more -------------------------------------------------------------------- */

static float all[NODES][NODES * VALUES];

/* An all-gather of blocks that have moved a little since the last one. */
static void gather(struct nb_coll_comm *const comm[NODES], struct nb_coll_req *req[NODES])
{
    const size_t block = VALUES * sizeof(float);

    memset(all, 0, sizeof(all));
    for (int r = 0; r < NODES; r++) {
        for (size_t i = 0; i < VALUES; i++)
            in[r][i] *= 1 + 0x1p-20f * (float)(i % 3);
        ck_assert_int_eq(
            nb_coll_iallgather(comm[r], in[r], all[r], NODES * block, block, 0, NODES * block, &req[r]), 0);
        ck_assert_ptr_nonnull(req[r]);
    }
}

static void gathered(struct nb_coll_req *req[NODES])
{
    for (int r = 0; r < NODES; r++) {
        int done = 0;
        while (!done) {
            ck_assert_int_eq(nb_coll_test(req[r], &done, NULL), 0);
            if (!done)
                turn();
        }
    }
    for (int r = 0; r < NODES; r++)
        for (int owner = 0; owner < NODES; owner++)
            ck_assert_mem_eq(all[r] + (size_t)owner * VALUES, in[owner], VALUES * sizeof(float));
}

/* Begin a gather of which node 1 cannot decode some segments: it asks node 0 for them. */
static void gather_amiss(struct nb_coll_req *req[NODES])
{
    gather(first, req);
    gathered(req);
    first[1]->fault_ref = 1;
    gather(first, req);
}

/* Slots of node 1's ring of control messages that may not be filled again. */
static unsigned slots_held(void)
{
    const struct nb_rx *rx = &first[1]->peer[0].rx[NB_CLASS_CONTROL];
    unsigned n = 0;

    for (unsigned i = 0; i < rx->slots; i++)
        n += rx->held[i];
    return n;
}

/* While such bytes are copied, on either side, other communicators go on. */
START_TEST(resent)
{
    struct nb_coll_req *req[2][NODES];
    uint64_t resends;
    int done;

    cluster_connect_as(&cluster, 19);
    for (int r = 0; r < NODES; r++)
        second[r] = node[r].comm;
    device[_i][0]->held = 1;
    gather_amiss(req[0]);
    while (!device[_i][0]->open || device[_i][0]->questions < 2)
        turn();
    for (int i = 0; i < 3; i++) {
        begin(second, out[0], req[1]);
        finish(out[0], req[1]);
    }
    ck_assert_int_eq(nb_coll_test(req[0][1], &done, NULL), 0);
    ck_assert(!done);
    ck_assert_uint_eq(device[_i][0]->open, 1);
    ck_assert_uint_eq(slots_held(), (unsigned)_i);
    resends = first[0]->stats.resends;
    ck_assert_uint_eq(resends, _i ? 2 : 1);
    device[_i][0]->held = UINT_MAX;
    gathered(req[0]);
    ck_assert_uint_eq(slots_held(), 0);
    ck_assert_uint_gt(first[0]->stats.resends, resends);
    ck_assert_uint_eq(device[0][0]->questions, first[0]->stats.resends);
    ck_assert_uint_eq(device[1][0]->questions, first[0]->stats.resends);
    close_all(first);
    close_all(second);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* The device has no room for the copies at first. */
START_TEST(resent_after_refusal)
{
    struct nb_coll_req *req[NODES];

    device[0][0]->refused = device[1][0]->refused = 3;
    gather_amiss(req);
    gathered(req);
    ck_assert_uint_gt(device[0][0]->questions, 1);
    ck_assert_uint_eq(device[0][0]->refused + device[1][0]->refused, 0);
    close_all(first);
    ck_assert_int_eq(capture_warned(), 0);
}
END_TEST

/* NCCL aborts while they are copied. */
START_TEST(resent_and_aborted)
{
    struct nb_coll_req *req[NODES];
    void *buffer;

    ck_assert_int_eq(nb_coll_reg_mr(first[_i], in[_i], sizeof(in[0]), NCCL_PTR_HOST, &buffer), 0);
    device[_i][0]->held = 0;
    gather_amiss(req);
    while (!device[_i][0]->open)
        turn();
    ck_assert_int_eq(nb_coll_dereg_mr(first[_i], buffer), 0);
    ck_assert_uint_eq(device[_i][0]->quiesced, 1);
    ck_assert_uint_eq(device[_i][0]->open, 0);
    close_all(first);
}
END_TEST

/* The device fails with a copy. */
START_TEST(resending_failed)
{
    struct nb_coll_req *req[NODES];
    int done;

    device[_i][0]->held = 0;
    gather_amiss(req);
    while (!device[_i][0]->open)
        turn();
    device[_i][0]->error = -EIO;
    for (int r = 0; r < NODES; r++)
        while (!nb_coll_test(req[r], &done, NULL))
            turn();
    ck_assert_int_eq(nb_coll_test(req[_i], &done, NULL), -EIO);
    ck_assert(strstr(capture_text, _i ? "cannot take" : "cannot copy bytes of all_gather 1 that node 1") !=
              NULL);
    close_all(first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll/look");
    TCase *c = tcase_create("look"), *e = tcase_create("residuals"), *g = tcase_create("gathers");
    SRunner *runner = srunner_create(suite);
    int failures;

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 3600);
    tcase_add_test(c, others_go_on);
    tcase_add_test(c, refused);
    tcase_add_loop_test(c, aborted, 0, 2);
    tcase_add_test(c, failed);
    suite_add_tcase(suite, c);
    tcase_add_checked_fixture(e, setup_coded, teardown);
    tcase_set_timeout(e, 3600);
    tcase_add_test(e, emptied);
    tcase_add_test(e, emptied_after_refusal);
    tcase_add_loop_test(e, emptied_at_the_end, 0, 2);
    tcase_add_test(e, emptying_failed);
    suite_add_tcase(suite, e);
    tcase_add_checked_fixture(g, setup_gathers, teardown);
    tcase_set_timeout(g, 3600);
    tcase_add_loop_test(g, resent, 0, 2);
    tcase_add_test(g, resent_after_refusal);
    tcase_add_loop_test(g, resent_and_aborted, 0, 2);
    tcase_add_loop_test(g, resending_failed, 0, 2);
    suite_add_tcase(suite, g);
    srunner_run_all(runner, CK_ENV);
    failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
