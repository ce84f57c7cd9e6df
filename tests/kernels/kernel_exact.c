/* SPDX-License-Identifier: Apache-2.0 */
/* Compare the kernels of exact reductions and of samples with plugin/device, and test the descriptors that
 * nb_gpu_plan refuses. See kernel_cases.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/nccl_names.h"
#include "codec/format.h"
#include "codec/pick.h"
#include "device/host/host.h"
#include "kernel_cases.h"
#include "kernel_check.h"
#include "tests/codec/data.h"
#include "tests/gpu/backend.h"

/* Return whether value i is a NaN of its type. */
static int is_nan(ncclDataType_t type, const uint8_t *p, size_t i)
{
    double d;
    switch (type) {
    case ncclFloat16: return (nb_get16(p + 2 * i) & 0x7fff) > 0x7c00;
    case ncclBfloat16: return (nb_get16(p + 2 * i) & 0x7fff) > 0x7f80;
    case ncclFloat32: return (nb_get32(p + 4 * i) & NB_F32_ABS) > NB_F32_INF;
    case ncclFloat64: memcpy(&d, p + 8 * i, 8); return d != d;
    default: return 0;
    }
}

static void fill(struct rng *r, ncclDataType_t type, unsigned kind, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = rng_gauss(r) * (kind == 1 ? 1e4 : 1);
        uint64_t any = rng_next(r);
        const size_t size = nb_nccl_type_size(type);
        float f =
            kind == 2 ? (float)(int)rng_below(r, 3) - 1 : (float)v; /* many equal values, zeros of one sign */
        f += 0.0f;
        if (type == ncclFloat16)
            nb_store_value(NB_F16, p, i, f);
        else if (type == ncclBfloat16)
            nb_store_value(NB_BF16, p, i, f);
        else if (type == ncclFloat32)
            memcpy(p + 4 * i, &f, 4);
        else if (type == ncclFloat64)
            memcpy(p + 8 * i, &v, 8);
        else
            memcpy(p + i * size, &any, size);
        if (kind == 3 && rng_below(r, 8) == 0) /* infinities, NaN, denormals, any bits */
            memcpy(p + i * size, &any, size);
    }
}

unsigned cases_exact(unsigned rounds, unsigned seed)
{
    static const size_t counts[] = {0, 1, 7, 16, 255, 4096, 8192 + 5, 20000, 33000};
    unsigned compared = 0;
    struct rng r = {seed + 9000u};
    for (unsigned round = 0; round < rounds; round++) {
        ncclDataType_t type = (ncclDataType_t)(round % 10);
        ncclRedOp_t op = (ncclRedOp_t)(round / 10 % 4);
        size_t n = counts[rng_below(&r, round % 4 ? 7 : 9)], size = nb_nccl_type_size(type);
        unsigned kind = (unsigned)rng_below(&r, 4), with_own = (unsigned)rng_below(&r, 2);
        unsigned count = (unsigned)rng_below(&r, 6) + !with_own, in_place = with_own && rng_below(&r, 2);
        unsigned skew = rng_below(&r, 3) ? 0 : (unsigned)(1 + rng_below(&r, 7)) * (unsigned)size;
        if (round % 40 == 36 || round % 40 == 9)
            count = 65 + (unsigned)rng_below(&r, 8), n = n > 300 ? 300 : n;
        struct nb_gpu_source *sources = backend_alloc(count * sizeof(*sources));
        uint8_t **at = calloc(count + 1, sizeof(*at)), *want = malloc(n * size + 1);
        uint8_t *own = backend_alloc(n * size + skew), *out = backend_alloc(n * size + skew);
        struct nb_gpu_result result;
        if (!at || !want)
            abort();
        at_case("exact round %u seed %u type %s op %d n %zu sources %u own %u kind %u skew %u", round, seed,
                nb_nccl_type_name(type), op, n, count, with_own, kind, skew);
        for (unsigned s = 0; s < count; s++) {
            at[s] = (uint8_t *)backend_alloc(n * size + 3) + (skew ? s % 4 : 0); /* at any byte */
            fill(&r, type, kind, at[s], n);
            sources[s] = (struct nb_gpu_source){address(at[s]), n * size, NB_CODEC_RAW, 0};
        }
        fill(&r, type, kind, own + skew, n);
        if (nb_exact_reduce(type, op, (const void *const *)at, count, with_own ? own + skew : NULL, n, want))
            abort();
        uint8_t *to = (in_place ? own : out) + skew;
        struct nb_gpu_desc desc = {.op = NB_GPU_REDUCE_EXACT,
                                   .type = (uint8_t)type,
                                   .mode = (uint8_t)op,
                                   .n = n,
                                   .own = with_own ? address(own + skew) : 0,
                                   .dst = address(to),
                                   .nsources = count,
                                   .sources = address(sources)};
        backend_run(&desc, 1, &result);
        same_number("result of the reduction", result.length, 0);
        const int codec = op == ncclSum && size == 2 && count <= 64;
        for (size_t i = 0; i < n; i++)
            if (codec || !is_nan(type, want, i) || !is_nan(type, to, i))
                same("value", to + i * size, want + i * size, size);
        compared++;
        for (unsigned s = 0; s < count; s++)
            backend_free(at[s] - (skew ? s % 4 : 0));
        backend_free(sources);
        backend_free(own);
        backend_free(out);
        free(at);
        free(want);
    }
    return compared;
}

