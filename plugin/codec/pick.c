/* SPDX-License-Identifier: Apache-2.0 */
/* See pick.h. */
#include "codec/pick.h"

#include <string.h>

#define PICKS_LEAST 256u
#define PICKS_USUAL 512u /* of a block that is large enough: half as many show small changes too late */
#define PICKS_MANY 1024u /* of one for which these cost nothing that counts */
#define MANY_FROM 16384u
#define VALUES_PER_PICK 256u

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

/* The parts of a block; their number is a power of two. */
struct parts {
    uint64_t length, rest; /* of a part, at least; the values that then remain, spread over all parts */
    unsigned bits;         /* of a part's number */
};

static struct parts parts_of(uint64_t n, unsigned picks)
{
    const unsigned bits = (unsigned)__builtin_ctz(picks);

    return (struct parts){n >> bits, n & (picks - 1), bits};
}

/* Where part i begins. */
static inline uint64_t begin_of(const struct parts *p, uint64_t i)
{
    return p->length * i + (p->rest * i >> p->bits);
}

#define SPREAD UINT64_C(0x9e3779b97f4a7c15)

/* The position in a part of that length: any value of it, by a number of the part's own. */
static inline uint64_t within(uint64_t begin, uint64_t length, uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return begin + (uint64_t)(((z >> 32) * length) >> 32);
}

/* That in part i. */
static inline uint64_t position(const struct parts *p, uint64_t i)
{
    const uint64_t begin = begin_of(p, i);

    return within(begin, begin_of(p, i + 1) - begin, (i + 1) * SPREAD);
}

/* The number of part i's position: its bits in reverse, so that consecutive numbers lie far apart. */
static unsigned number(unsigned picks, unsigned i)
{
    unsigned reversed = 0;

    for (unsigned bit = 1; bit < picks; bit *= 2, i /= 2)
        reversed = reversed * 2 + (i & 1);
    return reversed;
}

/* That of part i + 1, from that of part i: adding one turns the lowest bits up to the first zero. */
static inline unsigned next_number(unsigned picks, unsigned i, unsigned reversed)
{
    return reversed ^ (picks - (picks >> (__builtin_ctz(i + 1) + 1)));
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
    /* Likewise the first part whose position lies behind. */
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
    unsigned at = number(picks, begin);

    for (unsigned i = 0; i < parts; i++) {
        out[at] = values[i];
        at = next_number(picks, begin + i, at);
    }
}

/* With `width` known where it is compiled: a pick is a load. What position() multiplies is added up from part to part. */
static inline void pick(size_t width, const uint8_t *bytes, const struct parts *all, unsigned picks,
                        unsigned begin, unsigned parts, uint64_t first, uint32_t *out)
{
    const unsigned bits = all->bits;
    uint64_t whole = all->length * begin, rest = all->rest * begin, from = whole + (rest >> bits),
             seed = begin * SPREAD;
    unsigned at = number(picks, begin);

    for (unsigned i = begin; i < begin + parts; i++) {
        uint32_t value = 0;
        uint64_t to, where;
        whole += all->length;
        rest += all->rest;
        seed += SPREAD;
        to = whole + (rest >> bits);
        where = within(from, to - from, seed);
        memcpy(&value, bytes + (where - first) * width, width); /* little-endian */
        out[at] = value;
        at = next_number(picks, i, at);
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
    case 1: pick(1, src, &all, picks, begin, parts, first, out); break;
    case 2: pick(2, src, &all, picks, begin, parts, first, out); break;
    default: pick(4, src, &all, picks, begin, parts, first, out); break;
    }
    return parts;
}
