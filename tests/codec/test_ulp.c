/* SPDX-License-Identifier: Apache-2.0 */
/* Lossless differences: compare every variant with the reference coder, on many kinds of data. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"
#include "tests/suite.h"

static uint64_t state = 1;

static uint64_t rnd(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(0x2545f4914f6cdd1d);
}

static double uniform(void)
{
    return (double)((rnd() >> 11) + 1) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Convert to half precision, normal range only, round half up: good enough for patterns. */
static uint16_t to_f16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    if ((u << 1 >> 24) < 113)
        return (uint16_t)(u >> 16 & 0x8000);
    return (uint16_t)((u >> 16 & 0x8000) | ((((u & 0x7fffffff) - (112u << 23)) + 0x1000) >> 13));
}

static uint8_t to_e4m3(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    if ((u << 1 >> 24) < 121)
        return (uint8_t)(u >> 24 & 0x80);
    return (uint8_t)((u >> 24 & 0x80) | ((((u & 0x7fffffff) - (120u << 23)) + 0x80000) >> 20));
}

/* Weights before and after one optimizer step. An Adam-like step has about the same size for all values. */
enum kind {
    ZERO,
    EQUAL,
    BF16,
    F16,
    F32,
    E4M3,
    INT8,
    SPARSE,
    RANDOM,
    SIGNS,
    SPECIAL,
    PATCHY,
    HUGE_STEPS,
    ONE,
    KINDS
};

static void make(enum kind kind, double ratio, uint8_t *ref, uint8_t *cur, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ref[i] = cur[i] = (uint8_t)rnd();
    for (size_t i = 0; i < bytes; i += 4) {
        uint8_t a[4], b[4];
        memcpy(a, ref + i, bytes - i < 4 ? bytes - i : 4);
        memcpy(b, a, 4);
        for (unsigned j = 0; j < 4; j++) {
            float w = (float)(0.02 * normal()), v = w + (float)(0.02 * ratio * normal());
            uint16_t w16 = to_bf16(w), v16 = to_bf16(v);
            switch (kind) {
            case ZERO: a[j] = b[j] = 0; break;
            case F16:
                w16 = to_f16(w);
                v16 = to_f16(v);
                /* fall through */
            case BF16:
                if (j < 2) {
                    memcpy(a + 2 * j, &w16, 2);
                    memcpy(b + 2 * j, &v16, 2);
                }
                break;
            case F32:
                if (j == 0) {
                    memcpy(a, &w, 4);
                    memcpy(b, &v, 4);
                }
                break;
            case E4M3:
                a[j] = to_e4m3(5000 * w);
                b[j] = to_e4m3(5000 * v);
                break;
            case INT8:
                a[j] = (uint8_t)(int)lrint(20 * normal());
                b[j] = (uint8_t)(a[j] + (int)lrint(1000 * ratio * normal()));
                break;
            case SPARSE:
                if (rnd() % 200 == 0)
                    b[j] ^= (uint8_t)rnd();
                break;
            case RANDOM: b[j] = (uint8_t)rnd(); break;
            case SIGNS: /* values near zero that change sign */
                w16 = (uint16_t)(rnd() % 3 | (rnd() & 0x8000));
                v16 = (uint16_t)(rnd() % 3 | (rnd() & 0x8000));
                if (j < 2) {
                    memcpy(a + 2 * j, &w16, 2);
                    memcpy(b + 2 * j, &v16, 2);
                }
                break;
            case SPECIAL: /* infinities, NaN, largest and smallest, extremes of integers */
                a[j] = (uint8_t[]){0x00, 0x7f, 0x80, 0xff}[rnd() % 4];
                b[j] = rnd() % 3 ? a[j] : (uint8_t[]){0x00, 0x7f, 0x80, 0xff}[rnd() % 4];
                break;
            case PATCHY: /* stretches of zero, small and wild change */
                if (i / 300 % 4 == 1)
                    b[j] ^= (uint8_t)(rnd() & 1);
                else if (i / 300 % 4 == 3)
                    b[j] = (uint8_t)rnd();
                break;
            case HUGE_STEPS:
                w16 = (uint16_t)rnd();
                v16 = (uint16_t)(w16 + (rnd() % 16 ? rnd() % 8 : rnd() % 4096));
                if (j < 2) {
                    memcpy(a + 2 * j, &w16, 2);
                    memcpy(b + 2 * j, &v16, 2);
                }
                break;
            default: break;
            }
        }
        memcpy(ref + i, a, bytes - i < 4 ? bytes - i : 4);
        memcpy(cur + i, b, bytes - i < 4 ? bytes - i : 4);
    }
    if (kind == ONE && bytes)
        cur[rnd() % bytes] ^= (uint8_t)(1 << rnd() % 8);
}

