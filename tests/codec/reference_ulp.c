/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block coder of ulp, slow and obvious: one bit at a time, from docs/wire-format.md. It shares only
 * constants with the fast coders. Tests compare these with it.
 */
#include "reference.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "codec/fp.h"

struct bitstring {
    uint8_t *p;
    size_t bits;
};

static void put(struct bitstring *s, uint64_t v, unsigned len)
{
    for (unsigned i = 0; i < len; i++, s->bits++) {
        if (s->bits % 8 == 0)
            s->p[s->bits / 8] = 0;
        s->p[s->bits / 8] |= (uint8_t)((v >> i & 1) << s->bits % 8);
    }
}

static unsigned get(const uint8_t *p, size_t *pos)
{
    unsigned bit = p[*pos / 8] >> *pos % 8 & 1;

    ++*pos;
    return bit;
}

static uint32_t load(const uint8_t *p, unsigned w)
{
    uint32_t x = 0;

    for (unsigned i = 0; i < w; i++)
        x |= (uint32_t)p[i] << 8 * i;
    return x;
}

static void store(uint8_t *p, unsigned w, uint32_t x)
{
    for (unsigned i = 0; i < w; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

/* Return the pattern as a signed integer that grows with the value. */
static int64_t ordered(const struct nb_ulp_map *map, unsigned w, uint32_t x)
{
    int64_t half = (int64_t)1 << (8 * w - 1);

    if (x < half)
        return x;
    return map->plain ? (int64_t)x - 2 * half : -1 - ((int64_t)x - half);
}

static uint32_t pattern(const struct nb_ulp_map *map, unsigned w, int64_t o)
{
    int64_t half = (int64_t)1 << (8 * w - 1);

    if (o >= 0)
        return (uint32_t)o;
    return (uint32_t)(map->plain ? o + 2 * half : half - 1 - o);
}

/* Wrap d into -half .. half - 1. */
static int64_t wrap(unsigned w, int64_t d)
{
    int64_t half = (int64_t)1 << (8 * w - 1);

    return d >= half ? d - 2 * half : d < -half ? d + 2 * half : d;
}

static uint32_t exponent(const struct nb_ulp_map *map, unsigned w, uint32_t x)
{
    return (x & ((1u << (8 * w - 1)) - 1)) >> map->shift;
}

static unsigned low_bits(unsigned w, unsigned c, uint32_t ex)
{
    int k = (int)c - (int)ex;

    return k < 0 ? 0 : k > (int)NB_ULP_KMAX(w) ? NB_ULP_KMAX(w) : (unsigned)k;
}

static uint32_t run_cost(const uint32_t *zz, const uint32_t *ex, size_t n, unsigned c, unsigned w)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned k = low_bits(w, c, ex[i]);
        sum += k;
        sum += zz[i] >> k > NB_ULP_PLANES ? NB_ULP_EXC_COST(w) : zz[i] >> k;
    }
    return sum;
}

/* Compute zigzagged differences and exponents of n values, padded to `padded`. */
static void measure(unsigned w, const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                    size_t n, size_t padded, uint32_t *zz, uint32_t *ex)
{
    const uint32_t none = (1u << (8 * w - 1)) - 1;

    for (size_t i = 0; i < padded; i++) {
        uint32_t x = i < n ? load(cur + i * w, w) : none, r = i < n ? load(ref + i * w, w) : none;
        int64_t d = wrap(w, ordered(map, w, x) - ordered(map, w, r));
        zz[i] = (uint32_t)(d < 0 ? -2 * d - 1 : 2 * d);
        ex[i] = exponent(map, w, r);
    }
}

/* ---- floors (delta4) --------------------------------------------------------------------------------- */

static float value_of(unsigned w, const struct nb_delta4_format *f, uint32_t x)
{
    return w == 4 ? nb_bits_f32(x) : f->shift == 7 ? nb_bf16_to_f32((uint16_t)x) : nb_f16_to_f32((uint16_t)x);
}

static uint32_t pattern_of(unsigned w, const struct nb_delta4_format *f, float v)
{
    return w == 4 ? nb_f32_bits(v) : f->shift == 7 ? nb_f32_to_bf16(v) : nb_f32_to_f16(v);
}

static float step_of(const struct nb_delta4_format *f, unsigned floor)
{
    return nb_pow2((int)floor - f->bias);
}