unsigned cases_evidence(unsigned rounds, unsigned seed)
{
    unsigned compared = 0;
    struct rng r = {seed + 10000u};
    for (unsigned round = 0; round < rounds; round++) {
        enum nb_dtype type = (enum nb_dtype)rng_below(&r, NB_DTYPE_COUNT);
        size_t n = 1 + rng_below(&r, round % 2 ? 400 : 20000), size = nb_dtype_size(type);
        unsigned samples = (unsigned)rng_below(&r, 300), groups = (unsigned)rng_below(&r, 70);
        uint8_t *src = backend_alloc(n * size);
        float *taken = backend_alloc(300 * sizeof(float)), *sums = backend_alloc(70 * sizeof(float)),
              want[300];
        struct nb_gpu_result result[2];
        double scale = 1;
        at_case("evidence round %u seed %u type %s n %zu samples %u groups %u", round, seed,
                nb_dtype_name(type), n, samples, groups);
        for (size_t i = 0; i < n; i++)
            nb_store_value(type, src, i, data_value(&r, DATA_GAUSS, i, &scale));
        struct nb_gpu_desc desc[2] = {{.op = NB_GPU_SAMPLE,
                                       .type = (uint8_t)type,
                                       .n = n,
                                       .src = address(src),
                                       .dst = address(taken),
                                       .nsources = samples},
                                      {.op = NB_GPU_PROFILE,
                                       .type = (uint8_t)type,
                                       .flags = NB_GPU_SPREAD,
                                       .n = n,
                                       .src = address(src),
                                       .dst = address(sums),
                                       .nsources = groups}};
        backend_run(desc, 2, result);
        unsigned expected = nb_host_sample(type, src, n, samples, want);
        same_number("count of samples", result[0].length, expected);
        same("samples", taken, want, expected * sizeof(float));
        same_number("count of groups", result[1].length, n / 32 < groups ? 0 : groups);
        for (unsigned g = 0; g < (unsigned)result[1].length; g++) {
            float sum = 0;
            for (unsigned k = 0; k < 32; k++) {
                float v = nb_load_value(type, src, n / 32 * g / groups * 32 + k);
                sum += v * v;
            }
            same("sum of a group", &sums[g], &sum, 4);
        }
        compared += 2;
        backend_free(src);
        backend_free(taken);
        backend_free(sums);
    }
    return compared;
}

