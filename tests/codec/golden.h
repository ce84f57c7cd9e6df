/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Golden vectors: the cases, and the files with their coded results. golden_make.c writes the files with the
 * reference. test_golden.c compares every variant with them. Inputs use integer arithmetic only, so that they
 * do not depend on a C library.
 *
 * A file is a sequence of little-endian records: a 32-bit length, then that many bytes. Each case of
 * quant.bin has its input values, coded span, decoded values, error codes and error scales. The last records
 * are a sum for each type. Each case of delta4.bin and ulp.bin has the reference, the values, the coded span
 * and the decoded values.
 */
#ifndef NIBBLE_TESTS_CODEC_GOLDEN_H
#define NIBBLE_TESTS_CODEC_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "nibble/codec.h"

struct golden_case {
    enum nb_codec codec;
    enum nb_dtype type;
    unsigned n, first;
    enum nb_ef_mode mode;
    unsigned shape; /* for golden_value */
};

static const struct golden_case golden_cases[] = {
    {NB_CODEC_INT4, NB_BF16, 4096, 0, NB_EF_OFF, 0},     {NB_CODEC_INT4, NB_F32, 700, 4000, NB_EF_FULL, 0},
    {NB_CODEC_INT4, NB_F16, 333, 77, NB_EF_EMA, 0},      {NB_CODEC_INT4, NB_BF16, 500, 3, NB_EF_FULL, 1},
    {NB_CODEC_INT4, NB_F32, 512, 64, NB_EF_OFF, 2},      {NB_CODEC_INT4, NB_F32, 256, 0, NB_EF_FULL, 3},
    {NB_CODEC_INT4, NB_F32, 640, 0, NB_EF_OFF, 4},       {NB_CODEC_INT4, NB_BF16, 96, 32, NB_EF_OFF, 5},
    {NB_CODEC_INT4, NB_BF16, 4096, 8192, NB_EF_FULL, 6}, {NB_CODEC_INT8, NB_BF16, 700, 4000, NB_EF_EMA, 0},
    {NB_CODEC_INT8, NB_F32, 300, 5, NB_EF_FULL, 2},      {NB_CODEC_INT8, NB_F16, 128, 0, NB_EF_OFF, 5},
    {NB_CODEC_INT8, NB_F32, 640, 0, NB_EF_OFF, 4},       {NB_CODEC_INT4, NB_F32, 20, 40, NB_EF_FULL, 0},
    {NB_CODEC_INT4, NB_BF16, 1500, 40, NB_EF_FULL, 7},   {NB_CODEC_INT4, NB_F32, 700, 0, NB_EF_EMA, 7},
    {NB_CODEC_INT8, NB_F16, 700, 5, NB_EF_FULL, 7},      {NB_CODEC_INT4, NB_F32, 700, 5, NB_EF_FULL, 8},
    {NB_CODEC_INT6, NB_BF16, 4096, 0, NB_EF_OFF, 0},     {NB_CODEC_INT6, NB_BF16, 700, 4000, NB_EF_FULL, 7},
    {NB_CODEC_INT6, NB_F32, 300, 5, NB_EF_EMA, 2},       {NB_CODEC_INT6, NB_F16, 333, 77, NB_EF_FULL, 0},
    {NB_CODEC_INT6, NB_F32, 640, 0, NB_EF_OFF, 4},       {NB_CODEC_INT6, NB_F32, 256, 0, NB_EF_FULL, 3},
};

enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases, GOLDEN_MOST = 4096 + 64 };

/* Return an almost normal number that is exactly computable: a sum of uniform integers. */
static inline float golden_normal(struct rng *r)
{
    int64_t sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (int64_t)rng_below(r, 1u << 20) - (1 << 19);
    return (float)sum * 0x1p-20f;
}

/* Return 2^-k, exact. */
static inline float golden_power(unsigned k)
{
    return nb_bits_f32((127u - k) << 23);
}