/* Change `per_mille` of the values by the difference, up or down, in one part of `rows` of 512 bytes. */
static void change_few(unsigned w, const uint8_t *ref, uint8_t *cur, size_t bytes, unsigned per_mille,
                       uint32_t most, unsigned rows)
{
    memcpy(cur, ref, bytes);
    for (size_t i = 0; i + w <= bytes; i += w) {
        uint32_t x = 0;

        if (i / 512 % rows || rnd() % 1000 >= per_mille)
            continue;
        memcpy(&x, cur + i, w);
        x += (uint32_t)(rnd() & 1 ? 1 + rnd() % most : 0 - (1 + rnd() % most));
        memcpy(cur + i, &x, w);
    }
}

static const enum nb_ulp_width widths[] = {NB_ULP_8, NB_ULP_16, NB_ULP_32};

static void *exact(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* The two kinds of spans. */
struct form {
    size_t (*bound)(enum nb_ulp_width width, size_t bytes);
    ssize_t (*encode)(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                      void *dst, size_t cap);
    int (*decode)(enum nb_ulp_width width, const void *coded, size_t len, const void *ref, size_t bytes,
                  void *dst);
};

static const struct form blocks = {nb_ulp_bound, nb_ulp_encode, nb_ulp_decode};
static const struct form sparse = {nb_ulp_sparse_bound, nb_ulp_encode_sparse, nb_ulp_decode_sparse};

/* Encode with every variant, compare with the reference coder, and decode each with each. Return the coded
 * length. */
static size_t check_form(const struct form *form, enum nb_ulp_width width, const uint8_t *cur,
                         const uint8_t *ref, size_t bytes)
{
    const size_t bound = form->bound(width, bytes);
    uint8_t *first = exact(bound), *coded = exact(bound), *out = exact(bytes + 2), *tight;
    ssize_t len = 0, got;

    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        uint8_t *to = v == VARIANT_REFERENCE ? first : coded;
        memset(to, 0xa5, bound);
        got = form->encode(width, cur, ref, bytes, SIZE_MAX, to, bound);
        ck_assert_msg(got > 0 && (size_t)got <= bound, "%s: %zd of %zu", variant_name(v), got, bound);
        if (v == VARIANT_REFERENCE)
            len = got;
        ck_assert_msg(got == len && memcmp(first, to, (size_t)len) == 0,
                      "%s differs: width %d bytes %zu lengths %zd %zd", variant_name(v), (int)width, bytes,
                      len, got);
        /* the limit is exclusive and exact */
        ck_assert_int_eq(form->encode(width, cur, ref, bytes, (size_t)len + 1, to, bound), len);
        ck_assert_int_eq(form->encode(width, cur, ref, bytes, (size_t)len, to, bound), -E2BIG);
        ck_assert_int_eq(form->encode(width, cur, ref, bytes, SIZE_MAX, to, bound - 1), -ENOSPC);
    }
    tight = exact((size_t)len); /* so that a sanitizer sees reads beyond the end */
    memcpy(tight, first, (size_t)len);
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        memset(out, 0x5a, bytes + 2);
        ck_assert_int_eq(form->decode(width, tight, (size_t)len, ref, bytes, out + 1), 0);
        ck_assert_msg(memcmp(out + 1, cur, bytes) == 0 && out[0] == 0x5a && out[bytes + 1] == 0x5a,
                      "%s: width %d bytes %zu", variant_name(v), (int)width, bytes);
        memcpy(out, ref, bytes);
        ck_assert_int_eq(form->decode(width, tight, (size_t)len, out, bytes, out), 0);
        ck_assert_msg(memcmp(out, cur, bytes) == 0, "in place: %s", variant_name(v));
        ck_assert_int_eq(form->decode(width, tight, (size_t)len - 1, ref, bytes, out), -EBADMSG);
    }
    free(first);
    free(coded);
    free(out);
    free(tight);
    nb_codec_select(NB_VARIANT_AUTO);
    return (size_t)len;
}

static size_t check_one(enum nb_ulp_width width, const uint8_t *cur, const uint8_t *ref, size_t bytes)
{
    return check_form(&blocks, width, cur, ref, bytes);
}

