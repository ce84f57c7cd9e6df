/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded differences: compare every variant with the reference coder, and check the codec's promises about
 * the error. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "fp_mode.h"
#include "reference.h"
#include "tests/suite.h"

static struct rng rng;

static double normal(void)
{
    return rng_gauss(&rng);
}

/* Kinds of pairs: a value now and a step earlier. */
enum kind {
    WALK,      /* weights, with a step of about the same size for all */
    FROZEN,    /* every other stretch stands still */
    PRUNED,    /* most values are zero, of either sign, and stay zero */
    MIXED,     /* scales from 1 to 1e-8 side by side */
    NEAR_ZERO, /* steps as large as the values */
    SPECIAL,   /* infinities, NaN, extremes and denormals among weights */
    REPLACED,  /* unrelated content */
    PATTERNS,  /* any bits */
    FAR,       /* values that jump to another magnitude */
    GROWN,     /* all values half as large again, many in the next binade */
    SAME,
    KINDS
};

static void make(enum kind kind, enum nb_dtype type, double ratio, uint8_t *ref, uint8_t *cur, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double w = 0.02 * normal(), v = w + 0.02 * ratio * normal();
        switch (kind) {
        case FROZEN: v = i / 100 % 2 ? v : w; break;
        case PRUNED:
            if (rng_next(&rng) % 8)
                w = v = rng_next(&rng) % 2 ? 0.0 : -0.0;
            break;
        case MIXED:
            w *= 50 * pow(10, -(double)(i % 9));
            v = w + 0.02 * ratio * normal();
            break;
        case NEAR_ZERO:
            w *= 0.05;
            v = w + 0.001 * normal();
            break;
        case REPLACED: v = 0.02 * normal(); break;
        case FAR: v = rng_next(&rng) % 50 ? v : v * pow(2, (double)(rng_next(&rng) % 40) - 20); break;
        case GROWN: v = 1.5 * w; break;
        case SAME: v = w; break;
        default: break;
        }
        nb_store_value(type, ref, i, (float)w);
        nb_store_value(type, cur, i, (float)v);
        const size_t size = nb_dtype_size(type);
        if (kind == PATTERNS || (kind == SPECIAL && rng_next(&rng) % 16 == 0)) {
            static const uint32_t words[] = {0,          0x80000000, 0x7f800000, 0xff800000,
                                             0x7fc00001, 0xffffffff, 0x7f7fffff, 0x00000001,
                                             0x80000100, 0x00800000, 0x7c007c00, 0xfc01fc01};
            for (int which = 0; which < 2; which++) {
                uint32_t x = kind == PATTERNS ? (uint32_t)rng_next(&rng) : words[rng_next(&rng) % 12];
                if (size == 2)
                    x = kind == PATTERNS ? x : x >> 16 ? x >> 16 : x;
                if (kind == PATTERNS || rng_next(&rng) % 3)
                    memcpy((which ? cur : ref) + i * size, &x, size);
            }
        }
    }
}