static inline float golden_value(struct rng *r, unsigned shape, unsigned i)
{
    float x = golden_normal(r);
    switch (shape) {
    case 0: /* gradients, a scale for each run of four groups */ return x * golden_power(i / 128 * 3 % 11);
    case 1: /* sparse, with zero groups and negative zeros */
        return i / 32 % 3 == 1 ? -0.0f : rng_below(r, 8) ? 0 : x;
    case 2: /* a few escapes */ return i % 200 == 19 ? nb_bits_f32(0x7fc00123u) : i % 200 == 90 ? -1e30f : x;
    case 3: /* too many escapes */ return i % 9 == 4 ? nb_bits_f32(i % 2 ? 0xff800000u : 0x7f7fffffu) : x;
    case 4: /* groups far apart: wide, some below the floor */ return x * golden_power(i / 32 * 7);
    case 5: /* ties and small integers */ return (float)((int)rng_below(r, 5) - 2);
    case 7: /* gradients with some zeros of either sign, other ones each time */
        return rng_below(r, 40) ? x : rng_below(r, 2) ? 0.0f : -0.0f;
    case 8: /* flat groups: two values and some noise */
        return (rng_below(r, 2) ? 1.0f : -1.0f) + x * golden_power(2 + i / 96);
    default: /* zeros, then one value */ return i == 4001 ? 0.375f : 0;
    }
}

struct golden_result {
    size_t input, coded, decoded;
    uint8_t values[4 * GOLDEN_MOST], span[6 * GOLDEN_MOST], out[4 * GOLDEN_MOST];
    int8_t err[GOLDEN_MOST]; /* errors of the span only */
    uint8_t scale[GOLDEN_MOST / 32 + 2];
    size_t scales;
};

/* Code case `c` with the selected variant. With feedback code it twice, so that the second time has errors to
 * carry. Return 0 on success. */
static inline int golden_run(unsigned c, struct golden_result *g)
{
    const struct golden_case *k = &golden_cases[c];
    static int8_t err[16384];
    static uint8_t scale[16384 / 32];
    struct nb_ef ef = {err, scale, k->mode, 0.75f, 0.25f};
    struct rng r = {1000 + c};
    size_t bound = nb_encode_bound(k->codec, k->type, k->n), size = nb_dtype_size(k->type);

    memset(err, 0, sizeof err);
    memset(scale, 0, sizeof scale);
    ssize_t len = 0;
    for (int round = 0; round < (k->mode == NB_EF_OFF ? 1 : 3); round++) {
        for (unsigned i = 0; i < k->n; i++)
            nb_store_value(k->type, g->values, i, golden_value(&r, k->shape, i));
        len = nb_encode(k->codec, k->type, g->values, k->n, k->first, &ef, g->span, bound, NULL);
    }
    if (len < 0 || nb_decode(k->codec, k->type, g->span, (size_t)len, k->n, k->first, g->out))
        return -1;
    g->input = g->decoded = k->n * size;
    g->coded = (size_t)len;
    memcpy(g->err, err + k->first, k->n);
    g->scales = (k->first + k->n + 31) / 32 - k->first / 32;
    memcpy(g->scale, scale + k->first / 32, g->scales);
    return 0;
}

/* A sum of three coded spans and a raw one, with the node's own values. */
enum { GOLDEN_SUM = 300, GOLDEN_SUM_FIRST = 4090 };

static inline int golden_sum(enum nb_dtype type, uint8_t *out)
{
    static const enum nb_codec codecs[4] = {NB_CODEC_INT8, NB_CODEC_INT4, NB_CODEC_RAW, NB_CODEC_INT4};
    static uint8_t span[4][8 * GOLDEN_SUM], values[4 * GOLDEN_SUM];
    struct nb_source sources[4];
    struct rng r = {77u + (unsigned)type};
    for (unsigned s = 0; s < 5; s++) {
        for (unsigned i = 0; i < GOLDEN_SUM; i++)
            nb_store_value(type, values, i, golden_value(&r, s % 3, i));
        if (s == 4)
            break;
        ssize_t len = nb_encode(codecs[s], type, values, GOLDEN_SUM, GOLDEN_SUM_FIRST, NULL, span[s],
                                sizeof span[s], NULL);
        if (len < 0)
            return -1;
        sources[s] = (struct nb_source){codecs[s], span[s], (size_t)len};
    }
    return nb_reduce(type, sources, 4, values, GOLDEN_SUM, GOLDEN_SUM_FIRST, out);
}

/* ---- Differences --------------------------------------------------------------------------------------- */

struct golden_difference {
    unsigned width;     /* width of the patterns, 0: delta4 */
    enum nb_dtype type; /* type of the values */
    unsigned bytes;
    unsigned moved; /* the values move by 1/moved of their size, 0: they do not move */
    unsigned shape;
};

