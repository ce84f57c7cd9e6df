/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bit strings of sparse records: what their coders share for all widths (docs/wire-format.md, section "Sparse
 * spans"). Only the sources of the variants include this. The functions take on the instruction set of the
 * including file, which may define ULP_BMI2.
 */
#ifndef NIBBLE_CODEC_ULP_SPARSE_H
#define NIBBLE_CODEC_ULP_SPARSE_H

#include <errno.h>

#include "base/bytes.h"
#include "codec/ulp.h"
#include "codec/ulp_bits.h"

/* The most values of a chunk, and the most of them that a sparse record may change, for the width W. */
#define SPARSE_VALUES (NB_ULP_CHUNK / W)
#define SPARSE_CHANGES (SPARSE_VALUES / NB_ULP_FEW)
#define SPARSE_WORDS (SPARSE_VALUES / 64)
#define SPARSE_PART (NB_ULP_PART / W) /* values */
#define SPARSE_BLOCK 64u              /* changes that a decoder treats at a time */
#define SPARSE_SPARE 68u              /* numbers that ones_of and ones_take may write behind the last one */

/* Return up to 57 bits from bit `pos` <= 8 len on, 64 from the beginning of a byte, zeros behind the end. */
static inline uint64_t sparse_peek(const uint8_t *p, size_t len, size_t pos)
{
    uint64_t bits = 0;

    if (__builtin_expect((pos >> 3) + 8 <= len, 1))
        return bits_peek(p, pos);
    for (size_t at = pos >> 3, i = 0; at + i < len; i++)
        bits |= (uint64_t)p[at + i] << 8 * i;
    return bits >> (pos & 7);
}

/* Write `from` plus the number of each bit of the word that is set. Return how many are. Four at a time: a
 * branch after each one would often be predicted wrong. */
static inline size_t ones_of(uint64_t x, uint32_t from, uint32_t *at)
{
    const size_t n = (size_t)__builtin_popcountll(x);
    size_t i = 0;

    do {
        for (unsigned j = 0; j < 4; j++, x &= x - 1) {
            at[i++] = from + (uint32_t)__builtin_ctzll(x | UINT64_C(1) << 63);
            __asm__ volatile("" : : : "memory"); /* four stores are faster than a vector of them */
        }
    } while (i < n);
    return n;
}

/* A string of zeros and ones being written into memory of zeros. */
struct ones {
    uint8_t *p;
    uint64_t word; /* the current one, number `at` */
    size_t at, bits;
};

static inline void ones_put(struct ones *o, uint32_t zeros)
{
    const size_t place = o->bits + zeros;
    uint64_t le;

    o->word = (place / 64 == o->at ? o->word : 0) | UINT64_C(1) << place % 64;
    o->at = place / 64;
    o->bits = place + 1;
    le = htole64(o->word);
    memcpy(o->p + 8 * o->at, &le, 8);
}

/* Get the places of the next n > 0 ones from bit *pos on, and move *pos behind the last one. */
static inline int ones_take(const uint8_t *p, size_t len, size_t *pos, size_t n, uint32_t *at)
{
    size_t word = *pos / 64, got = 0;
    uint64_t x;

    if (8 * word >= len)
        return -EBADMSG;
    x = sparse_peek(p, len, 64 * word) & UINT64_MAX << *pos % 64;
    while ((got += ones_of(x, (uint32_t)(64 * word), at + got)) < n) {
        if (8 * ++word >= len)
            return -EBADMSG;
        x = sparse_peek(p, len, 64 * word);
    }
    *pos = at[n - 1] + 1;
    return 0;
}

/* Append the k <= NB_ULP_GAP_MAX low bits of each of n numbers. */
static inline void fields_put(struct bits *b, const uint16_t *v, size_t n, unsigned k)
{
    const uint64_t mask = (UINT64_C(1) << k) - 1;
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        uint64_t x;
#ifdef ULP_BMI2
        memcpy(&x, v + i, 8);
        x = _pext_u64(x, mask * UINT64_C(0x0001000100010001));
#else
        x = (v[i] & mask) | (v[i + 1] & mask) << k | ((v[i + 2] & mask) | (v[i + 3] & mask) << k) << 2 * k;
#endif
        bits_put(b, x, 4 * k);
    }
    for (; i < n; i++)
        bits_put(b, v[i] & mask, k);
}

