/* SPDX-License-Identifier: Apache-2.0 */
/* The agreement of two patterns of signs (policy/recognise/signs.c), compared with plain loops. */
#include <math.h>
#include <stdlib.h>

#include "policy/recognise/internal.h"
#include "tests/suite.h"
#include "trace.h"

static void set(struct nb_signs *s, unsigned i, int sign)
{
    uint64_t bit = UINT64_C(1) << (i % 64);

    s->negative[i / 64] |= sign < 0 ? bit : 0;
    s->positive[i / 64] |= sign > 0 ? bit : 0;
}

/* Compare with plain loops, over random planes. For chance the standard deviation must be 1. */
START_TEST(test_agreement)
{
    uint64_t seed = 5;
    double sum = 0, square = 0;

    for (unsigned round = 0; round < 400; round++) {
        struct nb_signs a = {{0}, {0}}, b = {{0}, {0}};
        struct nb_change change;
        const unsigned most = round % 2 ? 1024 : NB_PICKS, one_sided = round % 3;
        double n = 0, sg = 0, sd = 0, gg = 0, gd = 0, expected, var;
        struct nb_agreement agreed;
        float z;

        for (unsigned i = 0; i < NB_PICKS; i++) {
            /* both lean to one side: a common sign of all values is not agreement */
            int g = (int)(rnd(&seed) % (3 + one_sided)) - 1, d = (int)(rnd(&seed) % (3 + one_sided)) - 1;
            g = g > 1 ? 1 : g;
            d = d > 1 ? 1 : d;
            set(&a, i, g);
            set(&b, i, d);
            if (!d || n == most)
                continue;
            n++;
            sg += g;
            sd += d;
            gg += g * g;
            gd += g * d;
        }
        var = (gg - sg * sg / n) * (n - sd * sd / n);
        expected = (gd - sg * sd / n) / sqrt(var) * sqrt(n);
        nb_change_of(&change, &b, &(struct nb_signs){{0}, {0}}, NB_PICKS, most);
        agreed = nb_signs_agree(&a, &change);
        z = nb_agreement_z(&agreed);
        ck_assert(fabs(z - expected) < 1e-3);
        sum += z;
        square += (double)z * z;
    }
    ck_assert(fabs(sum / 400) < 0.2);
    ck_assert(fabs(sqrt(square / 400) - 1) < 0.12);
}
END_TEST

static int sign_at(const struct nb_signs *s, unsigned i)
{
    return (int)(s->positive[i / 64] >> (i % 64) & 1) - (int)(s->negative[i / 64] >> (i % 64) & 1);
}

/* Compare with plain loops. For signs that agree alike with a change and with the one before, the mean is 0
 * and the deviation 1, however large the unchanged part of both. */
START_TEST(test_contrast)
{
    uint64_t seed = 6;

    for (unsigned stays = 0; stays < 100; stays += 33) {
        double sum = 0, square = 0;

        for (unsigned round = 0; round < 400; round++) {
            struct nb_signs a = {{0}, {0}}, b = {{0}, {0}}, c = {{0}, {0}};
            struct nb_change change;
            const unsigned most = round % 2 ? 512 : NB_PICKS;
            double n = 0, sg = 0, sd = 0, gg = 0, dd = 0, gd = 0, var;
            struct nb_agreement agreed;
            float z;

            for (unsigned i = 0; i < NB_PICKS; i++) {
                const int lasting = (int)(rnd(&seed) % 3) - 1;
                set(&a, i, rnd(&seed) % 100 < 80 ? lasting : (int)(rnd(&seed) % 3) - 1);
                set(&b, i, rnd(&seed) % 100 < stays ? lasting : (int)(rnd(&seed) % 3) - 1);
                set(&c, i, rnd(&seed) % 100 < stays ? lasting : (int)(rnd(&seed) % 3) - 1);
            }
            for (unsigned i = 0; i < NB_PICKS && n < most; i++) {
                const int g = sign_at(&a, i), d = sign_at(&b, i) - sign_at(&c, i);
                if (!g || !d)
                    continue;
                n++;
                sg += g;
                sd += d;
                gg += g * g;
                dd += d * d;
                gd += g * d;
            }
            var = (gg - sg * sg / n) * (dd - sd * sd / n);
            nb_change_of(&change, &b, &c, NB_PICKS, most);
            agreed = nb_signs_contrast(&a, &change);
            z = nb_agreement_z(&agreed);
            ck_assert(fabs(z - (gd - sg * sd / n) / sqrt(var) * sqrt(n)) < 1e-3);
            sum += z;
            square += (double)z * z;
        }
        ck_assert(fabs(sum / 400) < 0.2);
        ck_assert(fabs(sqrt(square / 400) - 1) < 0.12);
    }
}
END_TEST

