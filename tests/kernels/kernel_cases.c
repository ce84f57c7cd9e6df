/* SPDX-License-Identifier: Apache-2.0 */
/* Compare the kernels of the quantizing codecs with the C codec. See kernel_cases.h. */
#include "kernel_cases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/format.h"
#include "device/host/host.h"
#include "kernel_check.h"
#include "tests/codec/data.h"
#include "tests/codec/golden.h"
#include "tests/gpu/backend.h"

#define MOST 20000u

static uint8_t *bytes_alloc(size_t bytes)
{
    return backend_alloc(bytes);
}

/* Buffers of one case, for the kernel and for the C codec. */
struct encoder {
    enum nb_codec codec;
    enum nb_dtype type;
    size_t n;
    uint64_t first;
    struct nb_ef ef; /* used by the C codec */
    int8_t *err;     /* used by the kernel */
    uint8_t *scale, *src, *dst, *want;
    size_t cap, values;
    uint32_t every; /* one tile in so many is measured */
};

static void encoder_open(struct encoder *e, enum nb_codec codec, enum nb_dtype type, size_t n, uint64_t first,
                         enum nb_ef_mode mode, unsigned skew)
{
    size_t size = nb_dtype_size(type), block = (size_t)first + n;
    *e = (struct encoder){.codec = codec, .type = type, .n = n, .first = first};
    e->values = block;
    e->every = 1;
    e->cap = nb_encode_bound(codec, type, n);
    e->src = bytes_alloc(n * size + skew * size) + skew * size;
    e->dst = bytes_alloc(((e->cap + 3) & ~(size_t)3) + 4 * (skew % 4)) + 4 * (skew % 4);
    e->want = malloc(e->cap);
    e->err = backend_alloc(nb_ef_err_bytes(block));
    e->scale = backend_alloc(nb_ef_scale_bytes(block));
    e->ef = (struct nb_ef){calloc(1, nb_ef_err_bytes(block)), calloc(1, nb_ef_scale_bytes(block)), mode,
                           0.75f, 0.2f};
    if (!e->want || !e->ef.err || !e->ef.scale)
        abort();
}

static void encoder_close(struct encoder *e, unsigned skew)
{
    backend_free(e->src - skew * nb_dtype_size(e->type));
    backend_free(e->dst - 4 * (skew % 4));
    backend_free(e->err);
    backend_free(e->scale);
    free(e->want);
    free(e->ef.err);
    free(e->ef.scale);
}

/* Encode once with both. Return the length. */
static size_t encode_both(struct encoder *e, int with_stats)
{
    struct nb_encode_stats stats = {.every = e->every};
    struct nb_gpu_result result;
    struct nb_gpu_desc desc = {.op = NB_GPU_ENCODE,
                               .type = (uint8_t)e->type,
                               .codec = (uint8_t)e->codec,
                               .mode = (uint8_t)e->ef.mode,
                               .flags = with_stats ? NB_GPU_STATS : 0,
                               .every = e->every,
                               .n = e->n,
                               .first = e->first,
                               .src = address(e->src),
                               .dst = address(e->dst),
                               .err = address(e->err),
                               .scale = address(e->scale),
                               .beta = e->ef.beta,
                               .bound = e->ef.bound};
    backend_run(&desc, 1, &result);
    ssize_t length = nb_encode(e->codec, e->type, e->src, e->n, e->first, &e->ef, e->want, e->cap,
                               with_stats ? &stats : NULL);
    same_number("length", result.length, length);
    same("coded bytes", e->dst, e->want, (size_t)length);
    if (e->ef.mode != NB_EF_OFF) {
        same("errors", e->err, e->ef.err, nb_ef_err_bytes(e->values));
        same("error scales", e->scale, e->ef.scale, nb_ef_scale_bytes(e->values));
    }
    if (with_stats) {
        same_number("count of non-finite values", (int64_t)result.nonfinite, (int64_t)stats.nonfinite);
        same_number("count of escapes", (int64_t)result.escapes, (int64_t)stats.escapes);
        same_number("count of fallbacks", (int64_t)result.fallback, (int64_t)stats.fallback);
        same_number("count of flushed groups", (int64_t)result.flushed, (int64_t)stats.flushed);
        same_number("count of bounded tiles", (int64_t)result.bounded, (int64_t)stats.bounded);
        near("energy of the values", result.signal2, stats.signal2);
        near("energy of the noise", result.noise2, stats.noise2);
        near("energy of what was carried", result.carried2, stats.carried2);
    }
    return (size_t)length;
}

