/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises of the quantizing codecs about errors: size and noise on known distributions, foreign values
 * that do not spoil the values around them, sparse groups, and feedback that makes means right.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "nibble/codec.h"
#include "tests/suite.h"

enum { LARGE = 1 << 20 };

static ssize_t code(enum nb_codec codec, const float *x, size_t n, const struct nb_ef *ef, float *y,
                    struct nb_encode_stats *stats)
{
    size_t bound = nb_encode_bound(codec, NB_F32, n);
    uint8_t *coded = malloc(bound);
    ssize_t len = nb_encode(codec, NB_F32, x, n, 0, ef, coded, bound, stats);
    ck_assert_int_ge(len, 0);
    ck_assert_int_eq(nb_decode(codec, NB_F32, coded, (size_t)len, n, 0, y), 0);
    free(coded);
    return len;
}

static double nmse(const float *x, const float *y, size_t n)
{
    double signal = 0, noise = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i];
        signal += (double)x[i] * (double)x[i];
        noise += d * d;
    }
    return noise / signal;
}

static double (*const distributions[])(struct rng *) = {rng_gauss, rng_laplace, rng_student4, rng_mix};
static const char *const distribution_names[] = {"Gaussian", "Laplace", "Student-t(4)", "log-normal mix"};

START_TEST(noise_and_size)
{
    float *x = malloc(sizeof *x * LARGE), *y = malloc(sizeof *y * LARGE);
    struct rng r = {21};
    struct nb_encode_stats stats = {.every = 1};
    for (size_t i = 0; i < LARGE; i++)
        x[i] = 1e-4f * (float)distributions[_i](&r);
    ssize_t len4 = code(NB_CODEC_INT4, x, LARGE, NULL, y, &stats);
    double bits = 8.0 * (double)len4 / LARGE, noise4 = nmse(x, y, LARGE);
    ck_assert_msg(fabs(stats.noise2 / stats.signal2 - noise4) < 1e-4, "statistics say %g, not %g",
                  stats.noise2 / stats.signal2, noise4);
    ssize_t len8 = code(NB_CODEC_INT8, x, LARGE, NULL, y, NULL);
    double noise8 = nmse(x, y, LARGE);
    ssize_t len6 = code(NB_CODEC_INT6, x, LARGE, NULL, y, NULL);
    double noise6 = nmse(x, y, LARGE);
    printf("%-14s int4 %.4f bits NMSE %.6f, int6 %.4f bits NMSE %.7f, int8 %.4f bits NMSE %.8f\n",
           distribution_names[_i], bits, noise4, 8.0 * (double)len6 / LARGE, noise6,
           8.0 * (double)len8 / LARGE, noise8);
    ck_assert_double_le(8.0 * (double)len6 / LARGE, 6.30);
    ck_assert_double_le(noise6, 17 * noise8);
    ck_assert_double_le(bits, 4.35);
    ck_assert_double_le(noise4, 0.0078);
    ck_assert_double_gt(noise4, 0.003); /* less than the rate-distortion bound would mean a broken test */
    ck_assert_double_le(8.0 * (double)len8 / LARGE, 8.30);
    ck_assert_double_le(noise8, 0.00015);
    free(x);
    free(y);
}
END_TEST

/* Rows with one scale each, 10^6 apart, some empty: no row pays for another. */
START_TEST(scales_side_by_side)
{
    enum { ROW = 64, ROWS = 640 };
    static float x[ROW * ROWS], y[ROW * ROWS];
    struct rng r = {22};
    for (int i = 0; i < ROW * ROWS; i++)
        x[i] = i / ROW % 4 == 3 ? 0 : (float)(rng_gauss(&r) * pow(10, -2 * (i / ROW % 4)));
    code(NB_CODEC_INT4, x, ROW * ROWS, NULL, y, NULL);
    for (int k = 0; k < 3; k++) {
        double signal = 0, noise = 0;
        for (int i = 0; i < ROW * ROWS; i++)
            if (i / ROW % 4 == k) {
                signal += (double)x[i] * (double)x[i];
                noise += pow((double)x[i] - (double)y[i], 2);
            }
        ck_assert_double_le(noise / signal, k < 2 ? 0.0085 : 0.02);
    }
    for (int i = 0; i < ROW * ROWS; i++)
        if (i / ROW % 4 == 3)
            ck_assert_uint_eq(nb_f32_bits(y[i]), 0);
}
END_TEST

