/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs of sampled values as planes of bits, and the agreement of two patterns: the statistic of
 * policy/recognise/causal.c. Pure.
 */
#include "policy/recognise/internal.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

/* Return a word whose bit i is flag i (0 or 1). A product gathers eight flags at a time into its upper
 * byte. */
static uint64_t word_of(const uint8_t flag[64])
{
    uint64_t word = 0;

    for (unsigned i = 0; i < 8; i++) {
        uint64_t eight = 0;
        for (unsigned k = 0; k < 8; k++) /* one load where bytes are in this order */
            eight |= (uint64_t)flag[8 * i + k] << (8 * k);
        word |= (eight * UINT64_C(0x0102040810204080) >> 56) << (8 * i);
    }
    return word;
}

void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs)
{
    const uint32_t sign = type == NB_F32 ? UINT32_C(1) << 31 : UINT32_C(1) << 15;
    const uint32_t infinite = type == NB_F32 ? 0x7f800000u : type == NB_BF16 ? 0x7f80u : 0x7c00u;
    uint8_t known[64], minus[64];

    memset(signs, 0, sizeof(*signs));
    for (unsigned w = 0; w * 64 < n; w++) {
        const unsigned end = (unsigned)nb_min64(n - w * 64, 64);
        if (end < 64) {
            memset(known, 0, sizeof(known));
            memset(minus, 0, sizeof(minus));
        }
        for (unsigned i = 0; i < end; i++) {
            const uint32_t value = raw[w * 64 + i], magnitude = value & (sign - 1);
            known[i] = magnitude - 1 < infinite - 1; /* false for 0, infinities and NaN */
            minus[i] = (value & sign) != 0;
        }
        signs->positive[w] = word_of(known);
        signs->negative[w] = signs->positive[w] & word_of(minus);
        signs->positive[w] ^= signs->negative[w];
    }
}

int nb_signs_of_change(const int32_t *now, const int32_t *before, unsigned n, struct nb_signs *change)
{
    uint8_t up[64], down[64];
    uint64_t any = 0;

    memset(change, 0, sizeof(*change));
    for (unsigned w = 0; w * 64 < n; w++) {
        const unsigned end = (unsigned)nb_min64(n - w * 64, 64);
        if (end < 64) {
            memset(up, 0, sizeof(up));
            memset(down, 0, sizeof(down));
        }
        for (unsigned i = 0; i < end; i++) {
            up[i] = now[w * 64 + i] > before[w * 64 + i];
            down[i] = now[w * 64 + i] < before[w * 64 + i];
        }
        change->positive[w] = word_of(up);
        change->negative[w] = word_of(down);
        any |= change->positive[w] | change->negative[w];
    }
    return any != 0;
}

/* Counting bits is nearly all of the work here. Every x86 processor since 2008 has an instruction for it, but
 * a compiler uses the instruction only in functions that allow it. The counting functions are therefore
 * compiled several times, and the processor decides at run time. */
#define INLINED static inline __attribute__((always_inline))

INLINED unsigned bits(uint64_t x)
{
    return (unsigned)__builtin_popcountll(x);
}

/* Return the agreement of n positions. `cov` is the sum of products about the means, `var` the product of the
 * sums of squares about them. */