START_TEST(test_signs)
{
    static const uint32_t raw[] = {0x3f80, 0xbf80, 0, 0x8000, 0x7f80, 0xff81, 0x0001, 0x8001};
    struct nb_signs s;

    nb_signs_of(NB_BF16, raw, 8, &s);
    ck_assert_uint_eq(s.positive[0], 0x41);
    ck_assert_uint_eq(s.negative[0], 0x82);
    nb_signs_of(NB_F32, (const uint32_t[]){0x80000001u, 0x7f800000u, 1}, 3, &s);
    ck_assert_uint_eq(s.positive[0], 4);
    ck_assert_uint_eq(s.negative[0], 1);
}
END_TEST

/* Signs, changes and their counted bits, value by value, for a number of positions that does not fill a
 * word. */
START_TEST(test_planes)
{
    static const uint32_t special[] = {0,      0x8000, 0x7f80, 0xff80, 0x7fc0,
                                       0xffff, 0x0001, 0x8001, 0x7f7f, 0xff7f};
    uint64_t seed = 7;

    for (unsigned n = 1; n < NB_PICKS; n += 1 + n / 3) {
        uint32_t raw[NB_PICKS];
        int32_t now[NB_PICKS], before[NB_PICKS];
        struct nb_signs s, c;
        struct nb_change change;
        unsigned moved = 0;

        for (unsigned i = 0; i < n; i++) {
            raw[i] = rnd(&seed) % 2 ? special[rnd(&seed) % 10] : (uint32_t)(rnd(&seed) & 0xffff);
            now[i] = (int32_t)(rnd(&seed) % 3) - 1 + (rnd(&seed) % 2 ? INT32_MAX - 1 : -INT32_MAX);
            before[i] = rnd(&seed) % 2 ? now[i] : (int32_t)(rnd(&seed) % 3) - 1;
            moved += now[i] != before[i];
        }
        nb_signs_of(NB_BF16, raw, n, &s);
        ck_assert_int_eq(nb_signs_of_change(now, before, n, &c), moved > 0);
        for (unsigned i = 0; i < NB_PICKS; i++) {
            const uint32_t size = i < n ? raw[i] & 0x7fff : 0;
            const int sign = size == 0 || size >= 0x7f80 ? 0 : raw[i] & 0x8000 ? -1 : 1;
            ck_assert_int_eq(sign_at(&s, i), sign);
            ck_assert_int_eq(sign_at(&c, i), i < n ? (now[i] > before[i]) - (now[i] < before[i]) : 0);
            ck_assert(!(s.positive[i / 64] & s.negative[i / 64]));
        }
        nb_change_of(&change, &c, &s, n, NB_PICKS);
        ck_assert_uint_eq(change.changed, moved);
        ck_assert_uint_eq(nb_signs_agree(&c, &change).n, moved);
        ck_assert_int_eq(nb_signs_of_change(now, now, n, &c), 0);
    }
}
END_TEST

SUITE_MAIN("signs", TEST(test_agreement), TEST(test_contrast), TEST(test_signs), TEST(test_planes))