/* Zeros of a sparse group stay zeros, in both signs and under both codecs. Lone values stay exact. */
START_TEST(sparse_groups)
{
    static float x[2 * NB_TILE], y[2 * NB_TILE];
    struct rng r = {23};
    for (int k = 0; k < 40; k++) {
        for (size_t i = 0; i < 2 * NB_TILE; i++)
            x[i] = rng_below(&r, 32) ? (rng_below(&r, 2) ? 0.0f : -0.0f) : rng_below(&r, 2) ? 0.25f : -0.25f;
        code(tiled[k % 3], x, 2 * NB_TILE, NULL, y, NULL);
        for (size_t i = 0; i < 2 * NB_TILE; i++) {
            if (x[i] == 0)
                ck_assert_uint_eq(nb_f32_bits(y[i]), 0);
            else
                ck_assert_float_eq_tol(y[i], x[i], 0.035f);
        }
    }
    /* a lone spike in each group, exact in the four-bit code */
    memset(x, 0, sizeof x);
    for (size_t j = 0; j < 2 * NB_TILE / 32; j++)
        x[32 * j + rng_below(&r, 32)] = rng_below(&r, 2) ? 1.5f : -0.75f;
    code(NB_CODEC_INT4, x, 2 * NB_TILE, NULL, y, NULL);
    for (size_t i = 0; i < 2 * NB_TILE; i++)
        ck_assert(x[i] == y[i]);
}
END_TEST

/* Masked gradients: values that are exactly zero on every node. */
enum masked {
    MASKED_USUAL,
    MASKED_ESCAPES, /* with a few escapes */
    MASKED_APART,   /* groups far apart: wide and raw tiles */
    MASKED_INT8,    /* too many escapes for int4 */
    MASKED_KINDS
};

enum { MASKED = 2 * NB_TILE + 700, MASKED_FIRST = 4096 - 40 };

struct masked_node {
    uint8_t values[4 * MASKED], coded[8 * MASKED];
    int8_t err[MASKED_FIRST + MASKED];
    uint8_t scale[(MASKED_FIRST + MASKED) / 32 + 1];
    size_t len;
};

static bool is_masked(size_t i)
{
    return i / 512 % 3 ? i * 7 % 31 == 0 : i / 32 % 2 == 0 ? i % 4 < 2 : i % 100 < 64;
}

static float masked_value(struct rng *r, int kind, size_t i)
{
    const float x = (float)rng_gauss(r);

    if (is_masked(i))
        return rng_below(r, 2) ? 0.0f : -0.0f;
    if ((kind == MASKED_ESCAPES && i % 1999 == 7) || (kind == MASKED_INT8 && i % 500 == 7))
        return 3e30f;
    if (kind != MASKED_APART)
        return x;
    return ldexpf(x,
                  -(int)((MASKED_FIRST + i) / 32 % 16) * 7); /* FP16 turns some groups to zero: idle ones */
}

/* Return whether all values of the whole group of value i are zero. */
static bool is_idle(enum nb_dtype type, const void *values, size_t i)
{
    const size_t begin = (MASKED_FIRST + i) / 32 * 32 - MASKED_FIRST;

    for (size_t k = 0; k < 32; k++)
        if (nb_load_value(type, values, begin + k) != 0)
            return false;
    return true;
}

