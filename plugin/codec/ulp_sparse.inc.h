/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coder of chunks of which few values change, once for all variants and widths W (ulp_block.inc.h has the
 * names). A variant with HAVE_MASKS defines, for 64 values:
 *     changed   the mask of those that differ
 *     below     the mask of those whose pattern without its sign is below a bound of at least 1
 */

#define BITS64 (8u * W)
#define ALL64 (UINT32_MAX >> (32 - BITS64))
#define PART_WORDS (SPARSE_PART / 64)

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

/* Copy the values of word i, of which there are fewer than 64, in front of zeros. */
static inline void NAME(pad_word)(const uint8_t *p, size_t n, size_t i, uint8_t *padded)
{
    memset(padded, 0, 64 * W);
    memcpy(padded, p + 64 * i * W, (n - 64 * i) * W);
}

/* Return word i of the mask of values with an exponent below the split. Values behind the n-th have no
 * bit. */
static inline uint64_t NAME(often)(const uint8_t *ref, size_t n, size_t i, uint32_t bound)
{
    uint8_t padded[64 * W];

    if (__builtin_expect(n - 64 * i >= 64, 1))
        return NAME(below)(ref + 64 * i * W, bound);
    NAME(pad_word)(ref, n, i, padded);
    return NAME(below)(padded, bound) & ((UINT64_C(1) << (n - 64 * i)) - 1);
}

/* Return word i of the mask of changed values. Values behind the n-th have no bit. */
static inline uint64_t NAME(changes)(const uint8_t *cur, const uint8_t *ref, size_t n, size_t i)
{
    uint8_t a[64 * W], b[64 * W];

    if (n - 64 * i >= 64)
        return NAME(changed)(cur + 64 * i * W, ref + 64 * i * W);
    NAME(pad_word)(cur, n, i, a);
    NAME(pad_word)(ref, n, i, b);
    return NAME(changed)(a, b);
}

/* Mark the changed values and the parts that have some. Return their number, or a number above `most` as soon
 * as there are more. */
static inline size_t NAME(find)(const uint8_t *cur, const uint8_t *ref, size_t n, size_t most,
                                uint64_t *masks, uint64_t *parts)
{
    size_t m = 0;

    *parts = 0;
    for (size_t i = 0; 64 * i < n && m <= most; i += PART_WORDS) {
        uint64_t part[PART_WORDS] = {0}, any = 0;

        if (__builtin_expect(n - 64 * i >= SPARSE_PART, 1))
            for (size_t j = 0; j < PART_WORDS; j++)
                part[j] = NAME(changed)(cur + 64 * (i + j) * W, ref + 64 * (i + j) * W);
        else
            for (size_t j = 0; 64 * (i + j) < n; j++)
                part[j] = NAME(changes)(cur, ref, n, i + j);
        for (size_t j = 0; j < PART_WORDS; j++)
            any |= part[j];
        if (!any)
            continue;
        *parts |= UINT64_C(1) << i / PART_WORDS;
        for (size_t j = 0; j < PART_WORDS; j++) {
            masks[i + j] = part[j];
            m += (size_t)__builtin_popcountll(part[j]);
        }
    }
    return m;
}

/* Return a map of all parts of n values. */
static inline uint64_t NAME(all_parts)(size_t n)
{
    return UINT64_MAX >> (64 - (n + SPARSE_PART - 1) / SPARSE_PART);
}

/* Write the numbers of the parts' words. Return how many values the parts have. */
static inline size_t NAME(part_words)(uint64_t parts, size_t n, uint16_t *words)
{
    size_t count = 0, values = 0;

    for (; parts; parts &= parts - 1) {
        const size_t from = (size_t)__builtin_ctzll(parts) * SPARSE_PART;

        for (size_t i = 0; i < PART_WORDS; i++)
            words[count++] = (uint16_t)(from / 64 + i);
        values += n - from < SPARSE_PART ? n - from : SPARSE_PART;
    }
    return values;
}

/* Put patterns in the order of their values, or back. */
static inline uint32_t NAME(sparse_order)(uint32_t x, uint32_t flip)
{
    return x ^ ((0u - (x >> (BITS64 - 1))) & flip);
}

