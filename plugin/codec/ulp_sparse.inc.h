/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coder of chunks of which few values change, once for all variants and widths W (ulp_block.inc.h has the
 * names). A variant with HAVE_MASKS defines, for 64 values:
 *     changed   the mask of those that differ
 *     below     the mask of those whose pattern without its sign is below a bound of at least 1
 */

#define BITS64 (8u * W)
#define ALL64 (UINT32_MAX >> (32 - BITS64))

static inline uint32_t NAME(sparse_pattern)(const uint8_t *p)
{
#if W == 1
    return *p;
#elif W == 2
    uint16_t x;
    memcpy(&x, p, 2);
    return le16toh(x);
#else
    uint32_t x;
    memcpy(&x, p, 4);
    return le32toh(x);
#endif
}

#ifndef HAVE_MASKS
/* Lanes of W bytes in a word of 64 bits: a one in each, and their highest bits. */
#define ONES (UINT64_MAX / ALL64)
#define TOPS (ONES << (BITS64 - 1))

static inline uint64_t NAME(word)(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, 8);
    return le64toh(x);
}

/* Gather the highest bits of the lanes. No two products of a bit meet. */
static inline uint64_t NAME(tops)(uint64_t x)
{
    const uint64_t bits = (x & TOPS) >> (BITS64 - 1);

#if W == 1
    return bits * UINT64_C(0x0102040810204080) >> 56;
#elif W == 2
    return bits * UINT64_C(0x0001000200040008) >> 48 & 15;
#else
    return (bits | bits >> 31) & 3;
#endif
}

static inline uint64_t NAME(changed)(const uint8_t *cur, const uint8_t *ref)
{
    uint64_t mask = 0;

    if (memcmp(cur, ref, 64 * W) == 0)
        return 0;
    for (unsigned i = 0; i < 64 / (8 / W); i++) {
        const uint64_t x = NAME(word)(cur + 8 * i) ^ NAME(word)(ref + 8 * i);
        mask |= NAME(tops)(((x & ~TOPS) + ~TOPS) | x) << i * (8 / W);
    }
    return mask;
}

static inline uint64_t NAME(below)(const uint8_t *ref, uint32_t bound)
{
    uint64_t mask = 0;

    for (unsigned i = 0; i < 64 / (8 / W); i++)
        mask |= NAME(tops)(~((NAME(word)(ref + 8 * i) | TOPS) - bound * ONES)) << i * (8 / W);
    return mask;
}

#undef ONES
#undef TOPS
#endif

/* Read word i of the mask of values with an exponent below the split. Values behind the n-th have no bit. */
static inline uint64_t NAME(often)(const uint8_t *ref, size_t n, size_t i, uint32_t bound)
{
    const size_t left = n - 64 * i;
    uint8_t padded[64 * W] = {0};

    if (__builtin_expect(left >= 64, 1))
        return NAME(below)(ref + 64 * i * W, bound);
    memcpy(padded, ref + 64 * i * W, left * W);
    return NAME(below)(padded, bound) & ((UINT64_C(1) << left) - 1);
}

/* Find the changed values. Return their number, or SPARSE_CHANGES + 1 when they are more than `most`. */
static inline size_t NAME(find)(const uint8_t *cur, const uint8_t *ref, size_t n, size_t most, uint16_t *at)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i += 64) {
        const size_t left = n - i;
        uint64_t mask;

        if (__builtin_expect(left >= 64, 1)) {
            mask = NAME(changed)(cur + i * W, ref + i * W);
        } else {
            uint8_t a[64 * W] = {0}, b[64 * W] = {0};
            memcpy(a, cur + i * W, left * W);
            memcpy(b, ref + i * W, left * W);
            mask = NAME(changed)(a, b);
        }
        for (; mask; mask &= mask - 1)
            at[m++] = (uint16_t)(i + (unsigned)__builtin_ctzll(mask));
        if (m > most)
            return SPARSE_CHANGES + 1;
    }
    return m;
}

/* A changed value: its zigzagged difference less one, and the exponent of the reference. */
static inline uint32_t NAME(difference)(const uint8_t *cur, const uint8_t *ref, size_t i,
                                        const struct nb_ulp_map *map, unsigned *ex)
{
    const uint32_t flip = map->plain ? 0 : ALL64 >> 1;
    const uint32_t x = NAME(sparse_pattern)(cur + i * W), r = NAME(sparse_pattern)(ref + i * W);
    const uint32_t a = x ^ ((0u - (x >> (BITS64 - 1))) & flip), b = r ^ ((0u - (r >> (BITS64 - 1))) & flip);
    const uint32_t d = (a - b) & ALL64;

    *ex = (r & ALL64 >> 1) >> map->shift;
    return ((d << 1 ^ (0u - (d >> (BITS64 - 1)))) & ALL64) - 1;
}

/* Return the low bits of a changed value: its sign, and those that are noise. */
static inline unsigned NAME(sparse_low)(unsigned c, unsigned ex)
{
    const int k = (int)c - (int)ex;

    return 1 + (unsigned)(k < 0 ? 0 : k > (int)NB_ULP_KMAX(W) ? (int)NB_ULP_KMAX(W) : k);
}