/* Return the code of a value below the floor: its difference in steps, or all ones for an exception. */
static uint32_t linear(unsigned w, const struct nb_delta4_format *f, unsigned floor, uint32_t x, uint32_t r)
{
    const uint32_t none = (uint32_t)((1ull << 8 * w) - 1);
    const float v = value_of(w, f, x), step = step_of(f, floor);

    if (x == r)
        return 0;
    if (fabsf(v) <= step / 2)
        return none; /* could change its sign */
    const float difference = v - value_of(w, f, r);
    const float steps = difference * (1 / step);
    if (!(fabsf(steps) < NB_DELTA4_MOST))
        return none;
    const int32_t q = (int32_t)nb_rint(steps);
    const float sum = value_of(w, f, r) + (float)q * step;
    if ((x & ((1u << (8 * w - 1)) - 1)) >> f->shift >= floor && fabsf(sum - v) >= step / 4)
        return none; /* its own last place is as coarse as the step: it would be one off */
    return (uint32_t)(q < 0 ? -2 * q - 1 : 2 * q);
}

static uint32_t linear_result(unsigned w, const struct nb_delta4_format *f, unsigned floor, uint32_t zz,
                              uint32_t r)
{
    const int64_t q = zz & 1 ? -(int64_t)(zz / 2) - 1 : (int64_t)(zz / 2);
    const float difference = (float)q * step_of(f, floor);

    return zz == 0 ? r : pattern_of(w, f, value_of(w, f, r) + difference);
}

/* Return how many sixteenths of a bit the floor saves on n values with the exponents ex. */
static uint64_t saved(unsigned w, const uint32_t *ex, size_t n, unsigned c, unsigned floor)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += low_bits(w, c, ex[i]) - low_bits(w, c, ex[i] < floor ? floor : ex[i]);
    return 16 * sum;
}

/* Return whether the expected error under the floor is small compared with that of bfloat16. */
static bool fine(const struct nb_delta4_format *f, const uint32_t *ex, size_t n, unsigned ratio,
                 unsigned floor)
{
    uint32_t below = 0, ulps = 0;

    for (size_t i = 0; i < n; i++) {
        int j = (int)ex[i] - (int)floor + f->spare;
        below += ex[i] < floor;
        if (ex[i] > 0 && ex[i] <= f->high) /* excludes zeros, denormals, infinities, NaN */
            ulps += 1u << 2 * (6 + (j < -6 ? -6 : j > 2 ? 2 : j));
    }
    return (below * ratio) << 12 <= ulps;
}

/* Return the floor for a run of `padded` values (n without padding) whose `judged` values cost `cost` bits. 0
 * means exact coding. */
static unsigned choose_floor(unsigned w, const struct nb_ulp_map *map, const uint8_t *cur, size_t n,
                             const uint32_t *ex, size_t padded, uint32_t cost, size_t judged, unsigned c)
{
    const struct nb_delta4_format *f = nb_delta4_format(w, map->shift);
    uint32_t now[NB_ULP_RUN];
    unsigned floor = 0;

    if (16 * cost <= NB_DELTA4_BITS * judged)
        return 0;
    const uint64_t all = 16 * cost * (padded / judged), goal = all - NB_DELTA4_BITS * padded;
    for (size_t i = 0; i < n; i++)
        now[i] = exponent(map, w, load(cur + i * w, w));
    for (unsigned t = f->low; t <= f->high && t <= c; t++)
        if (fine(f, now, n, NB_DELTA4_RATIO, t) && saved(w, ex, padded, c, t - 1) < goal)
            floor = t;
    if (all > NB_DELTA4_HOT_BITS * padded) {
        const uint64_t hot = all - NB_DELTA4_HOT_BITS * padded;
        if (!floor || saved(w, ex, padded, c, floor) < hot) {
            floor = 0;
            for (unsigned t = f->low; t <= f->high && t <= c; t++)
                if (fine(f, now, n, NB_DELTA4_HOT_RATIO, t) && saved(w, ex, padded, c, t - 1) < hot)
                    floor = t;
        }
    }
    if (!floor || floor + NB_DELTA4_KMAX < c)
        return 0;
    /* Drop no bits for a gain below a quarter of a bit a value, unless that is the whole possible gain. */
    return saved(w, ex, padded, c, floor) < (goal < 4 * padded ? goal : 4 * padded) ? 0 : floor;
}

/* ---- choosing c ---------------------------------------------------------------------------------------- */

static unsigned estimate(const uint32_t *zz, const uint32_t *ex, size_t n)
{
    uint64_t sum = 0;
    unsigned count = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned bits = 0;
        while (bits < 32 && zz[i] >> bits)
            bits++;
        if (bits) {
            sum += ex[i] + bits;
            count++;
        }
    }
    return nb_ulp_estimate(sum, count);
}

