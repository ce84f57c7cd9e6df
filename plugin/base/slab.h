/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slab: entries of one size, numbered from 0, whose memory is made when they are first used, in chunks that
 * double. So a table may have room for thousands and cost what the tens take that are used. Entries are
 * zeroed when they are made, never move, and are freed together. For one thread, or under the lock of whoever
 * has it.
 */
#ifndef NIBBLE_BASE_SLAB_H
#define NIBBLE_BASE_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define NB_SLAB_FIRST_BITS \
    4u /* 16 entries in the first chunk and in the second, then as many as in all before */
#define NB_SLAB_CHUNKS 16u
#define NB_SLAB_MOST (1u << (NB_SLAB_FIRST_BITS + NB_SLAB_CHUNKS - 1))

struct nb_slab {
    void *chunk[NB_SLAB_CHUNKS];
    size_t size;   /* bytes of an entry */
    uint32_t cap;  /* entries at most */
    uint32_t made; /* entries that there is memory for */
};

/* A slab of `cap` entries (1 to NB_SLAB_MOST) of `size` bytes, without memory yet. free: also of zeroes. */
void nb_slab_init(struct nb_slab *slab, size_t size, uint32_t cap);
void nb_slab_free(struct nb_slab *slab);
/* See to memory for entries 0 to n - 1: 0; or -ENOMEM when there is none, or n is beyond the cap, and then
 * what was made before is still there. */
int nb_slab_reach(struct nb_slab *slab, uint32_t n);

/* An entry that there is memory for. */
static inline void *nb_slab_at(const struct nb_slab *slab, uint32_t i)
{
    const unsigned bits = 31u - (unsigned)__builtin_clz(i | ((1u << NB_SLAB_FIRST_BITS) - 1));
    const unsigned chunk = bits - (NB_SLAB_FIRST_BITS - 1);

    return (char *)slab->chunk[chunk] + (size_t)(chunk ? i - (1u << bits) : i) * slab->size;
}

#define NB_NONE UINT32_MAX /* the end of a chain */

/* Elements that hold a set of chained hash tables' entries: index chains, so that nothing is allocated later.
 */
struct nb_chains {
    uint32_t *head;
    uint32_t mask;
};
int nb_chains_init(struct nb_chains *c, uint32_t entries);
void nb_chains_free(struct nb_chains *c);
uint64_t nb_mix(uint64_t a, uint64_t b);

#endif
