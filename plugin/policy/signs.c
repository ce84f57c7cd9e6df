/* SPDX-License-Identifier: Apache-2.0 */
/* See signs.h. */
#include "policy/signs.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs)
{
    const uint32_t sign = type == NB_F32 ? UINT32_C(1) << 31 : UINT32_C(1) << 15;
    const uint32_t infinite = type == NB_F32 ? 0x7f800000u : type == NB_BF16 ? 0x7f80u : 0x7c00u;

    memset(signs, 0, sizeof(*signs));
    for (unsigned w = 0; w * 64 < n; w++) {
        const unsigned end = (unsigned)nb_min64(n - w * 64, 64);
        uint64_t known = 0, minus = 0;
        for (unsigned i = 0; i < end; i++) {
            const uint32_t value = raw[w * 64 + i], magnitude = value & (sign - 1);
            known |= (uint64_t)(magnitude - 1 < infinite - 1) << i; /* neither 0 nor infinite */
            minus |= (uint64_t)((value & sign) != 0) << i;
        }
        signs->negative[w] = known & minus;
        signs->positive[w] = known & ~minus;
    }
}

/* To count bits is nearly all of the work here, and an instruction of every x86 processor since 2008; but a compiler takes
 * it only in functions that say they may. So what counts is compiled twice, and the processor decides. */
#define INLINED static inline __attribute__((always_inline))

INLINED unsigned bits(uint64_t x)
{
    return (unsigned)__builtin_popcountll(x);
}

/* cov: sum of products about the means; var: product of the sums of squares about them, of n positions. */
static struct nb_agreement agreement(unsigned n, double cov, double var)
{
    /* Of chance the square is var / (n - 1); where n is small that matters, since small numbers are added up. */
    const double of = n < NB_AGREEMENT_LEAST ? n - 1.0 : n;

    if (n < 2 || var <= 0.5)
        return (struct nb_agreement){.n = n};
    return (struct nb_agreement){n, (float)cov, (float)(var / of)};
}

void nb_agreement_add(struct nb_agreement *sum, const struct nb_agreement *a)
{
    sum->n += a->n;
    sum->product += a->product;
    sum->chance += a->chance;
}

float nb_agreement_z(const struct nb_agreement *a)
{
    return a->n >= NB_AGREEMENT_LEAST && a->chance > 0.0f ? a->product / sqrtf(a->chance) : 0.0f;
}

INLINED struct nb_agreement agree(const struct nb_signs *sum, const struct nb_signs *change, unsigned most)
{
    unsigned n = 0, up = 0, given = 0, plus = 0, same = 0;
    double dn, of_sum, of_change, product, cov, var;

    for (unsigned w = 0; w < NB_SIGNS_WORDS && n < most; w++) {
        uint64_t changed = change->negative[w] | change->positive[w];
        if (!changed)
            continue;
        while (n + bits(changed) > most) /* the last ones go */
            changed &= ~(UINT64_C(1) << (63 - __builtin_clzll(changed)));
        n += bits(changed);
        up += bits(changed & change->positive[w]);
        given += bits(changed & (sum->negative[w] | sum->positive[w]));
        plus += bits(changed & sum->positive[w]);
        same += bits(changed &
                     ((sum->positive[w] & change->positive[w]) | (sum->negative[w] & change->negative[w])));
    }
    dn = n ? n : 1;
    of_change = 2.0 * up - n;
    of_sum = 2.0 * plus - given;
    product = 2.0 * same - given;
    cov = product - of_sum * of_change / dn;
    var = (given - of_sum * of_sum / dn) * (dn - of_change * of_change / dn);
    return agreement(n, cov, var);
}

/* The sum over the positions of `at` of what is +1 in `positive` and -1 elsewhere. */
INLINED int signed_bits(uint64_t at, uint64_t positive)
{
    return 2 * (int)bits(at & positive) - (int)bits(at);
}

INLINED struct nb_agreement contrast(const struct nb_signs *sum, const struct nb_signs *change,
                                     const struct nb_signs *before, unsigned most)
{
    unsigned n = 0, squares = 0;
    int of_sum = 0, of_change = 0, product = 0;
    double dn, cov, var;

    for (unsigned w = 0; w < NB_SIGNS_WORDS && n < most; w++) {
        const uint64_t changed = change->negative[w] | change->positive[w],
                       earlier = before->negative[w] | before->positive[w],
                       turned = (change->positive[w] & before->negative[w]) |
                                (change->negative[w] & before->positive[w]),
                       up = change->positive[w] | (before->negative[w] & ~changed);
        uint64_t differ = (sum->negative[w] | sum->positive[w]) & (turned | (changed ^ earlier));
        if (!differ)
            continue;
        while (n + bits(differ) > most) /* the last ones go */
            differ &= ~(UINT64_C(1) << (63 - __builtin_clzll(differ)));
        /* The change less the one before: 2 where it has turned round, 1 where there is only one of them. */
        const uint64_t twice = differ & turned, same = ~(sum->positive[w] ^ up);
        n += bits(differ);
        squares += bits(differ) + 3 * bits(twice);
        of_sum += signed_bits(differ, sum->positive[w]);
        of_change += signed_bits(differ, up) + signed_bits(twice, up);
        product += signed_bits(differ, same) + signed_bits(twice, same);
    }
    dn = n ? n : 1;
    cov = product - (double)of_sum * of_change / dn;
    var = (dn - (double)of_sum * of_sum / dn) * (squares - (double)of_change * of_change / dn);
    return agreement(n, cov, var);
}

#if defined(__x86_64__)
#define COUNTS __attribute__((target("popcnt")))

static int has_count(void)
{
    return __builtin_cpu_supports("popcnt");
}

COUNTS static struct nb_agreement agree_counting(const struct nb_signs *sum, const struct nb_signs *change,
                                                 unsigned most)
{
    return agree(sum, change, most);
}

COUNTS static struct nb_agreement contrast_counting(const struct nb_signs *sum, const struct nb_signs *change,
                                                    const struct nb_signs *before, unsigned most)
{
    return contrast(sum, change, before, most);
}
#else
#define has_count() 0
#define agree_counting agree
#define contrast_counting contrast
#endif

struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_signs *change, unsigned most)
{
    return has_count() ? agree_counting(sum, change, most) : agree(sum, change, most);
}

struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_signs *change,
                                      const struct nb_signs *before, unsigned most)
{
    return has_count() ? contrast_counting(sum, change, before, most) : contrast(sum, change, before, most);
}
