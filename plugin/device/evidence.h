/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at values without coding them: samples and profiles of a contribution, by which plugin/policy tells
 * gradients from other sums and one buffer from another, and the likeness of weights to those before.
 * Positions depend on the length alone. In two steps where a GPU does the first: what is counted or summed,
 * and what follows from it.
 */
#ifndef NIBBLE_DEVICE_EVIDENCE_H
#define NIBBLE_DEVICE_EVIDENCE_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/codec.h"

#define NB_PROFILE_GROUP 32u /* values of a profile's group */

/* `samples` values spread over the n at src, as floats. They stand at odd places, where the 16-bit halves of
 * an FP32 number are its upper ones: so memory of unknown content may be looked at as BF16. Returns how many
 * were taken: `samples`, or 0 when there are fewer than 2 * samples values. */
unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out);

/* out[i]: log2 of the root mean square of the i-th of `groups` groups of 32 values, spread over the n at src.
 * A group that is 2^16 times smaller than the largest counts as that; one of zeros is -150. Returns `groups`,
 * or 0 when there are fewer values than that takes, all are zero, or one is not finite. */
unsigned nb_host_profile(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *out);
/* Its two steps: the sums of squares of the groups, one value after the other; and from these (which `out`
 * may be) what nb_host_profile returns. */
unsigned nb_host_sums(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *sums);
unsigned nb_profile_of_sums(const float *sums, unsigned groups, float *out);

/* Positions at which two byte strings are alike: 16-bit patterns that differ by at most 64, by 65 to 256,
 * bytes that differ by at most 8. */
struct nb_nearness {
    uint64_t near16, far16, near8;
    unsigned samples; /* positions looked at: those asked for, or bytes / 4 */
};
struct nb_nearness nb_host_nearness(const void *a, const void *b, size_t bytes, unsigned samples);
/* device.h's likeness of it. */
double nb_likeness_of(const struct nb_nearness *near);

#endif