START_TEST(round_trips)
{
    static const size_t lengths[] = {0,    1,    2,    3,    4,    5,    31,   32,   33,   63,    64,
                                     65,   66,   127,  128,  129,  255,  510,  513,  1023, 1024,  1025,
                                     2047, 2048, 2049, 2050, 4095, 4096, 4100, 8191, 9000, 16384, 20001};
    const enum kind kind = (enum kind)_i;
    const double ratios[] = {0.0002, 0.0015, 0.01, 0.3};

    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        for (int r = 0; r < 2; r++) {
            /* Odd addresses, exact sizes. */
            uint8_t *a = exact(lengths[l] + 1), *b = exact(lengths[l] + 1);
            state = 1 + 1000 * (uint64_t)_i + 2 * l + (uint64_t)r;
            make(kind, ratios[(l + (size_t)r) % 4], a + 1, b + 1, lengths[l]);
            for (int w = 0; w < 3; w++) {
                check_one(widths[w], b + 1, a + 1, lengths[l]);
                check_form(&sparse, widths[w], b + 1, a + 1, lengths[l]);
            }
            free(a);
            free(b);
        }
    }
}
END_TEST

START_TEST(equal_is_one_byte)
{
    size_t bytes = 1 << 20;
    uint8_t *a = exact(bytes), *b = exact(bytes);

    make(BF16, 0.01, a, b, bytes);
    for (int w = 0; w < 3; w++)
        ck_assert_uint_eq(check_one(widths[w], a, a, bytes - 1), 1);
    /* One changed value in a million: a directory and one block. */
    memcpy(b, a, bytes);
    b[777777] ^= 1;
    ck_assert_uint_le(check_one(NB_ULP_16, b, a, bytes), 1 + 2 * 512 + 32);
    free(a);
    free(b);
}
END_TEST

START_TEST(arguments)
{
    uint8_t a[64] = {0}, out[256];

    ck_assert_uint_eq(nb_ulp_bound((enum nb_ulp_width)3, 64), 0);
    ck_assert_int_eq(nb_ulp_encode((enum nb_ulp_width)3, a, a, 64, 100, out, 256), -EINVAL);
    ck_assert_int_eq(nb_ulp_decode((enum nb_ulp_width)3, a, 1, a, 64, out), -EINVAL);
    ck_assert_int_eq(nb_ulp_decode(NB_ULP_16, a, 0, a, 64, out), -EBADMSG);
    ck_assert_int_eq(nb_ulp_encode(NB_ULP_16, a, a, 64, 0, out, 256), -E2BIG);
    ck_assert_int_eq(nb_ulp_encode(NB_ULP_16, a, a, 64, 1, out, 256), -E2BIG);
    ck_assert_int_eq(nb_ulp_encode(NB_ULP_16, a, a, 0, 2, out, 256), 1);
}
END_TEST

/* The encoder gives up a hopeless span when it passes the limit, before its end. */
START_TEST(limit_stops_early)
{
    size_t bytes = 1 << 20, bound = nb_ulp_bound(NB_ULP_16, bytes);
    uint8_t *a = exact(bytes), *b = exact(bytes), *out = exact(bound);

    make(RANDOM, 0, a, b, bytes);
    memset(out, 0xcd, bound);
    ck_assert_int_eq(nb_ulp_encode(NB_ULP_16, b, a, bytes, 4096, out, bound), -E2BIG);
    for (size_t i = 32768; i < bound; i++)
        ck_assert_uint_eq(out[i], 0xcd);
    free(a);
    free(b);
    free(out);
}
END_TEST

