/* SPDX-License-Identifier: Apache-2.0 */
/* Pack int6 codes, a byte each, to 24 bytes a group, and back (docs/wire-format.md, section 4). */
#include <string.h>

#include "codec/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

NB_GROUP_IS_32("four words of codes a group");

/* The first three words of a group's codes keep their places. The two upper bits of these bytes take the
 * fourth word, two bits of each code a word. */
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte)) /* the byte eight times */

void nb_pack6(const uint8_t *codes, unsigned groups, uint8_t *packed)
{
    for (unsigned j = 0; j < groups; j++) {
        uint64_t c[4], out[3];
        memcpy(c, codes + 32 * j, sizeof c);
        for (unsigned k = 0; k < 3; k++)
            out[k] = (c[k] & EACH(0x3f)) | (c[3] << (6 - 2 * k) & EACH(0xc0));
        memcpy(packed + 24 * j, out, sizeof out);
    }
}

void nb_unpack6(const uint8_t *packed, unsigned groups, uint8_t *codes)
{
    for (unsigned j = 0; j < groups; j++) {
        uint64_t in[3], c[4];
        memcpy(in, packed + 24 * j, sizeof in);
        c[3] = (in[0] >> 6 & EACH(0x03)) | (in[1] >> 4 & EACH(0x0c)) | (in[2] >> 2 & EACH(0x30));
        for (unsigned k = 0; k < 3; k++)
            c[k] = in[k] & EACH(0x3f);
        for (unsigned k = 0; k < 4; k++) /* extends the sign, in each byte */
            c[k] = (((c[k] ^ EACH(0x20)) | EACH(0x80)) - EACH(0x20)) ^ EACH(0x80);
        memcpy(codes + 32 * j, c, sizeof c);
    }
}

#if defined(__x86_64__)
/* The same with a group in one vector. */
__attribute__((target("avx2"))) void nb_pack6_avx2(const uint8_t *codes, unsigned groups, uint8_t *packed)
{
    const __m256i low = _mm256_set1_epi8(0x3f), high = _mm256_set1_epi8((char)0xc0);
    const __m256i left = _mm256_setr_epi64x(6, 4, 2, 0);

    for (; groups; groups--, codes += 32, packed += 24) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)codes);
        const __m256i fourth = _mm256_sllv_epi64(_mm256_permute4x64_epi64(c, 0xff), left);
        const __m256i out = _mm256_or_si256(_mm256_and_si256(c, low), _mm256_and_si256(fourth, high));

        _mm_storeu_si128((__m128i *)(void *)packed, _mm256_castsi256_si128(out));
        _mm_storel_epi64((__m128i *)(void *)(packed + 16), _mm256_extracti128_si256(out, 1));
    }
}

__attribute__((target("avx2"))) void nb_unpack6_avx2(const uint8_t *packed, unsigned groups, uint8_t *codes)
{
    const __m256i low = _mm256_set1_epi8(0x3f), sign = _mm256_set1_epi8(0x20);
    const __m256i right = _mm256_setr_epi64x(6, 4, 2, 0);
    const __m256i parts =
        _mm256_setr_epi64x((long long)EACH(0x03), (long long)EACH(0x0c), (long long)EACH(0x30), 0);

    for (; groups; groups--, codes += 32, packed += 24) {
        const __m256i in = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)packed)),
            _mm_loadl_epi64((const __m128i *)(const void *)(packed + 16)), 1);
        const __m256i part = _mm256_and_si256(_mm256_srlv_epi64(in, right), parts);
        /* all four words: the three parts together */
        const __m256i two = _mm256_or_si256(part, _mm256_permute4x64_epi64(part, 0x4e));
        const __m256i fourth = _mm256_or_si256(two, _mm256_shuffle_epi32(two, 0x4e));
        const __m256i c = _mm256_blend_epi32(_mm256_and_si256(in, low), fourth, 0xc0);

        _mm256_storeu_si256((__m256i *)(void *)codes, _mm256_sub_epi8(_mm256_xor_si256(c, sign), sign));
    }
}
#endif