/* Walk from *c, raised to at least 1, upwards while a step saves more than 1/8 bit a value, or else
 * downwards. Stay in 1..254. */
static uint32_t walk(const uint32_t *zz, const uint32_t *ex, size_t n, unsigned *c, unsigned w)
{
    const uint32_t least = (uint32_t)n / 8;
    unsigned start;

    if (*c == 0)
        *c = 1;
    start = *c;
    while (*c < 254 && run_cost(zz, ex, n, *c + 1, w) + least < run_cost(zz, ex, n, *c, w))
        ++*c;
    if (*c == start)
        while (*c > 1 && run_cost(zz, ex, n, *c - 1, w) + least < run_cost(zz, ex, n, *c, w))
            --*c;
    return run_cost(zz, ex, n, *c, w);
}

/* Choose c. Return the cost of the values that decided, and their number. */
static uint32_t choose(const uint32_t *zz, const uint32_t *ex, size_t n, unsigned *c, unsigned w,
                       size_t *judged)
{
    uint32_t zs[NB_ULP_RUN / 2], es[NB_ULP_RUN / 2], any = 0, cost, second;
    unsigned other;

    if (n == NB_ULP_RUN) {
        for (unsigned i = 0, at = 0; i < NB_ULP_RUN; i++) {
            if ((i / 32) % 2 == i % 2) {
                zs[at] = zz[i];
                any |= zz[i];
                es[at++] = ex[i];
            }
        }
    }
    if (any) {
        zz = zs;
        ex = es;
        n = NB_ULP_RUN / 2;
    }
    *judged = n;
    cost = walk(zz, ex, n, c, w);
    if (cost <= 4 * n * w)
        return cost;
    other = estimate(zz, ex, n);
    second = walk(zz, ex, n, &other, w);
    if (second >= cost)
        return cost;
    *c = other;
    return second;
}

static size_t raw(const uint8_t *cur, size_t n, unsigned w, uint8_t *dst)
{
    dst[0] = NB_ULP_RAW;
    memcpy(dst + 1, cur, n * w);
    return 1 + n * w;
}

/* Encode a span. `lossy` counts the runs that got a floor. NULL forbids floors. */
static size_t encode(unsigned w, const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                     size_t n, unsigned *c, uint8_t *dst, uint64_t *lossy)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + 31) / 32,
                 head = 2 + runs + (groups + 3) / 4;
    uint32_t zz[NB_ULP_BLOCK], ex[NB_ULP_BLOCK], exc[NB_ULP_MAX_EXC], nexc = 0;
    struct bitstring s = {dst + head, 0};
    uint8_t floors[NB_ULP_BLOCK / NB_ULP_RUN] = {0};
    unsigned nfloors = 0;

    if (memcmp(cur, ref, n * w) == 0)
        return 0;
    memset(dst, 0, head);
    dst[0] = (uint8_t)(map->shift | (map->plain ? NB_ULP_PLAIN : 0));
    measure(w, map, cur, ref, n, groups * 32, zz, ex);
    for (size_t g = 0; g < groups; g++) {
        uint32_t *z = zz + 32 * g, *e = ex + 32 * g, flags = 0;
        unsigned most = 0, cells = 0, changed = 0;

        if (g % 8 == 0) {
            size_t len = groups - g < 8 ? 32 * (groups - g) : NB_ULP_RUN;
            uint32_t any = 0;
            for (size_t i = 0; i < len; i++)
                any |= z[i];
            if (any) {
                size_t judged;
                uint32_t cost = choose(z, e, len, c, w, &judged);
                dst[2 + g / 8] = (uint8_t)*c;
                if (lossy) {
                    const size_t real = n - 32 * g < len ? n - 32 * g : len;
                    const unsigned floor =
                        choose_floor(w, map, cur + 32 * g * w, real, e, len, cost, judged, *c);
                    floors[g / 8] = (uint8_t)floor;
                    nfloors += floor != 0;
                    for (size_t i = 0; i < len; i++) {
                        if (e[i] >= floor)
                            continue;
                        z[i] = linear(w, nb_delta4_format(w, map->shift), floor,
                                      load(cur + (32 * g + i) * w, w), load(ref + (32 * g + i) * w, w));
                        e[i] = floor;
                    }
                }
            } else {
                g += len / 32 - 1; /* skips these groups */
                continue;
            }
        }
        for (unsigned i = 0; i < 32; i++) {
            unsigned high = z[i] >> low_bits(w, *c, e[i]);
            if (high > NB_ULP_PLANES) {
                if (nexc == NB_ULP_MAX_EXC)
                    return raw(cur, n, w, dst);
                exc[nexc++] = (uint32_t)(32 * g + i);
                z[i] = 0;
                high = 0;
            }
            most = high > most ? high : most;
            flags |= (uint32_t)(high > 0) << i;
            changed |= z[i] != 0;
        }
        if (changed) {
            for (unsigned i = 0; i < 8; i++)
                cells += (flags >> 4 * i & 15) != 0;
            dst[2 + runs + g / 4] |= (uint8_t)((cells < NB_ULP_DENSE ? 1 : 2) << 2 * (g % 4));
            if (cells < NB_ULP_DENSE) {
                for (unsigned i = 0; i < 8; i++)
                    put(&s, (flags >> 4 * i & 15) != 0, 1);
                for (unsigned i = 0; i < 8; i++)
                    if (flags >> 4 * i & 15)
                        put(&s, flags >> 4 * i & 15, 4);
            } else {
                put(&s, flags, 32);
            }
            for (unsigned j = 1; j < NB_ULP_PLANES && j <= most; j++)
                for (unsigned i = 0; i < 32; i++)
                    if (z[i] >> low_bits(w, *c, e[i]) > j - 1)
                        put(&s, z[i] >> low_bits(w, *c, e[i]) > j, 1);
            for (unsigned i = 0; i < 32; i++)
                put(&s, z[i], low_bits(w, *c, e[i]));
        }
        if (g % 8 == 7 && head + s.bits / 8 > n * w)
            return raw(cur, n, w, dst);
    }
    size_t len = head + (s.bits + 7) / 8;
    if (len + nexc * (2 + w) + (nfloors ? runs : 0) > n * w)
        return raw(cur, n, w, dst);
    dst[1] = (uint8_t)nexc;
    for (size_t i = 0; i < nexc; i++, len += 2 + w) {
        store(dst + len, 2, exc[i]);
        memcpy(dst + len + 2, cur + exc[i] * w, w);
    }
    if (nfloors) {
        dst[0] |= NB_ULP_FLOORS;
        memcpy(dst + len, floors, runs);
        len += runs;
        *lossy += nfloors;
    }
    return len;
}

