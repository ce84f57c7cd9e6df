/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of payloads and references never changes, is the same in every variant, and spreads similar
 * inputs. */
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "reference.h"
#include "tests/suite.h"

static void *bytes_of(size_t bytes)
{
    void *p = malloc(bytes);

    ck_assert_ptr_nonnull(p);
    return p;
}

START_TEST(frozen)
{
    uint8_t a[300];

    for (unsigned i = 0; i < 300; i++)
        a[i] = (uint8_t)i;
    ck_assert(nb_hash64(a, 0, 0) == UINT64_C(0x377524e6feeac763));
    ck_assert(nb_hash64(a, 300, 1) == UINT64_C(0x4fc2fd816067a6b7));
}
END_TEST

START_TEST(variants_agree)
{
    struct rng rng = {1};
    uint8_t *a = bytes_of(70000);

    for (size_t i = 0; i < 70000; i++)
        a[i] = (uint8_t)rng_next(&rng);
    for (size_t n = 0; n < 66000; n = n < 1100 ? n + 1 : n * 9 / 8) {
        uint64_t want = 0;
        for (int v = VARIANT_REFERENCE; next_variant(&v); v++) {
            uint64_t h = nb_hash64(a + n % 64, n, n * 3);
            if (v == VARIANT_REFERENCE)
                want = h;
            ck_assert_uint_eq(h, want);
        }
    }
    nb_codec_select(NB_VARIANT_AUTO);
    free(a);
}
END_TEST

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Return the number of pairs of equal values among n, after keeping `bits` of each. */
static size_t equal_pairs(uint64_t *h, size_t n, unsigned shift)
{
    size_t equal = 0;

    for (size_t i = 0; i < n; i++)
        h[i] >>= shift;
    qsort(h, n, sizeof(*h), compare);
    for (size_t i = 1; i < n; i++)
        equal += h[i] == h[i - 1];
    return equal;
}

START_TEST(avalanche)
{
    static const size_t lengths[] = {1, 2, 8, 31, 64, 255, 256, 257, 600, 5000};
    struct rng rng = {2};
    uint8_t a[5000];

    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        size_t n = lengths[l], flips = 0;
        unsigned per_bit[64] = {0};
        for (size_t i = 0; i < n; i++)
            a[i] = l % 2 ? (uint8_t)rng_next(&rng) : 0;
        for (int t = 0; t < 2000; t++) {
            size_t bit = rng_next(&rng) % (8 * n);
            if (n < 250 || t % 3)
                a[rng_next(&rng) % n] = (uint8_t)rng_next(&rng);
            uint64_t h = nb_hash64(a, n, (uint64_t)t);
            a[bit / 8] ^= (uint8_t)(1 << bit % 8);
            uint64_t d = h ^ nb_hash64(a, n, (uint64_t)t);
            ck_assert_uint_ne(d, 0);
            flips += (size_t)__builtin_popcountll(d);
            for (unsigned i = 0; i < 64; i++)
                per_bit[i] += d >> i & 1;
        }
        /* 2000 x 64 fair coins: sigma of the sum 179, of a bit 22. */
        ck_assert_msg(flips > 64000 - 900 && flips < 64000 + 900, "length %zu: %zu flips", n, flips);
        for (unsigned i = 0; i < 64; i++)
            ck_assert_msg(per_bit[i] > 1000 - 125 && per_bit[i] < 1000 + 125, "length %zu bit %u: %u", n, i,
                          per_bit[i]);
    }
}
END_TEST

/* Similar inputs: all their hashes differ, and halves of the hashes are equal no more often than by
 * chance. */
START_TEST(collisions)
{
    const size_t n = 1 << 18;
    uint64_t *h = bytes_of(8 * n), *low = bytes_of(8 * n);

    for (int set = 0; set < 5; set++) {
        uint8_t a[1024] = {0};
        for (size_t i = 0; i < n; i++) {
            size_t len = set == 3 ? i % 1000 : 1024;
            memset(a, 0, sizeof(a));
            switch (set) {
            case 0: /* counters in one word */ memcpy(a + 8 * 37, &i, sizeof(i)); break;
            case 1: /* two flipped bits in one lane's words of two stripes */
                a[8 * 5 + i % 8] = (uint8_t)(1 << i / 8 % 8);
                a[256 + 8 * 5 + i / 64 % 8] ^= (uint8_t)(1 << i / 512 % 8);
                a[768] = (uint8_t)(i >> 12);
                break;
            case 2: /* small counters in two neighboring words */
                a[512] = (uint8_t)i;
                a[520] = (uint8_t)(i >> 8);
                a[528] = (uint8_t)(i >> 16);
                break;
            case 3: /* zeros of different lengths, different seeds */ break;
            default: /* one last-place step in each of two 16-bit values of many */
                a[i % 512 * 2] = 1;
                a[i / 512 * 2] += 2;
                break;
            }
            h[i] = nb_hash64(a, len, set == 3 ? i / 1000 : 0);
        }
        memcpy(low, h, 8 * n);
        for (size_t i = 0; i < n; i++)
            low[i] <<= 32;
        ck_assert_uint_eq(equal_pairs(h, n, 0), 0);
        /* Chance: n^2 / 2^33 = 8 pairs. */
        ck_assert_uint_le(equal_pairs(low, n, 32), 24);
        ck_assert_uint_le(equal_pairs(h, n, 32), 24);
    }
    free(h);
    free(low);
}
END_TEST

SUITE_MAIN("hash", TEST(frozen), TEST(variants_agree), TEST(avalanche), TEST(collisions))
