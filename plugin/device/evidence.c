/* SPDX-License-Identifier: Apache-2.0 */
/* See evidence.h. */
#include "device/evidence.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/fp.h"

#define FLOOR 16.0f    /* log2 of the largest ratio between groups that are not zero */
#define ZERO (-150.0f) /* of a group of zeros: below what any other can have */

unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out)
{
    if (samples == 0 || n < 2 * (size_t)samples)
        return 0;
    for (unsigned i = 0; i < samples; i++)
        out[i] = nb_load_value(type, src, (size_t)((uint64_t)n / 2 * i / samples) * 2 + 1);
    return samples;
}

unsigned nb_host_sums(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *sums)
{
    size_t all = n / NB_PROFILE_GROUP;

    if (all < groups)
        return 0;
    for (unsigned g = 0; g < groups; g++) {
        size_t at = (size_t)((uint64_t)all * g / groups) * NB_PROFILE_GROUP;
        float sum = 0.0f;
        for (unsigned k = 0; k < NB_PROFILE_GROUP; k++) {
            float v = nb_load_value(type, src, at + k);
            sum += v * v;
        }
        sums[g] = sum;
    }
    return groups;
}

unsigned nb_profile_of_sums(const float *sums, unsigned groups, float *out)
{
    float most = -INFINITY;

    for (unsigned g = 0; g < groups; g++) {
        if (!isfinite(sums[g]))
            return 0;
        out[g] = 0.5f * log2f(sums[g] / NB_PROFILE_GROUP); /* -inf for zeroes */
        most = fmaxf(most, out[g]);
    }
    if (!isfinite(most))
        return 0;
    for (unsigned g = 0; g < groups; g++)
        out[g] = isinf(out[g]) ? ZERO : fmaxf(out[g], most - FLOOR);
    return groups;
}

/* Order patterns of sign-magnitude floats as integers, so that neighbors in value are neighbors in code. */
static int32_t ordered16(uint16_t x)
{
    return x & 0x8000 ? -(int32_t)(x & 0x7fff) : (int32_t)x;
}

struct nb_nearness nb_host_nearness(const void *a, const void *b, size_t bytes, unsigned samples)
{
    const uint8_t *pa = a, *pb = b;
    const size_t words = bytes / 4;
    struct nb_nearness near = {.samples = samples < words ? samples : (unsigned)words};

    for (unsigned i = 0; i < near.samples; i++) {
        /* The upper half of a 32-bit word: the exponent side of an FP32, any second value of 16-bit types. */
        const size_t at = (size_t)((double)words / near.samples * i) * 4 + 2;
        uint16_t x, y;
        memcpy(&x, pa + at, 2);
        memcpy(&y, pb + at, 2);
        const int apart = abs(ordered16(x) - ordered16(y));
        near.near16 += apart <= 64;
        near.far16 += apart > 64 && apart <= 256;
        near.near8 += abs((int8_t)(uint8_t)(pa[at] - pb[at])) <= 8;
    }
    return near;
}