/* A BF16 weight matrix whose rows have different scales, after a step of Adam. */
START_TEST(bits_a_value)
{
    static const struct {
        double ratio, most;
    } goals[] = {{0.0025, 3.2}, {0.0015, 2.6}, {0.0006, 1.8}, {0.0002, 1.0}};
    const size_t rows = 256, cols = 1500, n = rows * cols;
    uint16_t *a = exact(2 * n), *b = exact(2 * n);
    uint8_t *out = exact(nb_ulp_bound(NB_ULP_16, 2 * n));
    double *weight = (double *)exact(n * sizeof(double)), *step = (double *)exact(n * sizeof(double));

    state = 7;
    for (size_t r = 0, i = 0; r < rows; r++) {
        double scale = 0.02 * exp(0.2 * normal());
        for (size_t c = 0; c < cols; c++, i++) {
            /* Adam's m / sqrt(v) after 25 noisy gradients. Its rms is 0.24. */
            double m = 0, v = 0;
            weight[i] = scale * normal();
            for (int t = 0; t < 25; t++) {
                double g = normal();
                m = 0.9 * m + 0.1 * g;
                v = 0.95 * v + 0.05 * g * g;
            }
            step[i] = m / sqrt(v);
        }
    }
    for (size_t q = 0; q < sizeof(goals) / sizeof(goals[0]); q++) {
        double w2 = 0, d2 = 0, zero = 0, small = 0;
        for (size_t i = 0; i < n; i++) {
            double w = weight[i], d = 0.0204 * goals[q].ratio * step[i] / 0.27;
            int x;
            a[i] = to_bf16((float)w);
            b[i] = to_bf16((float)(w + d));
            w2 += w * w;
            d2 += d * d;
            x = (int)(b[i] & 0x7fff) - (int)(a[i] & 0x7fff);
            zero += x == 0;
            small += abs(x) <= 7;
        }
        ssize_t len = nb_ulp_encode(NB_ULP_16, b, a, 2 * n, 2 * n, out, nb_ulp_bound(NB_ULP_16, 2 * n));
        double bits = 8.0 * (double)len / (double)n, ratio = sqrt(d2 / w2);
        printf("rms ratio %.5f: unchanged %.3f, within 7 ulp %.3f, %.2f bits a value\n", ratio,
               zero / (double)n, small / (double)n, bits);
        ck_assert_msg(len > 0 && bits <= goals[q].most, "%.2f bits at %.4f", bits, ratio);
        ck_assert(fabs(ratio / goals[q].ratio - 1) < 0.1); /* the goal was set for such data */
        check_one(NB_ULP_16, (uint8_t *)b, (uint8_t *)a, n / 4);
    }
    free(a);
    free(b);
    free(out);
    free(weight);
    free(step);
}
END_TEST

/* Broken input never crashes a decoder (run under a sanitizer), and all variants return and deliver the
 * same. */
START_TEST(malformed)
{
    const size_t bytes = 6000;
    uint8_t *a = exact(bytes), *b = exact(bytes), *out[NB_VARIANT_COUNT],
            *coded = exact(nb_ulp_sparse_bound(NB_ULP_8, bytes));
    const struct form *form = _i < 3 ? &blocks : &sparse;
    unsigned accepted = 0, refused = 0;

    for (int v = 0; v < NB_VARIANT_COUNT; v++)
        out[v] = exact(bytes);
    state = 99 + (uint64_t)_i;
    for (int round = 0; round < 1500; round++) {
        enum nb_ulp_width width = widths[_i % 3];
        size_t use = 1 + rnd() % bytes;
        if (round % 50 == 0)
            make((enum kind)(round / 50 % KINDS), 0.003, a, b, bytes);
        if (_i >= 3 && round % 50 == 0)
            change_few((unsigned)width, a, b, bytes, 1 + (unsigned)(rnd() % 130), 1 + (unsigned)(rnd() % 9),
                       1);
        ssize_t len = form->encode(width, b, a, use, SIZE_MAX, coded, form->bound(width, use));
        ck_assert_int_gt(len, 0);
        size_t keep = rnd() % 4 ? (size_t)len : 1 + rnd() % (size_t)len;
        uint8_t *tight = exact(keep);
        memcpy(tight, coded, keep);
        for (unsigned k = (unsigned)(rnd() % 4); k; k--)
            tight[rnd() % 3 ? rnd() % keep : rnd() % (keep < 40 ? keep : 40)] = (uint8_t)rnd();
        int rc = 1, same = 0;
        for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
            int got = form->decode(width, tight, keep, a, use, out[v]);
            ck_assert(got == 0 || got == -EBADMSG);
            if (rc == 1)
                rc = got, same = v;
            ck_assert_int_eq(got, rc);
            if (got == 0)
                ck_assert(memcmp(out[same], out[v], use) == 0);
        }
        *(rc ? &refused : &accepted) += 1;
        free(tight);
    }
    nb_codec_select(NB_VARIANT_AUTO);
    ck_assert(accepted > 100 && refused > 100);
    for (int v = 0; v < NB_VARIANT_COUNT; v++)
        free(out[v]);
    free(a);
    free(b);
    free(coded);
}
END_TEST

/* Few changes: all variants agree with the reference coder, and every byte arrives. Chunks of both kinds, of
 * none, and a last one of any length. */
