/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Floors of the delta4 codec: the floor of a run, and the coding of values below it. Plain loops, once for
 * all variants: the compiler vectorizes them for the target of the source that includes this (through
 * ulp_block.inc.h, for W = 2 and 4).
 */

#define PATTERNS ((lane)(((uint64_t)1 << 8 * W) - 1))

#if W == 2
typedef uint16_t NAME(pattern);
#else
typedef uint32_t NAME(pattern);
#endif

/* Convert the values of a group to floats. */
static inline void NAME(to_floats)(const struct nb_delta4_format *f, const NAME(pattern) * x, float *v)
{
#if W == 4
    (void)f;
    memcpy(v, x, 32 * sizeof(float));
#else
    if (f->shift == 7) {
        for (unsigned i = 0; i < 32; i++)
            v[i] = nb_bits_f32((uint32_t)x[i] << 16);
    } else {
        halves_to_floats(x, v);
    }
#endif
}

static inline void NAME(from_floats)(const struct nb_delta4_format *f, const float *v, NAME(pattern) * x)
{
#if W == 4
    (void)f;
    memcpy(x, v, 32 * sizeof(float));
#else
    if (f->shift == 7) {
        for (unsigned i = 0; i < 32; i++) {
            uint32_t u = nb_f32_bits(v[i]); /* never NaN */
            x[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
        }
    } else {
        floats_to_halves(v, x);
    }
#endif
}

/* Compute zz and ex of a group under a floor, in steps for values below it. */
static inline void NAME(diff_floor)(const uint8_t *cur, const uint8_t *ref, const struct nb_delta4_format *f,
                                    unsigned floor, lane *zz, lane *ex)
{
    const float step = nb_pow2((int)floor - f->bias), inverse = nb_pow2(f->bias - (int)floor);
    const float half = step * 0.5f, quarter = step * 0.25f;
    _Alignas(64) NAME(pattern) x[32], r[32];
    _Alignas(64) float a[32], b[32];

    memcpy(x, cur, sizeof(x));
    memcpy(r, ref, sizeof(r));
    NAME(to_floats)(f, x, a);
    NAME(to_floats)(f, r, b);
    for (unsigned i = 0; i < 32; i++) {
        const float steps = (a[i] - b[i]) * inverse, size = nb_bits_f32(nb_f32_bits(steps) & NB_F32_ABS);
        const float magnitude = nb_bits_f32(nb_f32_bits(a[i]) & NB_F32_ABS);
        const uint32_t near = 0u - (uint32_t)((magnitude > half) & (size < NB_DELTA4_MOST));
        const float whole = nb_bits_f32(nb_f32_bits(steps) & near);
        /* Adding 1.5 x 2^23 to a small number leaves its nearest integer, ties to even, in the low bits. */
        const float rounded = whole + 0x1.8p23f;
        const int32_t q = (int32_t)(nb_f32_bits(rounded) - 0x4b400000u);
        const float sum = b[i] + (rounded - 0x1.8p23f) * step;
        const float off = nb_bits_f32(nb_f32_bits(sum - a[i]) & NB_F32_ABS);
        /* Exceptions: a value that might change its sign, a value too far away, and a value whose own last
         * place is no finer than the step and that would be one off. */
        const uint32_t coarse = ((uint32_t)x[i] & (PATTERNS >> 1)) >> f->shift >= floor;
        const uint32_t good = near & ~(0u - (coarse & (uint32_t)(off >= quarter)));
        uint32_t z = ((uint32_t)q << 1 ^ (uint32_t)(q >> 31)) | ~good;
        z &= 0u - (uint32_t)(x[i] != r[i]);
        const uint32_t under = 0u - (uint32_t)(ex[i] < floor);
        zz[i] = (lane)(((z & PATTERNS) & under) | (zz[i] & ~under));
        ex[i] = (lane)((floor & under) | (ex[i] & ~under));
    }
}

/* Compute the results of a group under a floor from the results that finish() made of the same
 * differences. */
static inline void NAME(finish_floor)(const uint8_t *ref, const struct nb_delta4_format *f, unsigned floor,
                                      const lane *zz, uint8_t *dst)
{
    const float step = nb_pow2((int)floor - f->bias);
    _Alignas(64) NAME(pattern) r[32], out[32], x[32];
    _Alignas(64) float b[32];

    memcpy(r, ref, sizeof(r));
    memcpy(out, dst, sizeof(out));
    NAME(to_floats)(f, r, b);
    for (unsigned i = 0; i < 32; i++) {
        const uint32_t z = (uint32_t)zz[i] & PATTERNS;
        const int32_t q = (int32_t)(z >> 1 ^ (0u - (z & 1)));
        b[i] = b[i] + (float)q * step;
    }
    NAME(from_floats)(f, b, x);
    for (unsigned i = 0; i < 32; i++) {
        const uint32_t below = ((uint32_t)r[i] & (PATTERNS >> 1)) >> f->shift < floor;
        out[i] = (below & ((zz[i] & PATTERNS) != 0)) ? x[i] : out[i];
    }
    memcpy(dst, out, sizeof(out));
}

/* Return the sixteenths of a bit that a floor below c saves. */
static inline uint32_t NAME(saved)(const lane *ex, size_t n, unsigned c, unsigned floor)
{
    const unsigned least = c > NB_ULP_KMAX(W) ? c - NB_ULP_KMAX(W) : 0;
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned e = ex[i] < least ? least : ex[i];
        sum += e < floor ? floor - e : 0;
    }
    return 16 * sum;
}

