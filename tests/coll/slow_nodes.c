/* SPDX-License-Identifier: Apache-2.0 */
/* See slow_nodes.h. */
#include "tests/coll/slow_nodes.h"
#include "coll/coll.h"
#include "coll/flow/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coll/comm/comm.h"
#include "device/device.h"
#include "tests/base/capture.h"
#include "tests/suite.h"

struct cluster slow_cluster;
struct slow *slow_device[SLOW_NODES][2];
struct nb_coll_comm *slow_first[SLOW_NODES], *slow_second[SLOW_NODES];
float slow_in[SLOW_NODES][SLOW_NODES * SLOW_VALUES], slow_out[2][SLOW_NODES][SLOW_VALUES];
static bool coded; /* sums are coded, with residuals */
static enum slow_kind questions;

/* ---- the device ------------------------------------------------------------------------------------- */

/* Return true for a copy out of a control message, or into an answer. */
static bool is_resend(const struct device_call *what)
{
    for (int r = 0; r < SLOW_NODES && slow_first[r]; r++) {
        const struct nb_peer *peer = &slow_first[r]->peer[1 - r];
        const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
        if ((uintptr_t)what->src - (uintptr_t)rx->mem < rx->buffer_bytes * rx->buffers ||
            what->dst == peer->flow->raw.answer.buf + NB_CTL_BYTES)
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
    case SLOW_LOOKS: return what->kind == SAMPLE || what->kind == SUMS;
    case SLOW_ZEROS: return what->kind == ZERO;
    default: return what->kind == COPY && is_resend(what);
    }
}

static ssize_t ask(struct asked_device *dev, struct nb_work *work, const struct device_call *what)
{
    struct slow *d = slow_of(&dev->device);
    struct slow_question *q = d->question;

    if (!is_question(what))
        return device_call_perform(what);
    ck_assert_msg(work, "the engine waits for the answer");
    if (d->refused) {
        d->refused--;
        return -EAGAIN;
    }
    while (q->work)
        ck_assert(++q < d->question + SLOW_QUESTIONS);
    *q = (struct slow_question){*what, work, d->questions++};
    work->at = q;
    d->open++;
    return -EINPROGRESS;
}

static ssize_t answer(struct slow *d, struct slow_question *q)
{
    q->work = NULL;
    d->open--;
    return device_call_perform(&q->what);
}

static ssize_t slow_poll(struct nb_device *dev, struct nb_work *work)
{
    struct slow *d = slow_of(dev);
    struct slow_question *q = work->at;

    ck_assert_ptr_eq(q->work, work);
    if (d->error)
        return d->error;
    return q->number >= d->held ? -EINPROGRESS : answer(d, q);
}

/* The work in flight is done all the same: a sanitizer tells whether its memory still exists. */
static void slow_quiesce(struct nb_device *dev)
{
    struct slow *d = slow_of(dev);

    for (int i = 0; i < SLOW_QUESTIONS; i++)
        if (d->question[i].work)
            answer(d, &d->question[i]);
    d->quiesced++;
}

static int slow_failed(struct nb_device *dev)
{
    return slow_of(dev)->error;
}

static void device_close(struct nb_device *dev)
{
    ck_assert_uint_eq(slow_of(dev)->open, 0);
    for (int i = 0; i < SLOW_NODES; i++)
        for (int c = 0; c < 2; c++)
            if (slow_device[i][c] == slow_of(dev))
                slow_device[i][c] = NULL;
    free(dev);
}

/* Fill new memory, so that a read before the zeroing finds wrong values. */
static void *slow_alloc(struct nb_device *dev, enum nb_place place, size_t bytes)
{
    void *p = nb_host_device()->ops->alloc(nb_host_device(), place, bytes);

    (void)dev;
    ck_assert_ptr_nonnull(p);
    return memset(p, 0xa5, bytes);
}

static int device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev)
{
    static struct nb_device_ops ops;
    const int r = (int)((struct cluster_node *)ctx - slow_cluster.node); /* its first member */
    struct slow *d = calloc(1, sizeof(*d));

    (void)wish;
    ck_assert_ptr_nonnull(d);
    ops = *nb_host_device()->ops;
    ops.quiesce = slow_quiesce;
    ops.failed = slow_failed;
    ops.close = device_close;
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
    slow_device[r][slow_device[r][0] != NULL] = d;
    *dev = &d->asked.device;
    return 0;
}

