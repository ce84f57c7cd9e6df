/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantizing codecs: every variant gives the bytes, the error state, the values, the sums and the verdicts of
 * the reference, on every kind of data, type, length, position and alignment. The functions check their
 * arguments. Whatever its input, a decoder reads and writes only its own memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/tile.h"
#include "data.h"
#include "fp_mode.h"
#include "reference.h"
#include "tests/suite.h"

#define MOST 20000u
#define STATE (MOST + 16384u)

static const int fast_variants[] = {NB_VARIANT_PORTABLE, NB_VARIANT_AVX2, NB_VARIANT_AVX512, NB_VARIANT_NEON};

static void use(int variant)
{
    ck_assert_int_eq(variant_select(variant), 0);
    ck_assert_int_eq((int)nb_codec_selected(), variant);
}

/* Return a block of exactly this size, so that a sanitizer sees every access outside. */
static uint8_t *exactly(const void *data, size_t bytes)
{
    uint8_t *p = malloc(bytes ? bytes : 1);
    ck_assert_ptr_nonnull(p);
    if (data)
        memcpy(p, data, bytes);
    return p;
}

struct state {
    int8_t err[STATE];
    uint8_t scale[STATE / 32];
};

static void random_state(struct rng *r, struct state *s)
{
    unsigned base = rng_below(r, 3) ? 112 + (unsigned)rng_below(r, 8) : (unsigned)rng_below(r, 256);
    for (size_t i = 0; i < STATE; i++)
        s->err[i] = rng_below(r, 3) ? (int8_t)rng_next(r) : 0;
    for (size_t i = 0; i < STATE / 32; i++)
        s->scale[i] = rng_below(r, 5) ? (uint8_t)(base + rng_below(r, 4)) : 0;
}

/* Energies are statistics that do not travel, so each variant adds a tile's squares in the order that suits
 * it. They are equal up to roundings. A sum in FP32 passes through at most 64 roundings (the AVX-512 variant
 * adds a group's 32 squares one by one, 16 groups as a tree, and eight such batches), each of 2^-24 of the
 * sum, because no term is negative. Two sums differ by at most twice that. (Seen: 3.2e-7.) Each of the
 * `values` squares may also be off by a step of the smallest floats. */
static int close_enough(double a, double b, uint64_t values)
{
    if (isnan(a) || isinf(a))
        return isnan(b) || isinf(b);
    return fabs(a - b) <= 0x1p-17 * fabs(a) + 0x1p-149 * (double)values;
}

static void same_stats(const struct nb_encode_stats *a, const struct nb_encode_stats *b)
{
    ck_assert_uint_eq(a->values, b->values);
    ck_assert_uint_eq(a->nonfinite, b->nonfinite);
    ck_assert_uint_eq(a->escapes, b->escapes);
    ck_assert_uint_eq(a->fallback, b->fallback);
    ck_assert_uint_eq(a->flushed, b->flushed);
    ck_assert_uint_eq(a->bounded, b->bounded);
    ck_assert_msg(close_enough(a->signal2, b->signal2, a->values), "signal2 %g %g", a->signal2, b->signal2);
    ck_assert_msg(close_enough(a->noise2, b->noise2, a->values), "noise2 %g %g", a->noise2, b->noise2);
    ck_assert_msg(close_enough(a->carried2, b->carried2, a->values), "carried2 %g %g", a->carried2,
                  b->carried2);
}

/* Compare sums of this span in several roles, some damaged, between the reference and `variant`. */
static void compare_reduce(struct rng *r, int variant, enum nb_dtype type, enum nb_codec codec,
                           const uint8_t *coded, size_t len, const uint8_t *values, size_t n, uint64_t first)
{
    struct nb_source sources[6];
    size_t nsources = rng_below(r, 6), bytes = n * nb_dtype_size(type);
    uint8_t *bad = NULL, *want = exactly(NULL, bytes), *got = exactly(values, bytes);
    int role = (int)rng_below(r, 3); /* no own values, own values elsewhere, in place */

    if (len && rng_below(r, 3) == 0) {
        bad = exactly(coded, len);
        for (size_t k = 1 + rng_below(r, 3); k; k--)
            bad[rng_below(r, rng_below(r, 2) ? len : len < 8 ? len : 8)] ^= (uint8_t)(1 << rng_below(r, 8));
    }
    for (size_t s = 0; s < nsources; s++)
        if (rng_below(r, 4) == 0)
            sources[s] = (struct nb_source){NB_CODEC_RAW, values, bytes};
        else
            sources[s] = (struct nb_source){codec, bad && rng_below(r, 2) ? bad : coded, len};
    use(VARIANT_REFERENCE);
    int expected = nb_reduce(type, sources, nsources, role ? values : NULL, n, first, want);
    use(variant);
    int result = nb_reduce(type, sources, nsources, role == 2 ? got : role ? values : NULL, n, first, got);
    ck_assert_int_eq(expected, result);
    if (!expected)
        ck_assert_msg(!memcmp(want, got, bytes), "sums differ: %s", variant_name(variant));
    if (bad) {
        use(VARIANT_REFERENCE);
        expected = nb_decode(codec, type, bad, len, n, first, want);
        use(variant);
        ck_assert_int_eq(expected, nb_decode(codec, type, bad, len, n, first, got));
        if (!expected)
            ck_assert_msg(!memcmp(want, got, bytes), "damaged spans decode differently");
    }
    free(bad);
    free(want);
    free(got);
}