/* Turn the patterns of n changed values, in v, and of their references, in e, into zigzagged differences less
 * one and the references' exponents. */
static __attribute__((noinline)) void NAME(sparse_measure)(const struct nb_ulp_map *map, size_t n,
                                                           uint32_t *v, uint32_t *e)
{
    const uint32_t flip = map->plain ? 0 : ALL64 >> 1;
    const unsigned shift = map->shift;

    for (size_t i = 0; i < n; i++) {
        const uint32_t d = (NAME(sparse_order)(v[i], flip) - NAME(sparse_order)(e[i], flip)) & ALL64;

        v[i] = ((d << 1 ^ (0u - (d >> (BITS64 - 1)))) & ALL64) - 1;
        e[i] = (e[i] & ALL64 >> 1) >> shift;
    }
}

/* Return the low bits of a changed value: its sign, and those that are noise. */
static inline uint32_t NAME(sparse_low)(unsigned c, uint32_t e)
{
    const int k = (int)c - (int)e;

    return 1 + (uint32_t)(k < 0 ? 0 : k > (int)NB_ULP_KMAX(W) ? (int)NB_ULP_KMAX(W) : k);
}

/* Return the bits of n changed values with c. */
static __attribute__((noinline)) uint32_t NAME(sparse_price)(const uint32_t *v, const uint32_t *e, size_t n,
                                                             unsigned c)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t k = NAME(sparse_low)(c, e[i]), high = v[i] >> k;
        sum += high < NB_ULP_ESCAPE ? high + 1 + k : NB_ULP_ESCAPE + 1 + BITS64;
    }
    return sum;
}

/* Choose c for a sample of n changed values, walking from *c. Return the sample's bits. */
static inline uint32_t NAME(sparse_walk)(const uint32_t *v, const uint32_t *e, size_t n, unsigned *c)
{
    const unsigned start = *c;
    uint32_t price = NAME(sparse_price)(v, e, n, start), next;

    while (*c < 255 && (next = NAME(sparse_price)(v, e, n, *c + 1)) < price) {
        price = next;
        ++*c;
    }
    if (*c == start)
        while (*c > 0 && (next = NAME(sparse_price)(v, e, n, *c - 1)) < price) {
            price = next;
            --*c;
        }
    return price;
}

/* Copy the numbers of the sample: of n of m changes. */
static inline void NAME(sparse_sample)(const uint32_t *from, size_t m, size_t n, uint32_t *to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[n == NB_ULP_SAMPLE ? i * m / NB_ULP_SAMPLE : i];
}

/* Choose the reading of the next records, and c, by the patterns of a sample of n changed values. */
static __attribute__((noinline)) void NAME(sparse_read)(struct nb_ulp_sparse *s,
                                                        const struct nb_ulp_map *maps, const uint32_t *x,
                                                        const uint32_t *r, size_t n)
{
    uint32_t least = UINT32_MAX;

    for (unsigned j = 0; j < 4; j++) {
        uint32_t v[NB_ULP_SAMPLE], e[NB_ULP_SAMPLE], price;
        uint64_t sum = 0;
        unsigned c;

        memcpy(v, x, n * sizeof(*v));
        memcpy(e, r, n * sizeof(*e));
        NAME(sparse_measure)(&maps[j], n, v, e);
        for (size_t i = 0; i < n; i++)
            sum += e[i] + (64 - (unsigned)__builtin_clzll((uint64_t)v[i] + 1));
        c = nb_ulp_estimate(sum, (unsigned)n);
        price = NAME(sparse_walk)(v, e, n, &c);
        if (price < least) {
            least = price;
            s->map = maps[j];
            s->c = c;
        }
    }
}

/* Choose the split of the next records by the exponents of m changed values. */
static __attribute__((noinline)) void NAME(sparse_split)(struct nb_ulp_sparse *s, const uint8_t *ref,
                                                         size_t n, const uint32_t *e, size_t m)
{
    uint32_t values[256] = {0}, changes[256] = {0};

    for (size_t i = 0; i < n; i += NB_ULP_SPARSE_STRIDE)
        values[(NAME(sparse_pattern)(ref + i * W) & ALL64 >> 1) >> s->map.shift] += NB_ULP_SPARSE_STRIDE;
    for (size_t i = 0; i < m; i++)
        changes[e[i]]++;
    s->split = split_choose(values, changes);
}

