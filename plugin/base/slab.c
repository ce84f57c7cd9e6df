/* SPDX-License-Identifier: Apache-2.0 */
/* See slab.h. */
#include "base/slab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void nb_slab_init(struct nb_slab *slab, size_t size, uint32_t cap)
{
    *slab = (struct nb_slab){.size = size, .cap = cap};
}

void nb_slab_free(struct nb_slab *slab)
{
    for (unsigned i = 0; i < NB_SLAB_CHUNKS; i++)
        free(slab->chunk[i]);
    memset(slab, 0, sizeof(*slab));
}

int nb_slab_reach(struct nb_slab *slab, uint32_t n)
{
    if (n > slab->cap)
        return -ENOMEM;
    while (slab->made < n) {
        const uint32_t first = 1u << NB_SLAB_FIRST_BITS, end = slab->made ? 2 * slab->made : first;
        const unsigned at = slab->made ? 31u - (unsigned)__builtin_clz(end) - NB_SLAB_FIRST_BITS : 0;
        const uint32_t most = end < slab->cap ? end : slab->cap;

        slab->chunk[at] = calloc(most - slab->made, slab->size);
        if (!slab->chunk[at])
            return -ENOMEM;
        slab->made = most;
    }
    return 0;
}

uint64_t nb_mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b * 0x9e3779b97f4a7c15u)) + 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}

int nb_table_init(struct nb_table *t, size_t size, uint32_t cap)
{
    uint32_t n = 16;

    while (n < cap)
        n *= 2;
    *t = (struct nb_table){.head = malloc(n * sizeof(*t->head)), .mask = n - 1, .free = NB_NONE};
    nb_slab_init(&t->slab, size, cap);
    if (!t->head || nb_slab_reach(&t->slab, 1)) {
        nb_table_free(t);
        return -ENOMEM;
    }
    memset(t->head, 0xff, n * sizeof(*t->head));
    return 0;
}

void nb_table_free(struct nb_table *t)
{
    free(t->head);
    nb_slab_free(&t->slab);
    *t = (struct nb_table){0};
}

static struct nb_entry *entry_at(const struct nb_table *t, uint32_t at)
{
    return nb_slab_at(&t->slab, at);
}

static uint32_t *head_of(const struct nb_table *t, uint64_t a, uint64_t b)
{
    return &t->head[nb_mix(a, b) & t->mask];
}

void *nb_table_find(const struct nb_table *t, uint64_t a, uint64_t b)
{
    uint32_t at = *head_of(t, a, b);

    while (at != NB_NONE && (entry_at(t, at)->a != a || entry_at(t, at)->b != b))
        at = entry_at(t, at)->next;
    if (at == NB_NONE)
        return NULL;
    entry_at(t, at)->used = 1;
    return entry_at(t, at);
}

/* Return an entry that nobody has asked for since the hand was there last. All places are taken. */
static struct nb_entry *victim(struct nb_table *t)
{
    for (;;) {
        struct nb_entry *e = entry_at(t, t->hand++ % t->begun);

        if (!e->used)
            return e;
        e->used = 0;
    }
}

void *nb_table_make(struct nb_table *t, uint64_t a, uint64_t b, void (*drop)(void *arg, void *entry),
                    void *arg)
{
    uint32_t *head = head_of(t, a, b), at;
    struct nb_entry *e;

    if (t->free == NB_NONE && !nb_slab_reach(&t->slab, t->begun + 1)) {
        at = t->begun++;
    } else {
        if (t->free == NB_NONE) {
            e = victim(t);
            if (drop)
                drop(arg, e);
            nb_table_remove(t, e);
        }
        at = t->free;
        t->free = entry_at(t, at)->next;
    }
    e = entry_at(t, at);
    memset(e, 0, t->slab.size);
    *e = (struct nb_entry){.a = a, .b = b, .at = at, .next = *head, .taken = 1};
    *head = at;
    return e;
}

void nb_table_remove(struct nb_table *t, void *entry)
{
    struct nb_entry *e = entry;
    uint32_t *link = head_of(t, e->a, e->b);

    while (*link != e->at)
        link = &entry_at(t, *link)->next;
    *link = e->next;
    e->next = t->free;
    e->taken = 0;
    t->free = e->at;
}

void *nb_table_next(const struct nb_table *t, const void *entry)
{
    uint32_t at = entry ? ((const struct nb_entry *)entry)->at + 1 : 0;

    while (at < t->begun && !entry_at(t, at)->taken)
        at++;
    return at < t->begun ? entry_at(t, at) : NULL;
}
