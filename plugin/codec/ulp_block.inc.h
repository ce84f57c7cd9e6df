/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block coder, once for all variants and widths. The including source defines, for the width W:
 *     W          bytes of a value: 1, 2 or 4
 *     NAME(x)    the name of function x for this variant and width
 *     lane       the type of a value in computations, at least W bytes
 *     group      the k, high and low parts of 32 values
 * and these functions under NAME(), of a group of 32 values unless it says otherwise:
 *     diff       zigzagged differences, and the exponents of the reference; whether any difference is not 0
 *     sample     half of a run's values, by which the whole is judged; false where a run is not sampled
 *     costs      bits of n values (a multiple of 32) with parameters c - 1, c and c + 1, without plane 0
 *     split      k = clamp(c - exponent), high = difference >> k, low = the rest
 *     above      the mask of values whose high part is greater than j
 *     put_low    appends the low parts, in the order of the values
 *     widths     k from the reference; high = 0
 *     add        adds 1 to the high parts where a mask has a bit
 *     get_low    the low parts from a bit of the coded bytes on; returns how many bits they were
 *     finish     the values: reference plus difference
 *     unsplit    the zigzagged differences again (W > 1)
 *     cells      a bit for each four values with a high part, if HAVE_CELLS is defined; else they are made of plane 0
 *     estimate   nb_ulp_estimate of n values (a multiple of 32), if HAVE_ESTIMATE is defined; else the loop below
 * It also defines pext(x, mask) of 64 bits and pdep(x, mask) of 32, the bit gather and scatter of BMI2. A
 * variant without them defines ULP_OWN_PLANES, and put_group and get_group instead of them, put_low, add and
 * get_low.
 */

#if W > 1
#include "codec/ulp_floor.inc.h"
#endif

static size_t NAME(encode_raw)(const uint8_t *cur, size_t n, uint8_t *dst)
{
    dst[0] = NB_ULP_RAW;
    memcpy(dst + 1, cur, n * W);
    return 1 + n * W;
}

/* Walk down the cost from *c, as long as a step is worth more than 1/8 bit a value: a steady c is cheap to
 * code with, and following every sample gains nothing. Deterministic: the same in all variants. */
static uint32_t NAME(descend)(const lane *zz, const lane *ex, size_t n, unsigned *c)
{
    const uint32_t least = (uint32_t)n / 8;
    uint32_t cost[3];

    if (*c == 0)
        *c = 1;
    NAME(costs)(zz, ex, n, *c, cost);
    if (__builtin_expect(cost[2] + least < cost[1] && *c < 254, 0)) {
        do
            NAME(costs)(zz, ex, n, ++*c, cost);
        while (cost[2] + least < cost[1] && *c < 254);
    } else {
        while (__builtin_expect(cost[0] + least < cost[1] && *c > 1, 0))
            NAME(costs)(zz, ex, n, --*c, cost);
    }
    return cost[1];
}

#ifndef HAVE_ESTIMATE
static unsigned NAME(estimate)(const lane *zz, const lane *ex, size_t n)
{
    uint64_t sum = 0;
    unsigned count = 0;

    for (size_t i = 0; i < n; i++) {
        if (zz[i]) {
            sum += ex[i] + (32 - (unsigned)__builtin_clz((uint32_t)zz[i]));
            count++;
        }
    }
    return nb_ulp_estimate(sum, count);
}
#endif

/* Choose c for a run of n values, judging a whole run by half of its values: the even ones of even groups and
 * the odd ones of odd groups. Return their cost, and their number in *judged. */
static uint32_t NAME(choose_c)(const lane *zz, const lane *ex, size_t n, unsigned *c, size_t *judged)
{
    _Alignas(64) lane zs[NB_ULP_RUN / 2], es[NB_ULP_RUN / 2];
    unsigned other;
    uint32_t best, second;

    if (n == NB_ULP_RUN && NAME(sample)(zz, ex, zs, es)) {
        zz = zs;
        ex = es;
        n = NB_ULP_RUN / 2;
    }
    *judged = n;
    best = NAME(descend)(zz, ex, n, c);
    if (__builtin_expect(best <= n * W * 4, 1))
        return best;
    /* More than half of raw: either the data are like that, or the previous run's c was a poor start. */
    other = NAME(estimate)(zz, ex, n);
    if (other == *c)
        return best; /* the end of one walk keeps its place in another */
    second = NAME(descend)(zz, ex, n, &other);
    if (second >= best)
        return best;
    *c = other;
    return second;
}