static void *exact(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Return the squared error of rounding to bfloat16, on the average over values as large as x. */
static double rounding2(float x)
{
    int e;
    if (!isfinite(x))
        return 0;
    (void)frexpf(x, &e);
    return pow(ldexp(1, (x == 0 || e < -125 ? -125 : e) - 8), 2) / 12;
}

/* Check the promises about a result, whatever the input. */
static void check_promises(enum nb_dtype type, const uint8_t *cur, const uint8_t *ref, const uint8_t *out,
                           size_t bytes, bool lossy, const char *what)
{
    const size_t size = nb_dtype_size(type), n = bytes / size;

    if (!lossy)
        ck_assert_msg(memcmp(cur, out, bytes) == 0, "%s: nothing was dropped, but something differs", what);
    ck_assert_msg(memcmp(cur + n * size, out + n * size, bytes % size) == 0, "%s: tail", what);
    for (size_t from = 0; from < n; from += NB_DELTA4_RUN) {
        double error2 = 0, most2 = 0;
        for (size_t i = from; i < n && i < from + NB_DELTA4_RUN; i++) {
            const bool same = memcmp(cur + i * size, out + i * size, size) == 0;
            const float x = nb_load_value(type, cur, i), y = nb_load_value(type, out, i);
            most2 += rounding2(x);
            if (same)
                continue;
            ck_assert_msg(isfinite(x) && isfinite(y) && x != 0 && (x < 0) == (y < 0) && y != 0,
                          "%s: value %zu is %a instead of %a", what, i, (double)y, (double)x);
            ck_assert_msg(memcmp(cur + i * size, ref + i * size, size) != 0,
                          "%s: unchanged value %zu changed", what, i);
            error2 += pow((double)y - (double)x, 2);
        }
        ck_assert_msg(error2 <= 0.76 * most2, "%s: run at %zu: error %g, bfloat16's %g", what, from,
                      sqrt(error2), sqrt(most2));
    }
}

/* Check that all variants give the same bytes and the same results. Return the length, and in *lossy whether
 * the codec dropped bits. */
static size_t check_one(enum nb_dtype type, const uint8_t *cur, const uint8_t *ref, size_t bytes,
                        uint64_t *lossy, const char *what)
{
    const size_t bound = nb_delta4_bound(type, bytes);
    uint8_t *first = exact(bound), *coded = exact(bound), *result = exact(bytes), *out = exact(bytes + 2),
            *tight;
    ssize_t len = 0, got;

    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        struct nb_delta4_stats stats = {0, 0};
        uint8_t *to = v == VARIANT_REFERENCE ? first : coded;
        memset(to, 0xa5, bound);
        got = nb_delta4_encode(type, cur, ref, bytes, SIZE_MAX, to, bound, &stats);
        ck_assert_msg(got > 0 && (size_t)got <= bound, "%s: %zd of %zu", what, got, bound);
        if (v == VARIANT_REFERENCE) {
            len = got;
            *lossy = stats.lossy;
        }
        ck_assert_msg(got == len && memcmp(first, to, (size_t)len) == 0, "%s: %s differs, lengths %zd %zd",
                      what, variant_name(v), len, got);
        ck_assert_uint_eq(stats.lossy, *lossy);
        ck_assert_uint_le(stats.lossy, stats.runs);
        ck_assert_int_eq(nb_delta4_encode(type, cur, ref, bytes, (size_t)len + 1, to, bound, NULL), len);
        ck_assert_int_eq(nb_delta4_encode(type, cur, ref, bytes, (size_t)len, to, bound, NULL), -E2BIG);
        ck_assert_int_eq(nb_delta4_encode(type, cur, ref, bytes, SIZE_MAX, to, bound - 1, NULL), -ENOSPC);
    }
    tight = exact((size_t)len);
    memcpy(tight, first, (size_t)len);
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        memset(out, 0x5a, bytes + 2);
        ck_assert_int_eq(nb_delta4_decode(type, tight, (size_t)len, ref, bytes, out + 1), 0);
        ck_assert(out[0] == 0x5a && out[bytes + 1] == 0x5a);
        if (v == VARIANT_REFERENCE) {
            memcpy(result, out + 1, bytes);
            check_promises(type, cur, ref, result, bytes, *lossy != 0, what);
        }
        ck_assert_msg(memcmp(out + 1, result, bytes) == 0, "%s: %s decodes differently", what,
                      variant_name(v));
        memcpy(out, ref, bytes);
        ck_assert_int_eq(nb_delta4_decode(type, tight, (size_t)len, out, bytes, out), 0);
        ck_assert_msg(memcmp(out, result, bytes) == 0, "%s: %s in place", what, variant_name(v));
        ck_assert_int_eq(nb_delta4_decode(type, tight, (size_t)len - 1, ref, bytes, out), -EBADMSG);
        /* The exact decoder refuses floors. */
        got = nb_ulp_decode(nb_dtype_size(type) == 4 ? NB_ULP_32 : NB_ULP_16, tight, (size_t)len, ref, bytes,
                            out);
        ck_assert_int_eq(got, *lossy ? -EBADMSG : 0);
    }
    free(first);
    free(coded);
    free(result);
    free(out);
    free(tight);
    nb_codec_select(NB_VARIANT_AUTO);
    return (size_t)len;
}

START_TEST(promises)
{
    static const size_t lengths[] = {0,   1,   3,    31,   32,   33,   64,   255, 256,
                                     257, 300, 1023, 1024, 1025, 2047, 3000, 6001};
    static const double ratios[] = {0.002, 0.01, 0.03, 0.2};
    const enum kind kind = (enum kind)_i;
    uint64_t lossy_spans = 0;

    for (unsigned t = 0; t < NB_DTYPE_COUNT; t++) {
        const enum nb_dtype type = (enum nb_dtype)t;
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const size_t n = lengths[l], odd = l % 4 == 3, bytes = n * nb_dtype_size(type) + odd;
            uint8_t *a = exact(bytes + 5), *b = exact(bytes + 5); /* odd addresses */
            char what[96];
            uint64_t lossy = 0;
            rng.s = 1 + 997 * (uint64_t)_i + 31 * l + t;
            memset(a, 7, bytes + 5);
            memset(b, 9, bytes + 5);
            make(kind, type, ratios[(l + t) % 4], a + 1, b + 1, n);
            snprintf(what, sizeof(what), "kind %d, %s, %zu bytes", _i, nb_dtype_name(type), bytes);
            check_one(type, b + 1, a + 1, bytes, &lossy, what);
            lossy_spans += lossy != 0;
            free(a);
            free(b);
        }
    }
    /* Require lossy spans where the kind allows them, because the test is about them. */
    if (kind == WALK || kind == FROZEN || kind == MIXED || kind == SPECIAL || kind == FAR)
        ck_assert_uint_gt(lossy_spans, 5);
    if (kind == SAME)
        ck_assert_uint_eq(lossy_spans, 0);
}
END_TEST