/* Get n such numbers from bit *pos on. Writes up to three more behind them. */
static inline void fields_take(const uint8_t *p, size_t len, size_t *pos, size_t n, unsigned k, uint16_t *v)
{
    const uint64_t mask = (UINT64_C(1) << k) - 1;

    for (size_t i = 0; i < n; i += 4) {
        uint64_t x = sparse_peek(p, len, *pos + i * k);
#ifdef ULP_BMI2
        x = _pdep_u64(x, mask * UINT64_C(0x0001000100010001));
        memcpy(v + i, &x, 8);
#else
        for (unsigned j = 0; j < 4; j++, x >>= k)
            v[i + j] = (uint16_t)(x & mask);
#endif
    }
    *pos += n * k;
}

/* Return the bits of n gaps with the parameter k. */
static __attribute__((noinline)) uint32_t gaps_price(const uint16_t *gaps, size_t n, unsigned k)
{
    uint32_t sum = (uint32_t)n * (k + 1);

    for (size_t i = 0; i < n; i++)
        sum += (uint32_t)gaps[i] >> k;
    return sum;
}

/* Choose the parameter of n gaps among `values` values. */
static __attribute__((noinline, unused)) unsigned gaps_choose(const uint16_t *gaps, size_t n, size_t values)
{
    uint32_t price, next;
    unsigned k, start;

    if (!n)
        return 0;
    k = 31 - (unsigned)__builtin_clz((uint32_t)(values / n) | 1);
    k = k > NB_ULP_GAP_MAX ? NB_ULP_GAP_MAX : k;
    start = k;
    price = gaps_price(gaps, n, k);
    while (k < NB_ULP_GAP_MAX && (next = gaps_price(gaps, n, k + 1)) < price) {
        price = next;
        k++;
    }
    while (k == start && start > 0 && (next = gaps_price(gaps, n, k - 1)) < price) {
        price = next;
        start = --k;
    }
    return k;
}

/* Turn the places of n ones into those of changes among `values` values: the zeros before each from bit
 * `start` on count 2^k values each, and `low` the others. */
static inline int gaps_sum(uint32_t *at, const uint16_t *low, size_t n, unsigned k, uint32_t start,
                           uint32_t values)
{
    uint32_t sum = 0;

    if (!n)
        return 0;
    if (at[n - 1] + 1 - start - n > values >> k)
        return -EBADMSG;
    for (uint32_t i = 0; i < n; i++) {
        sum += low[i];
        at[i] = ((at[i] - start - i) << k) + sum + i;
    }
    return at[n - 1] < values ? 0 : -EBADMSG;
}

/* Return 64 bits of a map from a bit on. The map has a word behind its last one. */
static inline uint64_t map_bits(const uint64_t *map, size_t from)
{
    const uint64_t *p = map + from / 64;

    return from % 64 ? p[0] >> from % 64 | p[1] << (64 - from % 64) : p[0];
}

/* Move the lowest bits of x to the places where the mask has bits. */
static inline uint64_t spread_bits(uint64_t x, uint64_t mask)
{
#ifdef ULP_BMI2
    return _pdep_u64(x, mask);
#else
    uint64_t out = 0;

    for (; x && mask; mask &= mask - 1, x >>= 1)
        out |= (mask & -mask) & (0 - (x & 1));
    return out;
#endif
}

/* Return twice the bits, about, that the places of `changes` among `values` values take. */
static __attribute__((noinline)) uint32_t places_price(uint32_t values, uint32_t changes)
{
    uint32_t best = UINT32_MAX;

    values = values < changes ? changes : values;
    for (unsigned k = 0; k <= NB_ULP_GAP_MAX; k++) {
        const uint32_t price = changes * (2 * k + 2 - (k > 0)) + 2 * ((values - changes) >> k);
        best = price < best ? price : best;
    }
    return best;
}

/* Choose the exponent that splits values into those that change often and others, from the number of values
 * and of changes with each exponent. Return 0 where a split saves too little. */
static __attribute__((noinline, unused)) unsigned split_choose(const uint32_t *values,
                                                               const uint32_t *changes)
{
    uint32_t v = 0, m = 0, low_v = 0, low_m = 0, whole, best;
    unsigned at = 0;

    for (unsigned e = 0; e < 256; e++) {
        v += values[e];
        m += changes[e];
    }
    whole = places_price(v, m);
    best = whole - whole / 16 < 32 ? 0 : whole - whole / 16 - 32;
    for (unsigned t = 1; t < 256; t++) {
        low_v += values[t - 1];
        low_m += changes[t - 1];
        if (!values[t - 1] && !changes[t - 1])
            continue;
        const uint32_t price = places_price(low_v, low_m) + places_price(v - low_v, m - low_m);
        if (price < best) {
            best = price;
            at = t;
        }
    }
    return at;
}

#endif