/* Write the gaps of m changes, places among the values of `words`, by their class: 0 frequent values, 1
 * others. count and values get the changes and the values of both. */
static __attribute__((noinline)) void NAME(sparse_gaps)(const uint32_t *at, size_t m, const uint16_t *words,
                                                        size_t all, const uint8_t *ref, size_t n,
                                                        uint32_t bound, uint16_t gaps[2][SPARSE_CHANGES],
                                                        size_t *count, size_t *values)
{
    count[0] = values[0] = 0;
    count[1] = m;
    values[1] = all;
    if (!bound) {
        gaps[1][0] = (uint16_t)at[0];
        for (size_t i = 1; i < m; i++)
            gaps[1][i] = (uint16_t)(at[i] - at[i - 1] - 1);
        return;
    }
    size_t next[2] = {0, 0}, frequent = 0;
    count[1] = 0;
    for (size_t i = 0, j = 0; 64 * i < all; i++) {
        const uint64_t mask = NAME(often)(ref, n, words[i], bound);

        for (; j < m && at[j] / 64 == i; j++) {
            const unsigned bit = at[j] % 64, class = !(mask >> bit & 1);
            const size_t lower = frequent + (unsigned)__builtin_popcountll(mask & ((UINT64_C(1) << bit) - 1));
            const size_t place = class ? at[j] - lower : lower;

            gaps[class][count[class]++] = (uint16_t)(place - next[class]);
            next[class] = place + 1;
        }
        frequent += (unsigned)__builtin_popcountll(mask);
    }
    values[0] = frequent;
    values[1] = all - frequent;
}

/* Append the low parts v of m differences, k bits each. Both arrays have three more numbers. */
static inline void NAME(put_lows)(struct bits *b, uint32_t *v, uint32_t *k, size_t m)
{
    for (size_t i = m; i < m + 3; i++)
        v[i] = k[i] = 0;
    for (size_t i = 0; i < m; i += 4) {
        const uint32_t k01 = k[i] + k[i + 1], k23 = k[i + 2] + k[i + 3];

        if (__builtin_expect(k01 + k23 <= 56, 1)) {
            const uint64_t v01 = v[i] | (uint64_t)v[i + 1] << k[i],
                           v23 = v[i + 2] | (uint64_t)v[i + 3] << k[i + 2];
            bits_put(b, v01 | v23 << k01, k01 + k23);
        } else {
            for (unsigned j = 0; j < 4; j++)
                bits_put(b, v[i + j], k[i + j]);
        }
    }
}

