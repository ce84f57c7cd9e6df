/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW over a shard that may begin and end inside a tensor. */
#include "adamw.h"

#include <math.h>

float nbt_learning_rate(size_t step, size_t steps, size_t warmup, float peak)
{
    if (step < warmup)
        return peak * (float)(step + 1) / (float)warmup;
    if (steps <= warmup)
        return peak;
    const double done = (double)(step - warmup) / (double)(steps - warmup);
    return peak * (float)(0.55 + 0.45 * cos(3.14159265358979 * (done < 1 ? done : 1)));
}

float nbt_clip_factor(double sum_of_squares)
{
    const double norm = sqrt(sum_of_squares);
    return norm > 1.0 ? (float)(1.0 / norm) : 1.0f;
}

void nbt_adamw_direction(const struct nbt_adamw *opt, size_t step, size_t n, const float *g, float factor,
                         struct nbt_moments mom, float *u)
{
    const float b1 = opt->beta1, b2 = opt->beta2;
    const float c1 = (float)(1.0 / (1.0 - pow(b1, (double)step + 1)));
    const float c2 = (float)(1.0 / (1.0 - pow(b2, (double)step + 1)));
    for (size_t i = 0; i < n; i++) {
        const float x = factor * g[i];
        mom.m[i] = b1 * mom.m[i] + (1 - b1) * x;
        mom.v[i] = b2 * mom.v[i] + (1 - b2) * x * x;
        u[i] = c1 * mom.m[i] / (sqrtf(c2 * mom.v[i]) + opt->eps);
    }
}

static int decays(enum nbt_class c)
{
    return c == NBT_MATRIX || c == NBT_EMBED || c == NBT_HEAD;
}

void nbt_adamw_apply(const struct nbt_adamw *opt, const struct nbt_layout *lay, size_t first, size_t n,
                     float rate, const float *u, float *w)
{
    for (int t = 0; t < lay->tensors; t++) {
        const struct nbt_tensor *x = &lay->tensor[t];
        const size_t begin = x->offset > first ? x->offset : first;
        const size_t stop = x->offset + x->rows * x->cols, end = stop < first + n ? stop : first + n;
        const float keep = 1 - (decays(x->cls) ? rate * opt->decay : 0);
        for (size_t i = begin; i < end; i++)
            w[i - first] = keep * w[i - first] - rate * u[i - first];
    }
}