static int decode(unsigned w, const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst,
                  bool lossy)
{
    const size_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + 31) / 32,
                 head = 2 + runs + (groups + 3) / 4;
    const struct nb_ulp_map map = {coded[0] & NB_ULP_SHIFT_MASK, (coded[0] & NB_ULP_PLAIN) != 0, 0};
    const struct nb_delta4_format *format = nb_delta4_format(w, map.shift);
    const uint8_t *floors = NULL;
    size_t pos = 0, end, nexc;

    if (coded[0] == NB_ULP_RAW && len == 1 + n * w) {
        memcpy(dst, coded + 1, n * w);
        return 0;
    }
    if (coded[0] & (lossy ? NB_ULP_RAW : NB_ULP_RAW | NB_ULP_FLOORS) || map.shift >= 8 * w ||
        map.shift + 9u < 8 * w || len < head)
        return -EBADMSG;
    if (coded[0] & NB_ULP_FLOORS) {
        if (!format || map.plain || len - head < runs)
            return -EBADMSG;
        len -= runs;
        floors = coded + len;
        for (size_t r = 0; r < runs; r++)
            if (floors[r] && (floors[r] < format->low || floors[r] > format->high))
                return -EBADMSG;
    }
    nexc = coded[1];
    if (nexc * (2 + w) > len - head)
        return -EBADMSG;
    end = len - head - nexc * (2 + w);
    for (size_t g = 0; g < groups; g++) {
        const unsigned mode = coded[2 + runs + g / 4] >> 2 * (g % 4) & 3, c = coded[2 + g / 8];
        const unsigned floor = floors ? floors[g / 8] : 0;
        uint32_t high[32] = {0}, cells = 0xff, any = 0, zz[32], r[32];

        for (size_t i = 0; i < 32; i++)
            r[i] = 32 * g + i < n ? load(ref + (32 * g + i) * w, w) : (1u << (8 * w - 1)) - 1;
        memset(zz, 0, sizeof(zz));
        if (mode == 3 || (mode && pos > 8 * end))
            return -EBADMSG;
        if (mode == 1)
            for (unsigned i = cells = 0; i < 8; i++)
                cells |= get(coded + head, &pos) << i;
        for (unsigned i = 0; mode && i < 32; i++) {
            if (cells >> i / 4 & 1)
                high[i] = get(coded + head, &pos);
            any |= high[i];
        }
        for (unsigned j = 1; j < NB_ULP_PLANES && any; j++) {
            any = 0;
            for (unsigned i = 0; i < 32; i++) {
                if (high[i] == j) {
                    high[i] += get(coded + head, &pos);
                    any |= high[i] > j;
                }
            }
        }
        for (unsigned i = 0; mode && i < 32; i++) {
            const uint32_t ex = exponent(&map, w, r[i]);
            unsigned k = low_bits(w, c, ex < floor ? floor : ex);
            zz[i] = high[i] << k;
            for (unsigned j = 0; j < k; j++)
                zz[i] |= get(coded + head, &pos) << j;
            zz[i] &= (uint32_t)((1ull << 8 * w) - 1);
        }
        for (size_t i = 0; i < 32 && 32 * g + i < n; i++) {
            int64_t d = zz[i] & 1 ? -(int64_t)(zz[i] / 2) - 1 : (int64_t)(zz[i] / 2);
            if (exponent(&map, w, r[i]) < floor)
                store(dst + (32 * g + i) * w, w, linear_result(w, format, floor, zz[i], r[i]));
            else
                store(dst + (32 * g + i) * w, w, pattern(&map, w, wrap(w, ordered(&map, w, r[i]) + d)));
        }
    }
    if ((pos + 7) / 8 != end)
        return -EBADMSG;
    coded += head + end;
    for (size_t i = 0; i < nexc; i++, coded += 2 + w) {
        uint32_t at = load(coded, 2);
        if (at >= n || (i && at <= load(coded - 2 - w, 2)))
            return -EBADMSG;
        memcpy(dst + at * w, coded + 2, w);
    }
    return 0;
}

