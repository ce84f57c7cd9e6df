/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of values before they are encoded: samples and profiles of a contribution, by which
 * plugin/policy tells gradients from other sums and one buffer from another, and the similarity of weights to
 * earlier ones. Positions depend only on the length. The functions stand in two steps where a GPU may do the
 * first, counting and summing. The second step computes the answers from the counts and sums.
 *
 * Pure functions: any thread, no allocation, only the named errors.
 */
#include "device/host/host.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "codec/fp.h"

#define FLOOR 16.0f    /* log2 of the largest ratio between nonzero groups */
#define ZERO (-150.0f) /* of a group of zeros: below the smallest value of any other group */

unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out)
{
    if (samples == 0 || n < 2 * (size_t)samples)
        return 0;
    for (unsigned i = 0; i < samples; i++)
        out[i] = nb_load_value(type, src, (size_t)((uint64_t)n / 2 * i / samples) * 2 + 1);
    return samples;
}

/* Groups that are summed at a time. Values of a group are added one by one, so that a single group would
 * wait for every addition. */
#define ABREAST 8u

/* Sum the squares of the groups that begin at `at`. The compiler knows `type` where this is inlined. */
NB_INLINE void sum_abreast(enum nb_dtype type, const void *src, const size_t at[ABREAST], float sums[ABREAST])
{
    float sum[ABREAST] = {0};

    for (unsigned k = 0; k < NB_PROFILE_GROUP; k++) {
        float v[ABREAST];
        for (unsigned g = 0; g < ABREAST; g++)
            v[g] = nb_load_value(type, src, at[g] + k);
        for (unsigned g = 0; g < ABREAST; g++)
            sum[g] += v[g] * v[g];
    }
    memcpy(sums, sum, sizeof(sum));
}

#if defined(__SSE2__)
/* Interleave two rows: their first halves, and their second halves. */
NB_INLINE void weave(__m128i a, __m128i b, __m128i *low, __m128i *high)
{
    *low = _mm_unpacklo_epi16(a, b);
    *high = _mm_unpackhi_epi16(a, b);
}

/* Do the same as sum_abreast for BF16, to the bit: eight values of each group at a time, turned from rows
 * into columns. */
NB_INLINE void sum_columns(const void *src, const size_t at[ABREAST], float sums[ABREAST])
{
    const __m128i zero = _mm_setzero_si128();
    __m128 low = _mm_setzero_ps(), high = _mm_setzero_ps();

    for (unsigned k = 0; k < NB_PROFILE_GROUP; k += 8) {
        __m128i row[8], four[8], column[8];
        for (unsigned g = 0; g < ABREAST; g++)
            row[g] = _mm_loadu_si128((const __m128i *)((const uint16_t *)src + at[g] + k));
        for (unsigned i = 0; i < 4; i++) /* 0 4 0 4 ..., 1 5 1 5 ... */
            weave(row[i], row[i + 4], &four[i], &four[i + 4]);
        for (unsigned half = 0; half < 8; half += 4) {
            __m128i even[2], odd[2];
            weave(four[half], four[half + 2], &even[0], &even[1]);
            weave(four[half + 1], four[half + 3], &odd[0], &odd[1]);
            weave(even[0], odd[0], &column[half], &column[half + 1]);
            weave(even[1], odd[1], &column[half + 2], &column[half + 3]);
        }
        for (unsigned i = 0; i < 8; i++) {
            const __m128 a = _mm_castsi128_ps(_mm_unpacklo_epi16(zero, column[i])),
                         b = _mm_castsi128_ps(_mm_unpackhi_epi16(zero, column[i]));
            low = _mm_add_ps(low, _mm_mul_ps(a, a));
            high = _mm_add_ps(high, _mm_mul_ps(b, b));
        }
    }
    _mm_storeu_ps(sums, low);
    _mm_storeu_ps(sums + 4, high);
}

/* Compile it for AVX, whose instructions do not overwrite an operand, so that copies are unnecessary. */
__attribute__((target("avx"))) static void sum_columns_avx(const void *src, const size_t at[ABREAST],
                                                           float sums[ABREAST])
{
    sum_columns(src, at, sums);
}