/* Return whether the expected error is small beside bfloat16's. Squares, in steps of the floor. */
static inline int NAME(fine)(const struct nb_delta4_format *f, const uint8_t *ex, size_t n, unsigned ratio,
                             unsigned floor)
{
    const int base = (int)f->spare - (int)floor;
    uint32_t below = 0, ulps = 0;

    for (size_t i = 0; i < n; i++) {
        int j = ex[i] + base;
        j = j < -6 ? -6 : j;
        j = j > 2 ? 2 : j;
        below += ex[i] < floor;
        /* Infinities and NaN have no rounding. Zeros and denormals must keep theirs. */
        ulps += ((ex[i] != 0) & (ex[i] <= f->high)) ? 1u << 2 * (6 + j) : 0;
    }
    return (below * ratio) << 12 <= ulps;
}

/* Return the highest floor that is fine and that saves more than the next lower one, or 0. Both conditions
 * are monotonic, so a search from any start finds it. */
static inline unsigned NAME(find_floor)(const struct nb_delta4_format *f, const uint8_t *now, size_t n,
                                        const lane *ex, size_t padded, unsigned c, uint32_t goal,
                                        unsigned ratio)
{
    const unsigned most = c < f->high ? c : f->high;
    unsigned t = c > 4 ? c - 4 : 1;

    t = t < f->low ? f->low : t > most ? most : t;
    while (t < most && NAME(saved)(ex, padded, c, t) < goal && NAME(fine)(f, now, n, ratio, t + 1))
        t++;
    while (t >= f->low && (NAME(saved)(ex, padded, c, t - 1) >= goal || !NAME(fine)(f, now, n, ratio, t)))
        t--;
    return t < f->low ? 0 : t;
}

/* Return the floor for a run of `padded` values, of which n are real and `judged` cost `cost` bits, or 0. */
static unsigned NAME(choose_floor)(const struct nb_delta4_format *f, const uint8_t *cur, size_t n,
                                   const lane *ex, size_t padded, uint32_t cost, size_t judged, unsigned c)
{
    uint8_t now[NB_ULP_RUN];
    uint32_t all, goal, least;
    unsigned t;

    if (16 * cost <= NB_DELTA4_BITS * judged || c < f->low)
        return 0;
    all = 16 * cost * (uint32_t)(padded / judged);
    goal = all - NB_DELTA4_BITS * (uint32_t)padded;
    for (size_t i = 0; i < n; i++) {
        NAME(pattern) x;
        memcpy(&x, cur + i * W, W);
        now[i] = (uint8_t)((x & (PATTERNS >> 1)) >> f->shift);
    }
    t = NAME(find_floor)(f, now, n, ex, padded, c, goal, NB_DELTA4_RATIO);
    if (all > NB_DELTA4_HOT_BITS * (uint32_t)padded) {
        const uint32_t hot = all - NB_DELTA4_HOT_BITS * (uint32_t)padded;
        if (!t || NAME(saved)(ex, padded, c, t) < hot)
            t = NAME(find_floor)(f, now, n, ex, padded, c, hot, NB_DELTA4_HOT_RATIO);
    }
    least = goal < 4 * padded ? goal : 4 * (uint32_t)padded;
    if (!t || t + NB_DELTA4_KMAX < c || NAME(saved)(ex, padded, c, t) < least)
        return 0;
    return t;
}

#undef PATTERNS