static void compare_once(struct rng *r, enum data_kind kind)
{
    static struct state before, want_state, got_state;
    enum nb_dtype type = (enum nb_dtype)rng_below(r, NB_DTYPE_COUNT);
    enum nb_codec codec = tiled[rng_below(r, TILED)];
    size_t n = rng_below(r, 3) ? rng_below(r, MOST) : rng_below(r, 100), size = nb_dtype_size(type);
    uint64_t first = rng_below(r, 3) ? rng_below(r, 9000) : 32 * rng_below(r, 300);
    size_t skew = rng_below(r, 4), bound = nb_encode_bound(codec, type, n);
    uint8_t *block = exactly(NULL, n * size + skew), *src = block + skew;
    uint8_t *want = exactly(NULL, bound), *got = exactly(NULL, bound + skew);
    uint8_t *values = exactly(NULL, n * size), *decoded = exactly(NULL, n * size);
    int feedback = (int)rng_below(r, 3);
    struct nb_ef ef = {want_state.err, want_state.scale, feedback == 1 ? NB_EF_FULL : NB_EF_EMA, 0.8f, 0.2f};
    struct nb_encode_stats want_stats = {.every = (uint32_t)rng_below(r, 3)};

    data_fill(r, kind, type, src, n, first);
    random_state(r, &before);
    want_state = before;
    use(VARIANT_REFERENCE);
    ssize_t len = nb_encode(codec, type, src, n, first, feedback ? &ef : NULL, want, bound, &want_stats);
    ck_assert_int_ge(len, 0);
    ck_assert_int_le(len, (ssize_t)bound);
    ck_assert_int_eq(nb_decode(codec, type, want, (size_t)len, n, first, values), 0);
    for (unsigned v = 0; v < sizeof fast_variants / sizeof *fast_variants; v++) {
        int variant = fast_variants[v];
        struct nb_encode_stats got_stats = {.every = want_stats.every};
        int stats = (int)rng_below(r, 2);

        if (!variant_available(variant))
            continue;
        use(variant);
        got_state = before;
        ef.err = got_state.err;
        ef.scale = got_state.scale;
        ssize_t got_len = nb_encode(codec, type, src, n, first, feedback ? &ef : NULL, got + skew, bound,
                                    stats ? &got_stats : NULL);
        ck_assert_msg(got_len == len && !memcmp(want, got + skew, (size_t)len),
                      "bytes differ: %s type %d codec %d kind %d n %zu first %llu feedback %d",
                      variant_name(variant), (int)type, (int)codec, (int)kind, n, (unsigned long long)first,
                      feedback);
        ck_assert_msg(!memcmp(&want_state, &got_state, sizeof got_state),
                      "error state differs: %s type %d codec %d kind %d n %zu first %llu feedback %d",
                      variant_name(variant), (int)type, (int)codec, (int)kind, n, (unsigned long long)first,
                      feedback);
        if (stats)
            same_stats(&want_stats, &got_stats);
        ck_assert_int_eq(nb_decode(codec, type, got + skew, (size_t)len, n, first, decoded), 0);
        ck_assert_msg(!memcmp(values, decoded, n * size), "values differ: %s type %d codec %d kind %d",
                      variant_name(variant), (int)type, (int)codec, (int)kind);
        compare_reduce(r, variant, type, codec, want, (size_t)len, src, n, first);
    }
    free(block);
    free(want);
    free(got);
    free(values);
    free(decoded);
}

#ifndef ROUNDS
#define ROUNDS 25
#endif
START_TEST(variants_agree)
{
    const char *set = getenv("NB_SEEDS");
    const int rounds = set ? atoi(set) : ROUNDS;
    struct rng r = {1000u + (unsigned)_i};

    for (int k = 0; k < rounds; k++)
        compare_once(&r, (enum data_kind)_i);
}
END_TEST

/* Variants first estimate from half of the values whether residuals are below the bound. The test has tiles
 * on both sides of it, and tiles whose estimate misses most of the values. Where energies are not measured,
 * only the bytes show which way the variant took. */