static uint32_t NAME(probe)(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref, unsigned *c)
{
    _Alignas(64) lane zz[NB_ULP_PROBE], ex[NB_ULP_PROBE];

    for (size_t at = 0; at < NB_ULP_PROBE; at += NB_ULP_GROUP)
        NAME(diff)(cur + at * W, ref + at * W, map, zz + at, ex + at);
    *c = NAME(estimate)(zz, ex, NB_ULP_PROBE);
    return NAME(descend)(zz, ex, NB_ULP_PROBE, c);
}

#ifndef ULP_OWN_PLANES
/* Append planes and low parts of a group whose plane 0 is m0. Return its mode. Inlined, because otherwise the
 * compiler shares the function between two widths and calls it with the group in memory. */
NB_INLINE unsigned NAME(put_group)(struct bits *b, const group *g, uint32_t m0)
{
    const uint64_t m1 = NAME(above)(g, 1), m2 = NAME(above)(g, 2), m3 = NAME(above)(g, 3);
#ifdef HAVE_CELLS
    const uint32_t set = NAME(cells)(g), t = pdep(set, 0x11111111u);
#else
    const uint32_t halves = m0 | m0 >> 1, t = (halves | halves >> 2) & 0x11111111u;
    const uint32_t set = (uint32_t)pext(t, 0x11111111u);
#endif
    /* The mode is unpredictable: select by arithmetic. */
    const uint32_t dense = (uint32_t)__builtin_popcount(set) >= NB_ULP_DENSE, all = 0u - dense;
    const unsigned sparse = 8 - 8 * dense;
    /* Two planes at once: plane j + 1 only has bits that plane j has. */
    const uint64_t of01 = (t * 15 | all) | (uint64_t)m0 << 32, of23 = m1 | m2 << 32;
    const uint64_t p01 = pext(m0 | m1 << 32, of01), p23 = pext(m2 | m3 << 32, of23);
    const unsigned n01 = (unsigned)__builtin_popcountll(of01), n23 = (unsigned)__builtin_popcountll(of23);
    const unsigned len = sparse + n01 + n23;
    if (__builtin_expect(len <= 56, 1)) {
        bits_put(b, (p01 | p23 << n01) << sparse | (set & ~all), len);
    } else {
        const unsigned n1 = (unsigned)__builtin_popcount(m0), n0 = n01 - n1;
        bits_put(b, (p01 & (((uint64_t)1 << n0) - 1)) << sparse | (set & ~all), sparse + n0);
        if (__builtin_expect(n1 + n23 <= 56, 1)) {
            bits_put(b, p01 >> n0 | p23 << n1, n1 + n23);
        } else {
            const unsigned n2 = (unsigned)__builtin_popcountll(m1);
            bits_put(b, p01 >> n0, n1);
            bits_put(b, p23 & (((uint64_t)1 << n2) - 1), n2);
            bits_put(b, p23 >> n2, n23 - n2);
        }
    }
    NAME(put_low)(b, g);
    return NB_ULP_MODE_SPARSE + dense;
}
#endif

