/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers that depend only on their keys: splitmix64 (Steele, Lea, Flood 2014), seeded from a run's
 * seed and two numbers that state their purpose, so that any node can draw another node's numbers.
 */
#ifndef NIBBLE_TRAIN_RNG_H
#define NIBBLE_TRAIN_RNG_H

#include <math.h>
#include <stdint.h>

struct nbt_rng {
    uint64_t state;
};

static inline uint64_t nbt_rng_next(struct nbt_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline struct nbt_rng nbt_rng_seed(uint64_t seed, uint64_t what, uint64_t which)
{
    struct nbt_rng r = {seed};
    r.state = nbt_rng_next(&r) ^ what;
    r.state = nbt_rng_next(&r) ^ which;
    (void)nbt_rng_next(&r);
    return r;
}

/* Return a uniform number in [0, 1). */
static inline double nbt_rng_unit(struct nbt_rng *r)
{
    return (double)(nbt_rng_next(r) >> 11) * 0x1p-53;
}

/* Return a standard normal number (Box and Muller, one of the pair). */
static inline double nbt_rng_normal(struct nbt_rng *r)
{
    const double u = 1.0 - nbt_rng_unit(r), v = nbt_rng_unit(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* Return a uniform number in [0, n), n > 0. Its bias is below 2^-32 for the n used here. */
static inline uint64_t nbt_rng_below(struct nbt_rng *r, uint64_t n)
{
    return (uint64_t)(nbt_rng_unit(r) * (double)n);
}

#endif