START_TEST(bound_is_met_exactly)
{
    enum { TILES = 4, N = TILES * NB_TILE };
    static struct state before, want_state, got_state;
    static float src[N];
    static uint8_t want[2 * 4 * N], got[2 * 4 * N];
    struct rng r = {77u + (unsigned)_i};
    const enum nb_codec codec = tiled[_i % 3];
    const int left_out = _i / 3; /* none, even values, odd values, one group of two */

    for (int k = 0; k < 3 * TILES; k++) {
        for (unsigned i = 0; i < N; i++) {
            const bool out = left_out == 3 ? i / 32 % 2 == 0 : left_out && i % 2 == (unsigned)left_out - 1;
            const double size = k % 3 ? 1 : 0x1p-55; /* squares are denormal */
            src[i] = out ? 0 : (float)(size * rng_gauss(&r));
        }
        for (unsigned i = 0; i < N; i++)
            before.err[i] = (int8_t)((int)rng_below(&r, 255) - 127);
        for (unsigned j = 0; j < N / 32;
             j++) { /* norms from a 16th to eight times the bound's, by the tile */
            const unsigned step = rng_below(&r, 4) ? j / 128 : (unsigned)rng_below(&r, 8);
            before.scale[j] = (uint8_t)((k % 3 ? 115 : 60) + step * 2 + (unsigned)k % 2);
        }
        struct nb_ef ef = {want_state.err, want_state.scale, k % 4 ? NB_EF_FULL : NB_EF_EMA, 0.8f, 0.2f};
        want_state = before;
        use(VARIANT_REFERENCE);
        const ssize_t len = nb_encode(codec, NB_F32, src, N, 0, &ef, want, sizeof want, NULL);
        ck_assert_int_gt(len, 0);
        for (unsigned v = 0; v < sizeof fast_variants / sizeof *fast_variants; v++) {
            if (!variant_available(fast_variants[v]))
                continue;
            use(fast_variants[v]);
            got_state = before;
            ef.err = got_state.err;
            ef.scale = got_state.scale;
            ck_assert_int_eq(nb_encode(codec, NB_F32, src, N, 0, &ef, got, sizeof got, NULL), len);
            ck_assert_msg(!memcmp(want, got, (size_t)len), "bytes differ: %s round %d",
                          variant_name(fast_variants[v]), k);
            ck_assert_msg(!memcmp(&want_state, &got_state, sizeof got_state), "errors differ: %s round %d",
                          variant_name(fast_variants[v]), k);
        }
    }
}
END_TEST

/* Values outside of whole groups travel raw, whatever their bits. */
START_TEST(partial_groups_are_exact)
{
    struct rng r = {7};
    for (uint64_t first = 0; first < 96; first += 5)
        for (size_t n = 0; n < 96; n += 7) {
            uint32_t src[96], out[96];
            uint8_t coded[1024];
            for (size_t i = 0; i < n; i++)
                src[i] = (uint32_t)rng_next(&r);
            ssize_t len = nb_encode(NB_CODEC_INT4, NB_F32, src, n, first, NULL, coded, sizeof coded, NULL);
            ck_assert_int_ge(len, 0);
            ck_assert_int_eq(nb_decode(NB_CODEC_INT4, NB_F32, coded, (size_t)len, n, first, out), 0);
            for (size_t i = 0; i < n; i++) {
                uint64_t group = (first + i) / 32 * 32;
                if (group < first || group + 32 > first + n)
                    ck_assert_uint_eq(out[i], src[i]);
            }
        }
}
END_TEST

/* Spans that are cut elsewhere decode to the same values where groups are whole in both. */
START_TEST(cuts_do_not_move_groups)
{
    static float src[3 * NB_TILE], whole[3 * NB_TILE], part[3 * NB_TILE];
    static uint8_t coded[4 * sizeof src];
    struct rng r = {8};
    data_fill(&r, DATA_GAUSS, NB_F32, src, 3 * NB_TILE, 0);
    ssize_t len = nb_encode(NB_CODEC_INT8, NB_F32, src, 3 * NB_TILE, 0, NULL, coded, sizeof coded, NULL);
    ck_assert_int_eq(nb_decode(NB_CODEC_INT8, NB_F32, coded, (size_t)len, 3 * NB_TILE, 0, whole), 0);
    for (int k = 0; k < 20; k++) {
        size_t from = rng_below(&r, NB_TILE), to = 2 * NB_TILE + rng_below(&r, NB_TILE);
        len = nb_encode(NB_CODEC_INT8, NB_F32, src + from, to - from, from, NULL, coded, sizeof coded, NULL);
        ck_assert_int_ge(len, 0);
        ck_assert_int_eq(nb_decode(NB_CODEC_INT8, NB_F32, coded, (size_t)len, to - from, from, part), 0);
        /* Tiles wholly inside also have the same scale. */
        ck_assert_int_eq(memcmp(part + NB_TILE - from, whole + NB_TILE, NB_TILE * sizeof *part), 0);
    }
}
END_TEST

