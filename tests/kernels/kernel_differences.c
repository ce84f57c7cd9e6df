/* SPDX-License-Identifier: Apache-2.0 */
/* Compare the kernels of the differences' encoders, and of delta4 both ways, with the C codec. See
 * kernel_cases.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/ulp.h"
#include "kernel_cases.h"
#include "kernel_check.h"
#include "tests/codec/data.h"
#include "tests/codec/golden.h"
#include "tests/gpu/backend.h"

enum kind {
    SMALL, /* all values move by about the same */
    SAME,
    LARGE,   /* steps as large as the values */
    STRAY,   /* small, and now and then any bits */
    HALF,    /* the second half has any bits */
    STRETCH, /* stretches that stand still, stretches of any bits */
    TRAP,    /* the sampled values of a block have any bits, the rest stands still. Every 32nd block has any
              bits */
    MIXED,   /* scales far apart side by side */
    SPECIAL, /* zeros, infinities, NaN, denormals */
    PATTERNS,
    KINDS,
    ROWS = KINDS, /* every 256 values move by another amount, some stand still. Now and then one moves far
                     away */
    DRIFT         /* the amount changes a little from one 256 values to the next */
};

static int sampled(size_t i)
{
    const size_t at = i % 1024 % 256;
    return at >= 128 && at < 160;
}

/* Make a reference and values of `type`. Encoders for another width read the same data. */
static void make(struct rng *r, enum kind kind, enum nb_dtype type, double step, uint8_t *ref, uint8_t *cur,
                 size_t bytes)
{
    static const uint32_t words[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001, 0xffffffff,
                                     0x7f7fffff, 0x00000001, 0x80000100, 0x00800000, 0x7c007c00, 0xfc01fc01};
    const size_t size = nb_dtype_size(type), n = bytes / size;
    for (size_t i = 0; i < n; i++) {
        double w = rng_gauss(r) * 0.02, by = rng_gauss(r) * 0.02 * step;
        int any = kind == PATTERNS || (kind == STRAY && rng_below(r, 50) == 0) ||
                  (kind == HALF && i > n / 2) || (kind == STRETCH && i / 3000 % 3 == 2) ||
                  (kind == TRAP && (sampled(i) || i / 1024 % 32 == 31));
        if (kind == SAME || (kind == STRETCH && i / 3000 % 3 == 0) || kind == TRAP)
            by = 0;
        if (kind == ROWS || kind == DRIFT) {
            const unsigned row = (unsigned)(i / 256 * 2654435761u >> 7);
            by *= kind == DRIFT ? 1 + row % 8 * 0.2 : row % 11 == 0 ? 0 : pow(2, (double)(row % 13) - 6);
            if (rng_below(r, 400) == 0)
                by *= 300;
        }
        if (kind == LARGE)
            by = rng_gauss(r) * 0.02;
        if (kind == MIXED)
            w *= 50 * pow(10, -(double)(i % 9));
        nb_store_value(type, ref, i, (float)w);
        nb_store_value(type, cur, i, (float)(w + by));
        if (any) {
            uint32_t x = (uint32_t)rng_next(r);
            memcpy(cur + i * size, &x, size);
        }
        if (kind == SPECIAL && rng_below(r, 12) == 0) {
            uint32_t x = words[rng_below(r, 12)], y = words[rng_below(r, 12)];
            x = size == 2 && x >> 16 ? x >> 16 : x;
            y = size == 2 && y >> 16 ? y >> 16 : y;
            memcpy(cur + i * size, &x, size);
            if (rng_below(r, 3))
                memcpy(ref + i * size, &y, size);
        }
    }
    for (size_t i = n * size; i < bytes; i++) {
        ref[i] = (uint8_t)rng_next(r);
        cur[i] = (uint8_t)(ref[i] + (kind != SAME));
    }
}

struct span {
    int bounded; /* delta4 */
    unsigned width;
    enum nb_dtype type;
    size_t bytes;
};

