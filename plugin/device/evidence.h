/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of values before they are encoded: samples and profiles of a contribution, by which
 * plugin/policy tells gradients from other sums and one buffer from another, and the similarity of weights to
 * earlier ones. Positions depend on the length alone. Where a GPU does the counting and summing, the
 * functions stand in two steps: that, and what follows from it.
 *
 * Pure functions: any thread, no allocation, no errors but those named.
 */
#ifndef NIBBLE_DEVICE_EVIDENCE_H
#define NIBBLE_DEVICE_EVIDENCE_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/codec.h"

#define NB_PROFILE_GROUP 32u /* values of a profile's group */

/* `samples` values spread over the n at src, as floats at out. They are taken at odd indices, where the
 * 16-bit halves of FP32 numbers are the upper ones: so memory of unknown type may be sampled as BF16. Returns
 * the number of samples: `samples`, or 0 when there are fewer than 2 * samples values. */
unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out);

/* sums[i]: the squares of the values of the i-th of `groups` groups of 32, spread over the n at src, added in order.
 * A NaN is some NaN. Returns `groups`, or 0 when there are fewer values than that takes. */
unsigned nb_host_sums(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *sums);
/* The profile that follows from them; `sums` and `out` may be the same. out[i]: log2 of the root mean square of the
 * i-th group. Groups below 2^-16 of the largest are clamped to that; a group of zeros is -150. Returns `groups`, or 0
 * when all values are zero, or one is not finite. */
unsigned nb_profile_of_sums(const float *sums, unsigned groups, float *out);

/* Number of positions at which two byte strings are similar: 16-bit patterns that differ by at most 64, by 65
 * to 256, and bytes that differ by at most 8. */
struct nb_nearness {
    uint64_t near16, far16, near8;
    unsigned samples; /* positions compared: those requested, but at most bytes / 4 */
};
struct nb_nearness nb_host_nearness(const void *a, const void *b, size_t bytes, unsigned samples);
/* The similarity of the two, in 0..1: the larger of the share of 16-bit patterns that differ by at most 64 (half a
 * binade of BF16; those that differ by at most 256, a quarter of a binade of FP16, weigh 0.95) and the share of bytes that
 * differ by at most 8. */
static inline double nb_likeness_of(const struct nb_nearness *near)
{
    const double by16 = (double)near->near16 + 0.95 * (double)near->far16, by8 = (double)near->near8;

    return near->samples ? (by16 > by8 ? by16 : by8) / near->samples : 0;
}

#endif
