/* SPDX-License-Identifier: Apache-2.0 */
/* How rings share a node's link: none that has something to send may be far ahead of the last one. It is what
 * plugin/coll/comm/ring.c does, which tells why. */
#include "follow.h"

#define LEAD_MIN 131072.0
#define LEAD 4e-3   /* seconds */
#define STUCK 20e-3 /* who has not moved for so long does not count */
#define STUCK_MOST 1.0

static struct ring *ring_at(const struct follow *f, int node, int i, enum follow_class class)
{
    return follow_ring(f, node, f->peers[node * f->npeers + i], class);
}

/* When a ring that has something to send will count as stuck. */
static double stuck(struct ring *r, double now)
{
    if (r->moved < 0) { /* it was idle */
        r->moved = now;
        r->took = 0;
        r->seen = r->had;
    } else if (r->had > r->seen) {
        r->took = now - r->moved;
        r->moved = now;
        r->seen = r->had;
    }
    return r->moved + nb_min_double(nb_max_double(STUCK, 4 * r->took), STUCK_MOST);
}

/* How far the last one gets in LEAD seconds. */
static void adapt(struct fair *a, double least, double now)
{
    const double took = now - a->since;

    if (a->since >= 0 && least >= a->noted && took < LEAD)
        return;
    if (a->since >= 0 && least > a->noted)
        a->lead = (least - a->noted) * LEAD / took;
    a->lead = nb_max_double(a->lead, LEAD_MIN);
    a->noted = least;
    a->since = now;
}

/* Nothing is to be sent: all begin level the next time. */
static void rest(struct follow *f, int node, enum follow_class class)
{
    struct fair *a = &f->node[node].fair[class];

    for (int i = 0; a->since >= 0 && i < f->npeers; i++) {
        struct ring *r = ring_at(f, node, i, class);
        r->had = 0;
        r->moved = -1;
    }
    a->since = -1;
}

void follow_look_fair(struct follow *f, int node, enum follow_class class)
{
    struct node *n = &f->node[node];
    struct fair *a = &n->fair[class];
    double least = INFINITY;

    a->most = a->until = INFINITY;
    if (n->pending[class] == 0) {
        rest(f, node, class);
        return;
    }
    for (int i = 0; i < f->npeers; i++) {
        struct ring *r = ring_at(f, node, i, class);
        double at;

        if (r->used == 0) {
            r->moved = -1;
            continue;
        }
        at = stuck(r, n->thread);
        if (n->thread > at)
            continue;
        a->until = nb_min_double(a->until, at);
        least = nb_min_double(least, r->had);
    }
    if (!isfinite(least))
        return;
    for (int i = 0; i < f->npeers; i++) {
        struct ring *r = ring_at(f, node, i, class);
        if (r->moved < 0)
            r->had = nb_max_double(r->had, least);
    }
    adapt(a, least, n->thread);
    if (n->pending[class] > 1)
        a->most = least + a->lead;
}
