/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block coder, once for all variants. A variant's source defines for each width W (bytes)
 *     W             1, 2 or 4
 *     NAME(x)       the name of function x for this variant and width
 *     lane          type of a value as it is worked on, >= W bytes
 *     group         32 values' k, high and low parts
 * and these functions, then includes this file.
 *     int      diff(cur, ref, map, zz[32], ex[32])   zigzagged differences and exponents of ref; any nonzero?
 *     uint32_t cost(zz, ex, n, c)                    bits of n (multiple of 32) values with parameter c,
 * plane 0 aside void     split(zz, ex, c, group *)             k = clamp(c - ex), high = zz >> k, low = the
 * rest uint32_t above(group *, j)                     mask of high > j void     put_low(struct bits *, group
 * *)       append the low parts in index order void     widths(ref, map, c, group *)          k from the
 * reference; high = 0 void     add(group *, mask)                    high += 1 where the mask has a bit
 *     unsigned get_low(p, bit, group *)              low from bit `bit` of p on; how many bits those were
 *     void     finish(ref, map, group *, dst)        dst = ref + difference
 *     uint32_t pext(x, mask), pdep(x, mask)
 */

static size_t NAME(encode_raw)(const uint8_t *cur, size_t n, uint8_t *dst)
{
    dst[0] = NB_ULP_RAW;
    memcpy(dst + 1, cur, n * W);
    return 1 + n * W;
}

/* Walk down the cost from *c. Deterministic: the same in all variants. */
static uint32_t NAME(descend)(const lane *zz, const lane *ex, size_t n, unsigned *c)
{
    uint32_t best = NAME(cost)(zz, ex, n, *c);
    int dir = 0;

    while (dir >= 0 && *c < 255) {
        uint32_t up = NAME(cost)(zz, ex, n, *c + 1);
        if (up >= best)
            break;
        best = up;
        ++*c;
        dir = 1;
    }
    while (dir <= 0 && *c > 0) {
        uint32_t down = NAME(cost)(zz, ex, n, *c - 1);
        if (down >= best)
            break;
        best = down;
        --*c;
        dir = -1;
    }
    return best;
}

/* Choose c for a run. */
static void NAME(choose_c)(const lane *zz, const lane *ex, size_t n, unsigned *c)
{
    uint32_t best = NAME(descend)(zz, ex, n, c);
    uint64_t sum = 0;
    unsigned count = 0, other;

    if (best <= n * W * 4)
        return;
    /* More than half of raw: either that is how it is, or the previous run's c was no good place to start. */
    for (size_t i = 0; i < n; i++) {
        if (zz[i]) {
            sum += ex[i] + (32 - (unsigned)__builtin_clz((uint32_t)zz[i]));
            count++;
        }
    }
    other = nb_ulp_estimate(sum, count);
    if (NAME(descend)(zz, ex, n, &other) < best)
        *c = other;
}

static inline void NAME(put_group)(struct bits *b, const group *g, uint32_t m, int sparse)
{
    if (sparse) {
        uint32_t t = m | m >> 1;
        t = (t | t >> 2) & 0x11111111u;
        bits_put(b, pext(t, 0x11111111u), 8);
        bits_put(b, pext(m, t * 15), 4 * (unsigned)__builtin_popcount(t));
    } else {
        bits_put(b, m, 32);
    }
    for (unsigned j = 1; m && j < NB_ULP_PLANES; j++) {
        uint32_t next = NAME(above)(g, j);
        bits_put(b, pext(next, m), (unsigned)__builtin_popcount(m));
        m = next;
    }
    NAME(put_low)(b, g);
}

static size_t NAME(encode_block)(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                                 size_t n, unsigned *c, uint8_t *dst)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + NB_ULP_GROUP - 1) / NB_ULP_GROUP;
    const size_t full = n / NB_ULP_GROUP;
    _Alignas(64) lane zz[NB_ULP_RUN], ex[NB_ULP_RUN];
    uint8_t *modes = dst + 2 + runs;
    uint16_t exc[NB_ULP_MAX_EXC];
    unsigned nexc = 0;
    struct bits b;
    int changed = 0;

    dst[0] = (uint8_t)(map->shift | (map->plain ? NB_ULP_PLAIN : 0));
    memset(modes, 0, (groups + 3) / 4);
    bits_begin(&b, modes + (groups + 3) / 4);
    for (size_t r = 0; r < runs; r++) {
        const size_t g0 = r * (NB_ULP_RUN / NB_ULP_GROUP);
        const size_t ng = groups - g0 < NB_ULP_RUN / NB_ULP_GROUP ? groups - g0 : NB_ULP_RUN / NB_ULP_GROUP;
        int any = 0;

        for (size_t g = 0; g < ng; g++) {
            const size_t at = (g0 + g) * NB_ULP_GROUP;
            if (g0 + g < full) {
                any |=
                    NAME(diff)(cur + at * W, ref + at * W, map, zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP);
            } else {
                uint8_t a[NB_ULP_GROUP * W], z[NB_ULP_GROUP * W];
                ulp_pad(a, cur + at * W, n - at, W);
                ulp_pad(z, ref + at * W, n - at, W);
                any |= NAME(diff)(a, z, map, zz + g * NB_ULP_GROUP, ex + g * NB_ULP_GROUP);
            }
        }
        if (!any) {
            dst[2 + r] = 0;
            continue;
        }
        changed = 1;
        NAME(choose_c)(zz, ex, ng * NB_ULP_GROUP, c);
        dst[2 + r] = (uint8_t)*c;
        for (size_t g = 0; g < ng; g++) {
            lane *z = zz + g * NB_ULP_GROUP;
            group s;
            uint32_t over, m;
            int sparse;

            NAME(split)(z, ex + g * NB_ULP_GROUP, *c, &s);
            over = NAME(above)(&s, NB_ULP_PLANES);
            if (__builtin_expect(over != 0, 0)) {
                for (; over; over &= over - 1) {
                    unsigned i = (unsigned)__builtin_ctz(over);
                    if (nexc == NB_ULP_MAX_EXC)
                        return NAME(encode_raw)(cur, n, dst);
                    exc[nexc++] = (uint16_t)((g0 + g) * NB_ULP_GROUP + i);
                    z[i] = 0;
                }
                NAME(split)(z, ex + g * NB_ULP_GROUP, *c, &s);
            }
            m = NAME(above)(&s, 0);
            if (m == 0 && !NAME(nonzero)(z))
                continue;
            sparse = ulp_cells(m) < 6;
            modes[(g0 + g) / 4] |= (uint8_t)((sparse ? 1 : 2) << 2 * ((g0 + g) % 4));
            NAME(put_group)(&b, &s, m, sparse);
        }
        if ((size_t)(b.p - dst) > n * W)
            return NAME(encode_raw)(cur, n, dst);
    }
    if (!changed)
        return 0;
    dst[1] = (uint8_t)nexc;
    uint8_t *p = bits_end(&b);
    if ((size_t)(p - dst) + nexc * (2 + W) > n * W)
        return NAME(encode_raw)(cur, n, dst);
    for (unsigned i = 0; i < nexc; i++, p += 2 + W) {
        p[0] = (uint8_t)exc[i];
        p[1] = (uint8_t)(exc[i] >> 8);
        memcpy(p + 2, cur + (size_t)exc[i] * W, W);
    }
    return (size_t)(p - dst);
}