static uint32_t probe(unsigned w, const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref,
                      unsigned *c)
{
    uint32_t zz[NB_ULP_PROBE], ex[NB_ULP_PROBE];

    measure(w, map, cur, ref, NB_ULP_PROBE, NB_ULP_PROBE, zz, ex);
    *c = estimate(zz, ex, NB_ULP_PROBE);
    return walk(zz, ex, NB_ULP_PROBE, c, w);
}

/* ---- sparse records ------------------------------------------------------------------------------------ */

/* Append zeros and a one. */
static void put_one(struct bitstring *s, uint32_t zeros)
{
    for (; zeros; zeros--)
        put(s, 0, 1);
    put(s, 1, 1);
}

/* Count the zeros before the next one. Return false if the string ends before it. */
static bool get_one(const uint8_t *p, size_t len, size_t *pos, uint32_t *zeros)
{
    for (*zeros = 0; *pos < 8 * len; ++*zeros)
        if (get(p, pos))
            return true;
    return false;
}

/* Get k bits. Those behind the string's end are 0. */
static uint32_t get_low(const uint8_t *p, size_t len, size_t *pos, unsigned k)
{
    uint32_t v = 0;

    for (unsigned i = 0; i < k; i++, ++*pos)
        if (*pos < 8 * len)
            v |= (uint32_t)get(p, &(size_t){*pos}) << i;
    return v;
}

static void to_byte(struct bitstring *s)
{
    put(s, 0, (unsigned)(-s->bits % 8));
}

static uint32_t gaps_bits(const uint32_t *gaps, size_t n, unsigned k)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (gaps[i] >> k) + 1 + k;
    return sum;
}

/* Choose the parameter of n gaps among `values` values. */
static unsigned gaps_parameter(const uint32_t *gaps, size_t n, size_t values)
{
    unsigned k = 0, start;

    if (n == 0)
        return 0;
    while (values / n >> (k + 1))
        k++;
    k = k > NB_ULP_GAP_MAX ? NB_ULP_GAP_MAX : k;
    start = k;
    while (k < NB_ULP_GAP_MAX && gaps_bits(gaps, n, k + 1) < gaps_bits(gaps, n, k))
        k++;
    if (k == start)
        while (k > 0 && gaps_bits(gaps, n, k - 1) < gaps_bits(gaps, n, k))
            k--;
    return k;
}

/* Changed values of a chunk: place, exponent of the reference, and zigzagged difference less one. */
struct change {
    uint32_t at, ex, v;
};

static struct change change_at(unsigned w, const struct nb_ulp_map *map, const uint8_t *cur,
                               const uint8_t *ref, uint32_t i)
{
    uint32_t zz, ex;

    measure(w, map, cur + (size_t)i * w, ref + (size_t)i * w, 1, 1, &zz, &ex);
    return (struct change){i, ex, zz - 1};
}