/* Order and domains of a sum, spelled out once more in the test. */
START_TEST(sum_of_mixed_codecs)
{
    enum { N = 2 * NB_TILE + 17, SOURCES = 5 };
    static float src[SOURCES][N], value[SOURCES][N], own[N], got[N];
    static uint8_t coded[SOURCES][8 * N];
    const enum nb_codec codecs[SOURCES] = {NB_CODEC_RAW, NB_CODEC_INT8, NB_CODEC_INT6, NB_CODEC_INT8,
                                           NB_CODEC_INT4};
    struct nb_source sources[SOURCES];
    struct rng r = {9};

    data_fill(&r, DATA_GAUSS, NB_F32, own, N, 0);
    for (int s = 0; s < SOURCES; s++) {
        data_fill(&r, DATA_GAUSS, NB_F32, src[s], N, 0);
        ssize_t len = nb_encode(codecs[s], NB_F32, src[s], N, 3, NULL, coded[s], sizeof coded[s], NULL);
        ck_assert_int_ge(len, 0);
        sources[s] = (struct nb_source){codecs[s], coded[s], (size_t)len};
        ck_assert_int_eq(nb_decode(codecs[s], NB_F32, coded[s], (size_t)len, N, 3, value[s]), 0);
    }
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        use(v);
        ck_assert_int_eq(nb_reduce(NB_F32, sources, SOURCES, own, N, 3, got), 0);
        for (int i = 0; i < N; i++) {
            float sum = 0;
            sum += value[4][i]; /* int4 first, then the other codecs in their order, then the own values */
            for (int s = 0; s < 4; s++)
                sum += value[s][i];
            sum += own[i];
            ck_assert_msg(sum == got[i], "value %d: %a, not %a", i, (double)got[i], (double)sum);
        }
    }
}
END_TEST

/* A sum of many transformed contributions is close to the sum of their decoded values: FP32 additions of
 * numbers up to some hundreds, and the transform back. compare_reduce shows with the reference that the bits
 * are right. */
START_TEST(sum_in_transform_domain)
{
    enum { N = NB_TILE, SOURCES = 64 };
    static float src[N], value[N], got[N];
    static double want[N];
    static uint8_t coded[SOURCES][4 * N + 64];
    struct nb_source sources[SOURCES];
    struct rng r = {10};

    memset(want, 0, sizeof want);
    for (int s = 0; s < SOURCES; s++) {
        data_fill(&r, DATA_GAUSS, NB_F32, src, N, 0);
        ssize_t len = nb_encode(NB_CODEC_INT4, NB_F32, src, N, 0, NULL, coded[s], sizeof coded[s], NULL);
        ck_assert_int_ge(len, 0);
        sources[s] = (struct nb_source){NB_CODEC_INT4, coded[s], (size_t)len};
        ck_assert_int_eq(nb_decode(NB_CODEC_INT4, NB_F32, coded[s], (size_t)len, N, 0, value), 0);
        for (int i = 0; i < N; i++)
            want[i] += (double)value[i];
    }
    ck_assert_int_eq(nb_reduce(NB_F32, sources, SOURCES, NULL, N, 0, got), 0);
    for (int i = 0; i < N; i++)
        ck_assert_msg(fabs(want[i] - (double)got[i]) < 1e-4, "value %d: %g, not %g", i, (double)got[i],
                      want[i]);
}
END_TEST

START_TEST(sixteen_bit_outputs)
{
    /* FP16 sums overflow to infinity and keep denormals. BF16 rounds to even. NaN is quiet. */
    static const uint16_t big[2] = {0x7bff, 0x0001}, inf = 0x7c00;
    uint16_t out[3];
    struct nb_source raw = {NB_CODEC_RAW, big, 4};
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        use(v);
        ck_assert_int_eq(nb_reduce(NB_F16, &raw, 1, big, 2, 0, out), 0);
        ck_assert_uint_eq(out[0], inf);
        ck_assert_uint_eq(out[1], 2);
        const uint16_t one[3] = {0x3f80, 0x3f81, 0xffff}, half_ulp[3] = {0x3b80, 0x3b80, 0};
        struct nb_source b = {NB_CODEC_RAW, one, 6};
        ck_assert_int_eq(nb_reduce(NB_BF16, &b, 1, half_ulp, 3, 0, out), 0);
        ck_assert_uint_eq(out[0], 0x3f80); /* tie to even */
        ck_assert_uint_eq(out[1], 0x3f82);
        ck_assert_uint_eq(out[2], 0x7fc0);
    }
}
END_TEST

/* A caller that flushes denormals or rounds differently gets the same results, and its mode back. */
/* Sums of FP16 overflow where the exact sum does, also those of coded contributions, so that a loss scaler
 * sees it. They are finite where only a partial sum would have overflowed, and where they are within the
 * code's error of the largest number they are that number or infinite, in every variant alike. */