/* ---- operations ------------------------------------------------------------------------------------- */

void slow_open(enum slow_kind kind)
{
    questions = kind;
    coded = kind == SLOW_ZEROS;
    capture_reset();
    memset(slow_first, 0, sizeof(slow_first));
    nb_log_set(capture_log);
    cluster_open(&slow_cluster, SLOW_NODES);
    slow_cluster.most_rounds = 100000;
    for (int r = 0; r < SLOW_NODES; r++) {
        slow_cluster.node[r].ctx.open_device = device_open;
        slow_cluster.node[r].params.ag_min_bytes = 0;
        if (coded) {
            slow_cluster.node[r].params.grad = "all";
            slow_cluster.node[r].params.rs = NB_SUM_INT4;
            slow_cluster.node[r].params.rs_min_bytes = 0;
            slow_cluster.node[r].params.warmup_steps = 0;
            slow_cluster.node[r].params.ef_identity = NB_EF_IDENTITY_SIGNATURE;
        }
        for (size_t i = 0; i < SLOW_NODES * SLOW_VALUES; i++)
            slow_in[r][i] = (float)((i * 7 + (size_t)r * 13) % 1001) - 500;
    }
    cluster_connect_as(&slow_cluster, 17);
    for (int r = 0; r < SLOW_NODES; r++)
        slow_first[r] = slow_cluster.node[r].comm;
}

void slow_close(void)
{
    cluster_close(&slow_cluster);
    nb_log_set(NULL);
}

int slow_warned(void)
{
    return capture_warned();
}

const char *slow_log(void)
{
    return capture_text;
}

void slow_turn(void)
{
    ck_assert_msg(cluster_turn(&slow_cluster), "nothing moves, and nothing is due");
}

void slow_begin(struct nb_coll_comm *const comm[SLOW_NODES], float to[SLOW_NODES][SLOW_VALUES],
                struct nb_coll_req *req[SLOW_NODES])
{
    const size_t block = SLOW_VALUES * sizeof(float);

    memset(to, 0, sizeof(slow_out[0]));
    for (int r = 0; r < SLOW_NODES; r++) {
        ck_assert_int_eq(nb_coll_ireducescatter(comm[r], slow_in[r], SLOW_NODES * block, to[r], block, 0,
                                                SLOW_NODES * block, ncclFloat32, ncclSum, &req[r]),
                         0);
        ck_assert_ptr_nonnull(req[r]);
    }
}

void slow_await(struct nb_coll_req *req[SLOW_NODES])
{
    for (int r = 0; r < SLOW_NODES; r++) {
        int done = 0;
        while (!done) {
            ck_assert_int_eq(nb_coll_test(req[r], &done, NULL), 0);
            if (!done)
                slow_turn();
        }
    }
}

void slow_finish(float to[SLOW_NODES][SLOW_VALUES], struct nb_coll_req *req[SLOW_NODES])
{
    slow_await(req);
    for (int r = 0; r < SLOW_NODES; r++) {
        double signal = 0, noise = 0;
        for (size_t i = 0; i < SLOW_VALUES; i++) {
            const float sum =
                slow_in[0][(size_t)r * SLOW_VALUES + i] + slow_in[1][(size_t)r * SLOW_VALUES + i];
            signal += (double)sum * (double)sum;
            noise += ((double)to[r][i] - (double)sum) * ((double)to[r][i] - (double)sum);
        }
        ck_assert(coded ? noise > 0 && noise < 0.02 * signal : noise == 0);
    }
}

/* Take turns until each node's first communicator has a held question in flight. */
void slow_await_questions(void)
{
    while (!slow_device[0][0]->open || !slow_device[1][0]->open)
        slow_turn();
}

void slow_close_all(struct nb_coll_comm *comm[SLOW_NODES])
{
    for (int r = 0; r < SLOW_NODES; r++)
        slow_cluster.node[r].comm = comm[r];
    cluster_disconnect(&slow_cluster);
}
