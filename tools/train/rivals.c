/* SPDX-License-Identifier: Apache-2.0 */
/* LoCo-like and SDP4Bit-like codes; see rivals.h. */
#include "rivals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "values.h"

#define LOCO_BETA 0.8f
#define LOCO_RESET 1024u
#define SDP_GROUP 128u
#define SDP_POINTS 32u
#define QWD_GROUP 2048u
#define SCALE_BYTES 4u

struct nbt_rival {
    enum nbt_gradients kind;
    const struct nbt_layout *lay;
    size_t values;
    uint64_t seed, step;
    int8_t *error; /* LoCo: codes, and one scale for each group, at the index of the group's first value */
    float *error_scale;
    float *scratch;
};

struct nbt_rival *nbt_rival_new(enum nbt_gradients kind, const struct nbt_layout *lay, size_t values,
                                uint64_t seed)
{
    struct nbt_rival *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct nbt_rival){.kind = kind, .lay = lay, .values = values, .seed = seed};
    r->error = calloc(values, sizeof *r->error);
    r->error_scale = calloc(values, sizeof *r->error_scale);
    r->scratch = calloc(values, sizeof *r->scratch);
    if (r->error && r->error_scale && r->scratch)
        return r;
    nbt_rival_free(r);
    return NULL;
}

void nbt_rival_free(struct nbt_rival *r)
{
    if (!r)
        return;
    free(r->error);
    free(r->error_scale);
    free(r->scratch);
    free(r);
}

static float largest(const float *x, size_t n)
{
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    return max;
}

static float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* ---- LoCo ---- */

static void loco_group(struct nbt_rival *r, size_t at, size_t n, const float *g, float *arrives)
{
    int8_t *const code = r->error + at;
    const float step = r->error_scale[at];
    float max = 0, *const error = r->scratch;
    for (size_t i = 0; i < n; i++) {
        arrives[i] = g[i] + step * (float)code[i]; /* h, for now */
        max = fmaxf(max, fabsf(arrives[i]));
    }
    const float unit = max / 8;
    for (size_t i = 0; i < n; i++) {
        const float h = arrives[i];
        arrives[i] = unit > 0 ? unit * clamp(rintf(h / unit), -8, 7) : 0;
        error[i] = LOCO_BETA * step * (float)code[i] + (1 - LOCO_BETA) * (h - arrives[i]);
    }
    const float error_unit = largest(error, n) / 128;
    r->error_scale[at] = error_unit;
    for (size_t i = 0; i < n; i++)
        code[i] = (int8_t)(error_unit > 0 ? clamp(rintf(error[i] / error_unit), -128, 127) : 0);
}

static uint64_t loco(struct nbt_rival *r, const float *g, float *arrives)
{
    uint64_t bytes = 0;
    if (r->step % LOCO_RESET == 0)
        memset(r->error_scale, 0, r->values * sizeof *r->error_scale);
    for (int k = 0; k < r->lay->tensors; k++) {
        const struct nbt_tensor *t = &r->lay->tensor[k];
        const size_t all = t->rows * t->cols, row = t->rows < t->cols ? t->rows : t->cols;
        if (row == 1) {
            memcpy(arrives + t->offset, g + t->offset, all * sizeof *g);
            bytes += all * sizeof(uint16_t);
            continue;
        }
        for (size_t i = 0; i < all; i += row)
            loco_group(r, t->offset + i, row, g + t->offset + i, arrives + t->offset + i);
        bytes += all / 2 + all / row * SCALE_BYTES;
    }
    return bytes;
}

/* ---- SDP4Bit ---- */

/* x / unit between -7 and 7, up or down at random so that the mean is right. */
static float random_level(struct nbt_rng *rng, float x, float unit)
{
    return unit > 0 ? clamp(floorf(x / unit + (float)nbt_rng_unit(rng)), -7, 7) : 0;
}

/* Transform 32 values in place; orthonormal, its own inverse. */
static void hadamard(float *x)
{
    for (size_t h = 1; h < SDP_POINTS; h *= 2)
        for (size_t i = 0; i < SDP_POINTS; i += 2 * h)
            for (size_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    for (size_t i = 0; i < SDP_POINTS; i++)
        x[i] *= 0.17677669529663687f; /* 1 / sqrt(32) */
}

static uint64_t sdp4bit(struct nbt_rival *r, const float *g, float *arrives)
{
    struct nbt_rng rng = nbt_rng_seed(r->seed, 0x5d9, r->step);
    for (size_t at = 0; at < r->values; at += SDP_GROUP) {
        float x[SDP_GROUP] = {0};
        const size_t n = r->values - at < SDP_GROUP ? r->values - at : SDP_GROUP;
        memcpy(x, g + at, n * sizeof *x);
        for (size_t i = 0; i < SDP_GROUP; i += SDP_POINTS)
            hadamard(x + i);
        const float unit = largest(x, SDP_GROUP) / 7;
        for (size_t i = 0; i < SDP_GROUP; i++)
            x[i] = unit * random_level(&rng, x[i], unit);
        for (size_t i = 0; i < SDP_GROUP; i += SDP_POINTS)
            hadamard(x + i);
        memcpy(arrives + at, x, n * sizeof *x);
    }
    return r->values / 2 + r->values / SDP_GROUP * SCALE_BYTES;
}

uint64_t nbt_rival_weights(const uint16_t *now, const uint16_t *before, size_t n, uint64_t seed,
                           uint16_t *arrives)
{
    struct nbt_rng rng = nbt_rng_seed(seed, 0x9d, 0);
    for (size_t at = 0; at < n; at += QWD_GROUP) {
        float w[QWD_GROUP], base[QWD_GROUP];
        uint16_t difference[QWD_GROUP];
        const size_t c = n - at < QWD_GROUP ? n - at : QWD_GROUP;
        nbt_from_bf16(now + at, c, w);
        nbt_from_bf16(before + at, c, base);
        for (size_t i = 0; i < c; i++)
            w[i] -= base[i];
        nbt_to_bf16(w, c, difference); /* the subtraction is one of BF16 values with a BF16 result */
        nbt_from_bf16(difference, c, w);
        const float unit = largest(w, c) / 7;
        for (size_t i = 0; i < c; i++)
            w[i] = base[i] + unit * random_level(&rng, w[i], unit);
        nbt_to_bf16(w, c, arrives + at);
    }
    return n / 2 + (n + QWD_GROUP - 1) / QWD_GROUP * SCALE_BYTES;
}

uint64_t nbt_rival_gradients(struct nbt_rival *r, const float *g, float *arrives)
{
    memset(arrives + r->lay->params, 0, (r->values - r->lay->params) * sizeof *arrives);
    const uint64_t bytes = r->kind == NBT_GRADIENTS_LOCO ? loco(r, g, arrives) : sdp4bit(r, g, arrives);
    r->step++;
    return bytes;
}
