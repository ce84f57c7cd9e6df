/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that ulp_block.inc.h needs, in portable C. ulp_widths.inc.h includes this for each width
 * W. */

#define BITS (8u * W)
#define ALL ((uint32_t)(((uint64_t)1 << BITS) - 1))
#define MAGNITUDE (ALL >> 1)

static inline uint32_t NAME(load)(const uint8_t *p)
{
#if W == 1
    return *p;
#elif W == 2
    uint16_t v;
    memcpy(&v, p, 2);
    return le16toh(v);
#else
    uint32_t v;
    memcpy(&v, p, 4);
    return le32toh(v);
#endif
}

static inline void NAME(store)(uint8_t *p, uint32_t x)
{
#if W == 1
    *p = (uint8_t)x;
#elif W == 2
    uint16_t v = htole16((uint16_t)x);
    memcpy(p, &v, 2);
#else
    uint32_t v = htole32(x);
    memcpy(p, &v, 4);
#endif
}

/* Convert between pattern and ordered integer (its own inverse). flip is MAGNITUDE or, for plain integers,
 * 0. */
static inline uint32_t NAME(order)(uint32_t x, uint32_t flip)
{
    return x ^ ((0u - (x >> (BITS - 1))) & flip);
}

/* Without branches, which would be mispredicted. Exponents are at most 255. */
static inline unsigned NAME(clamp_k)(unsigned c, uint32_t ex)
{
    const int over = (int)c - (int)ex - (int)NB_ULP_KMAX(W);
    const int k = (int)NB_ULP_KMAX(W) + (over & over >> 31);

    return (unsigned)(k & ~(k >> 31));
}

static inline int NAME(diff)(const uint8_t *cur, const uint8_t *ref, const struct nb_ulp_map *map, lane *zz,
                             lane *ex)
{
    const uint32_t flip = map->plain ? 0 : MAGNITUDE;
    const unsigned shift = map->shift;
    uint32_t any = 0;

    for (unsigned i = 0; i < 32; i++) {
        uint32_t r = NAME(load)(ref + (size_t)i * W);
        uint32_t d = (NAME(order)(NAME(load)(cur + (size_t)i * W), flip) - NAME(order)(r, flip)) & ALL;
        zz[i] = (d << 1 ^ (0u - (d >> (BITS - 1)))) & ALL;
        ex[i] = (r & MAGNITUDE) >> shift;
        any |= d;
    }
    return any != 0;
}

static inline uint32_t NAME(high_cost)(uint32_t high)
{
    const uint32_t beyond = 0u - (high > NB_ULP_PLANES);

    return (high & ~beyond) | (NB_ULP_EXC_COST(W) & beyond);
}

static void NAME(costs)(const lane *zz, const lane *ex, size_t n, unsigned c, uint32_t *out)
{
    uint32_t s0 = 0, s1 = 0, s2 = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned k0 = NAME(clamp_k)(c - 1, ex[i]), k1 = NAME(clamp_k)(c, ex[i]);
        const unsigned k2 = NAME(clamp_k)(c + 1, ex[i]);
        s0 += k0 + NAME(high_cost)(zz[i] >> k0);
        s1 += k1 + NAME(high_cost)(zz[i] >> k1);
        s2 += k2 + NAME(high_cost)(zz[i] >> k2);
    }
    out[0] = s0;
    out[1] = s1;
    out[2] = s2;
}

static inline int NAME(sample)(const lane *zz, const lane *ex, lane *zs, lane *es)
{
    uint32_t any = 0;

    for (unsigned i = 0; i < NB_ULP_RUN / 2; i++) {
        unsigned from = i / 32 * 64 + i % 32 + i % 2 * 32;
        zs[i] = zz[from];
        es[i] = ex[from];
        any |= zs[i];
    }
    return any != 0;
}

static inline void NAME(split)(const lane *zz, const lane *ex, unsigned c, group *g)
{
    for (unsigned i = 0; i < 32; i++) {
        const unsigned k = NAME(clamp_k)(c, ex[i]);
        const uint32_t high = zz[i] >> k, beyond = 0u - (high > NB_ULP_PLANES);
        g->k[i] = (uint8_t)k;
        g->high[i] = (uint8_t)((high & ~beyond) | ((NB_ULP_PLANES + 1) & beyond));
        g->low[i] = zz[i] & ((1u << k) - 1);
    }
}

static inline void NAME(drop)(group *g, uint32_t mask)
{
    for (; mask; mask &= mask - 1) {
        g->high[__builtin_ctz(mask)] = 0;
        g->low[__builtin_ctz(mask)] = 0;
    }
}

static inline int NAME(low_is_zero)(const group *g)
{
    uint32_t any = 0;

    for (unsigned i = 0; i < 32; i++)
        any |= g->low[i];
    return any == 0;
}

static inline uint32_t NAME(above)(const group *g, uint32_t j)
{
    return bytes_above(g->high, j);
}

static inline void NAME(put_low)(struct bits *b, const group *g)
{
    /* As many values at once as surely fit. */
    for (unsigned i = 0; i < 32; i += 8 / (2 * W)) {
        uint64_t v = 0;
        unsigned len = 0;
        for (unsigned j = i; j < i + 8 / (2 * W); j++) {
            v |= (uint64_t)g->low[j] << len;
            len += g->k[j];
        }
        bits_put(b, v, len);
    }
}

static inline void NAME(widths)(const uint8_t *ref, const struct nb_ulp_map *map, unsigned c, group *g)
{
    for (unsigned i = 0; i < 32; i++) {
        const uint32_t ex = (NAME(load)(ref + (size_t)i * W) & MAGNITUDE) >> map->shift;
        g->k[i] = (uint8_t)NAME(clamp_k)(c, ex < map->floor ? map->floor : ex);
    }
}

static inline void NAME(add)(group *g, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    for (unsigned i = 0; i < 32; i += 8) {
        const uint64_t sum = spread(m0 >> i) + spread(m1 >> i) + spread(m2 >> i) + spread(m3 >> i);
        memcpy(g->high + i, &(uint64_t){htole64(sum)}, 8);
    }
}

static inline unsigned NAME(get_low)(const uint8_t *p, size_t pos, group *g)
{
    size_t at = pos;

    for (unsigned i = 0; i < 32; i += 8 / (2 * W)) {
        uint64_t v = bits_peek(p, at);
        for (unsigned j = i; j < i + 8 / (2 * W); j++) {
            g->low[j] = (uint32_t)v & ((1u << g->k[j]) - 1);
            v >>= g->k[j];
            at += g->k[j];
        }
    }
    return (unsigned)(at - pos);
}

static inline void NAME(finish)(const uint8_t *ref, const struct nb_ulp_map *map, const group *g,
                                uint8_t *dst)
{
    const uint32_t flip = map->plain ? 0 : MAGNITUDE;

    for (unsigned i = 0; i < 32; i++) {
        uint32_t zz = (g->low[i] | (uint32_t)g->high[i] << g->k[i]) & ALL, d = zz >> 1 ^ (0u - (zz & 1));
        uint32_t o = (NAME(order)(NAME(load)(ref + (size_t)i * W), flip) + d) & ALL;
        NAME(store)(dst + (size_t)i * W, NAME(order)(o, flip));
    }
}

#if W > 1
static inline void NAME(unsplit)(const group *g, lane *zz)
{
    for (unsigned i = 0; i < 32; i++)
        zz[i] = (g->low[i] | (uint32_t)g->high[i] << g->k[i]) & ALL;
}
#endif

#include "codec/ulp_block.inc.h"

#undef BITS
#undef ALL
#undef MAGNITUDE