static ssize_t want_encode(const struct span *s, const void *cur, const void *ref, size_t limit, void *dst,
                           size_t cap, struct nb_delta4_stats *stats)
{
    return s->bounded ? nb_delta4_encode(s->type, cur, ref, s->bytes, limit, dst, cap, stats)
                      : nb_ulp_encode((enum nb_ulp_width)s->width, cur, ref, s->bytes, limit, dst, cap);
}

static int want_decode(const struct span *s, const void *coded, size_t length, const void *ref, void *dst)
{
    return s->bounded ? nb_delta4_decode(s->type, coded, length, ref, s->bytes, dst)
                      : nb_ulp_decode((enum nb_ulp_width)s->width, coded, length, ref, s->bytes, dst);
}

static int64_t run_encoder(const struct span *s, const void *cur, const void *ref, uint64_t limit, void *dst,
                           uint64_t *lossy)
{
    struct nb_gpu_result result;
    struct nb_gpu_desc desc = {.op = s->bounded ? NB_GPU_DELTA4_ENCODE : NB_GPU_ULP_ENCODE,
                               .type = (uint8_t)s->type,
                               .width = (uint8_t)s->width,
                               .n = s->bytes,
                               .src = address(cur),
                               .ref = address(ref),
                               .limit = limit,
                               .dst = address(dst)};
    backend_run(&desc, 1, &result);
    *lossy = result.value;
    return result.length;
}

/* Check that the kernel writes these bytes, `length` of them, and as many lossy runs, or refuses, as it does
 * on some GPUs. */
static void check_encoder(const struct span *s, const void *cur, const void *ref, uint64_t limit, void *dst,
                          const void *want, int64_t length, uint64_t lossy)
{
    uint64_t got;

    if (!backend_encodes_differences())
        length = -ENOTSUP;
    same_number("length", run_encoder(s, cur, ref, limit, dst, &got), length);
    if (length < 0)
        return;
    same("coded bytes", dst, want, (size_t)length);
    if (s->bounded)
        same_number("lossy runs", (int64_t)got, (int64_t)lossy);
}

static int64_t decode(const struct span *s, const uint8_t *coded, size_t length, const void *ref, void *dst)
{
    struct nb_gpu_source *source = backend_alloc(sizeof(*source));
    struct nb_gpu_result result;
    *source = (struct nb_gpu_source){address(coded), length, NB_CODEC_ULP, 0};
    struct nb_gpu_desc desc = {.op = s->bounded ? NB_GPU_DELTA4_DECODE : NB_GPU_ULP_DECODE,
                               .type = (uint8_t)s->type,
                               .width = (uint8_t)s->width,
                               .n = s->bytes,
                               .ref = address(ref),
                               .dst = address(dst),
                               .nsources = 1,
                               .sources = address(source)};
    backend_run(&desc, 1, &result);
    backend_free(source);
    return result.length;
}

