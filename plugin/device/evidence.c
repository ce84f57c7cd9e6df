/* SPDX-License-Identifier: Apache-2.0 */
/* See evidence.h. */
#include "device/evidence.h"

#include <math.h>
#include <stdint.h>

#include "codec/fp.h"

#define FLOOR 16.0f    /* log2 of the largest ratio between groups that are not zero */
#define ZERO  (-150.0f) /* of a group of zeros: below what any other can have */

unsigned nb_host_sample(enum nb_dtype type, const void *src, size_t n, unsigned samples, float *out)
{
    if (samples == 0 || n < 2 * (size_t)samples)
        return 0;
    for (unsigned i = 0; i < samples; i++)
        out[i] = nb_load_value(type, src, (size_t)((uint64_t)n / 2 * i / samples) * 2 + 1);
    return samples;
}

unsigned nb_host_profile(enum nb_dtype type, const void *src, size_t n, unsigned groups, float *out)
{
    size_t all = n / NB_PROFILE_GROUP;
    float most = -INFINITY;

    if (groups == 0 || all < groups)
        return 0;
    for (unsigned g = 0; g < groups; g++) {
        size_t at = (size_t)((uint64_t)all * g / groups) * NB_PROFILE_GROUP;
        float sum = 0.0f;
        for (unsigned k = 0; k < NB_PROFILE_GROUP; k++) {
            float v = nb_load_value(type, src, at + k);
            sum += v * v;
        }
        if (!isfinite(sum))
            return 0;
        out[g] = 0.5f * log2f(sum / NB_PROFILE_GROUP); /* -inf for zeroes */
        most = fmaxf(most, out[g]);
    }
    if (!isfinite(most))
        return 0;
    for (unsigned g = 0; g < groups; g++)
        out[g] = isinf(out[g]) ? ZERO : fmaxf(out[g], most - FLOOR);
    return groups;
}
