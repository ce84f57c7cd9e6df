/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL's CollNet proxy does with an operation when it is its turn: windows, one after the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "coll/comm/node.h"
#include "coll/engine.h"
#include "internal.h"

#define WINDOW ((size_t)1 << 17) /* of the one channel */
#define STEPS 8                  /* windows in flight */

void network_connect(struct comm *c)
{
    struct cluster *cluster = &c->job->cluster;

    cluster_connect_as(cluster, c->id);
    for (int r = 0; r < NODES; r++) {
        struct member *m = &c->member[r];
        m->coll = cluster->node[r].comm;
        cluster->node[r].comm = NULL;
        m->region = calloc(2 * STEPS, WINDOW);
        if (!m->region)
            abort();
        for (int i = 0; i < 2; i++)
            CLUSTER_CHECK(
                !nb_coll_reg_mr(m->coll, m->region, 2 * STEPS * WINDOW, NCCL_PTR_HOST, &m->mhandle[i]));
    }
}

void network_disconnect(struct comm *c)
{
    struct cluster *cluster = &c->job->cluster;

    for (int r = 0; r < NODES; r++) {
        struct member *m = &c->member[r];
        for (int i = 0; i < 2; i++)
            nb_coll_dereg_mr(m->coll, m->mhandle[i]);
        cluster->node[r].comm = m->coll;
    }
    cluster_disconnect(cluster);
    for (int r = 0; r < NODES; r++)
        free(c->member[r].region);
}

struct window {
    size_t from, bytes; /* of the whole vector */
    size_t own, owned;  /* its part of the node's block: within the block, and how much */
};

static struct window window_of(const struct operation *o, int r, size_t step)
{
    const size_t block = o->bytes / NODES, lo = (size_t)r * block, hi = lo + block;
    struct window w = {.from = step * WINDOW};
    size_t end = w.from + WINDOW < o->bytes ? w.from + WINDOW : o->bytes, a, b;

    w.bytes = end - w.from;
    a = w.from < lo ? lo : w.from > hi ? hi : w.from;
    b = end < lo ? lo : end > hi ? hi : end;
    w.own = a - lo;
    w.owned = b - a;
    return w;
}

static int hand_over(const struct operation *o, int r, size_t step, struct nb_coll_req **req)
{
    const struct member *m = &o->comm->member[r];
    const struct window w = window_of(o, r, step);
    uint8_t *send = m->region + step % STEPS * WINDOW, *recv = send + STEPS * WINDOW;
    const uint8_t *data = o->data[r];

    nb_log_label(o->comm->job->cluster.node[r].ctx.label);
    switch (o->func) {
    case NB_FUNC_ALL_REDUCE: /* whole chunks: what lies behind the values is stale */
        memcpy(send, data + w.from, w.bytes);
        memset(send + w.bytes, 0x7f, WINDOW - w.bytes);
        return nb_coll_iallreduce(m->coll, send, recv, WINDOW / o->size, o->what.type, ncclSum, req);
    case NB_FUNC_ALL_GATHER:
        memcpy(send, data + w.own, w.owned);
        return nb_coll_iallgather(m->coll, send, recv, w.bytes, o->bytes / NODES, w.from, w.bytes, req);
    default:
        memcpy(send, data + w.from, w.bytes);
        return nb_coll_ireducescatter(m->coll, send, w.bytes, recv, o->bytes / NODES, w.from, w.bytes,
                                      o->what.type, ncclSum, req);
    }
}

static void note(const struct operation *o)
{
    struct comm *c = o->comm;

    if (c->posted == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->done = realloc(c->done, c->cap * sizeof(*c->done));
        if (!c->done)
            abort();
    }
    c->done[c->posted++] = (struct posted){.func = o->func,
                                           .type = o->what.type,
                                           .n = o->what.n,
                                           .bytes = o->bytes,
                                           .step = o->step,
                                           .what = o->what.what};
}

static void run(struct operation *o)
{
    struct cluster *cluster = &o->comm->job->cluster;
    const size_t windows = (o->bytes + WINDOW - 1) / WINDOW;
    struct nb_coll_req *req[NODES][STEPS] = {{NULL}};
    size_t called[NODES] = {0}, tested[NODES] = {0};

    note(o);
    while (tested[0] < windows || tested[1] < windows) {
        for (int r = 0; r < NODES; r++) {
            while (called[r] < windows && called[r] < tested[r] + STEPS) {
                struct nb_coll_req **q = &req[r][called[r] % STEPS];
                CLUSTER_CHECK(!hand_over(o, r, called[r], q));
                if (!*q)
                    break;
                called[r]++;
            }
            while (tested[r] < called[r]) {
                int done = 0;
                CLUSTER_CHECK(!nb_coll_test(req[r][tested[r] % STEPS], &done, NULL));
                if (!done)
                    break;
                tested[r]++;
            }
        }
        if (tested[0] < windows || tested[1] < windows)
            CLUSTER_CHECK(cluster_turn(cluster));
    }
    for (int r = 0; r < NODES; r++)
        free(o->data[r]);
}

void network_queue(const struct operation *o)
{
    struct job *job = o->comm->job;

    job->pending[job->last++ % PENDING] = *o;
    while (job->last - job->first > (size_t)job->ahead)
        run(&job->pending[job->first++ % PENDING]);
}

void network_drain(struct job *job)
{
    while (job->first < job->last)
        run(&job->pending[job->first++ % PENDING]);
}