/* Planes and low parts of one group; returns the bit position behind it. */
static inline size_t NAME(get_group)(const uint8_t *p, size_t pos, int sparse, group *g)
{
    uint64_t w = bits_peek(p, pos);
    uint32_t m;

    if (sparse) {
        uint32_t cells = pdep((uint32_t)w & 0xff, 0x11111111u) * 15;
        m = pdep((uint32_t)(w >> 8), cells);
        pos += 8 + (unsigned)__builtin_popcount(cells);
    } else {
        m = (uint32_t)w;
        pos += 32;
    }
    for (unsigned j = 1; m; j++) {
        NAME(add)(g, m);
        if (j == NB_ULP_PLANES)
            break;
        unsigned len = (unsigned)__builtin_popcount(m);
        m = pdep((uint32_t)bits_peek(p, pos), m);
        pos += len;
    }
    return pos + NAME(get_low)(p, pos, g);
}

static int NAME(decode_block)(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + NB_ULP_GROUP - 1) / NB_ULP_GROUP;
    const size_t full = n / NB_ULP_GROUP, head = 2 + runs + (groups + 3) / 4;
    const uint8_t *modes = coded + 2 + runs, *p = coded + head;
    struct nb_ulp_map map;
    size_t pos = 0, end, nexc;
    unsigned last = 0;

    if (coded[0] & NB_ULP_RAW) {
        if (coded[0] != NB_ULP_RAW || len != 1 + n * W)
            return -EBADMSG;
        memcpy(dst, coded + 1, n * W);
        return 0;
    }
    map.shift = coded[0] & NB_ULP_SHIFT_MASK;
    map.plain = (coded[0] & NB_ULP_PLAIN) != 0;
    if ((coded[0] & ~(NB_ULP_SHIFT_MASK | NB_ULP_PLAIN)) || map.shift >= 8 * W || map.shift + 9 < 8 * W ||
        len < head)
        return -EBADMSG;
    nexc = coded[1];
    if (nexc * (2 + W) > len - head)
        return -EBADMSG;
    end = 8 * (len - head - nexc * (2 + W));

    for (size_t g = 0; g < groups; g++) {
        const size_t at = g * NB_ULP_GROUP;
        const unsigned mode = modes[g / 4] >> 2 * (g % 4) & 3, c = coded[2 + g / (NB_ULP_RUN / NB_ULP_GROUP)];
        group s;

        if (mode == 0) {
            size_t left = (g < full ? NB_ULP_GROUP : n - at) * W;
            memmove(dst + at * W, ref + at * W, left);
            continue;
        }
        if (mode == 3 || pos > end)
            return -EBADMSG;
        if (__builtin_expect(g < full, 1)) {
            NAME(widths)(ref + at * W, &map, c, &s);
            pos = NAME(get_group)(p, pos, mode == 1, &s);
            NAME(finish)(ref + at * W, &map, &s, dst + at * W);
        } else {
            uint8_t z[NB_ULP_GROUP * W], out[NB_ULP_GROUP * W];
            ulp_pad(z, ref + at * W, n - at, W);
            NAME(widths)(z, &map, c, &s);
            pos = NAME(get_group)(p, pos, mode == 1, &s);
            NAME(finish)(z, &map, &s, out);
            memcpy(dst + at * W, out, (n - at) * W);
        }
    }
    if ((pos + 7) / 8 != end / 8)
        return -EBADMSG;
    p += end / 8;
    for (size_t i = 0; i < nexc; i++, p += 2 + W) {
        unsigned at = p[0] | (unsigned)p[1] << 8;
        if (at >= n || (i && at <= last))
            return -EBADMSG;
        memcpy(dst + (size_t)at * W, p + 2, W);
        last = at;
    }
    return 0;
}
