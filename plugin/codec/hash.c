/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nb_hash64: 32 lanes of 64 bits. Each lane takes one word of every 256-byte stripe and mixes it by two 32 x
 * 32 bit multiplications. At the end 64 x 64 -> 128 bit multiplications fold the lanes. docs/wire-format.md,
 * section "hash", specifies it. 32 lanes hide the latency of a CPU's multiplier and are one warp on a GPU.
 */
#include <string.h>

#include "codec/dispatch.h"

/* Odd constants without structure: the first bits of the fractional parts of square roots of 2, 3, 5, 7 and
 * 11, made odd. */
#define K_INIT UINT64_C(0x6a09e667f3bcc909)
#define K_SEED UINT64_C(0xbb67ae8584caa73b)
#define K_LEN UINT64_C(0x3c6ef372fe94f82b)
#define K_FOLD UINT64_C(0xa54ff53a5f1d36f1)
#define K_END UINT64_C(0x510e527fade682d1)

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 x = (unsigned __int128)a * b;

    return (uint64_t)x ^ (uint64_t)(x >> 64);
}

uint64_t nb_hash64(const void *data, size_t bytes, uint64_t seed)
{
    nb_stripes_fn *stripes = nb_variant()->stripes;
    const uint8_t *p = data;
    const size_t whole = bytes / NB_HASH_STRIPE, rest = bytes % NB_HASH_STRIPE;
    uint64_t acc[NB_HASH_LANES], h = fold(seed ^ K_SEED, (uint64_t)bytes + K_LEN);

    for (unsigned i = 0; i < NB_HASH_LANES; i++)
        acc[i] = seed + (i + 1) * K_INIT;
    if (whole)
        stripes(acc, p, whole);
    if (rest) {
        uint8_t last[NB_HASH_STRIPE] = {0};
        memcpy(last, p + whole * NB_HASH_STRIPE, rest);
        stripes(acc, last, 1);
    }
    /* Pairs of lanes fold independently, each with its own constants. */
    for (unsigned i = 0; i < NB_HASH_LANES; i += 2)
        h += fold(acc[i] ^ (K_FOLD + i * K_INIT), acc[i + 1] ^ (K_FOLD + (i + 1) * K_INIT));
    h ^= h >> 32;
    h *= K_END;
    h ^= h >> 29;
    h *= K_FOLD;
    return h ^ h >> 32;
}