static uint32_t changes_bits(const struct change *x, size_t n, unsigned c, unsigned w)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned k = 1 + low_bits(w, c, x[i].ex);
        sum += x[i].v >> k < NB_ULP_ESCAPE ? (x[i].v >> k) + 1 + k : NB_ULP_ESCAPE + 1 + 8 * w;
    }
    return sum;
}

/* Walk from *c upwards while that is cheaper, or else downwards. */
static uint32_t changes_walk(const struct change *x, size_t n, unsigned *c, unsigned w)
{
    const unsigned start = *c;

    while (*c < 255 && changes_bits(x, n, *c + 1, w) < changes_bits(x, n, *c, w))
        ++*c;
    if (*c == start)
        while (*c > 0 && changes_bits(x, n, *c - 1, w) < changes_bits(x, n, *c, w))
            --*c;
    return changes_bits(x, n, *c, w);
}

/* Twice the estimated bits of the places of `changes` among `values`. */
static uint32_t places_bits(uint32_t values, uint32_t changes)
{
    uint32_t best = UINT32_MAX;

    if (values < changes)
        values = changes;
    for (unsigned k = 0; k <= NB_ULP_GAP_MAX; k++) {
        uint32_t twice = changes * (2 * k + (k > 0 ? 1 : 2)) + 2 * ((values - changes) >> k);
        if (twice < best)
            best = twice;
    }
    return best;
}

static unsigned choose_split(unsigned w, const struct nb_ulp_map *map, const uint8_t *ref, size_t n,
                             const struct change *x, size_t m)
{
    uint32_t whole, least, best, v = 0, values[256] = {0}, changes[256] = {0}, low_v = 0, low_m = 0;
    unsigned split = 0;

    for (size_t i = 0; i < n; i += NB_ULP_SPARSE_STRIDE) {
        values[exponent(map, w, load(ref + i * w, w))] += NB_ULP_SPARSE_STRIDE;
        v += NB_ULP_SPARSE_STRIDE;
    }
    for (size_t i = 0; i < m; i++)
        changes[x[i].ex]++;
    whole = places_bits(v, (uint32_t)m);
    best = whole - whole / 16 < 32 ? 0 : whole - whole / 16 - 32;
    for (unsigned t = 1; t < 256 && (uint64_t)t << map->shift <= (uint64_t)1 << (8 * w - 1); t++) {
        low_v += values[t - 1];
        low_m += changes[t - 1];
        least = places_bits(low_v, low_m) + places_bits(v - low_v, (uint32_t)m - low_m);
        if (least < best) {
            best = least;
            split = t;
        }
    }
    return split;
}

