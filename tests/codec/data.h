/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test data for the codecs: a small generator that is the same on every machine, and kinds of values that
 * occur as gradients, padding and accidents. Only static functions. Each test program includes it once.
 */
#ifndef NIBBLE_TESTS_CODEC_DATA_H
#define NIBBLE_TESTS_CODEC_DATA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "codec/fp.h"
#include "nibble/codec.h"

#define NB_UNUSED __attribute__((unused))

/* The codecs with tiles, int4 as often as the others together. */
enum { TILED = 4 };
static const enum nb_codec tiled[TILED] NB_UNUSED = {NB_CODEC_INT4, NB_CODEC_INT8, NB_CODEC_INT6,
                                                     NB_CODEC_INT4};

struct rng {
    uint64_t s;
};

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Return a uniform number below n. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_next(r) % n;
}

static inline double rng_uniform(struct rng *r)
{
    return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53;
}

static inline double rng_gauss(struct rng *r)
{
    double u = rng_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * rng_uniform(r));
}

static NB_UNUSED double rng_laplace(struct rng *r)
{
    double u = rng_uniform(r) - 0.5;
    return (u < 0 ? 1 : -1) * log(1 - 2 * fabs(u));
}

static NB_UNUSED double rng_student4(struct rng *r)
{
    double chi = 0;
    for (int i = 0; i < 4; i++) {
        double g = rng_gauss(r);
        chi += g * g;
    }
    return rng_gauss(r) / sqrt(chi / 4);
}

static NB_UNUSED double rng_mix(struct rng *r)
{
    double scale = exp(rng_gauss(r));
    return rng_gauss(r) * scale;
}

/* Kinds of data that together reach every path of the encoders. */
enum data_kind {
    DATA_GAUSS,
    DATA_GROUP_SCALES, /* each group with its own scale, far apart */
    DATA_SPARSE,
    DATA_BITS, /* any bit pattern */
    DATA_SMALL_INTEGERS,
    DATA_POISON,       /* one value in 500 is huge or NaN */
    DATA_VALUE_SCALES, /* each value with its own scale */
    DATA_TINY_GROUPS,  /* two groups in three are 10^20 times smaller */
    DATA_INFINITIES,
    DATA_ZERO,
    DATA_DENORMAL,
    DATA_LARGEST, /* near FLT_MAX */
    DATA_RARE_OUTLIERS,
    DATA_SIGNS, /* +-1: every value ties for the maximum */
    DATA_HALF_ZERO,
    DATA_INT64, /* bytes of 64-bit counters */
    DATA_NEGATIVE_ZERO,
    DATA_FLAT,    /* magnitudes of 0.8 to 1: in about half the groups the larger of each pair is above 7/8 */
    DATA_MASKED,  /* one value in 60 is an exact zero, of either sign */
    DATA_STEPPED, /* scales that fall from group to group by powers of two */
    DATA_KINDS
};

static NB_UNUSED float data_value(struct rng *r, enum data_kind kind, uint64_t i, double *scale)
{
    if (i % 32 == 0)
        *scale = exp(3 * rng_gauss(r));
    switch (kind) {
    case DATA_GAUSS: return (float)rng_gauss(r);
    case DATA_GROUP_SCALES: return (float)(rng_gauss(r) * 1e-3 * *scale);
    case DATA_SPARSE: return rng_below(r, 32) ? 0 : (float)rng_gauss(r);
    case DATA_BITS: return nb_bits_f32((uint32_t)rng_next(r));
    case DATA_SMALL_INTEGERS: return (float)((int)rng_below(r, 5) - 2);
    case DATA_POISON:
        return rng_below(r, 500) ? (float)rng_gauss(r) : rng_below(r, 3) ? 1e30f * (float)rng_gauss(r) : NAN;
    case DATA_VALUE_SCALES: return (float)(rng_gauss(r) * pow(2, (double)rng_below(r, 40) - 20));
    case DATA_TINY_GROUPS: return (float)(rng_gauss(r) * (i / 32 % 3 ? 1 : 1e-20));
    case DATA_INFINITIES:
        return rng_below(r, 2000) ? (float)(rng_gauss(r) * 1e-2) : rng_below(r, 2) ? -INFINITY : 3e38f;
    case DATA_ZERO: return 0;
    case DATA_DENORMAL: return (float)(rng_gauss(r) * 1e-39);
    case DATA_LARGEST: return nb_bits_f32(0x7f7fffffu - (uint32_t)rng_below(r, 1u << 25));
    case DATA_RARE_OUTLIERS: return (float)(rng_gauss(r) * (rng_below(r, 2000) ? 1 : 1e8));
    case DATA_SIGNS: return rng_below(r, 2) ? 1 : -1;
    case DATA_HALF_ZERO: return i % 4096 < 2000 ? 0 : (float)(rng_gauss(r) * 1e-5);
    case DATA_INT64: {
        uint64_t v = i % 64 < 16 ? rng_below(r, 1000) : 0;
        return i % 64 < 16 ? nb_bits_f32((uint32_t)v << (i % 2 ? 0 : 16)) : (float)rng_gauss(r);
    }
    case DATA_NEGATIVE_ZERO: return rng_below(r, 8) ? -0.0f : (float)rng_gauss(r);
    case DATA_FLAT: return (float)((rng_below(r, 2) ? 1 : -1) * (1 - 0.2 * pow(rng_uniform(r), 3)));
    case DATA_MASKED: return rng_below(r, 60) ? (float)rng_gauss(r) : rng_below(r, 2) ? 0.0f : -0.0f;
    default: return (float)(rng_gauss(r) * pow(2, -(double)(i / 32 % 128)));
    }
}

/* Write n values of `type` to dst. `first` is their place in a block. */
static NB_UNUSED void data_fill(struct rng *r, enum data_kind kind, enum nb_dtype type, void *dst, size_t n,
                                uint64_t first)
{
    double scale = 1;
    for (size_t i = 0; i < n; i++)
        nb_store_value(type, dst, i, data_value(r, kind, first + i, &scale));
}

#endif