static size_t NAME(encode_sparse)(struct nb_ulp_sparse *s, const struct nb_ulp_map *maps, const uint8_t *cur,
                                  const uint8_t *ref, size_t n, uint8_t *dst)
{
    uint64_t masks[SPARSE_WORDS], parts;
    uint32_t at[SPARSE_CHANGES + SPARSE_SPARE], v[SPARSE_CHANGES + 3], k[SPARSE_CHANGES + 3];
    uint32_t sample[2][NB_ULP_SAMPLE], high = 0, zeros = 0;
    uint16_t gaps[2][SPARSE_CHANGES], words[SPARSE_WORDS];
    size_t count[2], values[2];
    const uint8_t *begin = dst;
    const size_t m = NAME(find)(cur, ref, n, n / NB_ULP_FEW, masks, &parts),
                 samples = m < NB_ULP_SAMPLE ? m : NB_ULP_SAMPLE;
    struct bits b;

    if (m == 0 || m > n / NB_ULP_FEW)
        return m ? NB_ULP_NOT_SPARSE : 0;
    NAME(part_words)(parts, n, words);
    for (size_t i = 0, got = 0; got < m; i++)
        got += ones_of(masks[words[i]], 64u * words[i], at + got);
    for (size_t i = 0; i < m; i++) {
        v[i] = NAME(sparse_pattern)(cur + (size_t)at[i] * W);
        k[i] = NAME(sparse_pattern)(ref + (size_t)at[i] * W);
    }
    const bool anew = s->records++ % NB_ULP_SPARSE_REMAP == 0;
    if (anew) {
        NAME(sparse_sample)(v, m, samples, sample[0]);
        NAME(sparse_sample)(k, m, samples, sample[1]);
        NAME(sparse_read)(s, maps, sample[0], sample[1], samples);
    }
    NAME(sparse_measure)(&s->map, m, v, k);
    if (anew) {
        NAME(sparse_split)(s, ref, n, k, m);
    } else {
        NAME(sparse_sample)(v, m, samples, sample[0]);
        NAME(sparse_sample)(k, m, samples, sample[1]);
        NAME(sparse_walk)(sample[0], sample[1], samples, &s->c);
    }
    const unsigned c = s->c;
    for (size_t i = 0; i < m; i++) {
        k[i] = NAME(sparse_low)(c, k[i]);
        high |= v[i] >> k[i];
    }

    const bool by_parts =
        m >= 64 && 2 * __builtin_popcountll(parts) <= __builtin_popcountll(NAME(all_parts)(n));
    if (by_parts)
        for (size_t i = 0; i < m; i++) {
            const uint64_t before = (UINT64_C(1) << at[i] / SPARSE_PART) - 1;
            at[i] = (uint32_t)__builtin_popcountll(parts & before) * SPARSE_PART + at[i] % SPARSE_PART;
        }
    const size_t all = NAME(part_words)(by_parts ? parts : NAME(all_parts)(n), n, words);
    NAME(sparse_gaps)(at, m, words, all, ref, n, (uint32_t)s->split << s->map.shift, gaps, count, values);
    const unsigned k0 = gaps_choose(gaps[0], count[0], values[0]),
                   k1 = gaps_choose(gaps[1], count[1], values[1]);

    dst[0] = (uint8_t)(NB_ULP_SPARSE | (high ? NB_ULP_UNARY : 0) | (s->map.plain ? NB_ULP_PLAIN : 0) |
                       s->map.shift);
    dst[1] = (uint8_t)s->c;
    dst[2] = (uint8_t)s->split;
    dst[3] = (uint8_t)(k0 | k1 << 4);
    nb_put16(dst + 4, (uint16_t)(m | (by_parts ? NB_ULP_PARTS : 0)));
    dst += 6;
    if (s->split) {
        nb_put16(dst, (uint16_t)count[0]);
        dst += 2;
    }
    if (by_parts) {
        nb_put64(dst, parts);
        dst += 8;
    }
    if (high)
        for (size_t i = 0; i < m; i++) {
            const uint32_t h = v[i] >> k[i];
            zeros += h < NB_ULP_ESCAPE ? h : NB_ULP_ESCAPE;
        }
    memset(dst, 0, (2 * m + (values[0] >> k0) + (values[1] >> k1) + zeros) / 8 + 8);
    struct ones ones = {.p = dst};
    for (size_t i = 0; i < count[0]; i++)
        ones_put(&ones, (uint32_t)gaps[0][i] >> k0);
    for (size_t i = 0; i < count[1]; i++)
        ones_put(&ones, (uint32_t)gaps[1][i] >> k1);
    if (high) {
        for (size_t i = 0; i < m; i++) {
            const uint32_t h = v[i] >> k[i];
            ones_put(&ones, h < NB_ULP_ESCAPE ? h : NB_ULP_ESCAPE);
        }
        for (size_t i = 0; i < m; i++) {
            k[i] = v[i] >> k[i] < NB_ULP_ESCAPE ? k[i] : BITS64;
            v[i] &= (uint32_t)((UINT64_C(1) << k[i]) - 1);
        }
    }
    bits_begin(&b, dst + (ones.bits + 7) / 8);
    fields_put(&b, gaps[0], count[0], k0);
    fields_put(&b, gaps[1], count[1], k1);
    NAME(put_lows)(&b, v, k, m);
    return (size_t)(bits_end(&b) - begin);
}