START_TEST(sums_of_halves_overflow)
{
    enum { GROUP = 32, CAP = 4096 };
    static const float values[][3] = {
        {60000, 60000, -60000}, {40000, 40000, 20000}, {-40000, -40000, -20000}, {33000, 32600, -100}};
    for (int coded = 0; coded < 2; coded++)
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            uint16_t in[3][GROUP], out[GROUP], first[GROUP] = {0};
            uint8_t wire[2][CAP];
            struct nb_source source[2];
            double exact = 0;
            for (int node = 0; node < 3; node++) {
                exact += values[k][node];
                for (size_t i = 0; i < GROUP; i++)
                    nb_store_value(NB_F16, in[node], i, values[k][node]);
            }
            for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
                use(v);
                for (int node = 0; node < 2; node++) {
                    ssize_t len = sizeof in[node];
                    if (coded)
                        len =
                            nb_encode(NB_CODEC_INT4, NB_F16, in[node], GROUP, 0, NULL, wire[node], CAP, NULL);
                    ck_assert_int_gt(len, 0);
                    source[node] =
                        (struct nb_source){coded ? NB_CODEC_INT4 : NB_CODEC_RAW,
                                           coded ? (void *)wire[node] : (void *)in[node], (size_t)len};
                }
                ck_assert_int_eq(nb_reduce(NB_F16, source, 2, in[2], GROUP, 0, out), 0);
                if (v == VARIANT_REFERENCE)
                    memcpy(first, out, sizeof first);
                ck_assert_int_eq(memcmp(out, first, sizeof out), 0);
            }
            for (size_t i = 0; i < GROUP; i++) {
                const double sum = nb_load_value(NB_F16, out, i), error = coded ? 0.15 * 60000 : 32;
                if (fabs(exact) > 65520 + error)
                    ck_assert(isinf(sum) && (sum > 0) == (exact > 0));
                else
                    ck_assert(fabs(sum - exact) <= error || (isinf(sum) && fabs(exact) + error > 65504));
            }
        }
}
END_TEST

START_TEST(caller_rounding_mode)
{
#if defined(NB_FP_MODES)
    enum { N = 4096 };
    static uint16_t src[N], a[N], b[N], c[N];
    static uint8_t x[4 * N], y[4 * N];
    struct rng r = {11};
    data_fill(&r, DATA_GAUSS, NB_F16, src, N, 0);
    src[0] = 3; /* denormals */
    src[1] = 0x8001;
    for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
        use(v);
        ssize_t len = nb_encode(NB_CODEC_INT4, NB_F16, src, N, 0, NULL, x, sizeof x, NULL);
        struct nb_source s = {NB_CODEC_INT4, x, (size_t)len}, raw = {NB_CODEC_RAW, src, sizeof src};
        ck_assert_int_eq(nb_reduce(NB_F16, &s, 1, src, N, 0, a), 0);
        const fp_mode old = fp_mode_get();
        fp_mode_set(FP_TOWARD_ZERO);
        ssize_t len2 = nb_encode(NB_CODEC_INT4, NB_F16, src, N, 0, NULL, y, sizeof y, NULL);
        int result = nb_reduce(NB_F16, &s, 1, src, N, 0, b), sum = nb_reduce(NB_F16, &raw, 1, NULL, N, 0, c);
        const fp_mode after = fp_mode_get();
        fp_mode_set(old);
        ck_assert_int_eq(result, 0);
        ck_assert_int_eq(sum, 0);
        ck_assert_int_eq(memcmp(src, c, sizeof c), 0);
        ck_assert_int_eq(memcmp(x, y, (size_t)len2), 0);
        ck_assert_uint_eq(after, FP_TOWARD_ZERO);
        ck_assert_int_eq(len, len2);
        ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    }
#endif
}
END_TEST