static void decode_both(const struct encoder *e, size_t length, unsigned skew)
{
    size_t size = nb_dtype_size(e->type);
    uint8_t *out = bytes_alloc((e->n + skew) * size) + skew * size, *want = malloc(e->n * size);
    struct nb_gpu_source *source = backend_alloc(sizeof(*source));
    uint8_t *coded = bytes_alloc(length + 4 * (skew % 4)) + 4 * (skew % 4);
    struct nb_gpu_result result;
    memcpy(coded, e->want, length);
    *source = (struct nb_gpu_source){address(coded), length, e->codec, 0};
    struct nb_gpu_desc desc = {.op = NB_GPU_DECODE,
                               .type = (uint8_t)e->type,
                               .n = e->n,
                               .first = e->first,
                               .dst = address(out),
                               .nsources = 1,
                               .sources = address(source)};
    backend_run(&desc, 1, &result);
    if (!want || nb_decode(e->codec, e->type, e->want, length, e->n, e->first, want))
        abort();
    same_number("result of decoding", result.length, 0);
    same("decoded values", out, want, e->n * size);
    free(want);
    backend_free(coded - 4 * (skew % 4));
    backend_free(source);
    backend_free(out - skew * size);
}

static const size_t lengths[] = {4096, 12288, 1, 31, 33, 4096 * 3 + 77, 5000, 200, 8192 + 32, 640, 20};
static const uint64_t firsts[] = {0, 4096, 0, 5, 64, 4090, 8192 + 31, 3000};

unsigned cases_encode(unsigned rounds, unsigned seed)
{
    unsigned compared = 0;
    struct rng r = {seed};
    for (unsigned round = 0; round < rounds; round++) {
        enum data_kind kind = (enum data_kind)(round % DATA_KINDS);
        enum nb_dtype type = (enum nb_dtype)(rng_below(&r, NB_DTYPE_COUNT));
        enum nb_codec codec = tiled[rng_below(&r, TILED)];
        enum nb_ef_mode mode = (enum nb_ef_mode)rng_below(&r, 3);
        size_t n = lengths[rng_below(&r, sizeof(lengths) / sizeof(*lengths))];
        uint64_t first = firsts[rng_below(&r, sizeof(firsts) / sizeof(*firsts))];
        unsigned skew = rng_below(&r, 3) ? 0 : 1 + (unsigned)rng_below(&r, 7);
        struct encoder e;
        size_t length = 0;
        double scale = 1;
        encoder_open(&e, codec, type, n, first, mode, skew);
        for (unsigned pass = 0; pass < (mode == NB_EF_OFF ? 1u : 3u); pass++) {
            /* In some passes small values meet the error of large ones, so that the bound acts. */
            float times = pass == 2 && rng_below(&r, 2) ? 0.01f : 1.0f;
            if (pass == 1 && rng_below(&r, 3) == 0)
                kind = (enum data_kind)rng_below(&r, DATA_KINDS);
            at_case("round %u seed %u pass %u kind %d type %s codec %s mode %d n %zu first %" PRIu64
                    " skew %u",
                    round, seed, pass, kind, nb_dtype_name(type), nb_codec_name(codec), mode, n, first, skew);
            for (size_t i = 0; i < n; i++)
                nb_store_value(type, e.src, i, times * data_value(&r, kind, i, &scale));
            length = encode_both(&e, rng_below(&r, 2) == 0);
            compared++;
        }
        decode_both(&e, length, skew);
        encoder_close(&e, skew);
    }
    return compared;
}

/* Test whole, aligned tiles inside a span, most of them unmeasured. Nearly all tiles of a large vector take
 * this way. Unusual values leave it, so the test has every kind of data. */
