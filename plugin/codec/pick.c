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

/* Where part i of `picks` begins. */
static uint64_t part(uint64_t n, unsigned picks, uint64_t i)
{
    return n / picks * i + n % picks * i / picks;
}

/* The position in part i: any value of it. */
static uint64_t position(uint64_t n, unsigned picks, uint64_t i)
{
    const uint64_t begin = part(n, picks, i), length = part(n, picks, i + 1) - begin;
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return begin + (uint64_t)(((z >> 32) * length) >> 32);
}

/* The number of part i's position: its bits in reverse, so that consecutive numbers lie far apart. */
static unsigned number(unsigned picks, unsigned i)
{
    unsigned reversed = 0;

    for (unsigned bit = 1; bit < picks; bit *= 2, i /= 2)
        reversed = reversed * 2 + (i & 1);
    return reversed;
}

unsigned nb_pick_parts(uint64_t n, unsigned picks, uint64_t first, uint64_t count, unsigned *begin)
{
    unsigned i, end;

    *begin = 0;
    if (!picks || !count || n < picks)
        return 0;
    /* The part of `first`, by its mean length, or one before. */
    i = (unsigned)((double)first * picks / (double)n);
    while (i > 0 && part(n, picks, i) > first)
        i--;
    while (i < picks && position(n, picks, i) < first)
        i++;
    /* Likewise the first part whose position lies behind. */
    end = (unsigned)((double)(first + count) * picks / (double)n);
    end = end > picks ? picks : end;
    while (end > i && position(n, picks, end - 1) >= first + count)
        end--;
    while (end < picks && position(n, picks, end) < first + count)
        end++;
    *begin = i;
    return end > i ? end - i : 0;
}

void nb_pick_place(unsigned picks, unsigned begin, unsigned parts, const uint32_t *values, uint32_t *out)
{
    for (unsigned i = 0; i < parts; i++)
        out[number(picks, begin + i)] = values[i];
}

unsigned nb_pick(size_t width, const void *src, uint64_t n, unsigned picks, uint64_t first, uint64_t count,
                 uint32_t *out)
{
    const uint8_t *bytes = src;
    unsigned begin, parts = nb_pick_parts(n, picks, first, count, &begin);

    for (unsigned i = begin; i < begin + parts; i++) {
        uint32_t value = 0;
        memcpy(&value, bytes + (position(n, picks, i) - first) * width, width); /* little-endian */
        out[number(picks, i)] = value;
    }
    return parts;
}