START_TEST(arguments)
{
    float v[64] = {0};
    uint8_t c[1024];
    int8_t err[64] = {0};
    uint8_t scale[2] = {0};
    struct nb_ef ef = {err, scale, NB_EF_FULL, 0, 0.2f};
    struct nb_source s = {NB_CODEC_RAW, v, sizeof v};

    ck_assert_uint_eq(nb_dtype_size(NB_F32), 4);
    ck_assert_uint_eq(nb_dtype_size(NB_BF16), 2);
    ck_assert_uint_eq(nb_dtype_size(NB_F16), 2);
    ck_assert_uint_eq(nb_dtype_size(NB_DTYPE_COUNT), 0);
    ck_assert_str_eq(nb_dtype_name(NB_BF16), "bfloat16");
    ck_assert_str_eq(nb_codec_name(NB_CODEC_INT4), "int4");
    ck_assert_str_eq(nb_variant_name(NB_VARIANT_AVX512), "avx512");
    ck_assert_str_eq(nb_variant_name(NB_VARIANT_AVX512_VBMI), "avx512-vbmi");
    ck_assert_str_eq(nb_codec_name((enum nb_codec)77), "unknown");
    ck_assert_uint_eq(nb_ef_err_bytes(65), 65);
    ck_assert_uint_eq(nb_ef_scale_bytes(65), 3);
    ck_assert_uint_eq(nb_ef_scale_bytes(0), 0);

    ck_assert_uint_eq(nb_encode_bound(NB_CODEC_RAW, NB_F32, 10), 40);
    ck_assert_uint_eq(nb_encode_bound(NB_CODEC_ULP, NB_F32, 10), 0);
    ck_assert_uint_eq(nb_encode_bound(NB_CODEC_INT4, (enum nb_dtype)9, 10), 0);
    ck_assert_uint_eq(nb_encode_bound(NB_CODEC_INT4, NB_F32, SIZE_MAX), 0);

    ck_assert_int_eq(nb_encode(NB_CODEC_ULP, NB_F32, v, 64, 0, NULL, c, sizeof c, NULL), -EINVAL);
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, (enum nb_dtype)3, v, 64, 0, NULL, c, sizeof c, NULL), -EINVAL);
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, NULL, 64, 0, NULL, c, sizeof c, NULL), -EINVAL);
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, UINT64_MAX, NULL, c, sizeof c, NULL), -EINVAL);
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, 0, NULL, c, 50, NULL), -ENOSPC);
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 0, 0, NULL, c, sizeof c, NULL), 0);
    ef.bound = NAN;
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, 0, &ef, c, sizeof c, NULL), -EINVAL);
    ef.bound = 0.2f;
    ef.mode = NB_EF_EMA;
    ef.beta = 1;
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, 0, &ef, c, sizeof c, NULL), -EINVAL);
    ef.mode = NB_EF_FULL;
    ef.err = NULL;
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, 0, &ef, c, sizeof c, NULL), -EINVAL);
    ck_assert_int_eq(nb_encode(NB_CODEC_RAW, NB_F32, v, 64, 0, &ef, c, sizeof c, NULL), 256);
    ef.mode = NB_EF_OFF;
    ck_assert_int_eq(nb_encode(NB_CODEC_INT4, NB_F32, v, 64, 0, &ef, c, sizeof c, NULL), 4);

    ck_assert_int_eq(nb_decode(NB_CODEC_RAW, NB_F32, c, 255, 64, 0, v), -EBADMSG);
    ck_assert_int_eq(nb_decode(NB_CODEC_ULP, NB_F32, c, 256, 64, 0, v), -EINVAL);
    ck_assert_int_eq(nb_decode(NB_CODEC_INT4, NB_F32, c, 4, 0, 0, v), -EBADMSG);
    ck_assert_int_eq(nb_decode(NB_CODEC_INT4, NB_F32, c, 4, 64, 0, NULL), -EINVAL);
    ck_assert_int_eq(nb_reduce(NB_F32, &s, NB_MAX_SOURCES + 1, NULL, 64, 0, v), -EINVAL);
    ck_assert_int_eq(nb_reduce(NB_F32, &s, 1, NULL, 63, 0, v), -EBADMSG);
    s.codec = NB_CODEC_ULP;
    ck_assert_int_eq(nb_reduce(NB_F32, &s, 1, NULL, 64, 0, v), -EINVAL);
    ck_assert_int_eq(nb_reduce(NB_F32, NULL, 0, NULL, 64, 0, v), 0);
    ck_assert_int_eq(nb_codec_select((enum nb_variant)99), -EINVAL);
    ck_assert_int_eq(nb_codec_select(NB_VARIANT_AUTO), 0);
    ck_assert_int_ne((int)nb_codec_selected(), NB_VARIANT_AUTO);
}
END_TEST

/* The most sources a sum takes. */
START_TEST(many_sources)
{
    enum { N = 100 };
    static struct nb_source sources[NB_MAX_SOURCES];
    float v[N], out[N], want[N];
    uint8_t c[2048];
    for (int i = 0; i < N; i++)
        v[i] = i == 40 ? -8 : 0;
    ssize_t len = nb_encode(NB_CODEC_INT4, NB_F32, v, N, 0, NULL, c, sizeof c, NULL);
    ck_assert_int_gt(len, 0);
    ck_assert_int_eq(nb_decode(NB_CODEC_INT4, NB_F32, c, (size_t)len, N, 0, want), 0);
    for (unsigned s = 0; s < NB_MAX_SOURCES; s++)
        sources[s] = (struct nb_source){NB_CODEC_INT4, c, (size_t)len};
    ck_assert_int_eq(nb_reduce(NB_F32, sources, NB_MAX_SOURCES, NULL, N, 0, out), 0);
    for (int i = 0; i < N; i++)
        ck_assert(out[i] == want[i] * (float)NB_MAX_SOURCES);
}
END_TEST