/* Encode a span of values of `kind`, decode it, and decode it with a broken bit. */
static void compare(struct rng *r, struct span *s, enum kind kind, double step, unsigned round)
{
    struct nb_delta4_stats stats = {0, 0};
    size_t cap =
        s->bounded ? nb_delta4_bound(s->type, s->bytes) : nb_ulp_bound((enum nb_ulp_width)s->width, s->bytes);
    uint8_t *ref = backend_alloc(s->bytes), *cur = backend_alloc(s->bytes), *out = backend_alloc(s->bytes);
    uint8_t *coded = backend_alloc((cap + 3) & ~(size_t)3), *want = malloc(cap);
    uint8_t *values = malloc(s->bytes + 1), *old = malloc(s->bytes + 1);
    if (!want || !values || !old)
        abort();
    make(r, kind, s->type, step, ref, cur, s->bytes);
    ssize_t length = want_encode(s, cur, ref, SIZE_MAX, want, cap, &stats);
    if (length < 0)
        abort();
    check_encoder(s, cur, ref, SIZE_MAX, coded, want, length, stats.lossy);
    /* Limits: one byte more than needed, exactly as much, less. */
    check_encoder(s, cur, ref, (uint64_t)length + 1, coded, want, length, stats.lossy);
    check_encoder(s, cur, ref, round % 2 ? (uint64_t)length : rng_below(r, (uint64_t)length), coded, NULL,
                  -E2BIG, 0);

    /* Decoders take bytes at any address. */
    backend_free(coded);
    const size_t shift = rng_below(r, 2) ? 0 : rng_below(r, 4);
    uint8_t *at = (uint8_t *)backend_alloc((size_t)length + shift) + shift;
    memcpy(at, want, (size_t)length);
    if (want_decode(s, at, (size_t)length, ref, values))
        abort();
    memcpy(old, ref, s->bytes);
    const int in_place = rng_below(r, 2) == 0;
    same_number("result of decoding", decode(s, at, (size_t)length, ref, in_place ? ref : out), 0);
    same("decoded bytes", in_place ? ref : out, values, s->bytes);
    if (!s->bounded)
        same("decoded bytes", values, cur, s->bytes);
    /* Break one place: the kernel refuses, or decodes to the same values as the C codec. */
    memcpy(ref, old, s->bytes);
    const size_t where = rng_below(r, rng_below(r, 2) || length < 16 ? (uint64_t)length : 16);
    at[where] ^= (uint8_t)(1u << rng_below(r, 8));
    const int expected = want_decode(s, at, (size_t)length, ref, values);
    same_number("result of decoding a broken span", decode(s, at, (size_t)length, ref, out), expected);
    if (!expected)
        same("decoded bytes", out, values, s->bytes);
    backend_free(ref);
    backend_free(cur);
    backend_free(at - shift);
    backend_free(out);
    free(want);
    free(values);
    free(old);
}

unsigned cases_differences(unsigned rounds, unsigned seed)
{
    static const size_t sizes[] = {0, 1, 3, 64, 510, 2048, 4095, 8192 + 6, 70000, 140001, 300001, 600000};
    static const double steps[] = {1e-4, 1e-3, 1e-2, 3e-2, 0.2, 1e-6};
    unsigned compared = 0;
    struct rng r = {seed + 7000u};
    for (unsigned round = 0; round < rounds; round++) {
        struct span s = {.bounded = (int)rng_below(&r, 2), .width = 1u << rng_below(&r, 3)};
        enum kind kind = (enum kind)(round % KINDS);
        double step = steps[rng_below(&r, 6)];

        s.type = (enum nb_dtype)rng_below(&r, NB_DTYPE_COUNT);
        s.bytes = sizes[rng_below(&r, kind == TRAP || round % 6 == 0 ? 12 : 9)];
        if (kind == TRAP)
            s.bytes = sizes[8 + rng_below(&r, 4)];
        at_case("differences round %u seed %u %s width %zu type %s kind %d bytes %zu", round, seed,
                s.bounded ? "delta4" : "ulp", s.bounded ? nb_dtype_size(s.type) : (size_t)s.width,
                nb_dtype_name(s.type), kind, s.bytes);
        compare(&r, &s, kind, step, round);
        compared++;
    }
    return compared;
}

unsigned cases_usual_differences(unsigned rounds, unsigned seed)
{
    static const enum kind kinds[] = {ROWS, DRIFT, SMALL, STRAY, MIXED, STRETCH, SPECIAL, SAME};
    static const double steps[] = {1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.2};
    struct rng r = {seed + 7500u};
    for (unsigned round = 0; round < rounds; round++) {
        struct span s = {.width = 2, .type = rng_below(&r, 4) ? NB_BF16 : NB_F16};
        enum kind kind = round % 3 ? kinds[rng_below(&r, 8)] : kinds[round / 3 % 2];
        const double step = steps[rng_below(&r, 6)];

        /* Whole segments, and blocks and values left over. */
        s.bytes = rng_below(&r, 3) ? 2048 * (1 + rng_below(&r, 40)) : 65536 + rng_below(&r, 70000);
        at_case("usual differences round %u seed %u type %s kind %d step %g bytes %zu", round, seed,
                nb_dtype_name(s.type), kind, step, s.bytes);
        compare(&r, &s, kind, step, round);
    }
    return rounds;
}

