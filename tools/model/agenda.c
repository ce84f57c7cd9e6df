/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap; see agenda.h. */
#include "agenda.h"

#include <stdlib.h>

static bool before(const struct nm_event *a, const struct nm_event *b)
{
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

void nm_agenda_put(struct nm_agenda *a, double at, int kind, int node, void *thing)
{
    const struct nm_event event = {.at = at, .number = a->put++, .kind = kind, .node = node, .thing = thing};
    size_t i;

    if (a->n == a->room) {
        const size_t room = 2 * a->room + 1024;
        struct nm_event *more = realloc(a->heap, room * sizeof(*more));
        if (!more) {
            a->failed = true;
            return;
        }
        a->heap = more;
        a->room = room;
    }
    for (i = a->n++; i > 0 && before(&event, &a->heap[(i - 1) / 2]); i = (i - 1) / 2)
        a->heap[i] = a->heap[(i - 1) / 2];
    a->heap[i] = event;
}

bool nm_agenda_take(struct nm_agenda *a, struct nm_event *event)
{
    const struct nm_event *last;
    size_t i = 0, child;

    if (a->n == 0)
        return false;
    *event = a->heap[0];
    last = &a->heap[--a->n];
    while ((child = 2 * i + 1) < a->n) {
        child += child + 1 < a->n && before(&a->heap[child + 1], &a->heap[child]);
        if (!before(&a->heap[child], last))
            break;
        a->heap[i] = a->heap[child];
        i = child;
    }
    a->heap[i] = *last;
    return true;
}

void nm_agenda_free(struct nm_agenda *a)
{
    free(a->heap);
    *a = (struct nm_agenda){0};
}
