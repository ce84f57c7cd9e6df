/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nb_hash64: 32 lanes of 64 bits, each fed one word of every 256-byte stripe, mixed by two 32 x 32 bit
 * multiplications, folded at the end by 64 x 64 -> 128 bit ones. Specified in docs/wire-format.md, section
 * "hash". 32 lanes because they hide the latency of the multiplier on a CPU and are one warp on a GPU.
 */
#include <endian.h>
#include <string.h>

#include "nibble/codec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES 32u
#define STRIPE (8u * LANES)

/* Odd constants without structure: the first bits of the fractional parts of square roots of 2, 3, 5, 7 and
 * 11, made odd. */
#define K_INIT UINT64_C(0x6a09e667f3bcc909)
#define K_SEED UINT64_C(0xbb67ae8584caa73b)
#define K_LEN UINT64_C(0x3c6ef372fe94f82b)
#define K_FOLD UINT64_C(0xa54ff53a5f1d36f1)
#define K_END UINT64_C(0x510e527fade682d1)
#define M_LOW UINT32_C(0x9e3779b1)
#define M_HIGH UINT32_C(0x85ebca77)

typedef void stripes_fn(uint64_t *acc, const uint8_t *p, size_t stripes);

/* acc <- low(t) * M_LOW + rotl(high(t) * M_HIGH, 32) with t = acc ^ word. */
static void stripes_portable(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    for (; stripes; stripes--, p += STRIPE) {
        for (unsigned i = 0; i < LANES; i++) {
            uint64_t t, high;
            memcpy(&t, p + 8 * (size_t)i, 8);
            t = acc[i] ^ le64toh(t);
            high = (t >> 32) * M_HIGH;
            acc[i] = (t & UINT32_MAX) * M_LOW + (high << 32 | high >> 32);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void stripes_avx2(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    const __m256i m_low = _mm256_set1_epi64x(M_LOW), m_high = _mm256_set1_epi64x(M_HIGH);
    __m256i a[8];

    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)acc + i);
    for (; stripes; stripes--, p += STRIPE) {
        for (int i = 0; i < 8; i++) {
            __m256i t = _mm256_xor_si256(a[i], _mm256_loadu_si256((const __m256i *)p + i));
            __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(t, 32), m_high);
            a[i] = _mm256_add_epi64(_mm256_mul_epu32(t, m_low), _mm256_shuffle_epi32(high, 0xb1));
        }
    }
    for (int i = 0; i < 8; i++)
        _mm256_storeu_si256((__m256i *)acc + i, a[i]);
}

__attribute__((target("avx512f"))) static void stripes_avx512(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    const __m512i m_low = _mm512_set1_epi64(M_LOW), m_high = _mm512_set1_epi64(M_HIGH);
    __m512i a[4];

    for (int i = 0; i < 4; i++)
        a[i] = _mm512_loadu_si512(acc + 8 * i);
    for (; stripes; stripes--, p += STRIPE) {
        for (int i = 0; i < 4; i++) {
            __m512i t = _mm512_xor_si512(a[i], _mm512_loadu_si512(p + 64 * i));
            __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(t, 32), m_high);
            a[i] =
                _mm512_add_epi64(_mm512_mul_epu32(t, m_low), _mm512_shuffle_epi32(high, (_MM_PERM_ENUM)0xb1));
        }
    }
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(acc + 8 * i, a[i]);
}
#endif

static stripes_fn *selected(void)
{
#if defined(__x86_64__)
    switch (nb_codec_selected()) {
    case NB_VARIANT_AVX512:
        return stripes_avx512;
    case NB_VARIANT_AVX2:
        return stripes_avx2;
    default:
        break;
    }
#endif
    return stripes_portable;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 x = (unsigned __int128)a * b;

    return (uint64_t)x ^ (uint64_t)(x >> 64);
}

uint64_t nb_hash64(const void *data, size_t bytes, uint64_t seed)
{
    stripes_fn *stripes = selected();
    const uint8_t *p = data;
    const size_t whole = bytes / STRIPE, rest = bytes % STRIPE;
    uint64_t acc[LANES], h = fold(seed ^ K_SEED, (uint64_t)bytes + K_LEN);

    for (unsigned i = 0; i < LANES; i++)
        acc[i] = seed + (i + 1) * K_INIT;
    if (whole)
        stripes(acc, p, whole);
    if (rest) {
        uint8_t last[STRIPE] = {0};
        memcpy(last, p + whole * STRIPE, rest);
        stripes(acc, last, 1);
    }
    /* Pairs of lanes fold independently of each other, each with constants of its own. */
    for (unsigned i = 0; i < LANES; i += 2)
        h += fold(acc[i] ^ (K_FOLD + i * K_INIT), acc[i + 1] ^ (K_FOLD + (i + 1) * K_INIT));
    h ^= h >> 32;
    h *= K_END;
    h ^= h >> 29;
    h *= K_FOLD;
    return h ^ h >> 32;
}