/* The header of a record, and the strings behind it. */
struct NAME(sparse_header) {
    unsigned shift, c, split, k[2];
    uint32_t flip;
    bool unary;
    size_t m, frequent; /* changes */
    uint64_t parts;
    size_t bytes;
};

static inline int NAME(sparse_open)(struct NAME(sparse_header) * h, const uint8_t *coded, size_t len,
                                    size_t n)
{
    if (len < 6)
        return -EBADMSG;
    h->shift = coded[0] & NB_ULP_SHIFT_MASK;
    h->unary = coded[0] & NB_ULP_UNARY;
    h->flip = coded[0] & NB_ULP_PLAIN ? 0 : ALL64 >> 1;
    h->c = coded[1];
    h->split = coded[2];
    h->k[0] = coded[3] & 15;
    h->k[1] = coded[3] >> 4;
    h->m = nb_get16(coded + 4) & ~NB_ULP_PARTS;
    h->frequent = 0;
    h->parts = NAME(all_parts)(n);
    h->bytes = 6 + (h->split ? 2 : 0) + (nb_get16(coded + 4) & NB_ULP_PARTS ? 8 : 0);
    if (h->shift >= BITS64 || h->shift + 9 < BITS64 ||
        (uint64_t)h->split << h->shift > (ALL64 >> 1) + UINT64_C(1) || h->k[0] > NB_ULP_GAP_MAX ||
        h->k[1] > NB_ULP_GAP_MAX || (!h->split && h->k[0]) || !h->m || h->m > n / NB_ULP_FEW ||
        len < h->bytes)
        return -EBADMSG;
    if (h->split)
        h->frequent = nb_get16(coded + 6);
    if (nb_get16(coded + 4) & NB_ULP_PARTS) {
        h->parts = nb_get64(coded + h->bytes - 8);
        if (!h->parts || h->parts & ~NAME(all_parts)(n))
            return -EBADMSG;
    }
    return h->frequent <= h->m ? 0 : -EBADMSG;
}

/* Merge the places of the changes of both classes, and turn them into those among n values. */
static inline int NAME(sparse_merge)(const struct NAME(sparse_header) * h, uint32_t start, uint32_t *at,
                                     const uint16_t *low, const uint8_t *ref, size_t n)
{
    uint64_t often[SPARSE_WORDS], places[2][SPARSE_WORDS + 1];
    uint16_t words[SPARSE_WORDS];
    const size_t all = NAME(part_words)(h->parts, n, words), m0 = h->frequent, m = h->m;
    const uint32_t start1 = m0 ? at[m0 - 1] + 1 : start;
    size_t frequent = 0, taken = 0, got = 0;

    for (size_t i = 0; h->split && 64 * i < all; i++) {
        often[i] = NAME(often)(ref, n, words[i], (uint32_t)h->split << h->shift);
        frequent += (unsigned)__builtin_popcountll(often[i]);
    }
    if (gaps_sum(at, low, m0, h->k[0], start, (uint32_t)frequent) ||
        gaps_sum(at + m0, low + m0, m - m0, h->k[1], start1, (uint32_t)(all - frequent)))
        return -EBADMSG;
    if (!h->split) {
        if (all < n)
            for (size_t i = 0; i < m; i++)
                at[i] = 64u * words[at[i] / 64] + at[i] % 64;
        return 0;
    }
    memset(places, 0, sizeof(places));
    for (size_t i = 0; i < m; i++)
        places[i >= m0][at[i] / 64] |= UINT64_C(1) << at[i] % 64;
    for (size_t i = 0; got < m; i++) {
        const uint64_t mask = spread_bits(map_bits(places[0], taken), often[i]) |
                              spread_bits(map_bits(places[1], 64 * i - taken), ~often[i]);
        got += ones_of(mask, 64u * words[i], at + got);
        taken += (unsigned)__builtin_popcountll(often[i]);
    }
    return 0;
}

