/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL's CollNet proxy: when an operation's turn comes, post its windows, one after the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "coll/comm/node.h"
#include "coll/engine.h"
#include "emulate/nccl_walk.h"
#include "internal.h"

#define WINDOW ((size_t)1 << 17) /* of its single channel */
#define STEPS NB_NCCL_STEPS      /* windows in flight */

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

/* Fill a window with the values that the node sends. The rest of an all-reduce's whole chunks is stale. */
static void fill(const struct operation *o, const struct nb_nccl_walk *w, uint8_t *region, size_t step)
{
    const struct nb_nccl_place p = nb_nccl_place(w, false, 0, step);
    const size_t own = o->func == NB_FUNC_ALL_GATHER ? (size_t)w->rank * w->block : 0;

    memcpy(region + p.at, (const uint8_t *)o->data[w->rank] + p.from - own, p.valid);
    memset(region + p.at + p.valid, 0x7f, p.bytes - p.valid);
}

static int hand_over(const struct operation *o, const struct nb_nccl_walk *w, size_t step,
                     struct nb_coll_req **req)
{
    const struct member *m = &o->comm->member[w->rank];

    nb_log_label(o->comm->job->cluster.node[w->rank].ctx.label);
    fill(o, w, m->region, step);
    return nb_nccl_call(w, m->coll, m->region, 0, step, o->what.type, ncclSum, req);
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
    const size_t each = o->func == NB_FUNC_ALL_REDUCE ? o->bytes : o->bytes / NODES;
    struct nb_nccl_walk walk[NODES];
    struct nb_coll_req *req[NODES][STEPS] = {{NULL}};
    size_t called[NODES] = {0}, tested[NODES] = {0};

    note(o);
    for (int r = 0; r < NODES; r++)
        walk[r] = nb_nccl_walk(o->func, NODES, r, 1, STEPS * WINDOW, WINDOW, each);
    while (tested[0] < windows || tested[1] < windows) {
        for (int r = 0; r < NODES; r++) {
            while (called[r] < windows && called[r] < tested[r] + STEPS) {
                struct nb_coll_req **q = &req[r][called[r] % STEPS];
                CLUSTER_CHECK(!hand_over(o, &walk[r], called[r], q));
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
