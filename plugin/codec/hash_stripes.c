/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loop of nb_hash64 for each variant. */
#include "codec/hash_stripes.h"

#include <endian.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(NB_NEON)
#include <arm_neon.h>
#endif

#define M_LOW UINT32_C(0x9e3779b1)
#define M_HIGH UINT32_C(0x85ebca77)

/* acc <- low(t) * M_LOW + rotl(high(t) * M_HIGH, 32) with t = acc ^ word. */
void nb_stripes_portable(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    for (; stripes; stripes--, p += NB_HASH_STRIPE) {
        for (unsigned i = 0; i < NB_HASH_LANES; i++) {
            uint64_t t, high;
            memcpy(&t, p + 8 * (size_t)i, 8);
            t = acc[i] ^ le64toh(t);
            high = (t >> 32) * M_HIGH;
            acc[i] = (t & UINT32_MAX) * M_LOW + (high << 32 | high >> 32);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void nb_stripes_avx2(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    const __m256i m_low = _mm256_set1_epi64x(M_LOW), m_high = _mm256_set1_epi64x(M_HIGH);
    __m256i a[8];

    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)acc + i);
    for (; stripes; stripes--, p += NB_HASH_STRIPE) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __m256i t = _mm256_xor_si256(a[i], _mm256_loadu_si256((const __m256i *)p + i));
            __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(t, 32), m_high);
            a[i] = _mm256_add_epi64(_mm256_mul_epu32(t, m_low), _mm256_shuffle_epi32(high, 0xb1));
        }
    }
    for (int i = 0; i < 8; i++)
        _mm256_storeu_si256((__m256i *)acc + i, a[i]);
}

__attribute__((target("avx512f"))) void nb_stripes_avx512(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    const __m512i m_low = _mm512_set1_epi64(M_LOW), m_high = _mm512_set1_epi64(M_HIGH);
    __m512i a[4];

    for (int i = 0; i < 4; i++)
        a[i] = _mm512_loadu_si512(acc + 8 * i);
    for (; stripes; stripes--, p += NB_HASH_STRIPE) {
#pragma GCC unroll 4
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

#if defined(NB_NEON)
void nb_stripes_neon(uint64_t *acc, const uint8_t *p, size_t stripes)
{
    const uint32x4_t m_low = vdupq_n_u32(M_LOW), m_high = vdupq_n_u32(M_HIGH);
    uint64x2_t a[16];

    for (int i = 0; i < 16; i++)
        a[i] = vld1q_u64(acc + 2 * i);
    for (; stripes; stripes--, p += NB_HASH_STRIPE) {
#pragma GCC unroll 8
        for (int i = 0; i < 16; i += 2) {
            const uint32x4_t s =
                vreinterpretq_u32_u64(veorq_u64(a[i], vreinterpretq_u64_u8(vld1q_u8(p + 16 * i))));
            const uint32x4_t t =
                vreinterpretq_u32_u64(veorq_u64(a[i + 1], vreinterpretq_u64_u8(vld1q_u8(p + 16 * i + 16))));
            const uint32x4_t low = vuzp1q_u32(s, t), high = vuzp2q_u32(s, t);
            const uint32x4_t x = vrev64q_u32(
                                 vreinterpretq_u32_u64(vmull_u32(vget_low_u32(high), vget_low_u32(m_high)))),
                             y = vrev64q_u32(vreinterpretq_u32_u64(vmull_high_u32(high, m_high)));
            a[i] = vmlal_u32(vreinterpretq_u64_u32(x), vget_low_u32(low), vget_low_u32(m_low));
            a[i + 1] = vmlal_high_u32(vreinterpretq_u64_u32(y), low, m_low);
        }
    }
    for (int i = 0; i < 16; i++)
        vst1q_u64(acc + 2 * i, a[i]);
}
#endif
