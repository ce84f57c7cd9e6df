/* SPDX-License-Identifier: Apache-2.0 */
/* See pipeline.h. */
#include "pipeline.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct link {
    struct px *px;
    struct hx_p2p *p2p;
    int peer, number; /* links are numbered by their lower node */
    pthread_t thread;
    atomic_int running;
    double seconds; /* negative: failed */
};

struct px {
    struct hx_node *node;
    struct px_plan plan;
    struct link link[2]; /* down, up */
    bool started;
};

/* Return the bytes of the k-th message that node `from` sends on a link: half of them small, a quarter
 * large. */
static size_t size_of(const struct px_plan *plan, int link, int from, int k)
{
    uint64_t rng = hx_seed(plan->seed, (uint64_t)link * 2 + (uint64_t)(from > link), (uint64_t)k + 1);
    uint64_t kind = hx_rand_below(&rng, 4);
    size_t most = kind < 2 ? 4096 : kind == 2 ? 65536 : plan->most;

    return (size_t)hx_rand_below(&rng, most < plan->most ? most : plan->most) + (kind > 0);
}

static void content(const struct px_plan *plan, int link, int from, int k, void *buf, size_t bytes)
{
    hx_fill(ncclUint8, buf, bytes, hx_seed(plan->seed + 1, (uint64_t)link * 64 + (uint64_t)from, (uint64_t)k),
            HX_FILL_BITS);
}

static int exchange(const struct link *l, int k, char *send, char *recv, char *want)
{
    const struct px_plan *plan = &l->px->plan;
    int me = l->px->node->rank;
    size_t out = size_of(plan, l->number, me, k), in = size_of(plan, l->number, l->peer, k);

    if (plan->check) {
        content(plan, l->number, me, k, send, out);
        content(plan, l->number, l->peer, k, want, in);
        memset(recv, 0x5a, in + 1);
    }
    HX_CHECK(hx_p2p_run(l->p2p, send, out, recv, in, HX_SOON_S) == ncclSuccess,
             "message %d between nodes %d and %d (%zu bytes out, %zu in) failed", k, me, l->peer, out, in);
    HX_CHECK(!plan->check || (memcmp(recv, want, in) == 0 && recv[in] == 0x5a),
             "message %d from node %d, %zu bytes, is not what was sent", k, l->peer, in);
    return 0;
}

static void *link_main(void *arg)
{
    struct link *l = arg;
    const struct px_plan *plan = &l->px->plan;
    char *mem = calloc(3, plan->most + 1);
    double begin = hx_now();

    if (!mem)
        abort();
    for (int k = 0; k < plan->exchanges && l->seconds >= 0; k++)
        if (exchange(l, k, mem, mem + plan->most + 1, mem + 2 * (plan->most + 1)))
            l->seconds = -1;
    if (l->seconds >= 0)
        l->seconds = hx_now() - begin;
    free(mem);
    atomic_store(&l->running, 0);
    return NULL;
}

int px_open(struct hx_node *node, struct hx_lib *lib, struct hx_ctx *ctx, const struct px_plan *plan,
            struct px **out)
{
    struct px *px = calloc(1, sizeof *px);

    if (!px)
        abort();
    px->node = node;
    px->plan = *plan;
    /* Links with even numbers first, so that waits form no circle. */
    for (int turn = 0; turn < 2; turn++) {
        for (int up = 0; up < 2; up++) {
            struct hx_p2p_cfg cfg = {.streams = 2, .slot = 128 << 10};
            struct link *l = &px->link[up];
            int number = up ? node->rank : node->rank - 1;

            if (number < 0 || number + 1 >= node->nnodes || number % 2 != turn)
                continue;
            l->px = px;
            l->number = number;
            l->peer = up ? node->rank + 1 : node->rank - 1;
            HX_CHECK(hx_p2p_open(node, lib, ctx, l->peer, &cfg, &l->p2p) == ncclSuccess,
                     "the link to node %d cannot be opened", l->peer);
        }
    }
    *out = px;
    return 0;
}

int px_start(struct px *px)
{
    for (int i = 0; i < 2; i++) {
        struct link *l = &px->link[i];

        if (!l->p2p)
            continue;
        l->seconds = 0;
        atomic_store(&l->running, 1);
        HX_CHECK(pthread_create(&l->thread, NULL, link_main, l) == 0, "thread");
    }
    px->started = true;
    return 0;
}

int px_done(struct px *px)
{
    return !atomic_load(&px->link[0].running) && !atomic_load(&px->link[1].running);
}

double px_join(struct px *px)
{
    double slowest = 0;

    for (int i = 0; i < 2 && px->started; i++) {
        struct link *l = &px->link[i];

        if (!l->p2p)
            continue;
        pthread_join(l->thread, NULL);
        if (l->seconds < 0)
            slowest = -1;
        else if (slowest >= 0 && l->seconds > slowest)
            slowest = l->seconds;
    }
    px->started = false;
    return slowest;
}

int px_close(struct px *px)
{
    int rc = 0;

    for (int i = 0; i < 2; i++)
        if (px->link[i].p2p && hx_p2p_close(px->link[i].p2p) != ncclSuccess)
            rc = hx_fail("closing the link to node %d failed", px->link[i].peer);
    free(px);
    return rc;
}