/* ---- Golden vectors ---------------------------------------------------------------------------------- */

static unsigned golden_cases_of(const struct golden_differences *of, const char *path)
{
    struct golden_file f;

    golden_open(&f, path);
    for (unsigned c = 0; c < of->n; c++) {
        const struct golden_difference *k = &of->cases[c];
        struct span s = {!k->width, k->width, k->type, k->bytes};
        const size_t bound = k->width ? nb_ulp_bound((enum nb_ulp_width)k->width, k->bytes)
                                      : nb_delta4_bound(k->type, k->bytes);
        size_t bytes, length;
        uint64_t lossy;
        at_case("golden %s case %u", of->name, c);
        uint8_t *ref = backend_alloc(k->bytes), *cur = backend_alloc(k->bytes),
                *out = backend_alloc(k->bytes);
        uint8_t *coded = backend_alloc(bound + 4);
        memcpy(ref, golden_next(&f, &bytes), k->bytes);
        memcpy(cur, golden_next(&f, &bytes), k->bytes);
        const uint8_t *span = golden_next(&f, &length);
        if (backend_encodes_differences()) {
            same_number("length", run_encoder(&s, cur, ref, UINT64_MAX, coded, &lossy), (int64_t)length);
            same("coded bytes", coded, span, length);
        }
        memcpy(coded, span, length);
        const uint8_t *values = golden_next(&f, &bytes);
        same_number("result of decoding", decode(&s, coded, length, ref, out), 0);
        same("decoded values", out, values, k->bytes);
        backend_free(ref);
        backend_free(cur);
        backend_free(out);
        backend_free(coded);
    }
    golden_close(&f);
    return of->n;
}

unsigned cases_golden_differences(const char *folder)
{
    unsigned n = 0;

    for (unsigned i = 0; i < GOLDEN_DIFFERENCES; i++) {
        char path[4200];
        snprintf(path, sizeof(path), "%s/%s.bin", folder, golden_differences[i].name);
        n += golden_cases_of(&golden_differences[i], path);
    }
    return n;
}

unsigned cases_guess(unsigned rounds, unsigned seed)
{
    unsigned compared = 0;
    struct rng r = {seed + 8000u};
    for (unsigned round = 0; round < rounds; round++) {
        static const size_t sizes[] = {0, 3, 40, 512, 5000, 100003};
        enum nb_dtype type = (enum nb_dtype)rng_below(&r, NB_DTYPE_COUNT);
        enum kind kind = (enum kind)rng_below(&r, KINDS);
        size_t bytes = sizes[rng_below(&r, 6)];
        uint8_t *ref = backend_alloc(bytes), *cur = backend_alloc(bytes);
        struct nb_gpu_result result;
        at_case("guess round %u seed %u type %s kind %d bytes %zu", round, seed, nb_dtype_name(type), kind,
                bytes);
        make(&r, kind, type, 1e-3, ref, cur, bytes);
        struct nb_gpu_desc desc = {
            .op = NB_GPU_ULP_GUESS, .n = bytes, .src = address(cur), .ref = address(ref)};
        backend_run(&desc, 1, &result);
        if (backend_encodes_differences())
            same_number("width", (int64_t)result.value, nb_ulp_guess_width(cur, ref, bytes));
        else
            same_number("result of guessing", result.length, -ENOTSUP);
        compared++;
        backend_free(ref);
        backend_free(cur);
    }
    return compared;
}