static struct nb_agreement agreement(unsigned n, double cov, double var)
{
    /* The expected square by chance is var / (n - 1). The 1 matters for small n, since small numbers are
     * added up. */
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

void nb_change_of(struct nb_change *c, const struct nb_signs *change, const struct nb_signs *before,
                  unsigned n, unsigned most)
{
    c->words = (n + 511) / 512 * 8; /* whole vectors */
    c->most = most;
    c->changed = c->up = c->differ = 0;
    for (unsigned w = 0; w < c->words; w++) {
        const uint64_t changed = change->negative[w] | change->positive[w],
                       earlier = before->negative[w] | before->positive[w];
        uint64_t counts = changed;
        while (c->changed + bits(counts) > most) /* the last ones go */
            counts &= ~(UINT64_C(1) << (63 - __builtin_clzll(counts)));
        c->changed += bits(counts);
        c->up += bits(counts & change->positive[w]);
        c->positive[w] = counts & change->positive[w];
        c->negative[w] = counts & change->negative[w];
        /* The change less the change before: 2 where it has turned round, 1 where only one of them has a
         * sign. */
        c->twice[w] =
            (change->positive[w] & before->negative[w]) | (change->negative[w] & before->positive[w]);
        c->differs[w] = c->twice[w] | (changed ^ earlier);
        c->upwards[w] = change->positive[w] | (before->negative[w] & ~changed);
        c->differ += bits(c->differs[w]);
    }
}

INLINED struct nb_agreement agree(const struct nb_signs *sum, const struct nb_change *c)
{
    uint64_t givens = 0, pluses = 0, sames = 0;
    double dn, given, of_sum, of_change, product, cov, var;

    for (unsigned w = 0; w < c->words; w++) {
        const uint64_t plus = sum->positive[w], minus = sum->negative[w], up = c->positive[w],
                       down = c->negative[w];
        givens += bits((up | down) & (plus | minus));
        pluses += bits((up | down) & plus);
        sames += bits((plus & up) | (minus & down));
    }
    dn = c->changed ? c->changed : 1;
    given = (double)givens;
    of_change = 2.0 * c->up - c->changed;
    of_sum = 2.0 * (double)pluses - given;
    product = 2.0 * (double)sames - given;
    cov = product - of_sum * of_change / dn;
    var = (given - of_sum * of_sum / dn) * (dn - of_change * of_change / dn);
    return agreement(c->changed, cov, var);
}

/* Counts of positions in a contrast: all positions, positions that count twice, and positions where the sum
 * is positive. Then, both for all positions and for those that count twice: positions where the change is
 * positive, and where sum and change are alike. */
struct counts {
    uint64_t all, twice, plus, up, up_twice, alike, alike_twice;
};

INLINED void count(struct counts *n, uint64_t at, uint64_t twice, uint64_t plus, uint64_t up)
{
    const uint64_t alike = ~(plus ^ up);

    n->all += bits(at);
    n->twice += bits(twice);
    n->plus += bits(at & plus);
    n->up += bits(at & up);
    n->up_twice += bits(twice & up);
    n->alike += bits(at & alike);
    n->alike_twice += bits(twice & alike);
}

INLINED struct nb_agreement contrast(const struct nb_signs *sum, const struct nb_change *c)
{
    struct counts n = {0};
    double all, of_sum, of_change, product, cov, var;

    if (c->differ <= c->most) {
        for (unsigned w = 0; w < c->words; w++) {
            const uint64_t at = (sum->negative[w] | sum->positive[w]) & c->differs[w];
            count(&n, at, at & c->twice[w], sum->positive[w], c->upwards[w]);
        }
    } else {
        for (unsigned w = 0; w < c->words && n.all < c->most; w++) {
            uint64_t at = (sum->negative[w] | sum->positive[w]) & c->differs[w];
            while (n.all + bits(at) > c->most) /* the last ones go */
                at &= ~(UINT64_C(1) << (63 - __builtin_clzll(at)));
            count(&n, at, at & c->twice[w], sum->positive[w], c->upwards[w]);
        }
    }
    all = n.all ? (double)n.all : 1.0;
    of_sum = 2.0 * (double)n.plus - (double)n.all;
    of_change = 2.0 * (double)(n.up + n.up_twice) - (double)(n.all + n.twice);
    product = 2.0 * (double)(n.alike + n.alike_twice) - (double)(n.all + n.twice);
    cov = product - of_sum * of_change / all;
    var = (all - of_sum * of_sum / all) * ((double)(n.all + 3 * n.twice) - of_change * of_change / all);
    return agreement((unsigned)n.all, cov, var);
}

#if defined(__x86_64__)
/* Versions with instructions of every x86 processor since 2008, and of many since 2019. */
#define FOR_COUNT __attribute__((target("popcnt")))
#define FOR_VECTORS __attribute__((target("popcnt,avx512f,avx512vl,avx512dq,avx512bw,avx512vpopcntdq")))

FOR_COUNT static struct nb_agreement agree_count(const struct nb_signs *sum, const struct nb_change *change)
{
    return agree(sum, change);
}

FOR_COUNT static struct nb_agreement contrast_count(const struct nb_signs *sum,
                                                    const struct nb_change *change)
{
    return contrast(sum, change);
}

FOR_VECTORS static struct nb_agreement agree_vectors(const struct nb_signs *sum,
                                                     const struct nb_change *change)
{
    return agree(sum, change);
}

FOR_VECTORS static struct nb_agreement contrast_vectors(const struct nb_signs *sum,
                                                        const struct nb_change *change)
{
    return contrast(sum, change);
}

static int has_vectors(void)
{
    return __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_change *change)
{
    return has_vectors()                      ? agree_vectors(sum, change)
           : __builtin_cpu_supports("popcnt") ? agree_count(sum, change)
                                              : agree(sum, change);
}

struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_change *change)
{
    return has_vectors()                      ? contrast_vectors(sum, change)
           : __builtin_cpu_supports("popcnt") ? contrast_count(sum, change)
                                              : contrast(sum, change);
}
#else
struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_change *change)
{
    return agree(sum, change);
}

struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_change *change)
{
    return contrast(sum, change);
}
#endif