/* Encode a node's values, decode them, and check that zeros arrived as +0 and have no residual. */
static void masked_encode(int kind, enum nb_codec codec, enum nb_dtype type, int mode,
                          struct masked_node *node)
{
    static uint8_t out[4 * MASKED];
    struct nb_ef ef = {node->err, node->scale, (enum nb_ef_mode)mode, 0.8f, 0.2f};
    const ssize_t len = nb_encode(codec, type, node->values, MASKED, MASKED_FIRST, &ef, node->coded,
                                  sizeof node->coded, NULL);

    ck_assert_int_ge(len, 0);
    node->len = (size_t)len;
    ck_assert_int_eq(nb_decode(codec, type, node->coded, node->len, MASKED, MASKED_FIRST, out), 0);
    for (size_t i = 0; i < MASKED; i++)
        if (is_masked(i)) {
            const bool last = (MASKED_FIRST + i) / 32 == (MASKED_FIRST + MASKED) / 32;
            const bool raw = i < 8 || last || kind == MASKED_APART;
            const uint32_t bits = nb_f32_bits(nb_load_value(type, out, i));
            /* Partial groups and raw tiles keep their bits, -0 among them. */
            if (raw ? bits & NB_F32_ABS : bits)
                ck_abort_msg("%s, type %d, mode %d: zero %zu arrives as %a", nb_codec_name(codec), (int)type,
                             mode, i, (double)nb_bits_f32(bits));
            if (mode != NB_EF_OFF && node->err[MASKED_FIRST + i] &&
                (i < 8 || last || !is_idle(type, node->values, i)))
                ck_abort_msg("%s, type %d, mode %d: zero %zu keeps a residual", nb_codec_name(codec),
                             (int)type, mode, i);
        }
}

/* Exact zeros arrive as +0 and keep no residual, whatever their group holds and whatever residual was there.
 * So do the zeros of a sum, which is coded again. */
START_TEST(zeros_stay_zeros)
{
    enum { NODES = 3 };
    static struct masked_node node[NODES], sum;
    struct nb_source sources[NODES];
    struct rng r = {24};

    for (int run = 0; run < 3 * 3 * NB_DTYPE_COUNT; run++) {
        const enum nb_codec codec = tiled[run % 3];
        const int mode = NB_EF_OFF + run / 3 % 3;
        const enum nb_dtype type = (enum nb_dtype)(run / 9);
        for (size_t i = 0; i < sizeof node[0].err; i++) /* as if no value had been masked before */
            for (int k = 0; k < NODES; k++)
                node[k].err[i] = sum.err[i] = (int8_t)(1 + rng_below(&r, 100));
        for (size_t j = 0; j < sizeof node[0].scale; j++)
            for (int k = 0; k < NODES; k++)
                node[k].scale[j] = sum.scale[j] = 127 - 9;
        for (int step = 0; step < 3; step++) {
            for (int k = 0; k < NODES; k++) {
                for (size_t i = 0; i < MASKED; i++)
                    nb_store_value(type, node[k].values, i, masked_value(&r, _i, i));
                masked_encode(_i, codec, type, mode, &node[k]);
                sources[k] = (struct nb_source){codec, node[k].coded, node[k].len};
            }
            ck_assert_int_eq(
                nb_reduce(type, sources, NODES, node[0].values, MASKED, MASKED_FIRST, sum.values), 0);
            for (size_t i = 0; i < MASKED; i++)
                if (is_masked(i) && nb_load_value(type, sum.values, i) != 0)
                    ck_abort_msg("the sum of zeros %zu is not zero", i);
            masked_encode(_i, codec, type, mode, &sum);
        }
    }
}
END_TEST