/* Decoders refuse every prefix, and one extra byte. */
START_TEST(truncations)
{
    struct rng r = {12};
    for (int k = 0; k < 12; k++) {
        enum nb_codec codec = tiled[k % 3];
        size_t n = 4096 + rng_below(&r, 700);
        uint64_t first = rng_below(&r, 200);
        uint16_t *src = (uint16_t *)(void *)exactly(NULL, 2 * n),
                 *out = (uint16_t *)(void *)exactly(NULL, 2 * n);
        size_t bound = nb_encode_bound(codec, NB_BF16, n);
        uint8_t *coded = exactly(NULL, bound + 1);
        data_fill(&r, (enum data_kind)(k % DATA_KINDS), NB_BF16, src, n, first);
        ssize_t len = nb_encode(codec, NB_BF16, src, n, first, NULL, coded, bound, NULL);
        ck_assert_int_ge(len, 0);
        coded[len] = 0;
        for (size_t cut = 0; cut <= (size_t)len + 1; cut += cut < 300 || cut + 300 > (size_t)len ? 1 : 13) {
            uint8_t *piece = exactly(coded, cut);
            struct nb_source s = {codec, piece, cut};
            int want = cut == (size_t)len ? 0 : -EBADMSG;
            ck_assert_int_eq(nb_decode(codec, NB_BF16, piece, cut, n, first, out), want);
            ck_assert_int_eq(nb_reduce(NB_BF16, &s, 1, src, n, first, out), want);
            free(piece);
        }
        free(src);
        free(out);
        free(coded);
    }
}
END_TEST

/* Records with correct sizes and contents that no encoder writes: zero scales under codes, every exponent,
 * denormal units. */
START_TEST(strange_records)
{
    struct rng r = {14};
    static uint8_t want[2][4 * NB_TILE], got[2][4 * NB_TILE];
    unsigned accepted = 0;
    for (int k = 0; k < 3000; k++) {
        unsigned kind = (unsigned)rng_below(&r, NB_TILE_KIND_COUNT),
                 groups = 1 + (unsigned)rng_below(&r, k % 10 ? 20 : 128);
        enum nb_dtype type = (enum nb_dtype)rng_below(&r, 3);
        size_t n = groups * 32, size = nb_dtype_size(type), pad = (groups + 3) / 4 * 4;
        const bool coded = kind && kind != NB_TILE_RAW;
        enum nb_codec codec = kind >= NB_TILE_INT6                         ? NB_CODEC_INT6
                              : kind == 1 || kind == 2 || rng_below(&r, 2) ? NB_CODEC_INT4
                                                                           : NB_CODEC_INT8;
        size_t body = !coded                 ? kind == 0 ? 0 : n * size
                      : kind >= NB_TILE_INT6 ? pad + 24 * groups
                      : kind < 3             ? pad + (groups + 31) / 32 * 4 + 16 * groups
                                             : pad + n;
        uint8_t *bytes = exactly(NULL, 4 + body), *own = exactly(NULL, n * size);
        int sparse = (int)rng_below(&r, 2);
        for (size_t i = 4; i < 4 + body; i++)
            bytes[i] = sparse && rng_below(&r, 4) ? 0 : (uint8_t)rng_next(&r);
        if (coded)
            memset(bytes + 4 + groups, 0, pad - groups);
        if (kind == 1 || kind == 2)
            for (unsigned j = groups; j % 32; j++)
                bytes[4 + pad + j / 8] &= (uint8_t) ~(1 << j % 8);
        bytes[0] = (uint8_t)kind;
        bytes[1] = bytes[3] = 0;
        bytes[2] = coded ? (uint8_t)(31 + rng_below(&r, 199)) : 0;
        for (size_t i = 0; i < n; i++)
            nb_store_value(type, own, i, rng_below(&r, 4) ? -0.0f : (float)rng_gauss(&r));
        struct nb_source source = {codec, bytes, 4 + body};
        use(VARIANT_REFERENCE);
        int expected = nb_decode(codec, type, bytes, 4 + body, n, 0, want[0]);
        ck_assert_int_eq(nb_reduce(type, &source, 1, own, n, 0, want[1]), expected);
        accepted += !expected;
        for (unsigned v = 0; v < 3; v++)
            if (variant_available(fast_variants[v])) {
                use(fast_variants[v]);
                ck_assert_int_eq(nb_decode(codec, type, bytes, 4 + body, n, 0, got[0]), expected);
                ck_assert_int_eq(nb_reduce(type, &source, 1, own, n, 0, got[1]), expected);
                for (int w = 0; w < 2 && !expected; w++)
                    ck_assert_msg(!memcmp(want[w], got[w], n * size), "%s: kind %u type %d differs in %s",
                                  variant_name(fast_variants[v]), kind, (int)type, w ? "sum" : "values");
            }
        free(bytes);
        free(own);
    }
    ck_assert_uint_gt(accepted, 2500);
}
END_TEST