unsigned cases_inside(unsigned rounds, unsigned seed)
{
    static const uint32_t everies[] = {17, 3, 1};
    struct rng r = {seed};
    unsigned compared = 0;
    /* With few rounds, take every fourth: another type, mode and kind each time. int6 in every other one. */
    for (unsigned at = rounds < 36 ? seed % 4 : 0; at < 2 * DATA_KINDS * NB_DTYPE_COUNT;
         at += rounds < 36 ? 4 : 1) {
        const unsigned of = at % (DATA_KINDS * NB_DTYPE_COUNT), six = at != of;
        const enum nb_codec codec = six ? NB_CODEC_INT6 : NB_CODEC_INT4;
        const enum nb_dtype type = (enum nb_dtype)(of % NB_DTYPE_COUNT);
        const enum data_kind kind = (enum data_kind)(of / NB_DTYPE_COUNT);
        const enum nb_ef_mode mode = (enum nb_ef_mode)((of + of / NB_DTYPE_COUNT) % 3);
        struct encoder e;
        size_t length = 0;
        double scale = 1;
        if (six && (rounds < 36 ? at % 8 >= 4 : at % 2))
            continue;
        encoder_open(&e, codec, type, (size_t)4096 * 4, 4096 * (uint64_t)(of % 2), mode, 0);
        e.every = everies[rng_below(&r, 3)];
        for (unsigned pass = 0; pass < (mode == NB_EF_OFF ? 1u : 2u); pass++) {
            at_case("inside, pass %u kind %d type %s codec %s mode %d every %u", pass, kind,
                    nb_dtype_name(type), nb_codec_name(codec), mode, e.every);
            for (size_t i = 0; i < e.n; i++)
                nb_store_value(type, e.src, i, data_value(&r, kind, i, &scale));
            length = encode_both(&e, of % 4 != 0);
            compared++;
        }
        decode_both(&e, length, 0);
        encoder_close(&e, 0);
    }
    return compared;
}

/* Test values that shrink about as much as makes the bound act. Its estimate is then certain in some tiles
 * and uncertain in others where the bound does not act. Only some tiles are measured. */
unsigned cases_bound(unsigned seed)
{
    static const uint32_t everies[] = {3, 2, 17, 1, 16};
    struct rng r = {seed};
    unsigned compared = 0;
    for (unsigned step = 0; step < 5; step++) {
        const float times[] = {1.0f, 0.32f + 0.03f * (float)step};
        const enum nb_dtype type = step == 4 ? NB_F16 : NB_BF16;
        struct encoder e;
        size_t length = 0;
        double scale = 1;
        encoder_open(&e, NB_CODEC_INT4, type, 4096 * 7 + 32, 4096, NB_EF_FULL, 0);
        e.every = everies[step];
        for (unsigned pass = 0; pass < 2; pass++) {
            at_case("bound, values times %g, one tile of %u measured", (double)times[pass], e.every);
            for (size_t i = 0; i < e.n; i++)
                nb_store_value(type, e.src, i, times[pass] * data_value(&r, DATA_GAUSS, i, &scale));
            length = encode_both(&e, step != 1);
            compared++;
        }
        decode_both(&e, length, 0);
        encoder_close(&e, 0);
    }
    return compared;
}