static size_t encode_sparse(unsigned w, struct nb_ulp_sparse *s, const struct nb_ulp_map *maps,
                            const uint8_t *cur, const uint8_t *ref, size_t n, uint8_t *dst)
{
    static struct change x[NB_ULP_CHUNK], sample[NB_ULP_SAMPLE];
    static uint32_t gaps[2][NB_ULP_CHUNK];
    size_t m = 0, count[2] = {0, 0}, class_size[2] = {0, 0}, since[2] = {0, 0}, samples;
    unsigned k[2] = {0, 0};
    bool unary = false;

    for (size_t i = 0; i < n; i++)
        if (load(cur + i * w, w) != load(ref + i * w, w))
            x[m++].at = (uint32_t)i;
    if (m == 0 || m > n / NB_ULP_FEW)
        return m ? NB_ULP_NOT_SPARSE : 0;
    samples = m < NB_ULP_SAMPLE ? m : NB_ULP_SAMPLE;
    if (s->records++ % NB_ULP_SPARSE_REMAP == 0) {
        uint32_t best = UINT32_MAX;
        for (unsigned j = 0; j < 4; j++) {
            uint32_t zz[NB_ULP_SAMPLE], ex[NB_ULP_SAMPLE];
            for (size_t i = 0; i < samples; i++) {
                sample[i] = change_at(w, &maps[j], cur, ref, x[i * m / samples].at);
                zz[i] = sample[i].v + 1;
                ex[i] = sample[i].ex;
            }
            unsigned c = estimate(zz, ex, samples);
            uint32_t bits = changes_walk(sample, samples, &c, w);
            if (bits < best) {
                best = bits;
                s->map = maps[j];
                s->c = c;
            }
        }
        for (size_t i = 0; i < m; i++)
            x[i] = change_at(w, &s->map, cur, ref, x[i].at);
        s->split = choose_split(w, &s->map, ref, n, x, m);
    } else {
        for (size_t i = 0; i < samples; i++)
            sample[i] = change_at(w, &s->map, cur, ref, x[i * m / samples].at);
        changes_walk(sample, samples, &s->c, w);
        for (size_t i = 0; i < m; i++)
            x[i] = change_at(w, &s->map, cur, ref, x[i].at);
    }
    bool part_changes[64] = {false};
    const size_t part = NB_ULP_PART / w, parts = (n + part - 1) / part;
    unsigned live = 0;
    for (size_t i = 0; i < m; i++) {
        live += !part_changes[x[i].at / part];
        part_changes[x[i].at / part] = true;
    }
    const bool by_parts = m >= 64 && 2 * live <= parts;
    for (size_t i = 0, j = 0; i < n; i++) {
        const int class = exponent(&s->map, w, load(ref + i * w, w)) >= s->split;
        if (by_parts && !part_changes[i / part])
            continue;
        class_size[class]++;
        if (j < m && x[j].at == i) {
            gaps[class][count[class]++] = (uint32_t)(class_size[class] - 1 - since[class]);
            since[class] = class_size[class];
            j++;
        }
    }
    for (int class = 0; class < 2; class ++)
        k[class] = gaps_parameter(gaps[class], count[class], class_size[class]);
    for (size_t i = 0; i < m; i++)
        unary |= x[i].v >> (1 + low_bits(w, s->c, x[i].ex)) != 0;
    struct bitstring bits = {dst, 0};
    put(&bits, NB_ULP_SPARSE | (unary ? NB_ULP_UNARY : 0) | (s->map.plain ? NB_ULP_PLAIN : 0) | s->map.shift,
        8);
    put(&bits, s->c, 8);
    put(&bits, s->split, 8);
    put(&bits, k[0] | k[1] << 4, 8);
    put(&bits, m | (by_parts ? NB_ULP_PARTS : 0), 16);
    if (s->split)
        put(&bits, count[0], 16);
    for (unsigned i = 0; by_parts && i < 64; i++)
        put(&bits, part_changes[i], 1);
    for (int class = 0; class < 2; class ++)
        for (size_t i = 0; i < count[class]; i++)
            put_one(&bits, gaps[class][i] >> k[class]);
    for (size_t i = 0; unary && i < m; i++) {
        const uint32_t high = x[i].v >> (1 + low_bits(w, s->c, x[i].ex));
        put_one(&bits, high < NB_ULP_ESCAPE ? high : NB_ULP_ESCAPE);
    }
    to_byte(&bits);
    for (int class = 0; class < 2; class ++)
        for (size_t i = 0; i < count[class]; i++)
            put(&bits, gaps[class][i], k[class]);
    for (size_t i = 0; i < m; i++) {
        const unsigned low = 1 + low_bits(w, s->c, x[i].ex);
        put(&bits, x[i].v, x[i].v >> low < NB_ULP_ESCAPE ? low : 8 * w);
    }
    return (bits.bits + 7) / 8;
}

