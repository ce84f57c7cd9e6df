/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers by node of a communicator; see hang.h. */
#include <stdlib.h>

#include "hang.h"

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Return the key's entry, or a free one for it. A quarter or more of the entries are free. */
static struct index_slot *slot_of(const struct index *x, uint64_t id, uint64_t group, int node)
{
    size_t at = mix(mix(mix(id) + group) + (uint64_t)node);

    for (;; at++) {
        struct index_slot *s = &x->slot[at & (x->slots - 1)];
        if (!s->used || (s->id == id && s->group == group && s->node == node))
            return s;
    }
}

static bool grow(struct index *x)
{
    const struct index old = *x;

    x->slots = old.slots ? 2 * old.slots : 64;
    x->slot = calloc(x->slots, sizeof(*x->slot));
    if (!x->slot) {
        *x = old;
        return false;
    }
    for (size_t i = 0; i < old.slots; i++)
        if (old.slot[i].used)
            *slot_of(x, old.slot[i].id, old.slot[i].group, old.slot[i].node) = old.slot[i];
    free(old.slot);
    return true;
}

int *index_at(struct index *x, uint64_t id, uint64_t group, int node)
{
    struct index_slot *s;

    if (4 * (x->n + 1) > 3 * x->slots && !grow(x))
        return NULL;
    s = slot_of(x, id, group, node);
    if (!s->used) {
        *s = (struct index_slot){.id = id, .group = group, .node = node, .value = -1, .used = true};
        x->n++;
    }
    return &s->value;
}

void index_free(struct index *x)
{
    free(x->slot);
    *x = (struct index){0};
}