/* Bits and error of BF16 in the hottest phase for which the codec is meant. In a cool phase it drops no
 * bits. */
START_TEST(bits_and_error)
{
    static const struct {
        double ratio, bits, error;
    } goals[] = {{0.01, 4.2, 0.3}, {0.007, 4.1, 0.25}, {0.004, 3.8, 0.1}, {0.001, 2.3, 0.0}};
    const size_t n = 1 << 18;
    uint16_t *a = exact(2 * n), *b = exact(2 * n);
    const size_t cap = nb_delta4_bound(NB_BF16, 2 * n);
    uint8_t *out = exact(cap);

    for (size_t q = 0; q < sizeof(goals) / sizeof(goals[0]); q++) {
        struct nb_delta4_stats stats = {0, 0};
        double error2 = 0, round2 = 0;
        rng.s = 5;
        make(WALK, NB_BF16, goals[q].ratio, (uint8_t *)a, (uint8_t *)b, n);
        ssize_t len = nb_delta4_encode(NB_BF16, b, a, 2 * n, 2 * n, out, cap, &stats);
        ck_assert_int_gt(len, 0);
        ck_assert_int_eq(nb_delta4_decode(NB_BF16, out, (size_t)len, a, 2 * n, a), 0);
        for (size_t i = 0; i < n; i++) {
            const float x = nb_bf16_to_f32(b[i]), y = nb_bf16_to_f32(a[i]);
            error2 += pow((double)x - (double)y, 2);
            round2 += rounding2(x);
        }
        const double bits = 8.0 * (double)len / (double)n, error = sqrt(error2 / round2);
        printf("rms ratio %.4f: %.3f bits a value, error %.3f of bfloat16's, %.0f %% of runs lossy\n",
               goals[q].ratio, bits, error, 100.0 * (double)stats.lossy / (double)stats.runs);
        ck_assert_msg(bits <= goals[q].bits && error <= goals[q].error, "%.3f bits, error %.3f", bits, error);
    }
    free(a);
    free(b);
    free(out);
}
END_TEST

/* The codec makes undelivered changes good, because the next difference is against the delivered values. It
 * delivers a source that stands still exactly the second or third time. Over many steps the error stays that
 * of one step. */
START_TEST(does_not_accumulate)
{
    const size_t n = 1 << 15;
    float *w = exact(4 * n);
    uint16_t *now = exact(2 * n), *held = exact(2 * n);
    const size_t cap = nb_delta4_bound(NB_BF16, 2 * n);
    uint8_t *out = exact(cap);
    double first = 0, error = 0;
    uint64_t lossy = 0;

    rng.s = 11;
    for (size_t i = 0; i < n; i++) {
        w[i] = (float)(0.02 * normal());
        now[i] = held[i] = nb_f32_to_bf16(w[i]);
    }
    for (int step = 0; step < 40; step++) {
        struct nb_delta4_stats stats = {0, 0};
        double error2 = 0, round2 = 0;
        for (size_t i = 0; i < n && step < 36; i++) {
            w[i] += (float)(0.02 * 0.01 * normal());
            now[i] = nb_f32_to_bf16(w[i]);
        }
        ssize_t len = nb_delta4_encode(NB_BF16, now, held, 2 * n, 2 * n, out, cap, &stats);
        ck_assert_int_gt(len, 0);
        ck_assert_int_eq(nb_delta4_decode(NB_BF16, out, (size_t)len, held, 2 * n, held), 0);
        for (size_t i = 0; i < n; i++) {
            error2 += pow((double)nb_bf16_to_f32(now[i]) - (double)nb_bf16_to_f32(held[i]), 2);
            round2 += rounding2(nb_bf16_to_f32(now[i]));
        }
        error = sqrt(error2 / round2);
        if (step == 0)
            first = error;
        if (step < 36)
            lossy += stats.lossy;
        if (step < 36)
            ck_assert_msg(error < 1.3 * first, "step %d: %.3f, at first %.3f", step, error, first);
    }
    ck_assert_uint_gt(lossy, 36);
    ck_assert_int_eq(memcmp(now, held, 2 * n), 0);
    free(w);
    free(now);
    free(held);
    free(out);
}
END_TEST