/* Get the low parts of n differences, k bits each, from bit *pos on. Both arrays have room for three more. */
static inline void NAME(take_lows)(const uint8_t *coded, size_t len, size_t *pos, uint32_t *v, uint32_t *k,
                                   size_t n)
{
    for (size_t i = n; i < n + 3; i++)
        k[i] = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint64_t x = sparse_peek(coded, len, *pos);

        if (__builtin_expect(k[i] + k[i + 1] + k[i + 2] + k[i + 3] <= 57, 1)) {
            for (unsigned j = 0; j < 4; j++) {
                v[i + j] = (uint32_t)(x & ((UINT64_C(1) << k[i + j]) - 1));
                x >>= k[i + j];
                *pos += k[i + j];
            }
        } else {
            for (unsigned j = 0; j < 4; j++) {
                x = sparse_peek(coded, len, *pos);
                v[i + j] = (uint32_t)(x & ((UINT64_C(1) << k[i + j]) - 1));
                *pos += k[i + j];
            }
        }
    }
}

static int NAME(decode_sparse)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst)
{
    uint32_t at[SPARSE_CHANGES + SPARSE_SPARE], ones[1 + SPARSE_CHANGES + SPARSE_SPARE];
    uint16_t low[SPARSE_CHANGES + 6];
    struct NAME(sparse_header) h;
    size_t pos;

    if (NAME(sparse_open)(&h, coded, len, n))
        return -EBADMSG;
    pos = 8 * h.bytes;
    if (ones_take(coded, len, &pos, h.m, at))
        return -EBADMSG;
    ones[0] = (uint32_t)pos - 1;
    if (h.unary && ones_take(coded, len, &pos, h.m, ones + 1))
        return -EBADMSG;
    pos = (pos + 7) / 8 * 8;
    fields_take(coded, len, &pos, h.frequent, h.k[0], low);
    fields_take(coded, len, &pos, h.m - h.frequent, h.k[1], low + h.frequent);
    if (NAME(sparse_merge)(&h, 8 * (uint32_t)h.bytes, at, low, ref, n))
        return -EBADMSG;
    if (dst != ref)
        memcpy(dst, ref, n * W);
    for (size_t i = 0; i < h.m; i += SPARSE_BLOCK) {
        uint32_t r[SPARSE_BLOCK], k[SPARSE_BLOCK + 3], v[SPARSE_BLOCK + 3], top[SPARSE_BLOCK], bad = 0;
        const size_t count = h.m - i < SPARSE_BLOCK ? h.m - i : SPARSE_BLOCK;

        for (size_t j = 0; j < count; j++)
            r[j] = NAME(sparse_pattern)(ref + (size_t)at[i + j] * W);
        for (size_t j = 0; j < count; j++)
            k[j] = NAME(sparse_low)(h.c, (r[j] & ALL64 >> 1) >> h.shift);
        if (h.unary)
            for (size_t j = 0; j < count; j++) {
                const uint32_t high = ones[i + j + 1] - ones[i + j] - 1;

                bad |= high > NB_ULP_ESCAPE;
                top[j] = high < NB_ULP_ESCAPE ? high << k[j] : 0;
                k[j] = high < NB_ULP_ESCAPE ? k[j] : BITS64;
            }
        else
            memset(top, 0, sizeof(top));
        if (bad)
            return -EBADMSG;
        NAME(take_lows)(coded, len, &pos, v, k, count);
        for (size_t j = 0; j < count; j++) {
            const uint32_t z = ((v[j] | top[j]) + 1) & ALL64, d = z >> 1 ^ (0u - (z & 1));
            v[j] = NAME(sparse_order)((NAME(sparse_order)(r[j], h.flip) + d) & ALL64, h.flip);
        }
        for (size_t j = 0; j < count; j++) {
            uint8_t *to = dst + (size_t)at[i + j] * W;
#if W == 1
            *to = (uint8_t)v[j];
#elif W == 2
            memcpy(to, &(uint16_t){htole16((uint16_t)v[j])}, 2);
#else
            memcpy(to, &(uint32_t){htole32(v[j])}, 4);
#endif
        }
    }
    return (pos + 7) / 8 == len ? 0 : -EBADMSG;
}

#undef BITS64
#undef ALL64
#undef PART_WORDS