/* Test picks from a block that comes in pieces, in any order. They must equal nb_pick's. */
unsigned cases_picks(unsigned rounds, unsigned seed)
{
    static const uint8_t widths[] = {1, 2, 4};
    static uint32_t want[NB_PICKS], got[NB_PICKS];
    unsigned compared = 0;
    struct rng r = {seed + 11000u};

    for (unsigned round = 0; round < rounds; round++) {
        const uint8_t width = widths[rng_below(&r, 3)];
        const size_t n = 512 + rng_below(&r, round % 3 == 0 ? 1500000 : round % 3 == 1 ? 600 : 40000);
        const unsigned picks = round % 7 == 6 ? 256u << rng_below(&r, 2) : nb_picks_of(n);
        uint8_t *src = backend_alloc(n * width);
        uint32_t *values = backend_alloc(NB_PICKS * sizeof(*values));
        unsigned together = 0;

        at_case("picks round %u seed %u width %u n %zu picks %u", round, seed, width, n, picks);
        for (size_t i = 0; i < n * width; i++)
            src[i] = (uint8_t)rng_next(&r);
        memset(got, 0xee, sizeof(got));
        memset(want, 0xee, sizeof(want));
        same_number("number of picks", nb_pick(width, src, n, picks, 0, n, want), picks);
        for (size_t at = 0, piece; at < n; at += piece) {
            struct nb_gpu_result result;
            unsigned begin, parts;

            piece = round % 2 ? n : 1 + rng_below(&r, (unsigned)(n / 3));
            piece = piece < n - at ? piece : n - at;
            parts = nb_pick_parts(n, picks, at, piece, &begin);
            memset(values, 0x55, NB_PICKS * sizeof(*values));
            struct nb_gpu_desc desc = {.op = NB_GPU_PICK,
                                       .width = width,
                                       .n = piece,
                                       .first = at,
                                       .limit = n,
                                       .picks = picks,
                                       .part = begin,
                                       .nsources = parts,
                                       .src = address(src + at * width),
                                       .dst = address(values)};
            backend_run(&desc, 1, &result);
            same_number("result of a pick", result.length, 0);
            for (unsigned i = parts; i < NB_PICKS; i++)
                same_number("what lies behind", values[i], 0x55555555);
            nb_pick_place(picks, begin, parts, values, got);
            together += parts;
        }
        same_number("picks of all pieces", together, picks);
        same("picks", got, want, sizeof(got));
        backend_free(src);
        backend_free(values);
        compared++;
    }
    return compared;
}

/* ---- Refused descriptors ------------------------------------------------------------------------------- */

