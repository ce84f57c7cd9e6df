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

int nb_chains_init(struct nb_chains *c, uint32_t entries)
{
    uint32_t n = 16;

    while (n < entries)
        n *= 2;
    c->head = malloc((n + entries) * sizeof(*c->head));
    if (!c->head)
        return -ENOMEM;
    c->next = c->head + n;
    memset(c->head, 0xff, n * sizeof(*c->head));
    c->mask = n - 1;
    return 0;
}

void nb_chains_free(struct nb_chains *c)
{
    free(c->head);
    c->head = NULL;
}

void nb_chains_add(struct nb_chains *c, uint64_t hash, uint32_t at)
{
    uint32_t *head = &c->head[hash & c->mask];

    c->next[at] = *head;
    *head = at;
}

void nb_chains_remove(struct nb_chains *c, uint64_t hash, uint32_t at)
{
    uint32_t *link = &c->head[hash & c->mask];

    while (*link != at)
        link = &c->next[*link];
    *link = c->next[at];
}