/* Values of two sizes: both ends of the range are within reach of the codes, so their mean stays right. */
START_TEST(two_valued_groups)
{
    static float x[8 * NB_TILE], y[8 * NB_TILE];
    struct rng r = {25};

    for (int kind = 0; kind < 3; kind++) {
        double signal = 0, noise = 0, mean = 0;
        for (size_t i = 0; i < 8 * NB_TILE; i++) {
            const float one = rng_below(&r, 2) ? 1.0f : -1.0f;
            /* signs; with zeros; with a small rest */
            x[i] = kind == 0 ? one : rng_below(&r, 2) ? one : kind == 1 ? 0 : 1e-4f * (float)rng_gauss(&r);
        }
        code(NB_CODEC_INT4, x, 8 * NB_TILE, NULL, y, NULL);
        for (size_t i = 0; i < 8 * NB_TILE; i++) {
            signal += (double)x[i] * (double)x[i];
            noise += pow((double)y[i] - (double)x[i], 2);
            mean += fabs((double)x[i]) > 0.5 ? (double)y[i] - (double)x[i] : 0;
        }
        ck_assert_double_le(noise / signal, 0.0005);
        ck_assert_double_le(fabs(mean) / (8 * NB_TILE), 0.001);
    }
}
END_TEST

START_TEST(zero_tiles_are_headers)
{
    static float x[2 * NB_TILE], y[2 * NB_TILE];
    memset(x, 0, sizeof x);
    ck_assert_int_eq(code(NB_CODEC_INT4, x, 2 * NB_TILE, NULL, y, NULL), 8);
    x[77] = -0.0f;
    ck_assert_int_eq(code(NB_CODEC_INT8, x, 2 * NB_TILE, NULL, y, NULL), 8);
    ck_assert_int_eq(code(NB_CODEC_INT6, x, 2 * NB_TILE, NULL, y, NULL), 8);
    struct nb_encode_stats stats = {0};
    for (size_t i = 0; i < 2 * NB_TILE; i++)
        x[i] = i % 2 ? 1e-40f : 3e-30f; /* below the floor: defined and counted */
    ck_assert_int_eq(code(NB_CODEC_INT4, x, 2 * NB_TILE, NULL, y, &stats), 8);
    ck_assert_uint_eq(stats.flushed, 256);
    for (size_t i = 0; i < 2 * NB_TILE; i++)
        ck_assert_uint_eq(nb_f32_bits(y[i]), 0);
}
END_TEST

/* ---- Foreign values ----------------------------------------------------------------------------------- */

static float poison_once(struct rng *r, int kind)
{
    switch (kind) {
    case 0: return 1e30f;
    case 1: return nb_bits_f32(0x7fc12345u);
    case 2: return -INFINITY;
    case 3: return nb_bits_f32(0x7f7fffffu);
    case 4: return -1e4f;
    case 5: /* an int64 seen as two floats: a large exponent or a denormal */
        return nb_bits_f32(rng_below(r, 2) ? 0x4b000000u + (uint32_t)rng_below(r, 1u << 20)
                                           : (uint32_t)rng_below(r, 1u << 20));
    case 6: /* pointers */
        return nb_bits_f32(rng_below(r, 2) ? 0x7f00u + (uint32_t)rng_below(r, 256) : (uint32_t)rng_next(r));
    default: /* any bits */ return nb_bits_f32((uint32_t)rng_next(r));
    }
}

enum { POISONS = 8 };

/* Draw foreign values. A value below 2^10 times the size of its neighbors (1e-3) may cost them accuracy, and
 * is not drawn here. */
static float poison(struct rng *r, int kind)
{
    for (;;) {
        float v = poison_once(r, kind);
        if (!(fabsf(v) > 4e-3f && fabsf(v) < 2))
            return v;
    }
}

/* Return the rms error over the unmarked values of [from, to), relative to their rms. */
static double relative_error(const float *x, const float *y, const uint8_t *marked, size_t from, size_t to)
{
    double signal = 0, noise = 0;
    for (size_t i = from; i < to; i++)
        if (!marked[i]) {
            signal += (double)x[i] * (double)x[i];
            noise += pow((double)x[i] - (double)y[i], 2);
        }
    return sqrt(noise / signal);
}