/* Test sums of N sources of all codecs, with and without own values. */
unsigned cases_reduce(unsigned rounds, unsigned seed)
{
    unsigned compared = 0;
    struct rng r = {seed};
    for (unsigned round = 0; round < rounds; round++) {
        enum nb_dtype type = (enum nb_dtype)(rng_below(&r, NB_DTYPE_COUNT));
        size_t n = lengths[rng_below(&r, sizeof(lengths) / sizeof(*lengths))], size = nb_dtype_size(type);
        uint64_t first = firsts[rng_below(&r, sizeof(firsts) / sizeof(*firsts))];
        unsigned count = 1 + (unsigned)rng_below(&r, 9),
                 skew = rng_below(&r, 3) ? 0 : 1 + (unsigned)rng_below(&r, 7);
        unsigned usual = (unsigned)rng_below(&r, 2); /* 1: all are int4 */
        struct nb_gpu_source *sources = backend_alloc(count * sizeof(*sources));
        struct nb_source want_sources[16];
        uint8_t *values = malloc(n * size), *want = malloc(n * size), *own = backend_alloc((n + skew) * size);
        uint8_t *out = backend_alloc((n + skew) * size), *coded[16];
        double scale = 1;
        at_case("sum round %u seed %u type %s n %zu first %" PRIu64 " sources %u skew %u", round, seed,
                nb_dtype_name(type), n, first, count, skew);
        if (!values || !want)
            abort();
        for (unsigned s = 0; s <= count; s++) {
            enum data_kind kind = rng_below(&r, 3) ? DATA_GAUSS : (enum data_kind)rng_below(&r, DATA_KINDS);
            static const enum nb_codec others[] = {NB_CODEC_RAW, NB_CODEC_INT8, NB_CODEC_INT6};
            enum nb_codec codec = usual || rng_below(&r, 2) ? NB_CODEC_INT4 : others[rng_below(&r, 3)];
            for (size_t i = 0; i < n; i++)
                nb_store_value(type, s < count ? values : own + skew * size, i,
                               data_value(&r, kind, i, &scale));
            if (s == count)
                break;
            size_t cap = nb_encode_bound(codec, type, n);
            uint8_t *span = malloc(cap);
            ssize_t length = nb_encode(codec, type, values, n, first, NULL, span, cap, NULL);
            if (!span || length < 0)
                abort();
            coded[s] = backend_alloc((size_t)length + 4 * (s % 4));
            memcpy(coded[s] + 4 * (s % 4), span, (size_t)length);
            free(span);
            sources[s] = (struct nb_gpu_source){address(coded[s] + 4 * (s % 4)), (uint64_t)length, codec, 0};
            want_sources[s] = (struct nb_source){codec, coded[s] + 4 * (s % 4), (size_t)length};
        }
        int with_own = rng_below(&r, 4) != 0, in_place = rng_below(&r, 2) == 0;
        struct nb_gpu_result result;
        if (nb_reduce(type, want_sources, count, with_own ? own + skew * size : NULL, n, first, want))
            abort();
        uint8_t *to = (with_own && in_place ? own : out) + skew * size;
        struct nb_gpu_desc desc = {.op = NB_GPU_REDUCE,
                                   .type = (uint8_t)type,
                                   .n = n,
                                   .first = first,
                                   .own = with_own ? address(own + skew * size) : 0,
                                   .dst = address(to),
                                   .nsources = count,
                                   .sources = address(sources)};
        backend_run(&desc, 1, &result);
        same_number("result of the sum", result.length, 0);
        same("sum", to, want, n * size);
        compared++;
        for (unsigned s = 0; s < count; s++)
            backend_free(coded[s]);
        free(values);
        free(want);
        backend_free(own);
        backend_free(out);
        backend_free(sources);
    }
    return compared;
}

/* Test bytes that no encoder writes: the kernel refuses the bytes that nb_decode refuses, and decodes other
 * bytes to the same values. */