/* `lossy` is NULL, or runs may have floors and it counts them. A compile-time constant, as is W. */
NB_INLINE size_t NAME(encode_any)(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                  size_t n, unsigned *c, uint8_t *dst, uint64_t *lossy)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + NB_ULP_GROUP - 1) / NB_ULP_GROUP;
    const size_t full = n / NB_ULP_GROUP;
    _Alignas(64) lane zz[NB_ULP_RUN], ex[NB_ULP_RUN];
    uint16_t exc[NB_ULP_MAX_EXC];
    unsigned nexc = 0;
    uint64_t modes = 0;
    struct bits b;
    int changed = 0;
    uint8_t floors[NB_ULP_BLOCK / NB_ULP_RUN] = {0};
    unsigned nfloors = 0;

    dst[0] = (uint8_t)(map->shift | (map->plain ? NB_ULP_PLAIN : 0));
    bits_begin(&b, dst + 2 + runs + (groups + 3) / 4);
    for (size_t r = 0; r < runs; r++) {
        const size_t g0 = r * (NB_ULP_RUN / NB_ULP_GROUP);
        const size_t ng = groups - g0 < NB_ULP_RUN / NB_ULP_GROUP ? groups - g0 : NB_ULP_RUN / NB_ULP_GROUP;
        size_t judged;
        uint32_t cost;
        int any = 0;

        const size_t whole = full - g0 < ng ? full - g0 : ng;
        for (size_t g = 0; g < whole; g++) {
            const size_t at = (g0 + g) * NB_ULP_GROUP;
            any |= NAME(diff)(cur + at * W, ref + at * W, map, zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP);
        }
        if (whole < ng) {
            const size_t at = full * NB_ULP_GROUP;
            uint8_t a[NB_ULP_GROUP * W], z[NB_ULP_GROUP * W];
            ulp_pad(a, cur + at * W, n - at, W);
            ulp_pad(z, ref + at * W, n - at, W);
            any |= NAME(diff)(a, z, map, zz + whole * NB_ULP_GROUP, ex + whole * NB_ULP_GROUP);
        }
        if (!any) {
            dst[2 + r] = 0;
            continue;
        }
        changed = 1;
        cost = NAME(choose_c)(zz, ex, ng * NB_ULP_GROUP, c, &judged);
        dst[2 + r] = (uint8_t)*c;
#if W > 1
        if (lossy) {
            const struct nb_delta4_format *f = nb_delta4_format(W, map->shift);
            const size_t from = g0 * NB_ULP_GROUP, real = n - from < NB_ULP_RUN ? n - from : NB_ULP_RUN;
            const unsigned floor =
                NAME(choose_floor)(f, cur + from * W, real, ex, ng * NB_ULP_GROUP, cost, judged, *c);
            floors[r] = (uint8_t)floor;
            nfloors += floor != 0;
            for (size_t g = 0; floor && g < ng; g++) {
                const size_t at = (g0 + g) * NB_ULP_GROUP;
                if (g0 + g < full) {
                    NAME(diff_floor)
                    (cur + at * W, ref + at * W, f, floor, zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP);
                } else {
                    uint8_t a[NB_ULP_GROUP * W], z[NB_ULP_GROUP * W];
                    ulp_pad(a, cur + at * W, n - at, W);
                    ulp_pad(z, ref + at * W, n - at, W);
                    NAME(diff_floor)(a, z, f, floor, zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP);
                }
            }
        }
#else
        (void)cost;
        (void)lossy;
#endif
        for (size_t g = 0; g < ng; g++) {
            group s;
            uint32_t all, over, m0;

            NAME(split)(zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP, *c, &s);
            all = over = NAME(above)(&s, NB_ULP_PLANES);
            if (__builtin_expect(over != 0, 0)) {
                for (; over; over &= over - 1) {
                    unsigned i = (unsigned)__builtin_ctz(over);
                    if (nexc == NB_ULP_MAX_EXC)
                        return NAME(encode_raw)(cur, n, dst);
                    exc[nexc++] = (uint16_t)((g0 + g) * NB_ULP_GROUP + i);
                }
                NAME(drop)(&s, all);
            }
            m0 = NAME(above)(&s, 0);
            if (m0 == 0 && NAME(low_is_zero)(&s))
                continue;
            modes |= (uint64_t)NAME(put_group)(&b, &s, m0) << 2 * (g0 + g);
        }
        if ((size_t)(b.p - dst) > n * W)
            return NAME(encode_raw)(cur, n, dst);
    }
    if (!changed)
        return 0;
    dst[1] = (uint8_t)nexc;
    modes = htole64(modes);
    memcpy(dst + 2 + runs, &modes, (groups + 3) / 4);
    uint8_t *p = bits_end(&b);
    if ((size_t)(p - dst) + nexc * (2 + W) + (nfloors ? runs : 0) > n * W)
        return NAME(encode_raw)(cur, n, dst);
    for (unsigned i = 0; i < nexc; i++, p += 2 + W) {
        p[0] = (uint8_t)exc[i];
        p[1] = (uint8_t)(exc[i] >> 8);
        memcpy(p + 2, cur + (size_t)exc[i] * W, W);
    }
    if (nfloors) {
        dst[0] |= NB_ULP_FLOORS;
        memcpy(p, floors, runs);
        p += runs;
        *lossy += nfloors;
    }
    return (size_t)(p - dst);
}