static int decode_sparse(unsigned w, const uint8_t *coded, size_t len, const uint8_t *ref, size_t n,
                         uint8_t *dst)
{
    static uint8_t changed[2][NB_ULP_CHUNK], class_of[NB_ULP_CHUNK];
    static uint32_t gaps[2][NB_ULP_CHUNK], highs[NB_ULP_CHUNK];
    const struct nb_ulp_map map = {coded[0] & NB_ULP_SHIFT_MASK, (coded[0] & NB_ULP_PLAIN) != 0, 0};
    const bool unary = coded[0] & NB_ULP_UNARY;
    const uint64_t all = ((uint64_t)1 << 8 * w) - 1;
    const size_t part = NB_ULP_PART / w, parts = (n + part - 1) / part;
    size_t class_size[2] = {0, 0}, count[2], pos = 48;
    bool part_changes[64], some = false;

    if (len < 6)
        return -EBADMSG;
    const size_t m = load(coded + 4, 2) & ~NB_ULP_PARTS,
                 head = 6u + (coded[2] ? 2 : 0) + (load(coded + 4, 2) & NB_ULP_PARTS ? 8 : 0);
    if (len < head || map.shift >= 8 * w || map.shift + 9u < 8 * w ||
        (uint64_t)coded[2] << map.shift > (uint64_t)1 << (8 * w - 1) || (coded[2] == 0 && coded[3] % 16) ||
        coded[3] % 16 > NB_ULP_GAP_MAX || coded[3] / 16 > NB_ULP_GAP_MAX || m == 0 || m > n / NB_ULP_FEW)
        return -EBADMSG;
    count[0] = coded[2] ? get_low(coded, len, &pos, 16) : 0;
    if (count[0] > m)
        return -EBADMSG;
    count[1] = m - count[0];
    for (size_t i = 0; i < 64; i++) {
        part_changes[i] = load(coded + 4, 2) & NB_ULP_PARTS ? get(coded, &pos) : i < parts;
        some |= part_changes[i];
        if (part_changes[i] && i >= parts)
            return -EBADMSG;
    }
    if (!some)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        class_of[i] = exponent(&map, w, load(ref + i * w, w)) >= coded[2];
        class_size[class_of[i]] += part_changes[i / part];
    }
    for (int class = 0; class < 2; class ++)
        for (size_t i = 0; i < count[class]; i++)
            if (!get_one(coded, len, &pos, &gaps[class][i]))
                return -EBADMSG;
    for (size_t i = 0; i < m; i++) {
        highs[i] = 0;
        if (unary && !get_one(coded, len, &pos, &highs[i]))
            return -EBADMSG;
        if (highs[i] > NB_ULP_ESCAPE)
            return -EBADMSG;
    }
    pos = (pos + 7) / 8 * 8;
    memset(changed, 0, sizeof changed);
    for (int class = 0; class < 2; class ++) {
        const unsigned k = class ? coded[3] / 16 : coded[3] % 16;
        uint64_t at = 0;
        for (size_t i = 0; i < count[class]; i++, at++) {
            at += ((uint64_t)gaps[class][i] << k) + get_low(coded, len, &pos, k);
            if (at >= class_size[class])
                return -EBADMSG;
            changed[class][at] = 1;
        }
    }
    memmove(dst, ref, n * w);
    for (size_t i = 0, j = 0, at[2] = {0, 0}; i < n; i++) {
        const uint32_t r = load(dst + i * w, w);
        if (!part_changes[i / part] || !changed[class_of[i]][at[class_of[i]]++])
            continue;
        const unsigned k = 1 + low_bits(w, coded[1], exponent(&map, w, r));
        const uint32_t v = highs[j] < NB_ULP_ESCAPE ? highs[j] << k | get_low(coded, len, &pos, k)
                                                    : get_low(coded, len, &pos, 8 * w);
        const int64_t z = (int64_t)(((uint64_t)v + 1) & all), d = z & 1 ? -(z / 2) - 1 : z / 2;
        store(dst + i * w, w, pattern(&map, w, wrap(w, ordered(&map, w, r) + d)));
        j++;
    }
    return (pos + 7) / 8 == len ? 0 : -EBADMSG;
}

#define VARIANT(w) \
    static size_t encode_##w(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref, size_t n, \
                             unsigned *c, uint8_t *dst) \
    { \
        return encode(w, map, cur, ref, n, c, dst, NULL); \
    } \
    static int decode_##w(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, uint8_t *dst) \
    { \
        return decode(w, coded, len, ref, n, dst, false); \
    } \
    static uint32_t probe_##w(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref, \
                              unsigned *c) \
    { \
        return probe(w, map, cur, ref, c); \
    } \
    static size_t encode_sparse_##w(struct nb_ulp_sparse *s, const struct nb_ulp_map *maps, \
                                    const uint8_t *cur, const uint8_t *ref, size_t n, uint8_t *dst) \
    { \
        return encode_sparse(w, s, maps, cur, ref, n, dst); \
    } \
    static int decode_sparse_##w(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, \
                                 uint8_t *dst) \
    { \
        return decode_sparse(w, coded, len, ref, n, dst); \
    }

VARIANT(1)
VARIANT(2)
VARIANT(4)

#define FLOORS(w) \
    static size_t encode_floors_##w(const struct nb_ulp_map *map, const uint8_t *cur, const uint8_t *ref, \
                                    size_t n, unsigned *c, uint8_t *dst, uint64_t *lossy) \
    { \
        return encode(w, map, cur, ref, n, c, dst, lossy); \
    } \
    static int decode_floors_##w(const uint8_t *coded, size_t len, const uint8_t *ref, size_t n, \
                                 uint8_t *dst) \
    { \
        return decode(w, coded, len, ref, n, dst, true); \
    }

FLOORS(2)
FLOORS(4)

const struct nb_ulp_ops reference_ulp = {
    .encode = {encode_1, encode_2, encode_4},
    .decode = {decode_1, decode_2, decode_4},
    .probe = {probe_1, probe_2, probe_4},
    .encode_floors = {encode_floors_2, encode_floors_4},
    .decode_floors = {decode_floors_2, decode_floors_4},
    .encode_sparse = {encode_sparse_1, encode_sparse_2, encode_sparse_4},
    .decode_sparse = {decode_sparse_1, decode_sparse_2, decode_sparse_4},
};