START_TEST(arguments)
{
    uint8_t a[64] = {0}, out[256];

    ck_assert_uint_eq(nb_delta4_bound(NB_DTYPE_COUNT, 64), 0);
    ck_assert_int_eq(nb_delta4_encode(NB_DTYPE_COUNT, a, a, 64, 100, out, 256, NULL), -EINVAL);
    ck_assert_int_eq(nb_delta4_decode(NB_DTYPE_COUNT, a, 1, a, 64, out), -EINVAL);
    ck_assert_int_eq(nb_delta4_decode(NB_BF16, a, 0, a, 64, out), -EBADMSG);
    ck_assert_int_eq(nb_delta4_encode(NB_BF16, a, a, 64, 0, out, 256, NULL), -E2BIG);
    ck_assert_int_eq(nb_delta4_encode(NB_BF16, a, a, 64, 2, out, 256, NULL), 1);
    ck_assert_int_eq(nb_delta4_encode(NB_F32, a, a, 0, 2, out, 256, NULL), 1);
}
END_TEST

/* Decoders refuse floors that no encoder writes, even where they would not matter. */
START_TEST(malformed_floors)
{
    const size_t n = 1024, cap = nb_delta4_bound(NB_BF16, 2 * n);
    uint8_t *a = exact(2 * n), *b = exact(2 * n), *out = exact(cap), *coded = exact(cap);
    struct nb_delta4_stats stats = {0, 0};

    rng.s = 3;
    make(WALK, NB_BF16, 0.02, a, b, n);
    const ssize_t len = nb_delta4_encode(NB_BF16, b, a, 2 * n, SIZE_MAX, coded, cap, &stats);
    ck_assert_int_gt(len, 0);
    ck_assert_uint_eq(stats.lossy, 4);
    ck_assert_uint_eq(coded[3] & 0x40, 0x40); /* behind kind and one length */
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        for (int k = 0; k < 3; k++) {
            uint8_t *last = coded + len - 1, old = *last;
            *last = (uint8_t[]){1, 23, 255}[k];
            ck_assert_int_eq(nb_delta4_decode(NB_BF16, coded, (size_t)len, a, 2 * n, out), -EBADMSG);
            *last = old;
        }
        coded[3] |= 0x20; /* two's complement has no floors */
        ck_assert_int_eq(nb_delta4_decode(NB_BF16, coded, (size_t)len, a, 2 * n, out), -EBADMSG);
        coded[3] &= (uint8_t)~0x20;
        ck_assert_int_eq(nb_delta4_decode(NB_BF16, coded, (size_t)len, a, 2 * n, out), 0);
    }
    nb_codec_select(NB_VARIANT_AUTO);
    free(a);
    free(b);
    free(out);
    free(coded);
}
END_TEST

#if defined(NB_FP_MODES)
/* A caller that flushes denormals and rounds downwards gets the same bytes. */
START_TEST(environment)
{
    const size_t n = 3000, cap = nb_delta4_bound(NB_F32, 4 * n);
    uint8_t *a = exact(4 * n), *b = exact(4 * n), *x = exact(cap), *y = exact(cap), *out = exact(4 * n);

    for (unsigned t = 0; t < NB_DTYPE_COUNT; t++) {
        const enum nb_dtype type = (enum nb_dtype)t;
        const size_t bytes = n * nb_dtype_size(type);
        for (int v = NB_VARIANT_PORTABLE; next_variant(&v); v++) {
            rng.s = 21 + t;
            make(MIXED, type, 0.03, a, b, n);
            const ssize_t len = nb_delta4_encode(type, b, a, bytes, SIZE_MAX, x, cap, NULL);
            const fp_mode old = fp_mode_get();
            fp_mode_set(FP_DOWNWARD);
            const ssize_t again = nb_delta4_encode(type, b, a, bytes, SIZE_MAX, y, cap, NULL);
            const int ret = nb_delta4_decode(type, y, (size_t)len, a, bytes, out);
            const fp_mode kept = fp_mode_get();
            fp_mode_set(old);
            ck_assert_uint_eq(kept & ~0x3fu, FP_DOWNWARD);
            ck_assert(len == again && memcmp(x, y, (size_t)len) == 0 && ret == 0);
            ck_assert_int_eq(nb_delta4_decode(type, x, (size_t)len, a, bytes, b), 0);
            ck_assert_int_eq(memcmp(b, out, bytes), 0);
        }
    }
    nb_codec_select(NB_VARIANT_AUTO);
    free(a);
    free(b);
    free(x);
    free(y);
    free(out);
}
END_TEST
#endif

int main(void)
{
    suite_open("delta4");
    LOOP(promises, 0, KINDS), TEST(bits_and_error), TEST(does_not_accumulate), TEST(arguments),
        TEST(malformed_floors);
#if defined(NB_FP_MODES)
    TEST(environment);
#endif
    return suite_close();
}