static size_t NAME(encode_block)(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                 size_t n, unsigned *c, uint8_t *dst)
{
    return NAME(encode_any)(map, cur, ref, n, c, dst, NULL);
}

#if W > 1
static size_t NAME(encode_floors)(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                  size_t n, unsigned *c, uint8_t *dst, uint64_t *lossy)
{
    return NAME(encode_any)(map, cur, ref, n, c, dst, lossy);
}
#endif

#ifndef ULP_OWN_PLANES
/* Get planes and low parts of one group. Return the bit position behind it. */
static inline size_t NAME(get_group)(const uint8_t *p, size_t pos, unsigned sparse, group *g)
{
    const uint64_t w = bits_peek(p, pos);
    const uint32_t cells = pdep((uint32_t)w & 0xff, 0x11111111u) * 15, all = sparse - 1;
    const uint32_t m0 = pdep((uint32_t)(w >> 8 * sparse), cells | all);
    const unsigned n0 = (unsigned)__builtin_popcount(m0);
    const unsigned len = 8 * sparse + (unsigned)__builtin_popcount(cells | all);
    uint64_t above = w >> len;
    uint32_t m1 = pdep((uint32_t)above, m0), m2, m3;
    unsigned n1 = (unsigned)__builtin_popcount(m1), n2;

    m2 = pdep((uint32_t)(above >> n0), m1);
    n2 = (unsigned)__builtin_popcount(m2);
    pos += len;
    /* Usually one load has all planes. Where it has not, these numbers may be wrong but are large enough to
     * show it. */
    if (__builtin_expect(len + n0 + n1 + n2 <= 57, 1)) {
        m3 = pdep((uint32_t)(above >> n0 >> n1), m2);
    } else {
        above = bits_peek(p, pos);
        m1 = pdep((uint32_t)above, m0);
        n1 = (unsigned)__builtin_popcount(m1);
        m2 = pdep((uint32_t)bits_peek(p, pos + n0), m1);
        n2 = (unsigned)__builtin_popcount(m2);
        m3 = pdep((uint32_t)bits_peek(p, pos + n0 + n1), m2);
    }
    NAME(add)(g, m0, m1, m2, m3);
    pos += n0 + n1 + n2;
    return pos + NAME(get_low)(p, pos, g);
}
#endif

/* A block being decoded. */
struct NAME(cursor) {
    const uint8_t *p, *modes, *c, *ref, *floors; /* floors: NULL without */
    uint8_t *dst;
    size_t pos, end, n, full; /* bits; values; groups that are whole */
    unsigned nexc;
    struct nb_ulp_map map;
};

/* Read the header of a coded block. */
static inline int NAME(open_block)(struct NAME(cursor) * d, const uint8_t *coded, size_t len,
                                   const uint8_t *ref, size_t n, uint8_t *dst, int floors)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + NB_ULP_GROUP - 1) / NB_ULP_GROUP;
    const size_t head = 2 + runs + (groups + 3) / 4;

    if (len < head || (coded[0] & ~(NB_ULP_SHIFT_MASK | NB_ULP_PLAIN | (floors ? NB_ULP_FLOORS : 0))))
        return -EBADMSG;
    d->map.shift = coded[0] & NB_ULP_SHIFT_MASK;
    d->map.plain = (coded[0] & NB_ULP_PLAIN) != 0;
    d->map.floor = 0;
    d->floors = NULL;
    if (floors && (coded[0] & NB_ULP_FLOORS)) {
        const struct nb_delta4_format *f = nb_delta4_format(W, d->map.shift);
        if (!f || d->map.plain || len - head < runs)
            return -EBADMSG;
        len -= runs;
        d->floors = coded + len;
        for (size_t r = 0; r < runs; r++)
            if (d->floors[r] && (d->floors[r] < f->low || d->floors[r] > f->high))
                return -EBADMSG;
    }
    d->nexc = coded[1];
    if (d->map.shift >= 8 * W || d->map.shift + 9 < 8 * W || d->nexc * (2 + W) > len - head)
        return -EBADMSG;
    d->c = coded + 2;
    d->modes = d->c + runs;
    d->p = coded + head;
    d->pos = 0;
    d->end = 8 * (len - head - d->nexc * (2 + W));
    d->ref = ref;
    d->dst = dst;
    d->n = n;
    d->full = n / NB_ULP_GROUP;
    return 0;
}

