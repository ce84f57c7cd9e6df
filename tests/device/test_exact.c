/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of plain values. */
#include "device/host/host.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/nccl_names.h"
#include "tests/suite.h"

static uint64_t rng(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * UINT64_C(2685821657736338717);
}

START_TEST(exact_integers_wrap)
{
    int8_t a[3] = {127, -128, 100}, b[3] = {1, -1, 100}, own[3] = {0, 0, 100}, out[3];
    const void *src[2] = {a, b};
    int64_t big[2] = {INT64_MAX, INT64_MIN}, one[2] = {1, -1}, sum[2];
    const void *bsrc[1] = {big};

    ck_assert_int_eq(nb_exact_reduce(ncclInt8, ncclSum, src, 2, own, 3, out), 0);
    ck_assert_int_eq(out[0], -128);
    ck_assert_int_eq(out[1], 127);
    ck_assert_int_eq(out[2], (int8_t)300);
    ck_assert_int_eq(nb_exact_reduce(ncclInt8, ncclMax, src, 2, own, 3, out), 0);
    ck_assert_int_eq(out[0], 127);
    ck_assert_int_eq(out[1], 0);
    ck_assert_int_eq(nb_exact_reduce(ncclUint8, ncclMax, src, 2, own, 3, out), 0);
    ck_assert_int_eq((uint8_t)out[1], 255);
    ck_assert_int_eq(nb_exact_reduce(ncclInt64, ncclSum, bsrc, 1, one, 2, sum), 0);
    ck_assert(sum[0] == INT64_MIN && sum[1] == INT64_MAX);
}
END_TEST

/* Compare every type and reduction with a plain loop, over lengths around the block size, unaligned, in
 * place. */
START_TEST(exact_all_types)
{
    static const ncclDataType_t types[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
                                           ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin};
    static const size_t sizes[] = {1, 31, 1023, 1024, 1025, 3000};
    uint64_t seed = 5;

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        size_t value = nb_nccl_type_size(types[t]);
        for (size_t o = 0; o < 4; o++) {
            for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
                size_t n = sizes[z], bytes = n * value;
                uint8_t *mem = malloc(4 * (bytes + 1)), *single = malloc(bytes);
                const void *src[3];
                ck_assert_int_eq(nb_exact_supported(types[t], ops[o]), 1);
                for (int k = 0; k < 4; k++) { /* small integers are exact in every type */
                    uint8_t *p = mem + (size_t)k * (bytes + 1) + 1;
                    if (k < 3)
                        src[k] = p;
                    for (size_t i = 0; i < n; i++) {
                        int v = (int)(rng(&seed) % 3) + 1;
                        float f = (float)v;
                        double d = v;
                        uint32_t bits;
                        uint16_t h = (uint16_t)(v == 1 ? 0x3c00 : v == 2 ? 0x4000 : 0x4200);
                        uint16_t bf;
                        uint64_t u = (uint64_t)v;
                        memcpy(&bits, &f, 4);
                        bf = (uint16_t)(bits >> 16);
                        const void *from = types[t] == ncclFloat32    ? (const void *)&f
                                           : types[t] == ncclFloat64  ? (const void *)&d
                                           : types[t] == ncclFloat16  ? (const void *)&h
                                           : types[t] == ncclBfloat16 ? (const void *)&bf
                                                                      : (const void *)&u;
                        memcpy(p + i * value, from, value);
                    }
                }
                uint8_t *own = mem + 3 * (bytes + 1) + 1;
                /* One value at a time gives the same results as all at once. */
                for (size_t i = 0; i < n; i++) {
                    const void *one[3] = {(const uint8_t *)src[0] + i * value,
                                          (const uint8_t *)src[1] + i * value,
                                          (const uint8_t *)src[2] + i * value};
                    ck_assert_int_eq(
                        nb_exact_reduce(types[t], ops[o], one, 3, own + i * value, 1, single + i * value), 0);
                }
                ck_assert_int_eq(nb_exact_reduce(types[t], ops[o], src, 3, own, n, own), 0);
                ck_assert_int_eq(memcmp(own, single, bytes), 0);
                free(mem);
                free(single);
            }
        }
    }
    ck_assert_int_eq(nb_exact_supported(ncclFloat8e4m3, ncclSum), 0);
    ck_assert_int_eq(nb_exact_supported(ncclFloat32, ncclAvg), 0);
    ck_assert_int_eq(nb_exact_reduce(ncclFloat8e5m2, ncclSum, NULL, 0, &seed, 1, &seed), -EINVAL);
}
END_TEST

START_TEST(exact_known_values)
{
    float a[2] = {1.5f, NAN}, own[2] = {2.25f, 3.0f}, out[2];
    uint16_t ha[1] = {0x7bff}, hb[1] = {0x7bff}; /* 65504 + 65504 overflows FP16 without the plugin too */
    const void *src[1] = {a}, *hsrc[1] = {ha};

    ck_assert_int_eq(nb_exact_reduce(ncclFloat32, ncclProd, src, 1, own, 2, out), 0);
    ck_assert(out[0] == 3.375f && isnan(out[1]));
    ck_assert_int_eq(nb_exact_reduce(ncclFloat32, ncclMax, src, 1, own, 2, out), 0);
    ck_assert(out[0] == 2.25f && out[1] == 3.0f);
    ck_assert_int_eq(nb_exact_reduce(ncclFloat16, ncclSum, hsrc, 1, hb, 1, hb), 0);
    ck_assert_uint_eq(hb[0], 0x7c00);
}
END_TEST

SUITE_MAIN("exact", TEST(exact_integers_wrap), TEST(exact_all_types), TEST(exact_known_values))
