/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bit strings of the ulp codec (least significant bit first) and small functions that its variants share.
 * Only their sources include this. The functions take on the instruction set of the including file.
 */
#ifndef NIBBLE_CODEC_ULP_BITS_H
#define NIBBLE_CODEC_ULP_BITS_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

/* A bit string being written. p is the place of the next whole byte, acc holds the n < 8 bits still outside
 * memory (after a put, the bytes at p hold them too). */
struct bits {
    uint8_t *p;
    uint64_t acc;
    unsigned n;
};

static inline void bits_begin(struct bits *b, uint8_t *p)
{
    b->p = p;
    b->acc = 0;
    b->n = 0;
}

/* Append the low len <= 56 bits of v. The other bits must be zero. Writes up to 8 bytes at p. */
static inline void bits_put(struct bits *b, uint64_t v, unsigned len)
{
    uint64_t le;

    b->acc |= v << b->n;
    b->n += len;
    le = htole64(b->acc);
    memcpy(b->p, &le, 8);
    b->p += b->n >> 3;
    b->acc >>= b->n & 56;
    b->n &= 7;
}

/* Return the byte behind the string. */
static inline uint8_t *bits_end(struct bits *b)
{
    if (b->n)
        *b->p++ = (uint8_t)b->acc;
    return b->p;
}

/* Return at least 57 bits from bit `pos` of p on. Reads 8 bytes. */
static inline uint64_t bits_peek(const uint8_t *p, size_t pos)
{
    uint64_t le;

    memcpy(&le, p + (pos >> 3), 8);
    return le64toh(le) >> (pos & 7);
}

/* Pad a group that the span fills only in part. The missing patterns count as all ones but the sign, in both
 * `cur` and `ref`: the largest exponent, hence the fewest low bits. */
static inline void ulp_pad(uint8_t *to, const uint8_t *from, size_t n, unsigned width)
{
    memset(to, 0xff, 32 * width);
    for (unsigned i = (unsigned)n; i < 32; i++)
        to[i * width + width - 1] = 0x7f;
    memcpy(to, from, n * width);
}

#endif