/* Put `count` foreign values into a tile of gradients of size 1e-3. `run`: side by side. */
static void poison_tile(struct rng *r, enum nb_codec codec, int kind, size_t count, int run)
{
    static float x[NB_TILE], y[NB_TILE], clean[NB_TILE];
    static uint8_t marked[NB_TILE];
    memset(marked, 0, sizeof marked);
    for (size_t i = 0; i < NB_TILE; i++)
        x[i] = 1e-3f * (float)rng_gauss(r);
    code(codec, x, NB_TILE, NULL, clean, NULL);
    size_t at = rng_below(r, NB_TILE - count);
    for (size_t k = 0; k < count; k++) {
        size_t i = run ? at + k : rng_below(r, NB_TILE);
        x[i] = poison(r, kind);
        marked[i] = 1;
    }
    ssize_t len = code(codec, x, NB_TILE, NULL, y, NULL);
    ck_assert_int_gt(len, 0);
    for (size_t j = 0; j < NB_TILE / 32; j++) {
        unsigned left = 0;
        double worst = 0, plain = 0;
        for (size_t i = 32 * j; i < 32 * j + 32; i++)
            if (!marked[i]) {
                left++;
                worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
                plain = fmax(plain, fabs((double)x[i]));
            }
        /* With fewer than five values left, the codec cannot tell which are foreign, unless they lie further
         * apart than one scale can represent. */
        if (left >= 5 || kind < 4)
            ck_assert_msg(worst <= 0.16 * 4e-3,
                          "kind %d count %zu run %d codec %d: error %g in group %zu of max %g", kind, count,
                          run, (int)codec, worst, j, plain);
    }
    double error = relative_error(x, y, marked, 0, NB_TILE);
    ck_assert_msg(error <= 0.095, "kind %d count %zu run %d: relative error %g", kind, count, run, error);
    for (size_t i = 0; i < NB_TILE; i++)
        if (marked[i] && kind < 5) /* these are exact */
            ck_assert_msg(nb_f32_bits(x[i]) == nb_f32_bits(y[i]) || count > 3, "value %zu of kind %d", i,
                          kind);
    if (kind == 1 || kind == 2 || kind == 3)
        for (size_t i = 0; i < NB_TILE; i++)
            if (marked[i])
                ck_assert_uint_eq(nb_f32_bits(x[i]), nb_f32_bits(y[i]));
}

START_TEST(few_foreign_values)
{
    struct rng r = {30u + (unsigned)_i};
    for (int k = 0; k < 120; k++)
        poison_tile(&r, k % 4 ? NB_CODEC_INT4 : tiled[1 + k / 4 % 2], _i, 1 + rng_below(&r, 3),
                    (int)rng_below(&r, 2));
}
END_TEST

START_TEST(many_foreign_values)
{
    struct rng r = {40u + (unsigned)_i};
    for (int k = 0; k < 120; k++)
        poison_tile(&r, k % 4 ? NB_CODEC_INT4 : tiled[1 + k / 4 % 2], _i,
                    4 + rng_below(&r, k % 3 ? 60 : 2000), (int)rng_below(&r, 2));
}
END_TEST

/* Three escapes cost 24 bytes and leave the tile int4. */
START_TEST(escapes_stay_int4)
{
    static float x[NB_TILE], y[NB_TILE];
    struct rng r = {50};
    struct nb_encode_stats stats = {0};
    for (size_t i = 0; i < NB_TILE; i++)
        x[i] = 1e-3f * (float)rng_gauss(&r);
    ssize_t clean = code(NB_CODEC_INT4, x, NB_TILE, NULL, y, NULL);
    x[5] = NAN;
    x[6] = 1e30f;
    x[4000] = -INFINITY;
    ck_assert_int_eq(code(NB_CODEC_INT4, x, NB_TILE, NULL, y, &stats), clean + 24);
    ck_assert_uint_eq(stats.escapes, 3);
    ck_assert_uint_eq(stats.nonfinite, 2);
    ck_assert_uint_eq(stats.fallback, 0);
    ck_assert(isnan(y[5]) && y[6] == 1e30f && y[4000] == -INFINITY);
    x[77] = 1e30f; /* one more: int8 */
    ssize_t len = code(NB_CODEC_INT4, x, NB_TILE, NULL, y, &stats);
    ck_assert_int_gt(len, 4096);
    ck_assert_int_lt(len, 4300);
    ck_assert_uint_eq(stats.fallback, 1);
}
END_TEST