/* Arbitrary bytes never crash a decoder, and all variants agree on them. */
START_TEST(garbage)
{
    struct rng r = {13};
    enum { N = 700 };
    static uint8_t want[4 * N], got[4 * N];
    for (int k = 0; k < 20000; k++) {
        size_t n = rng_below(&r, N), len = rng_below(&r, 900);
        enum nb_dtype type = (enum nb_dtype)rng_below(&r, 3);
        enum nb_codec codec = tiled[rng_below(&r, TILED)];
        uint8_t *bytes = exactly(NULL, len);
        for (size_t i = 0; i < len; i++)
            bytes[i] = rng_below(&r, 4) ? 0 : (uint8_t)rng_next(&r);
        if (len > 4 && rng_below(&r, 2)) {
            bytes[0] = (uint8_t)rng_below(&r, NB_TILE_KIND_COUNT + 1);
            bytes[1] = (uint8_t)rng_below(&r, 3);
            bytes[2] = (uint8_t)(31 + rng_below(&r, 200));
            bytes[3] = 0;
        }
        use(VARIANT_REFERENCE);
        int expected = nb_decode(codec, type, bytes, len, n, 0, want);
        for (unsigned v = 0; v < 3; v++)
            if (variant_available(fast_variants[v])) {
                use(fast_variants[v]);
                ck_assert_int_eq(nb_decode(codec, type, bytes, len, n, 0, got), expected);
                if (!expected)
                    ck_assert_int_eq(memcmp(want, got, n * nb_dtype_size(type)), 0);
            }
        free(bytes);
    }
}
END_TEST

/* A node that encodes only every second or later piece of a vector, of any size, still measures its error. */
START_TEST(statistics_of_every_so_many_pieces)
{
    static float x[8 * 4096];
    static uint8_t out[2 * sizeof(x)];
    struct rng r = {14};

    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        x[i] = (float)rng_below(&r, 2000) - 1000.0f;
    for (uint64_t tiles = 1; tiles <= 8; tiles *= 2) {
        for (uint64_t every = 1; every <= 16; every *= 2) {
            struct nb_encode_stats stats = {0};
            for (uint64_t piece = every - 1; piece < 32 * every; piece += every)
                ck_assert_int_gt(nb_encode(NB_CODEC_INT4, NB_F32, x, tiles * 4096, piece * tiles * 4096, NULL,
                                           out, sizeof(out), &stats),
                                 0);
            ck_assert_msg(stats.signal2 > 0 && stats.noise2 > 0, "pieces of %d tiles, one of %d", (int)tiles,
                          (int)every);
        }
    }
}
END_TEST

/* Six bits keep every code, and all ways to pack them give the same bytes, for any number of groups. */
START_TEST(codes_of_six_bits)
{
    static const struct {
        enum nb_variant variant;
        nb_six_fn *pack, *unpack;
    } ways[] = {
        {NB_VARIANT_PORTABLE, nb_pack6, nb_unpack6},
#if defined(__x86_64__)
        {NB_VARIANT_AVX2, nb_pack6_avx2, nb_unpack6_avx2},
#endif
    };
    struct rng r = {6};

    for (unsigned groups = 0; groups <= NB_TILE_GROUPS; groups++) {
        const size_t bytes = NB_GROUP * groups, size = 24 * groups;
        uint8_t *codes = exactly(NULL, bytes), *first = exactly(NULL, size);

        for (size_t i = 0; i < bytes; i++)
            codes[i] = (uint8_t)((int)rng_below(&r, 64) - 32);
        nb_pack6(codes, groups, first);
        for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
            uint8_t *packed = exactly(NULL, size), *back = exactly(NULL, bytes);

            if (nb_codec_available(ways[w].variant)) {
                ways[w].pack(codes, groups, packed);
                ck_assert_int_eq(memcmp(packed, first, size), 0);
                ways[w].unpack(packed, groups, back);
                ck_assert_int_eq(memcmp(back, codes, bytes), 0);
            }
            free(packed);
            free(back);
        }
        free(codes);
        free(first);
    }
}
END_TEST

SUITE_MAIN("quantizing codecs", LOOP(variants_agree, 0, DATA_KINDS), LOOP(bound_is_met_exactly, 0, 12),
           TEST(partial_groups_are_exact), TEST(cuts_do_not_move_groups), TEST(caller_rounding_mode),
           TEST(statistics_of_every_so_many_pieces), TEST(sum_of_mixed_codecs), TEST(sum_in_transform_domain),
           TEST(sixteen_bit_outputs), TEST(sums_of_halves_overflow), TEST(many_sources), TEST(arguments),
           TEST(truncations), TEST(strange_records), TEST(garbage), TEST(codes_of_six_bits))