unsigned cases_plan(void)
{
    static const struct {
        int result;
        struct nb_gpu_desc desc;
    } cases[] = {
#define BASE \
    .result = 4096, .n = 100, .src = 4096, .ref = 8192, .dst = 12288, .sources = 16384, .scratch = 20480
#define WITH(...) {BASE, __VA_ARGS__}
        {-EINVAL, WITH(.op = NB_GPU_NONE)},
        {-EINVAL, WITH(.op = NB_GPU_OP_COUNT)},
        {-EINVAL, WITH(.op = NB_GPU_ULP_ENCODE, .width = 3)},
        {-EINVAL, WITH(.op = NB_GPU_ULP_ENCODE, .width = 0)},
        {-EINVAL, WITH(.op = NB_GPU_ULP_DECODE, .width = 2, .nsources = 2)},
        {-EINVAL, WITH(.op = NB_GPU_DELTA4_ENCODE, .type = NB_DTYPE_COUNT)},
        {-EINVAL, WITH(.op = NB_GPU_DELTA4_DECODE, .type = NB_BF16)},
        {-EINVAL, WITH(.op = NB_GPU_REDUCE_EXACT, .type = ncclFloat8e4m3, .mode = ncclSum, .nsources = 1)},
        {-EINVAL, WITH(.op = NB_GPU_REDUCE_EXACT, .type = ncclFloat32, .mode = ncclAvg, .nsources = 1)},
        {-EINVAL, WITH(.op = NB_GPU_REDUCE_EXACT, .type = ncclFloat32, .mode = ncclSum)},
        {-EINVAL,
         WITH(.op = NB_GPU_REDUCE_EXACT, .type = ncclInt8, .mode = ncclMin, .nsources = NB_MAX_SOURCES + 1)},
        {-EINVAL, WITH(.op = NB_GPU_SAMPLE, .type = NB_F32, .nsources = 65537)},
        {-EINVAL, WITH(.op = NB_GPU_SAMPLE, .type = NB_DTYPE_COUNT, .nsources = 1)},
        {-EINVAL, WITH(.op = NB_GPU_PROFILE, .type = NB_F32, .flags = NB_GPU_SPREAD, .nsources = 65537)},
/* Pick 100 values of a block of `values`, beginning with number `from`. */
#define PICK(bytes, values, from, all, begin, parts, at, to) \
    {.op = NB_GPU_PICK, \
     .result = 4096, \
     .n = 100, \
     .width = (bytes), \
     .limit = (values), \
     .first = (from), \
     .picks = (all), \
     .part = (begin), \
     .nsources = (parts), \
     .src = (at), \
     .dst = (to)}
        {-EINVAL, PICK(3, 1000, 0, 256, 0, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 0, 255, 0, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 0, 0, 0, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 100000, 0, 2 * NB_PICKS, 0, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 255, 0, 256, 0, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 901, 256, 230, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 900, 256, 232, 25, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 900, 256, 257, 0, 4096, 8192)},
        {-EINVAL, PICK(4, 1000, 900, 256, 231, 25, 0, 8192)},
        {-EINVAL, PICK(4, 1000, 900, 256, 231, 25, 4096, 0)},
        {-ENOTSUP, PICK(4, 1000, 900, 256, 231, 25, 4098, 8192)},
        {-ENOTSUP, PICK(1, 1000, 900, 256, 231, 25, 4097, 8194)},
        {-EINVAL, {.op = NB_GPU_ULP_ENCODE, .width = 2, .n = 10, .src = 4096, .ref = 4096, .dst = 4096}},
        {-EINVAL, {.result = 4096, .op = NB_GPU_ULP_ENCODE, .width = 2, .n = 10, .ref = 4096, .dst = 4096}},
        {-EINVAL, {.result = 4096, .op = NB_GPU_ULP_ENCODE, .width = 2, .n = 10, .src = 4096, .ref = 4096}},
        {-ENOTSUP,
         {.result = 4096, .op = NB_GPU_ULP_ENCODE, .width = 2, .n = 10, .src = 4097, .ref = 64, .dst = 64}},
        {-ENOTSUP,
         {.result = 4096, .op = NB_GPU_ULP_ENCODE, .width = 4, .n = 16, .src = 64, .ref = 66, .dst = 64}},
        {-ENOTSUP,
         {.result = 4096,
          .op = NB_GPU_ULP_ENCODE,
          .width = 1,
          .n = 16,
          .src = 64,
          .ref = 66,
          .dst = 64,
          .scratch = 8}},
        {-ENOTSUP, {.result = 4100, .op = NB_GPU_ULP_GUESS, .n = 16, .src = 64, .ref = 64}},
        {-ENOTSUP, {.result = 4096, .op = NB_GPU_ULP_GUESS, .n = 16, .src = 62, .ref = 64}},
        {-ENOTSUP,
         {.result = 4096,
          .op = NB_GPU_DELTA4_ENCODE,
          .type = NB_F32,
          .n = 16,
          .src = 62,
          .ref = 64,
          .dst = 64}},
        {-ENOTSUP,
         {.result = 4096,
          .op = NB_GPU_REDUCE_EXACT,
          .type = ncclFloat64,
          .mode = ncclSum,
          .n = 16,
          .nsources = 1,
          .sources = 64,
          .dst = 68}},
        {-ENOTSUP,
         {.result = 4096,
          .op = NB_GPU_REDUCE_EXACT,
          .type = ncclInt32,
          .mode = ncclSum,
          .n = 16,
          .nsources = 1,
          .sources = 68,
          .dst = 64}},
        {-ENOTSUP,
         {.result = 4096,
          .op = NB_GPU_SAMPLE,
          .type = NB_BF16,
          .n = 16,
          .nsources = 4,
          .src = 63,
          .dst = 64}},
    };
    const unsigned count = sizeof(cases) / sizeof(*cases);
    for (unsigned i = 0; i < count; i++) {
        struct nb_gpu_desc desc = cases[i].desc;
        at_case("descriptor %u that is to be refused", i);
        same_number("result of nb_gpu_plan", nb_gpu_plan(&desc), cases[i].result);
    }
    return count;
}
