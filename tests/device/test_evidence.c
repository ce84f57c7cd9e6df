/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of values (device/host/evidence.c) equal a loop over one value after the other, to the bit. */
#include "device/host/host.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/fp.h"
#include "tests/suite.h"

#define VALUES 20011u

static uint32_t next(uint32_t *r)
{
    *r ^= *r << 13;
    *r ^= *r >> 17;
    *r ^= *r << 5;
    return *r;
}

/* Compare `groups` of n values that begin `off` bytes behind an aligned address. */
static void compare_sums(enum nb_dtype type, const uint8_t *bytes, size_t off, size_t n, unsigned groups)
{
    float got[300], want;
    const size_t all = n / NB_PROFILE_GROUP;
    const unsigned found = nb_host_sums(type, bytes + off, n, groups, got);

    ck_assert_uint_eq(found, all < groups ? 0 : groups);
    for (unsigned g = 0; g < found; g++) {
        const size_t at = all * g / groups * NB_PROFILE_GROUP;
        want = 0;
        for (unsigned k = 0; k < NB_PROFILE_GROUP; k++) {
            const float v = nb_load_value(type, bytes + off, at + k);
            want += v * v;
        }
        ck_assert_mem_eq(&got[g], &want, sizeof(want));
    }
}

START_TEST(test_sums)
{
    static const enum nb_dtype types[] = {NB_F32, NB_BF16, NB_F16};
    static const unsigned groups[] = {1, 7, 8, 9, 100, 255, 256};
    uint8_t *bytes = malloc(4 * VALUES + 2);
    uint32_t random = 1;

    for (size_t i = 0; i < 4 * VALUES + 2; i += 2) {
        uint16_t half = (uint16_t)(next(&random) & 0xbfff); /* squares stay finite */
        memcpy(bytes + i, &half, 2);
    }
    for (unsigned t = 0; t < 3; t++)
        for (unsigned g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
            for (size_t n = 0; n <= VALUES; n += 1 + n / 2 + 31)
                compare_sums(types[t], bytes, n % 4 ? 2 : 0, n, groups[g]);
    free(bytes);
}
END_TEST

START_TEST(test_profile)
{
    float sums[] = {32.0f, 128.0f, 0.0f, 32.0f * 0x1p-60f}, out[4];

    ck_assert_uint_eq(nb_profile_of_sums(sums, 4, out), 4);
    ck_assert(out[0] == 0.0f && out[1] == 1.0f); /* logarithms of the rms */
    ck_assert(out[2] == -150.0f);                /* zeros */
    ck_assert(out[3] == 1.0f - 16.0f);           /* the lowest level that counts below the largest */
    sums[2] = INFINITY;
    ck_assert_uint_eq(nb_profile_of_sums(sums, 4, out), 0);
    sums[2] = NAN;
    ck_assert_uint_eq(nb_profile_of_sums(sums, 4, out), 0);
    memset(sums, 0, sizeof(sums));
    ck_assert_uint_eq(nb_profile_of_sums(sums, 4, out), 0);
}
END_TEST

SUITE_MAIN("evidence", TEST(test_sums), TEST(test_profile))