NB_INLINE int NAME(step)(struct NAME(cursor) * d, size_t g, int floors)
{
    const uint8_t *ref = d->ref + g * NB_ULP_GROUP * W;
    uint8_t *dst = d->dst + g * NB_ULP_GROUP * W;
    const unsigned mode = d->modes[g / 4] >> 2 * (g % 4) & 3, c = d->c[g / (NB_ULP_RUN / NB_ULP_GROUP)];
    group s;

    if (mode == NB_ULP_MODE_EQUAL) {
        memmove(dst, ref, (g < d->full ? NB_ULP_GROUP : d->n - g * NB_ULP_GROUP) * W);
        return 0;
    }
    if (mode > NB_ULP_MODE_DENSE || d->pos > d->end)
        return -EBADMSG;
    if (floors && d->floors)
        d->map.floor = d->floors[g / (NB_ULP_RUN / NB_ULP_GROUP)];
    if (__builtin_expect(g < d->full, 1)) {
        NAME(widths)(ref, &d->map, c, &s);
        d->pos = NAME(get_group)(d->p, d->pos, mode & NB_ULP_MODE_SPARSE, &s);
#if W > 1
        if (floors && d->map.floor) {
            _Alignas(64) lane zz[NB_ULP_GROUP];
            uint8_t out[NB_ULP_GROUP * W];
            NAME(finish)(ref, &d->map, &s, out); /* dst may be ref */
            NAME(unsplit)(&s, zz);
            NAME(finish_floor)(ref, nb_delta4_format(W, d->map.shift), d->map.floor, zz, out);
            memcpy(dst, out, sizeof(out));
            return 0;
        }
#endif
        NAME(finish)(ref, &d->map, &s, dst);
    } else {
        const size_t left = d->n - g * NB_ULP_GROUP;
        uint8_t z[NB_ULP_GROUP * W], out[NB_ULP_GROUP * W];
        ulp_pad(z, ref, left, W);
        NAME(widths)(z, &d->map, c, &s);
        d->pos = NAME(get_group)(d->p, d->pos, mode & NB_ULP_MODE_SPARSE, &s);
        NAME(finish)(z, &d->map, &s, out);
#if W > 1
        if (floors && d->map.floor) {
            _Alignas(64) lane zz[NB_ULP_GROUP];
            NAME(unsplit)(&s, zz);
            NAME(finish_floor)(z, nb_delta4_format(W, d->map.shift), d->map.floor, zz, out);
        }
#endif
        memcpy(dst, out, left * W);
    }
    return 0;
}

static inline int NAME(put_exceptions)(const struct NAME(cursor) * d)
{
    const uint8_t *p = d->p + d->end / 8;
    unsigned last = 0;

    for (unsigned i = 0; i < d->nexc; i++, p += 2 + W) {
        unsigned at = p[0] | (unsigned)p[1] << 8;
        if (at >= d->n || (i && at <= last))
            return -EBADMSG;
        memcpy(d->dst + (size_t)at * W, p + 2, W);
        last = at;
    }
    return 0;
}

/* Decode a whole group of a block without floors. The lowest bits of *modes give its mode. */
NB_INLINE void NAME(whole_group)(const uint8_t *p, size_t *pos, uint64_t *modes, const struct nb_ulp_map *map,
                                 unsigned c, const uint8_t *ref, uint8_t *dst)
{
    const unsigned mode = *modes & 3;
    group s;

    *modes >>= 2;
    if (mode == NB_ULP_MODE_EQUAL) {
        if (dst != ref)
            memcpy(dst, ref, NB_ULP_GROUP * W);
        return;
    }
    NAME(widths)(ref, map, c, &s);
    *pos = NAME(get_group)(p, *pos, mode & NB_ULP_MODE_SPARSE, &s);
    NAME(finish)(ref, map, &s, dst);
}

/* Decode `count` blocks, 1 or 2, of NB_ULP_BLOCK values without floors. The second one follows the first in
 * ref and dst. A group's end depends on its bits, so a processor has time for another block meanwhile. */