/* Choose c for a sample of n changed values, walking from *c. Return the sample's bits. */
static inline uint32_t NAME(sparse_walk)(const uint32_t *v, const uint8_t *ex, size_t n, unsigned *c)
{
    uint32_t price = 0, next = 0;
    int step = 1;

    for (size_t i = 0; i < n; i++)
        price += sparse_price(v[i], NAME(sparse_low)(*c, ex[i]), BITS64);
    for (unsigned start = *c;;) {
        if (step > 0 ? *c < 255 : *c > 0) {
            next = 0;
            for (size_t i = 0; i < n; i++)
                next += sparse_price(v[i], NAME(sparse_low)(*c + (unsigned)step, ex[i]), BITS64);
        } else {
            next = price;
        }
        if (next < price) {
            price = next;
            *c += (unsigned)step;
        } else if (step > 0 && *c == start) {
            step = -1;
        } else {
            return price;
        }
    }
}

/* Choose reading, c and split of the next records from the changed values of this one. */
static inline void NAME(sparse_read)(struct nb_ulp_sparse *s, const struct nb_ulp_map *maps,
                                     const uint8_t *cur, const uint8_t *ref, size_t n, const uint16_t *at,
                                     size_t m)
{
    const size_t sample = m < NB_ULP_SAMPLE ? m : NB_ULP_SAMPLE;
    uint32_t least = UINT32_MAX, values[256] = {0}, changes[256] = {0};
    unsigned e;

    for (unsigned j = 0; j < 4; j++) {
        uint32_t v[NB_ULP_SAMPLE], price;
        uint8_t ex[NB_ULP_SAMPLE];
        uint64_t sum = 0;

        for (size_t i = 0; i < sample; i++) {
            v[i] = NAME(difference)(cur, ref, at[i * m / sample], &maps[j], &e);
            ex[i] = (uint8_t)e;
            sum += e + (64 - (unsigned)__builtin_clzll((uint64_t)v[i] + 1));
        }
        unsigned c = nb_ulp_estimate(sum, (unsigned)sample);
        price = NAME(sparse_walk)(v, ex, sample, &c);
        if (price < least) {
            least = price;
            s->map = maps[j];
            s->c = c;
        }
    }
    for (size_t i = 0; i < n; i += NB_ULP_SPARSE_STRIDE)
        values[(NAME(sparse_pattern)(ref + i * W) & ALL64 >> 1) >> s->map.shift] += NB_ULP_SPARSE_STRIDE;
    for (size_t i = 0; i < m; i++)
        changes[(NAME(sparse_pattern)(ref + (size_t)at[i] * W) & ALL64 >> 1) >> s->map.shift]++;
    s->split = split_choose(values, changes);
}

static size_t NAME(encode_sparse)(struct nb_ulp_sparse *s, const struct nb_ulp_map *maps, const uint8_t *cur,
                                  const uint8_t *ref, size_t n, uint8_t *dst)
{
    uint16_t at[SPARSE_CHANGES + 64], gaps[2][SPARSE_CHANGES + 1];
    uint32_t v[SPARSE_CHANGES], high = 0;
    uint8_t k[SPARSE_CHANGES];
    size_t count[2] = {0, 0}, next[2] = {0, 0}, often = 0;
    const size_t m = NAME(find)(cur, ref, n, n / NB_ULP_FEW, at);
    unsigned k0 = 0, k1, e;
    struct bits b;

    if (m == 0 || m > SPARSE_CHANGES)
        return m ? NB_ULP_NOT_SPARSE : 0;
    if (s->records++ % NB_ULP_SPARSE_REMAP == 0) {
        NAME(sparse_read)(s, maps, cur, ref, n, at, m);
    } else {
        const size_t sample = m < NB_ULP_SAMPLE ? m : NB_ULP_SAMPLE;
        uint8_t ex[NB_ULP_SAMPLE];

        for (size_t i = 0; i < sample; i++) {
            v[i] = NAME(difference)(cur, ref, at[i * m / sample], &s->map, &e);
            ex[i] = (uint8_t)e;
        }
        NAME(sparse_walk)(v, ex, sample, &s->c);
    }
    for (size_t i = 0; i < m; i++) {
        v[i] = NAME(difference)(cur, ref, at[i], &s->map, &e);
        k[i] = (uint8_t)NAME(sparse_low)(s->c, e);
        high |= v[i] >> k[i];
    }
    if (s->split) {
        for (size_t i = 0, j = 0; i < (n + 63) / 64; i++) {
            const uint64_t mask = NAME(often)(ref, n, i, (uint32_t)s->split << s->map.shift);

            for (; j < m && at[j] / 64 == i; j++) {
                const unsigned bit = at[j] % 64, class = !(mask >> bit & 1);
                const size_t lower =
                    often + (unsigned)__builtin_popcountll(mask & ((UINT64_C(1) << bit) - 1));
                const size_t place = class ? at[j] - lower : lower;

                gaps[class][count[class]++] = (uint16_t)(place - next[class]);
                next[class] = place + 1;
            }
            often += (unsigned)__builtin_popcountll(mask);
        }
        gaps[0][count[0]++] = (uint16_t)(often - next[0]);
        k0 = gaps_choose(gaps[0], count[0], often);
    } else {
        for (size_t i = 0; i < m; i++) {
            gaps[1][i] = (uint16_t)(at[i] - next[1]);
            next[1] = at[i] + 1u;
        }
        count[1] = m;
    }
    gaps[1][count[1]++] = (uint16_t)(n - often - next[1]);
    k1 = gaps_choose(gaps[1], count[1], n - often);

    dst[0] = (uint8_t)(NB_ULP_SPARSE | (high ? NB_ULP_UNARY : 0) | (s->map.plain ? NB_ULP_PLAIN : 0) |
                       s->map.shift);
    dst[1] = (uint8_t)s->c;
    dst[2] = (uint8_t)s->split;
    dst[3] = (uint8_t)(k0 | k1 << 4);
    bits_begin(&b, dst + 4);
    for (size_t i = 0; i < count[0]; i++)
        sparse_put(&b, gaps[0][i], k0, NB_ULP_GAP_BITS);
    for (size_t i = 0; i < count[1]; i++)
        sparse_put(&b, gaps[1][i], k1, NB_ULP_GAP_BITS);
    if (high) {
        for (size_t i = 0; i < m; i++)
            sparse_put(&b, v[i], k[i], BITS64);
    } else {
        for (size_t i = 0; i < m; i++)
            bits_put(&b, v[i], k[i]);
    }
    return (size_t)(bits_end(&b) - dst);
}