START_TEST(few_changes)
{
    static const unsigned per_mille[] = {1, 10, 50, 100, 125, 150, 400, 3};
    static const size_t lengths[] = {30, 300, 4100, 32769, 70003};
    const unsigned w = (unsigned)widths[_i];

    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        for (unsigned p = 0; p < sizeof(per_mille) / sizeof(per_mille[0]); p++) {
            const enum kind kind =
                (enum kind[]){RANDOM, BF16, F32, E4M3, SPECIAL, F16, ZERO, INT8}[(l + p) % 8];
            uint8_t *a = exact(lengths[l]), *b = exact(lengths[l]);
            state = 1 + 100 * l + p;
            make(kind, 0.01, a, b, lengths[l]);
            change_few(w, a, b, lengths[l], per_mille[p],
                       (const uint32_t[]){1, 1, 2, 40, UINT32_MAX}[(3 * l + p) % 5],
                       (const unsigned[]){1, 1, 2, 9, 100}[(l + 2 * p) % 5]);
            check_form(&sparse, widths[_i], b, a, lengths[l]);
            free(a);
            free(b);
        }
    }
    /* Small steps of weights: small values change more often. */
    for (unsigned p = 0; p < 3; p++) {
        const size_t bytes = 100000;
        uint8_t *a = exact(bytes), *b = exact(bytes);
        state = 50 + p;
        make(BF16, (const double[]){1e-5, 1e-4, 3e-4}[p], a, b, bytes);
        check_form(&sparse, widths[_i], b, a, bytes);
        free(a);
        free(b);
    }
}
END_TEST

/* The price of random changes by one unit is at most a tenth above the entropy, and the changes of small
 * steps, which depend on exponents, cost less than their entropy without exponents. */