/* ---- Feedback --------------------------------------------------------------------------------------- */

enum { SMALL = 4 * NB_TILE };

struct feedback {
    int8_t err[SMALL];
    uint8_t scale[SMALL / 32];
};

static double mean_error(enum nb_codec codec, const float *x, struct nb_ef *ef, int rounds)
{
    static float y[SMALL];
    static double sum[SMALL];
    double error = 0;
    memset(sum, 0, sizeof sum);
    for (int k = 0; k < rounds; k++) {
        code(codec, x, SMALL, ef, y, NULL);
        for (int i = 0; i < SMALL; i++)
            sum[i] += (double)y[i];
    }
    for (int i = 0; i < SMALL; i++)
        error += pow(sum[i] / rounds - (double)x[i], 2);
    return sqrt(error);
}

START_TEST(feedback_makes_means_right)
{
    static float x[SMALL];
    static struct feedback state;
    struct rng r = {60u + (unsigned)_i};
    enum nb_codec codec = tiled[_i % 3];
    struct nb_ef ef = {state.err, state.scale, _i < 3 ? NB_EF_FULL : NB_EF_EMA, 0.8f, 0.2f};
    memset(&state, 0, sizeof state);
    for (int i = 0; i < SMALL; i++)
        x[i] = 1e-3f * (float)distributions[i / NB_TILE](&r);
    double without = mean_error(codec, x, NULL, 1), with = mean_error(codec, x, &ef, 200);
    printf("%s %s: error of the mean of 200, with feedback 1/%.0f\n", nb_codec_name(codec),
           _i < 3 ? "full" : "ema", without / with);
    ck_assert_double_ge(without / with, 20);
}
END_TEST

/* ema keeps beta of the old error and takes 1-beta of the new error. full replaces the old error. */
START_TEST(modes)
{
    static float x[SMALL], y[SMALL];
    static struct feedback state;
    struct rng r = {70};
    for (int mode = NB_EF_FULL; mode <= NB_EF_EMA; mode++) {
        struct nb_ef ef = {state.err, state.scale, (enum nb_ef_mode)mode, 0.75f, 10.0f};
        memset(&state, 0, sizeof state);
        for (int round = 0; round < 3; round++) {
            static double e[SMALL];
            double worst = 0, largest = 0;
            for (int i = 0; i < SMALL; i++) {
                x[i] = (float)rng_gauss(&r);
                e[i] = state.scale[i / 32] ? state.err[i] * ldexp(1, state.scale[i / 32] - 127) : 0;
            }
            code(NB_CODEC_INT4, x, SMALL, &ef, y, NULL);
            for (int i = 0; i < SMALL; i++) {
                double miss = (double)x[i] + e[i] - (double)y[i];
                double want = mode == NB_EF_FULL ? miss : 0.75 * e[i] + 0.25 * miss;
                double got = state.scale[i / 32] ? state.err[i] * ldexp(1, state.scale[i / 32] - 127) : 0;
                worst = fmax(worst, fabs(want - got));
                largest = fmax(largest, fabs(want));
            }
            ck_assert_double_le(worst, largest / 64);
            ck_assert_double_gt(largest, 0.01);
        }
    }
}
END_TEST