NB_INLINE int NAME(decode_whole)(const struct NAME(cursor) * a, const struct NAME(cursor) * b, int count)
{
    struct nb_ulp_map map = {a->map.shift, a->map.plain, 0}, map2 = {0, 0, 0};
    const size_t end = a->end, end2 = count > 1 ? b->end : 0;
    size_t pos = 0, pos2 = 0;
    uint64_t modes, modes2 = 0;
    const uint8_t *ref = a->ref;
    uint8_t *dst = a->dst;

    memcpy(&modes, a->modes, 8);
    modes = le64toh(modes);
    if (count > 1) {
        memcpy(&modes2, b->modes, 8);
        modes2 = le64toh(modes2);
        map2.shift = b->map.shift;
        map2.plain = b->map.plain;
    }
    if (((modes & modes >> 1) | (modes2 & modes2 >> 1)) & 0x5555555555555555)
        return -EBADMSG;
    for (unsigned r = 0; r < NB_ULP_BLOCK / NB_ULP_RUN; r++) {
        const unsigned c = a->c[r], c2 = count > 1 ? b->c[r] : 0;
        for (unsigned g = 0; g < NB_ULP_RUN / NB_ULP_GROUP; g++) {
            if ((pos > end) | (pos2 > end2))
                return -EBADMSG;
            NAME(whole_group)(a->p, &pos, &modes, &map, c, ref, dst);
            if (count > 1)
                NAME(whole_group)
            (b->p, &pos2, &modes2, &map2, c2, ref + NB_ULP_BLOCK * W, dst + NB_ULP_BLOCK * W);
            ref += NB_ULP_GROUP * W;
            dst += NB_ULP_GROUP * W;
        }
    }
    if ((pos + 7) / 8 != end / 8 || (pos2 + 7) / 8 != end2 / 8)
        return -EBADMSG;
    return NAME(put_exceptions)(a) || (count > 1 && NAME(put_exceptions)(b)) ? -EBADMSG : 0;
}

NB_INLINE int NAME(decode_any)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst,
                               int floors)
{
    struct NAME(cursor) d;

    if (coded[0] == NB_ULP_RAW && len == 1 + n * W) {
        memcpy(dst, coded + 1, n * W);
        return 0;
    }
    if (NAME(open_block)(&d, coded, len, ref, n, dst, floors))
        return -EBADMSG;
    if (n == NB_ULP_BLOCK && !d.floors)
        return NAME(decode_whole)(&d, NULL, 1);
    for (size_t g = 0; g < (n + NB_ULP_GROUP - 1) / NB_ULP_GROUP; g++)
        if (NAME(step)(&d, g, floors))
            return -EBADMSG;
    /* Check the length of the bit string against the header. */
    return (d.pos + 7) / 8 == d.end / 8 ? NAME(put_exceptions)(&d) : -EBADMSG;
}

static int NAME(decode_block)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst)
{
    return NAME(decode_any)(coded, len, ref, n, dst, 0);
}

static int NAME(decode_two)(const uint8_t *coded, size_t len, const uint8_t *coded2, size_t len2,
                            const uint8_t *ref, uint8_t *dst)
{
    struct NAME(cursor) a, b;

    if (coded[0] == NB_ULP_RAW || coded2[0] == NB_ULP_RAW) {
        const int err = NAME(decode_block)(coded, len, ref, NB_ULP_BLOCK, dst);
        return err ? err
                   : NAME(decode_block)(coded2, len2, ref + NB_ULP_BLOCK * W, NB_ULP_BLOCK,
                                        dst + NB_ULP_BLOCK * W);
    }
    if (NAME(open_block)(&a, coded, len, ref, NB_ULP_BLOCK, dst, 0) ||
        NAME(open_block)(&b, coded2, len2, ref + NB_ULP_BLOCK * W, NB_ULP_BLOCK, dst + NB_ULP_BLOCK * W, 0))
        return -EBADMSG;
    return NAME(decode_whole)(&a, &b, 2);
}

#if W > 1
static int NAME(decode_floors)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst)
{
    return NAME(decode_any)(coded, len, ref, n, dst, 1);
}
#endif

#include "codec/ulp_sparse.inc.h"