START_TEST(near_entropy)
{
    static const unsigned per_mille[] = {10, 30, 50, 100};
    const size_t n = 1 << 17;
    uint8_t *a = exact(2 * n), *b = exact(2 * n);

    for (unsigned p = 0; p <= 4; p++) {
        double count[65536] = {0}, entropy = 0;
        state = 9;
        make(BF16, 1e-4, a, b, 2 * n);
        if (p < 4)
            change_few(2, a, b, 2 * n, per_mille[p], 1, 1);
        for (size_t i = 0; i < n; i++) {
            uint16_t x, r;
            memcpy(&x, b + 2 * i, 2);
            memcpy(&r, a + 2 * i, 2);
            /* Differences of magnitudes. No sign changes here, and zeros are rare. */
            count[(uint16_t)((x & 0x7fff) - (r & 0x7fff))]++;
        }
        for (unsigned i = 0; i < 65536; i++)
            entropy -= count[i] ? count[i] / (double)n * log2(count[i] / (double)n) : 0;
        const double bits = 8.0 * (double)check_form(&sparse, NB_ULP_16, b, a, 2 * n) / (double)n;
        printf("changed %.4f: %.3f bits a value, entropy %.3f\n", 1 - count[0] / (double)n, bits, entropy);
        ck_assert(p < 4 ? bits < 1.1 * entropy : bits < entropy);
        /* Unchanged parts cost nothing to speak of. */
        if (p == 1) {
            change_few(2, a, b, 2 * n, 100, 1, 100);
            ck_assert_uint_lt(check_form(&sparse, NB_ULP_16, b, a, 2 * n), 2000);
        }
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(guesses)
{
    static const struct {
        enum kind kind;
        double ratio;
        enum nb_ulp_width width;
    } expect[] = {{BF16, 0.001, NB_ULP_16}, {BF16, 0.01, NB_ULP_16}, {F16, 0.001, NB_ULP_16},
                  {F32, 0.001, NB_ULP_32},  {F32, 1e-5, NB_ULP_32},  {E4M3, 0.1, NB_ULP_8},
                  {INT8, 0.003, NB_ULP_8}};
    const size_t bytes = 1 << 18;
    uint8_t *a = exact(bytes), *b = exact(bytes);

    for (size_t i = 0; i < sizeof(expect) / sizeof(expect[0]); i++) {
        make(expect[i].kind, expect[i].ratio, a, b, bytes);
        ck_assert_msg(nb_ulp_guess_width(b, a, bytes) == expect[i].width, "case %zu: %d", i,
                      (int)nb_ulp_guess_width(b, a, bytes));
    }
    for (size_t n = 0; n < 40; n++)
        ck_assert(nb_ulp_bound(nb_ulp_guess_width(b, a, n), n) != 0);
    free(a);
    free(b);
}
END_TEST

/* The format changes only with its version: fixed integer inputs, and their coded bytes. */
START_TEST(frozen)
{
    static const uint64_t want[3][2] = {{14455, UINT64_C(0xaf676fd803e9ac66)},
                                        {6922, UINT64_C(0xf61a65b54b92ea47)},
                                        {3562, UINT64_C(0x109b952dba0deac8)}};
    const size_t bytes = 30003;
    uint8_t *a = exact(bytes), *b = exact(bytes), *out = exact(nb_ulp_bound(NB_ULP_8, bytes));

    for (int w = 0; w < 3; w++) {
        const unsigned size = (unsigned)widths[w], top = 8 * size - 8;
        state = 5;
        memset(a, 0, bytes);
        memset(b, 0, bytes);
        for (size_t i = 0; i + size <= bytes; i += size) {
            /* An exponent that falls geometrically, and a step of about one size. */
            uint64_t r = rnd();
            unsigned e = (unsigned)__builtin_ctzll(r | 1u << 6);
            uint32_t x = (uint32_t)(0x3du << top) -
                         (e << (size == 1   ? 3
                                : size == 2 ? 7
                                            : 23)) +
                         (uint32_t)(r >> 60);
            uint32_t y =
                x + (uint32_t)((r >> 20 & 7) * (r >> 30 & 1) << e) - (uint32_t)(3 * (r >> 31 & 1) << e);
            x ^= (uint32_t)(r >> 40 & 1) << (8 * size - 1);
            y ^= (uint32_t)(r >> 40 & 1) << (8 * size - 1);
            y = r >> 50 & 127 ? y : (uint32_t)rnd();
            memcpy(a + i, &x, size);
            memcpy(b + i, i / 4096 % 5 ? &y : &x, size);
        }
        ssize_t len = nb_ulp_encode(widths[w], b, a, bytes, SIZE_MAX, out, nb_ulp_bound(NB_ULP_8, bytes));
        ck_assert_int_gt(len, 0);
        ck_assert_msg((uint64_t)len == want[w][0] && nb_hash64(out, (size_t)len, 0) == want[w][1],
                      "width %u: %zd, %#llx", size, len, (unsigned long long)nb_hash64(out, (size_t)len, 0));
        check_one(widths[w], b, a, bytes);
    }
    free(a);
    free(b);
    free(out);
}
END_TEST

/* The same of sparse spans, with chunks of both kinds and an unchanged one. */
START_TEST(frozen_sparse)
{
    static const uint64_t want[3][2] = {{10956, UINT64_C(0x9f6e0ebe9768e01d)},
                                        {5403, UINT64_C(0xec37c94a68ca9acd)},
                                        {3100, UINT64_C(0x1651937ec3582b03)}};
    const size_t bytes = 130001, bound = nb_ulp_sparse_bound(NB_ULP_8, bytes);
    uint8_t *a = exact(bytes), *b = exact(bytes), *out = exact(bound);

    for (int w = 0; w < 3; w++) {
        const unsigned size = (unsigned)widths[w];
        state = 6;
        for (size_t i = 0; i < bytes; i++)
            a[i] = b[i] = (uint8_t)rnd();
        for (size_t i = 0; i + size <= bytes; i += size) {
            uint32_t x = 0;
            memcpy(&x, a + i, size);
            /* Few changes where exponents are large, more where they are small, many in the last chunk. */
            const unsigned often = (x >> (8 * size - 5) & 15) < 4 ? 10 : 40;
            if (i / 32768 == 1 || rnd() % (i < 3 * 32768 ? often : 3))
                continue;
            x += (uint32_t)(rnd() & 1 ? 1 + rnd() % 2 : 0xffffffff - rnd() % 2);
            memcpy(b + i, &x, size);
        }
        ssize_t len = nb_ulp_encode_sparse(widths[w], b, a, bytes, SIZE_MAX, out, bound);
        ck_assert_int_gt(len, 0);
        ck_assert_msg((uint64_t)len == want[w][0] && nb_hash64(out, (size_t)len, 0) == want[w][1],
                      "width %u: %zd, %#llx", size, len, (unsigned long long)nb_hash64(out, (size_t)len, 0));
        check_form(&sparse, widths[w], b, a, bytes);
    }
    free(a);
    free(b);
    free(out);
}
END_TEST

SUITE_MAIN("ulp", LOOP(round_trips, 0, KINDS), TEST(equal_is_one_byte), TEST(arguments),
           TEST(limit_stops_early), TEST(bits_a_value), LOOP(malformed, 0, 6), LOOP(few_changes, 0, 3),
           TEST(near_entropy), TEST(guesses), TEST(frozen), TEST(frozen_sparse))