unsigned cases_malformed(unsigned rounds, unsigned seed)
{
    unsigned refused = 0;
    struct rng r = {seed};
    for (unsigned round = 0; round < rounds; round++) {
        enum nb_dtype type = (enum nb_dtype)(rng_below(&r, NB_DTYPE_COUNT));
        enum nb_codec codec = tiled[rng_below(&r, TILED)];
        size_t n = lengths[rng_below(&r, sizeof(lengths) / sizeof(*lengths))], size = nb_dtype_size(type);
        uint64_t first = firsts[rng_below(&r, sizeof(firsts) / sizeof(*firsts))];
        enum data_kind kind = rng_below(&r, 2) ? DATA_POISON : (enum data_kind)rng_below(&r, DATA_KINDS);
        size_t cap = nb_encode_bound(codec, type, n);
        uint8_t *values = malloc(n * size), *want = malloc(n * size), *span = malloc(cap + 8);
        uint8_t *out = backend_alloc(n * size);
        struct nb_gpu_source *source = backend_alloc(sizeof(*source));
        struct nb_gpu_result result;
        double scale = 1;
        at_case("malformed round %u seed %u type %s codec %s n %zu first %" PRIu64, round, seed,
                nb_dtype_name(type), nb_codec_name(codec), n, first);
        if (!values || !want || !span)
            abort();
        for (size_t i = 0; i < n; i++)
            nb_store_value(type, values, i, data_value(&r, kind, i, &scale));
        ssize_t length = nb_encode(codec, type, values, n, first, NULL, span, cap, NULL);
        for (unsigned k = (unsigned)rng_below(&r, 3); k > 0 || rng_below(&r, 2); k -= k > 0) {
            /* Damage a byte near the beginning, where headers and escapes are, or anywhere. */
            size_t at = rng_below(&r, 2) ? rng_below(&r, (uint64_t)(length < 40 ? length : 40))
                                         : rng_below(&r, (uint64_t)length);
            span[at] ^= (uint8_t)(1u << rng_below(&r, 8));
        }
        if (rng_below(&r, 4) == 0)
            length += rng_below(&r, 2) && length > 8 ? -4 : 4;
        if (length > (ssize_t)cap + 8)
            length = (ssize_t)cap;
        uint8_t *coded = backend_alloc((size_t)length);
        memcpy(coded, span, (size_t)length);
        *source = (struct nb_gpu_source){address(coded), (uint64_t)length, codec, 0};
        struct nb_gpu_desc desc = {.op = NB_GPU_DECODE,
                                   .type = (uint8_t)type,
                                   .n = n,
                                   .first = first,
                                   .dst = address(out),
                                   .nsources = 1,
                                   .sources = address(source)};
        backend_run(&desc, 1, &result);
        int expected = nb_decode(codec, type, coded, (size_t)length, n, first, want);
        same_number("result of decoding", result.length, expected);
        if (!expected)
            same("decoded values", out, want, n * size);
        refused += expected != 0;
        free(values);
        free(want);
        free(span);
        backend_free(coded);
        backend_free(out);
        backend_free(source);
    }
    return refused;
}

/* ---- Bytes ------------------------------------------------------------------------------------------- */