/* However large the state, it changes the sent values by at most `bound` of their own norm. */
START_TEST(bound_limits_damage)
{
    static float x[SMALL], y[SMALL];
    static struct feedback state;
    struct rng r = {80};
    for (int k = 0; k < 20; k++) {
        struct nb_ef ef = {state.err, state.scale, NB_EF_FULL, 0, 0.2f};
        struct nb_encode_stats stats = {0};
        for (int i = 0; i < SMALL; i++) {
            x[i] = 1e-3f * (float)rng_gauss(&r);
            state.err[i] = (int8_t)((int)rng_below(&r, 255) - 127);
            state.scale[i / 32] = (uint8_t)(127 - 6 + k);
        }
        code(NB_CODEC_INT4, x, SMALL, &ef, y, &stats);
        ck_assert_uint_eq(stats.bounded, SMALL / NB_TILE);
        ck_assert_double_le(sqrt(stats.carried2 / stats.signal2), 0.2001);
        ck_assert_double_ge(sqrt(stats.carried2 / stats.signal2), 0.199);
        ck_assert_double_le(sqrt(nmse(x, y, SMALL)), 0.2 + 0.1);
    }
}
END_TEST

/* A group of zeros sends zeros and keeps its state. Exact values leave an error of zero. */
START_TEST(state_is_kept_or_cleared)
{
    static float x[SMALL], y[SMALL];
    static struct feedback state, old;
    struct rng r = {90};
    for (int mode = NB_EF_FULL; mode <= NB_EF_EMA; mode++) {
        struct nb_ef ef = {state.err, state.scale, (enum nb_ef_mode)mode, 0.8f, 0.2f};
        for (int i = 0; i < SMALL; i++) {
            state.err[i] = (int8_t)(1 + rng_below(&r, 100));
            state.scale[i / 32] = 127 - 20;
            x[i] = i / 32 % 3 == 0 || i / NB_TILE == 1 ? 0.0f : (float)rng_gauss(&r);
        }
        x[40] = NAN;
        x[2 * NB_TILE + 40] = 1e20f;
        for (int k = 0; k < 2000; k++) /* a raw tile */
            x[3 * NB_TILE + 32 + 2 * k % 4000] = INFINITY;
        old = state;
        code(NB_CODEC_INT4, x, SMALL, &ef, y, NULL);
        for (int i = 0; i < SMALL; i++) {
            int idle = 1;
            for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++)
                idle = idle && x[k] == 0;
            if (idle) {
                ck_assert_int_eq(state.err[i], old.err[i]);
                ck_assert_int_eq(state.scale[i / 32], old.scale[i / 32]);
                ck_assert_uint_eq(nb_f32_bits(y[i]), 0);
            } else if (i == 40 || i == 2 * (int)NB_TILE + 40 || i >= 3 * (int)NB_TILE) {
                ck_assert_int_eq(state.err[i], 0);
            }
        }
    }
    /* a partial group's values are exact: their error becomes zero, their neighbors' error stays */
    memset(&state, 1, sizeof state);
    struct nb_ef ef = {state.err, state.scale, NB_EF_FULL, 0, 0.2f};
    uint8_t coded[512];
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, x, 10, 100, &ef, coded, sizeof coded, NULL), 40);
    for (int i = 0; i < SMALL; i++)
        ck_assert_int_eq(state.err[i], i < 100 || i >= 110);
    ck_assert_int_eq(state.scale[3], 1);
    /* without feedback the state stays */
    old = state;
    ef.mode = NB_EF_OFF;
    code(NB_CODEC_INT4, x, SMALL, &ef, y, NULL);
    ck_assert_int_eq(memcmp(&old, &state, sizeof old), 0);
}
END_TEST

SUITE_MAIN("quality of the quantizing codecs", LOOP(noise_and_size, 0, 4), TEST(scales_side_by_side),
           TEST(sparse_groups), LOOP(zeros_stay_zeros, 0, MASKED_KINDS), TEST(two_valued_groups),
           TEST(zero_tiles_are_headers), LOOP(few_foreign_values, 0, POISONS),
           LOOP(many_foreign_values, 0, POISONS), TEST(escapes_stay_int4),
           LOOP(feedback_makes_means_right, 0, 6), TEST(modes), TEST(bound_limits_damage),
           TEST(state_is_kept_or_cleared))
