/* SPDX-License-Identifier: Apache-2.0 */
/* Events as they happen to one node. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"
#include "worker.h"

#define OVERFLOW_FACTOR 1e6f /* times any loss scale: beyond FP16 in most values */

static int moments_new(struct nbt_moments *mom, size_t n)
{
    mom->m = calloc(n, sizeof *mom->m);
    mom->v = calloc(n, sizeof *mom->v);
    return mom->m && mom->v ? 0 : -ENOMEM;
}

static void moments_copy(struct nbt_moments *to, const struct nbt_moments *from, size_t n)
{
    memcpy(to->m, from->m, n * sizeof *to->m);
    memcpy(to->v, from->v, n * sizeof *to->v);
}

int nbt_happen_open(struct nbt_worker *w)
{
    const size_t n = w->s->block;
    struct nbt_checkpoint *c = &w->saved;
    c->master = calloc(n, sizeof *c->master);
    return c->master && moments_new(&c->mom, n) == 0 && moments_new(&c->mom_exact, n) == 0 &&
                   moments_new(&c->mom_shadow, n) == 0
               ? 0
               : -ENOMEM;
}

void nbt_happen_close(struct nbt_worker *w)
{
    struct nbt_checkpoint *c = &w->saved;
    free(c->master);
    free(c->mom.m), free(c->mom.v), free(c->mom_exact.m), free(c->mom_exact.v);
    free(c->mom_shadow.m), free(c->mom_shadow.v);
}

static void save(struct nbt_worker *w)
{
    struct nbt_checkpoint *c = &w->saved;
    memcpy(c->master, w->master, w->s->block * sizeof *c->master);
    moments_copy(&c->mom, &w->mom, w->s->block);
    moments_copy(&c->mom_exact, &w->mom_exact, w->s->block);
    moments_copy(&c->mom_shadow, &w->mom_shadow, w->s->block);
    c->updates = w->updates;
}

/* The three optimizers go back together; the plugin learns nothing of it but weights that jump. */
static int load(struct nbt_worker *w, size_t step)
{
    const struct nbt_checkpoint *c = &w->saved;
    memcpy(w->master, c->master, w->s->block * sizeof *c->master);
    moments_copy(&w->mom, &c->mom, w->s->block);
    moments_copy(&w->mom_exact, &c->mom_exact, w->s->block);
    moments_copy(&w->mom_shadow, &c->mom_shadow, w->s->block);
    w->updates = c->updates;
    return nbt_gather(w, step);
}

static int restart(struct nbt_worker *w)
{
    struct nbt_traffic traffic;
    w->x.ops->traffic(&w->x, &traffic);
    nbt_traffic_add(&w->traffic_before, &traffic);
    int rc = w->x.ops->close(&w->x);
    if (rc == 0)
        rc = nbt_meet(w);
    return rc ? rc : w->x.ops->open(&w->x);
}

int nbt_happen_before(struct nbt_worker *w, size_t step)
{
    const struct nbt_events *e = &w->s->events;
    int rc = 0;
    if (nbt_event_at(e, NBT_EVENT_EVAL, step)) {
        for (int k = 0; rc == 0 && k < 2; k++)
            rc = nbt_gather(w, step);
        if (rc == 0)
            nbt_validate(w);
    }
    if (rc == 0 && nbt_event_at(e, NBT_EVENT_CHECKPOINT, step))
        rc = load(w, step);
    if (rc == 0 && nbt_event_at(e, NBT_EVENT_RESTART, step))
        rc = restart(w);
    if (rc == 0 && nbt_events_save(e, step))
        save(w);
    return rc;
}

float nbt_happen_factor(const struct nbt_worker *w, size_t step)
{
    const struct nbt_event *spike = nbt_event_at(&w->s->events, NBT_EVENT_SPIKE, step);
    if (w->node->rank == 1 && nbt_event_at(&w->s->events, NBT_EVENT_OVERFLOW, step))
        return OVERFLOW_FACTOR;
    return spike ? (float)spike->factor : 1;
}