unsigned cases_bytes(unsigned rounds, unsigned seed)
{
    static const size_t sizes[] = {0, 1, 7, 255, 256, 300, 4096, 32768, 32769, 100003};
    unsigned compared = 0;
    struct rng r = {seed};
    for (unsigned round = 0; round < rounds; round++) {
        size_t bytes = sizes[rng_below(&r, sizeof(sizes) / sizeof(*sizes))];
        unsigned skew = rng_below(&r, 2) ? 0 : (unsigned)rng_below(&r, 16),
                 samples = 1 + (unsigned)rng_below(&r, 256);
        uint8_t *a = bytes_alloc(bytes + 16) + skew, *b = bytes_alloc(bytes + 16) + skew,
                *c = backend_alloc(bytes + 16);
        float *sums = backend_alloc(40 * sizeof(*sums));
        struct nb_gpu_result result[6];
        at_case("bytes round %u seed %u bytes %zu skew %u", round, seed, bytes, skew);
        for (size_t i = 0; i < bytes; i++) {
            a[i] = (uint8_t)rng_next(&r);
            b[i] = (uint8_t)(a[i] + rng_below(&r, 12));
        }
        int alike = rng_below(&r, 2) == 0;
        if (alike)
            memcpy(b, a, bytes);
        memset(c, 0xee, bytes + 16);
        uint64_t key = rng_next(&r);
        struct nb_gpu_desc desc[6] = {
            {.op = NB_GPU_COPY, .n = bytes, .src = address(a), .dst = address(c + skew)},
            {.op = NB_GPU_HASH, .n = bytes, .first = key, .src = address(a)},
            {.op = NB_GPU_EQUAL, .n = bytes, .src = address(a), .ref = address(b)},
            {.op = NB_GPU_LIKENESS, .n = bytes, .src = address(a), .ref = address(b), .nsources = samples},
            {.op = NB_GPU_COPY, .n = 0, .src = address(a), .dst = address(a)},
        };
        backend_run(desc, 5, result);
        same("copy", c + skew, a, bytes);
        for (unsigned i = 0; i < 16; i++)
            if (i != skew % 16 && (i < skew || i >= skew + bytes) && i < bytes + 16 && c[i] != 0xee)
                differs("what lies beside a copy");
        same_number("hash", (int64_t)result[1].value, (int64_t)nb_hash64(a, bytes, key));
        same_number("comparison", result[2].value != 0, memcmp(a, b, bytes) != 0);
        const struct nb_similarity near = nb_host_similarity(a, b, bytes, samples);
        same_number("likeness", (int64_t)result[3].value, (int64_t)(near.near16 << 32 | near.near8));
        same_number("lesser likeness", (int64_t)result[3].escapes, (int64_t)near.far16);
        enum nb_dtype type = (enum nb_dtype)rng_below(&r, NB_DTYPE_COUNT);
        size_t values = bytes / nb_dtype_size(type);
        unsigned groups = values >= 64 ? 1 + (unsigned)rng_below(&r, 40) : 0;
        uint64_t stride = groups > 1 ? (values - 32) / (groups - 1) : 0;
        uint8_t *base = a - skew;
        struct nb_gpu_desc profile[2] = {
            {.op = NB_GPU_PROFILE,
             .type = (uint8_t)type,
             .n = values,
             .first = stride,
             .src = address(base),
             .dst = address(sums),
             .nsources = groups},
            {.op = NB_GPU_ZERO, .n = bytes, .dst = address(c + skew)},
        };
        backend_run(profile, 2, result);
        for (unsigned g = 0; g < groups; g++) {
            float s[NB_GROUP];
            for (unsigned i = 0; i < NB_GROUP; i++) {
                float v = nb_load_value(type, base, g * stride + i);
                s[i] = v * v;
            }
            float sum = nb_sum_group(s);
            if (sum == sum || sums[g] == sums[g])
                same("profile", &sums[g], &sum, 4);
        }
        for (size_t i = 0; i < bytes + 16; i++)
            if (c[i] != (i >= skew && i < skew + bytes ? 0 : 0xee))
                differs("zeros");
        compared += 6;
        backend_free(a - skew);
        backend_free(b - skew);
        backend_free(c);
        backend_free(sums);
    }
    return compared;
}

/* ---- The golden vectors ------------------------------------------------------------------------------ */

unsigned cases_golden(const char *path)
{
    struct golden_file f;
    unsigned compared = 0;

    golden_open(&f, path);
    for (unsigned c = 0; c < GOLDEN_CASES; c++) {
        const struct golden_case *k = &golden_cases[c];
        struct encoder e;
        struct rng r = {1000 + c};
        size_t bytes, length = 0;
        at_case("golden case %u", c);
        encoder_open(&e, k->codec, k->type, k->n, k->first, k->mode, 0);
        e.ef.beta = 0.75f;
        e.ef.bound = 0.25f;
        for (int round = 0; round < (k->mode == NB_EF_OFF ? 1 : 3); round++) {
            for (unsigned i = 0; i < k->n; i++)
                nb_store_value(k->type, e.src, i, golden_value(&r, k->shape, i));
            length = encode_both(&e, 0);
        }
        const uint8_t *input = golden_next(&f, &bytes);
        same("input", e.src, input, bytes);
        const uint8_t *span = golden_next(&f, &bytes);
        same_number("length", (int64_t)length, (int64_t)bytes);
        same("coded bytes", e.dst, span, bytes);
        golden_next(&f, &bytes); /* decoded values: */
        decode_both(&e, length, 0);
        const uint8_t *err = golden_next(&f, &bytes);
        same("errors", e.err + k->first, err, bytes);
        const uint8_t *scale = golden_next(&f, &bytes);
        same("error scales", e.scale + k->first / 32, scale, bytes);
        encoder_close(&e, 0);
        compared++;
    }
    golden_close(&f);
    return compared;
}
