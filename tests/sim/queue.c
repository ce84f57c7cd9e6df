/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap. See queue.h. */
#include "tests/sim/queue.h"

#include <stdlib.h>

#include "tests/sim/memory.h"

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->number < b->number;
}

/* Return whether an event brings something from outside the engines. A look of the judge brings no event: it
 * repeats as long as nodes wait, even forever. */
static bool outside(enum sim_event_kind kind)
{
    return kind != SIM_NODE && kind != SIM_DUE;
}

void sim_queue_put(struct sim_queue *q, int64_t at, enum sim_event_kind kind, int node, void *thing)
{
    struct sim_event e = {.at = at, .number = q->numbers++, .kind = kind, .node = node, .thing = thing};
    size_t i = q->n++;

    if (q->n > q->cap) {
        const int before = sim_memory_enter(SIM_NOBODY); /* whichever node works */
        q->cap = q->cap ? 2 * q->cap : 256;
        q->event = realloc(q->event, q->cap * sizeof(*q->event));
        if (!q->event)
            abort();
        sim_memory_enter(before);
    }
    q->foreground += outside(kind);
    for (; i > 0 && before(&e, &q->event[(i - 1) / 2]); i = (i - 1) / 2)
        q->event[i] = q->event[(i - 1) / 2];
    q->event[i] = e;
}

bool sim_queue_take(struct sim_queue *q, struct sim_event *event)
{
    struct sim_event last;
    size_t i = 0, child;

    if (q->n == 0)
        return false;
    *event = q->event[0];
    last = q->event[--q->n];
    while ((child = 2 * i + 1) < q->n) {
        child += child + 1 < q->n && before(&q->event[child + 1], &q->event[child]);
        if (!before(&q->event[child], &last))
            break;
        q->event[i] = q->event[child];
        i = child;
    }
    q->event[i] = last;
    q->foreground -= outside(event->kind);
    return true;
}

void sim_queue_free(struct sim_queue *q)
{
    free(q->event);
    *q = (struct sim_queue){0};
}
