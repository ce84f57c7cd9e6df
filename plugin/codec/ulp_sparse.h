/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bit strings of sparse records: what their coders share for all widths (docs/wire-format.md, section "Sparse
 * spans"). Only the sources of the variants include this. The functions take on the instruction set of the
 * including file, which may define ULP_PDEP64.
 */
#ifndef NIBBLE_CODEC_ULP_SPARSE_H
#define NIBBLE_CODEC_ULP_SPARSE_H

#include <errno.h>

#include "codec/ulp.h"
#include "codec/ulp_bits.h"

/* The most values of a chunk, and the most of them that a sparse record may change, for the width W. */
#define SPARSE_VALUES (NB_ULP_CHUNK / W)
#define SPARSE_CHANGES (SPARSE_VALUES / NB_ULP_FEW)
#define SPARSE_WORDS (SPARSE_VALUES / 64)

/* Return up to 57 bits from bit `pos` <= 8 len on, zeros behind the end. */
static inline uint64_t sparse_peek(const uint8_t *p, size_t len, size_t pos)
{
    uint64_t bits = 0;

    if (__builtin_expect((pos >> 3) + 8 <= len, 1))
        return bits_peek(p, pos);
    for (size_t at = pos >> 3, i = 0; at + i < len; i++)
        bits |= (uint64_t)p[at + i] << 8 * i;
    return bits >> (pos & 7);
}

/* Append v as v >> k zeros, a one, and its k low bits, or after NB_ULP_ESCAPE zeros as it is. */
static inline void sparse_put(struct bits *b, uint32_t v, unsigned k, unsigned width)
{
    const uint32_t high = v >> k, escape = high >= NB_ULP_ESCAPE;
    const uint64_t code = (uint64_t)1 << (high & 31) | (v & ((UINT64_C(1) << k) - 1)) << ((high & 31) + 1);

    if (__builtin_expect(escape, 0))
        bits_put(b, (uint64_t)v << NB_ULP_ESCAPE, NB_ULP_ESCAPE + width);
    else
        bits_put(b, code, high + 1 + k);
}

/* Take such a number from the string's bit *pos on. */
static inline uint32_t sparse_take(const uint8_t *p, size_t len, size_t *pos, unsigned k, unsigned width)
{
    const uint64_t w = sparse_peek(p, len, *pos);
    const unsigned high = (unsigned)__builtin_ctzll(w | UINT64_C(1) << NB_ULP_ESCAPE);

    if (__builtin_expect(high == NB_ULP_ESCAPE, 0)) {
        *pos += NB_ULP_ESCAPE + width;
        return (uint32_t)(w >> NB_ULP_ESCAPE & ((UINT64_C(1) << width) - 1));
    }
    *pos += high + 1 + k;
    return (uint32_t)(w >> (high + 1) & ((UINT64_C(1) << k) - 1)) | high << k;
}

/* Return the bits of a number with a parameter. */
static inline uint32_t sparse_price(uint32_t v, unsigned k, unsigned width)
{
    const uint32_t high = v >> k;

    return high < NB_ULP_ESCAPE ? high + 1 + k : NB_ULP_ESCAPE + width;
}

static inline uint32_t gaps_price(const uint16_t *gaps, size_t n, unsigned k)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += sparse_price(gaps[i], k, NB_ULP_GAP_BITS);
    return sum;
}

/* Choose the parameter of n > 0 gaps, the last one up to the end of `values` values. */
static inline unsigned gaps_choose(const uint16_t *gaps, size_t n, size_t values)
{
    const uint32_t mean = (uint32_t)((values - (n - 1)) / n) | 1;
    unsigned k = 31 - (unsigned)__builtin_clz(mean), start;
    uint32_t price, next;

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

/* Read the places of the changes among `values` values into a bit map of zeros. */
static inline int gaps_take(const uint8_t *p, size_t len, size_t *pos, unsigned k, size_t values,
                            uint64_t *map)
{
    for (size_t at = 0;; at++) {
        if (*pos > 8 * len)
            return -EBADMSG;
        at += sparse_take(p, len, pos, k, NB_ULP_GAP_BITS);
        if (at >= values)
            return at == values ? 0 : -EBADMSG;
        map[at / 64] |= UINT64_C(1) << at % 64;
    }
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
#ifdef ULP_PDEP64
    return ULP_PDEP64(x, mask);
#else
    uint64_t out = 0;

    for (; x && mask; mask &= mask - 1, x >>= 1)
        out |= (mask & -mask) & (0 - (x & 1));
    return out;
#endif
}

/* Return twice the bits, about, that the places of `changes` among `values` values take. */
static inline uint32_t places_price(uint32_t values, uint32_t changes)
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
static inline unsigned split_choose(const uint32_t *values, const uint32_t *changes)
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
