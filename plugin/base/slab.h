/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slab: entries of one size, numbered from 0. Their memory is made when they are first used, in chunks that
 * double. A table may therefore have room for thousands of entries and cost only the tens that are used.
 * Entries are zeroed when they are made, never move, and are freed together. Used by one thread, or under its
 * owner's lock.
 */
#ifndef NIBBLE_BASE_SLAB_H
#define NIBBLE_BASE_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define NB_SLAB_FIRST_BITS \
    4u /* 16 entries in the first chunk and in the second, then as many as in all earlier chunks */
#define NB_SLAB_CHUNKS 16u
#define NB_SLAB_MOST (1u << (NB_SLAB_FIRST_BITS + NB_SLAB_CHUNKS - 1))

struct nb_slab {
    void *chunk[NB_SLAB_CHUNKS];
    size_t size;   /* bytes of an entry */
    uint32_t cap;  /* most entries */
    uint32_t made; /* entries that have memory */
};

/* Set up a slab of `cap` entries (1 to NB_SLAB_MOST) of `size` bytes, without memory yet. nb_slab_free also
 * accepts a zeroed slab. */
void nb_slab_init(struct nb_slab *slab, size_t size, uint32_t cap);
void nb_slab_free(struct nb_slab *slab);
/* Make memory for entries 0 to n - 1. Return 0, or -ENOMEM when memory is short or n is beyond the cap.
 * Earlier entries then remain. */
int nb_slab_reach(struct nb_slab *slab, uint32_t n);

/* Return an entry that has memory. */
static inline void *nb_slab_at(const struct nb_slab *slab, uint32_t i)
{
    const unsigned bits = 31u - (unsigned)__builtin_clz(i | ((1u << NB_SLAB_FIRST_BITS) - 1));
    const unsigned chunk = bits - (NB_SLAB_FIRST_BITS - 1);

    return (char *)slab->chunk[chunk] + (size_t)(chunk ? i - (1u << bits) : i) * slab->size;
}

#define NB_NONE UINT32_MAX /* the end of a chain */

/* A hash table whose entries are elements of an array or slab. Entries with the same hash form a chain by
 * their indices, so that inserting allocates no memory. */
struct nb_chains {
    uint32_t *head, *next; /* of each hash, and [entries] */
    uint32_t mask;
};
/* Set up chains of `entries` entries. Return 0 or -ENOMEM. */
int nb_chains_init(struct nb_chains *c, uint32_t entries);
void nb_chains_free(struct nb_chains *c);
/* Return the first entry of the hash's chain, or NB_NONE. Other hashes may share the chain. c->next[] leads
 * on. */
static inline uint32_t nb_chains_first(const struct nb_chains *c, uint64_t hash)
{
    return c->head[hash & c->mask];
}
/* Put an entry into its hash's chain, or take it out again. */
void nb_chains_add(struct nb_chains *c, uint64_t hash, uint32_t at);
void nb_chains_remove(struct nb_chains *c, uint64_t hash, uint32_t at);
uint64_t nb_mix(uint64_t a, uint64_t b);

#endif