static void sum_bf16(const void *src, const size_t at[ABREAST], float sums[ABREAST])
{
    if (__builtin_cpu_supports("avx"))
        sum_columns_avx(src, at, sums);
    else
        sum_columns(src, at, sums);
}
#else
static void sum_bf16(const void *src, const size_t at[ABREAST], float sums[ABREAST])
{
    sum_abreast(NB_BF16, src, at, sums);
}
#endif

unsigned nb_host_sums(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *sums)
{
    const size_t all = n / NB_PROFILE_GROUP;
    size_t group = 0, rest = 0; /* quotient and remainder of all * g / groups */

    if (all < groups)
        return 0;
    for (unsigned g = 0; g < groups; g += ABREAST) {
        const unsigned take = groups - g < ABREAST ? groups - g : ABREAST;
        size_t at[ABREAST] = {0};
        float found[ABREAST];
        for (unsigned i = 0; i < take; i++) {
            at[i] = group * NB_PROFILE_GROUP;
            group += all / groups;
            rest += all % groups;
            group += rest >= groups;
            rest -= rest >= groups ? groups : 0;
        }
        switch (type) {
        case NB_BF16: sum_bf16(src, at, found); break;
        case NB_F32: sum_abreast(NB_F32, src, at, found); break;
        default: sum_abreast(type, src, at, found); break;
        }
        memcpy(sums + g, found, take * sizeof(*sums));
    }
    return groups;
}

unsigned nb_profile_of_sums(const float *sums, unsigned groups, float *out)
{
    float most = -INFINITY, least;

    for (unsigned g = 0; g < groups; g++)
        if (!isfinite(sums[g]))
            return 0;
    for (unsigned g = 0; g < groups; g++) {
        out[g] = 0.5f * log2f(sums[g] / NB_PROFILE_GROUP); /* -inf for zeros */
        most = out[g] > most ? out[g] : most;
    }
    if (!isfinite(most))
        return 0;
    least = most - FLOOR;
    for (unsigned g = 0; g < groups; g++) {
        const float above = out[g] > least ? out[g] : least;
        out[g] = out[g] == -INFINITY ? ZERO : above;
    }
    return groups;
}

/* Order patterns of sign-magnitude floats as integers, so that neighbors in value are neighbors in code. */
static int32_t ordered16(uint16_t x)
{
    return x & 0x8000 ? -(int32_t)(x & 0x7fff) : (int32_t)x;
}

#define AT_ONCE 64u

/* Count pairs of patterns, without a branch, so that compilers use vectors. The lower byte is the one at the
 * position. */
static void count_near(const uint16_t *a, const uint16_t *b, unsigned n, struct nb_similarity *near)
{
    unsigned near16 = 0, within = 0, near8 = 0;

    for (unsigned i = 0; i < n; i++) {
        const int apart = abs(ordered16(a[i]) - ordered16(b[i]));
        near16 += apart <= 64;
        within += apart <= 256;
        near8 += (uint8_t)(a[i] - b[i] + 8) <= 16;
    }
    near->near16 += near16;
    near->far16 += within - near16;
    near->near8 += near8;
}

struct nb_similarity nb_host_similarity(const void *a, const void *b, size_t bytes, unsigned samples)
{
    const uint8_t *pa = a, *pb = b;
    const size_t words = bytes / 4;
    struct nb_similarity near = {.samples = samples < words ? samples : (unsigned)words};
    const double step = near.samples ? (double)words / near.samples : 0;

    for (unsigned from = 0; from < near.samples; from += AT_ONCE) {
        const unsigned n = near.samples - from < AT_ONCE ? near.samples - from : AT_ONCE;
        uint16_t x[AT_ONCE], y[AT_ONCE];
        for (unsigned i = 0; i < n; i++) {
            /* The upper half of a 32-bit word: the exponent side of an FP32, any second value of 16-bit
             * types. */
            const size_t at = (size_t)(int64_t)(step * (from + i)) * 4 + 2;
            memcpy(&x[i], pa + at, 2);
            memcpy(&y[i], pb + at, 2);
        }
        count_near(x, y, n, &near);
    }
    return near;
}
