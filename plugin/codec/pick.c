/* SPDX-License-Identifier: Apache-2.0 */
/* See pick.h. */
#include "codec/pick.h"

#include <string.h>

#define PICKS_LEAST 256u
#define PICKS_USUAL 512u /* for a block that is large enough. Half as many show small changes too late */
#define PICKS_MANY 1024u /* for a block where this many cost next to nothing */
#define MANY_FROM 16384u
#define VALUES_PER_PICK 256u
#define PLACE_BITS 12 /* bits of a number below NB_PICKS */

_Static_assert(1u << PLACE_BITS == NB_PICKS, "a place for each position");

unsigned nb_picks_of(uint64_t n)
{
    unsigned picks = PICKS_USUAL;

    if (n < 2 * PICKS_LEAST)
        return 0;
    if (n < 2 * PICKS_USUAL)
        return PICKS_LEAST;
    if (n >= MANY_FROM)
        picks = PICKS_MANY;
    while (picks < NB_PICKS && 2 * picks <= n / VALUES_PER_PICK)
        picks *= 2;
    return picks;
}

/* The parts of a block. Their number is a power of two. */
struct parts {
    uint64_t length, rest; /* least length of a part, and the remaining values, spread over all parts */
    unsigned bits;         /* bits of a part's number */
};

static struct parts parts_of(uint64_t n, unsigned picks)
{
    const unsigned bits = (unsigned)__builtin_ctz(picks);

    return (struct parts){n >> bits, n & (picks - 1), bits};
}

/* Return the beginning of part i. */
static inline uint64_t begin_of(const struct parts *p, uint64_t i)
{
    return p->length * i + (p->rest * i >> p->bits);
}

/*
 * Two tables, the same for every block, which the compiler computes. The first gives each part's position
 * within the part, at random, as a fraction of 2^32. The second gives each part's number when the number of
 * parts is the largest: its bits in reverse, so that consecutive numbers lie far apart.
 */
#define SPREAD(i) (((i) + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15))
#define MIXED(i) ((SPREAD(i) ^ (SPREAD(i) >> 30)) * UINT64_C(0xbf58476d1ce4e5b9))
#define RANDOM(i) ((MIXED(i) ^ (MIXED(i) >> 27)) * UINT64_C(0x94d049bb133111eb))
#define REVERSED(i) (THREE(i) << 9 | THREE((i) >> 3) << 6 | THREE((i) >> 6) << 3 | THREE((i) >> 9))
#define THREE(i) (((i)&1) << 2 | ((i)&2) | ((i) >> 2 & 1))
#define PLACE(i) \
    { \
        (uint32_t)(RANDOM(i) >> 32), REVERSED(i) \
    }
#define PLACES_4(i) PLACE(i), PLACE((i) + 1), PLACE((i) + 2), PLACE((i) + 3)
#define PLACES_16(i) PLACES_4(i), PLACES_4((i) + 4), PLACES_4((i) + 8), PLACES_4((i) + 12)
#define PLACES_64(i) PLACES_16(i), PLACES_16((i) + 16), PLACES_16((i) + 32), PLACES_16((i) + 48)
#define PLACES_256(i) PLACES_64(i), PLACES_64((i) + 64), PLACES_64((i) + 128), PLACES_64((i) + 192)
#define PLACES_1024(i) PLACES_256(i), PLACES_256((i) + 256), PLACES_256((i) + 512), PLACES_256((i) + 768)

static const struct place {
    uint32_t fraction, number;
} place[NB_PICKS] = {PLACES_1024(0), PLACES_1024(1024), PLACES_1024(2048), PLACES_1024(3072)};

/* Return the position in a part, which can be any of its values. */
static inline uint64_t within(uint64_t begin, uint64_t length, unsigned i)
{
    return begin + (place[i].fraction * length >> 32);
}

static inline uint64_t position(const struct parts *p, unsigned i)
{
    const uint64_t begin = begin_of(p, i);

    return within(begin, begin_of(p, i + 1) - begin, i);
}

/* Return the number of part i's position, of `1 << bits` parts. */
static inline unsigned number(unsigned bits, unsigned i)
{
    return place[i].number >> (PLACE_BITS - bits);
}

unsigned nb_pick_parts(uint64_t n, unsigned picks, uint64_t first, uint64_t count, unsigned *begin)
{
    struct parts all;
    unsigned i, end;

    *begin = 0;
    if (!picks || !count || n < picks)
        return 0;
    all = parts_of(n, picks);
    /* The part of `first`, by its mean length, or one before. */
    i = (unsigned)((double)first * picks / (double)n);
    while (i > 0 && begin_of(&all, i) > first)
        i--;
    while (i < picks && position(&all, i) < first)
        i++;
    /* Likewise the first part whose position lies behind the values. */
    end = (unsigned)((double)(first + count) * picks / (double)n);
    end = end > picks ? picks : end;
    while (end > i && position(&all, end - 1) >= first + count)
        end--;
    while (end < picks && position(&all, end) < first + count)
        end++;
    *begin = i;
    return end > i ? end - i : 0;
}

void nb_pick_place(unsigned picks, unsigned begin, unsigned parts, const uint32_t *values, uint32_t *out)
{
    const unsigned bits = (unsigned)__builtin_ctz(picks);

    for (unsigned i = 0; i < parts; i++)
        out[number(bits, begin + i)] = values[i];
}

/* Pick with a constant `width`, so that a pick is one load. Additions from part to part replace position()'s
 * products. */
static inline void pick(size_t width, const uint8_t *bytes, const struct parts *all, unsigned begin,
                        unsigned parts, uint64_t first, uint32_t *out)
{
    const unsigned bits = all->bits;
    uint64_t whole = all->length * begin, rest = all->rest * begin, from = whole + (rest >> bits);

    for (unsigned i = begin; i < begin + parts; i++) {
        uint32_t value = 0;
        uint64_t to;
        whole += all->length;
        rest += all->rest;
        to = whole + (rest >> bits);
        memcpy(&value, bytes + (within(from, to - from, i) - first) * width, width); /* little-endian */
        out[number(bits, i)] = value;
        from = to;
    }
}

unsigned nb_pick(size_t width, const void *src, uint64_t n, unsigned picks, uint64_t first, uint64_t count,
                 uint32_t *out)
{
    unsigned begin, parts = nb_pick_parts(n, picks, first, count, &begin);
    struct parts all;

    if (!parts)
        return 0;
    all = parts_of(n, picks);
    switch (width) {
    case 1: pick(1, src, &all, begin, parts, first, out); break;
    case 2: pick(2, src, &all, begin, parts, first, out); break;
    default: pick(4, src, &all, begin, parts, first, out); break;
    }
    return parts;
}