static int NAME(decode_sparse)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst)
{
    uint64_t often[SPARSE_WORDS], places[2][SPARSE_WORDS + 1];
    const size_t words = (n + 63) / 64;
    const unsigned shift = coded[0] & NB_ULP_SHIFT_MASK, unary = coded[0] & NB_ULP_UNARY;
    const uint32_t flip = coded[0] & NB_ULP_PLAIN ? 0 : ALL64 >> 1;
    size_t frequent = 0, taken = 0, pos = 0;

    if (len < 4 || shift >= BITS64 || shift + 9 < BITS64 ||
        (uint64_t)coded[2] << shift > (ALL64 >> 1) + UINT64_C(1) || (!coded[2] && coded[3] & 15))
        return -EBADMSG;
    const unsigned c = coded[1], split = coded[2], k0 = coded[3] & 15, k1 = coded[3] >> 4;
    coded += 4;
    len -= 4;
    memset(places[1], 0, (words + 1) * sizeof(uint64_t));
    if (split) {
        memset(places[0], 0, (words + 1) * sizeof(uint64_t));
        for (size_t i = 0; i < words; i++) {
            often[i] = NAME(often)(ref, n, i, (uint32_t)split << shift);
            frequent += (unsigned)__builtin_popcountll(often[i]);
        }
        if (gaps_take(coded, len, &pos, k0, frequent, places[0]))
            return -EBADMSG;
    }
    if (gaps_take(coded, len, &pos, k1, n - frequent, places[1]))
        return -EBADMSG;
    if (dst != ref)
        memcpy(dst, ref, n * W);
    for (size_t i = 0; i < words; i++) {
        uint64_t mask = places[1][i];

        if (split) {
            mask = spread_bits(map_bits(places[0], taken), often[i]) |
                   spread_bits(map_bits(places[1], 64 * i - taken), ~often[i]);
            taken += (unsigned)__builtin_popcountll(often[i]);
        }
        for (; mask; mask &= mask - 1) {
            uint8_t *to = dst + (64 * i + (unsigned)__builtin_ctzll(mask)) * W;
            const uint32_t r = NAME(sparse_pattern)(to);
            const unsigned k = NAME(sparse_low)(c, (r & ALL64 >> 1) >> shift);
            uint32_t z, d, x;

            if (pos > 8 * len)
                return -EBADMSG;
            if (unary) {
                z = sparse_take(coded, len, &pos, k, BITS64) + 1;
            } else {
                z = (uint32_t)(sparse_peek(coded, len, pos) & ((UINT64_C(1) << k) - 1)) + 1;
                pos += k;
            }
            z &= ALL64;
            d = (z >> 1 ^ (0u - (z & 1)));
            x = ((r ^ ((0u - (r >> (BITS64 - 1))) & flip)) + d) & ALL64;
            x ^= (0u - (x >> (BITS64 - 1))) & flip;
#if W == 1
            *to = (uint8_t)x;
#elif W == 2
            memcpy(to, &(uint16_t){htole16((uint16_t)x)}, 2);
#else
            memcpy(to, &(uint32_t){htole32(x)}, 4);
#endif
        }
    }
    return (pos + 7) / 8 == len ? 0 : -EBADMSG;
}

#undef BITS64
#undef ALL64
