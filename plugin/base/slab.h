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

/*
 * A table: entries of a slab that two numbers name. Entries stay at their places. In a full table, or without
 * memory for more, an entry makes room that nobody has asked for lately.
 */
struct nb_entry { /* the first member of an entry */
    uint64_t a, b;
    uint32_t at;   /* its place */
    uint32_t next; /* place of the next entry of the same hash, or of the next free place */
    uint8_t taken;
    uint8_t used; /* 1: asked for since the table last came by, looking for room */
};

struct nb_table {
    struct nb_slab slab;
    uint32_t *head; /* first entry of each hash */
    uint32_t mask, begun, free, hand;
};
#define NB_NONE UINT32_MAX /* no place */

/* Set up a table of `cap` entries of `size` bytes, with memory for the first ones. Return 0 or -ENOMEM.
 * nb_table_free also accepts a zeroed table. */
int nb_table_init(struct nb_table *t, size_t size, uint32_t cap);
void nb_table_free(struct nb_table *t);
/* Return the entry of that name, or NULL. */
void *nb_table_find(const struct nb_table *t, uint64_t a, uint64_t b);
/* Make the entry of a name that has none, with zeros behind its struct nb_entry. The table first calls `drop`
 * for the entry that makes room, unless drop is NULL. */
void *nb_table_make(struct nb_table *t, uint64_t a, uint64_t b, void (*drop)(void *arg, void *entry),
                    void *arg);
/* Take the entry out of the table. */
void nb_table_remove(struct nb_table *t, void *entry);
/* Return the entry behind this one, or the first one for NULL. Return NULL at the end. */
void *nb_table_next(const struct nb_table *t, const void *entry);
uint64_t nb_mix(uint64_t a, uint64_t b);

#endif