static const struct golden_difference golden_delta4_cases[] = {
    {0, NB_BF16, 4096, 1000, 0}, {0, NB_BF16, 4096, 60, 0}, {0, NB_BF16, 2049, 20, 0},
    {0, NB_BF16, 1500, 60, 1},   {0, NB_BF16, 3000, 60, 2}, {0, NB_F16, 4096, 200, 0},
    {0, NB_F16, 1111, 50, 2},    {0, NB_F32, 8192, 200, 0}, {0, NB_F32, 1030, 40, 2},
    {0, NB_F32, 900, 0, 0},
};

/* Patterns of the values' type and others, with tails and escapes, with all values unchanged or all
 * changed. */
static const struct golden_difference golden_ulp_cases[] = {
    {NB_ULP_16, NB_BF16, 4096, 1000, 0}, {NB_ULP_16, NB_BF16, 4096, 60, 0}, {NB_ULP_16, NB_BF16, 2049, 20, 0},
    {NB_ULP_16, NB_F16, 1111, 50, 2},    {NB_ULP_16, NB_BF16, 3000, 60, 2}, {NB_ULP_16, NB_BF16, 1500, 1, 1},
    {NB_ULP_32, NB_F32, 8192, 2000, 0},  {NB_ULP_32, NB_F32, 1030, 40, 2},  {NB_ULP_32, NB_F32, 900, 0, 0},
    {NB_ULP_8, NB_BF16, 3001, 60, 0},    {NB_ULP_8, NB_F32, 700, 4000, 1},
};

enum {
    GOLDEN_DELTA4_CASES = sizeof golden_delta4_cases / sizeof *golden_delta4_cases,
    GOLDEN_ULP_CASES = sizeof golden_ulp_cases / sizeof *golden_ulp_cases
};

/* The files: their cases, and the first case's seed of random numbers. */
static const struct golden_differences {
    const char *name;
    const struct golden_difference *cases;
    unsigned n, seed;
} golden_differences[] = {
    {"delta4", golden_delta4_cases, GOLDEN_DELTA4_CASES, 4000},
    {"ulp", golden_ulp_cases, GOLDEN_ULP_CASES, 6000},
};

enum { GOLDEN_DIFFERENCES = sizeof golden_differences / sizeof *golden_differences };

struct golden_difference_result {
    size_t bytes, coded;
    uint8_t ref[8192], cur[8192], span[2 * 8192], out[8192];
};

/* Code case `c` of a file with the selected variant. Return 0 on success. */
static inline int golden_difference(const struct golden_differences *of, unsigned c,
                                    struct golden_difference_result *g)
{
    const struct golden_difference *k = &of->cases[c];
    const size_t size = nb_dtype_size(k->type), n = k->bytes / size;
    const enum nb_ulp_width width = (enum nb_ulp_width)k->width;
    struct rng r = {of->seed + c};
    ssize_t len;

    memset(g->ref, 0x5a, k->bytes);
    memset(g->cur, 0x33, k->bytes);
    for (unsigned i = 0; i < n; i++) {
        /* 1: every fourth value is zero. 2: scales are far apart, and a few values are not finite or are
         * replaced. */
        const float scale = golden_power(k->shape == 2 ? i / 40 % 9 : i / 512 % 3);
        const float w = k->shape == 1 && i % 4 == 3 ? 0 : golden_normal(&r) * scale;
        float v = w + (k->moved ? golden_normal(&r) * scale / (float)k->moved : 0);
        if (k->shape == 2 && i % 97 == 50)
            v = i % 2 ? -v : nb_bits_f32(0x7f800000u);
        nb_store_value(k->type, g->ref, i, w);
        nb_store_value(k->type, g->cur, i, v);
    }
    g->bytes = k->bytes;
    if (width)
        len = nb_ulp_encode(width, g->cur, g->ref, k->bytes, SIZE_MAX, g->span, sizeof g->span);
    else
        len = nb_delta4_encode(k->type, g->cur, g->ref, k->bytes, SIZE_MAX, g->span, sizeof g->span, NULL);
    if (len < 0)
        return -1;
    g->coded = (size_t)len;
    return width ? nb_ulp_decode(width, g->span, g->coded, g->ref, k->bytes, g->out)
                 : nb_delta4_decode(k->type, g->span, g->coded, g->ref, k->bytes, g->out);
}

#endif
