/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Floors of bounded deltas: docs/wire-format.md section 14. For one warp. A lane has one value of each of the
 * eight groups of a run.
 */
#ifndef NIBBLE_KERNELS_DELTA4_CUH
#define NIBBLE_KERNELS_DELTA4_CUH

#include "codec/ulp.h"
#include "values.cuh"

#define NB_RUN_GROUPS (NB_ULP_RUN / NB_ULP_GROUP)

/* A format that may have floors (nb_delta4_format in codec/ulp.h). shift 0: it has none. */
struct nb_floors {
    uint32_t shift, low, high, spare;
    int32_t bias;
    int type;
};

NB_DEV struct nb_floors nb_floors_of(uint32_t width, uint32_t shift)
{
    struct nb_floors f;
    f.shift = (width == 2 && (shift == 7 || shift == 10)) || (width == 4 && shift == 23) ? shift : 0;
    f.low = shift == 7 ? 24 : shift == 10 ? 1 : 25;
    f.high = shift == 10 ? 30 : 254;
    f.spare = shift == 7 ? 0 : shift == 10 ? 3 : 16;
    f.bias = shift == 7 ? 134 : shift == 10 ? 25 : 150;
    f.type = shift == 7 ? NB_BF16 : shift == 10 ? NB_F16 : NB_F32;
    return f;
}

NB_DEV float nb_power(int32_t e)
{
    return nb_real((uint32_t)(e + 127) << 23);
}

NB_DEV uint32_t nb_low_bits(uint32_t width, uint32_t c, uint32_t e)
{
    const int32_t k = (int32_t)c - (int32_t)e;
    return k < 0 ? 0 : k > (int32_t)NB_ULP_KMAX(width) ? NB_ULP_KMAX(width) : (uint32_t)k;
}

/* Return the code of a value below the floor: its difference in steps, or all ones. */
NB_DEV uint32_t nb_in_steps(const struct nb_floors *f, uint32_t width, uint32_t floor, uint32_t x, uint32_t r)
{
    const uint32_t all = NB_ALL >> (32 - 8 * width);
    const float step = nb_power((int32_t)floor - f->bias), inverse = nb_power(f->bias - (int32_t)floor);
    const float v = nb_widen(f->type, x), from = nb_widen(f->type, r);
    const float difference = v - from, steps = difference * inverse;
    if (x == r)
        return 0;
    if (!(nb_abs(v) > step * 0.5f) || !(nb_abs(steps) < NB_DELTA4_MOST))
        return all; /* it might change its sign, or it is too far away */
    const float rounded = steps + NB_MAGIC, whole = rounded - NB_MAGIC, away = whole * step;
    const float sum = from + away, off = sum - v;
    if ((x & all >> 1) >> f->shift >= floor && nb_abs(off) >= step * 0.25f)
        return all; /* its own last place is no finer than the step: it would be one off */
    const uint32_t q = nb_bits(rounded) - NB_MAGIC_BITS;
    return (q << 1 ^ (0u - (q >> 31))) & all;
}

/* Return the value that a difference z > 0 in steps makes of reference r. */
NB_DEV uint32_t nb_from_steps(const struct nb_floors *f, uint32_t floor, uint32_t z, uint32_t r)
{
    const float difference = nb_from_int((int32_t)(z >> 1 ^ (0u - (z & 1)))) * nb_power((int32_t)floor - f->bias);
    return nb_narrow(f->type, nb_widen(f->type, r) + difference);
}

/* Exponents of a lane's values, a byte each. */
#define NB_EXPONENT(e, g) ((e)[(g) / 4] >> 8 * ((g) % 4) & 0xff)

/* Return the sixteenths of a bit that a floor saves of the run. Values that need no saving have e = 255. */
NB_DEV uint32_t nb_saved(uint32_t width, const uint32_t *e, uint32_t c, uint32_t floor)
{
    uint32_t sum = 0;
    NB_UNROLL
    for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
        const uint32_t its = NB_EXPONENT(e, g);
        sum += nb_low_bits(width, c, its) - nb_low_bits(width, c, its < floor ? floor : its);
    }
    return 16 * nb_warp_sum(sum);
}

/* Exponents of the real values, a byte each. */
struct nb_exponents {
    uint32_t word[2];
    uint32_t real; /* a bit a group */
};

/* Return whether the expected error under the floor is small beside that of bfloat16. */
NB_DEV int nb_is_fine(const struct nb_floors *f, const struct nb_exponents *now, uint32_t ratio, uint32_t floor)
{
    uint32_t below = 0, ulps = 0;
    NB_UNROLL
    for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
        const uint32_t e = NB_EXPONENT(now->word, g);
        int32_t j = (int32_t)(e + f->spare) - (int32_t)floor;
        j = j < -6 ? -6 : j > 2 ? 2 : j;
        if (now->real >> g & 1) {
            below += e < floor;
            ulps += e != 0 && e <= f->high ? 1u << 2 * (6 + j) : 0;
        }
    }
    below = nb_warp_sum(below);
    return (below * ratio) << 12 <= nb_warp_sum(ulps);
}

/* Return the highest floor that is fine and that saves more than the next lower one, or 0. Both conditions
 * are monotonic, so a search from any start finds it. */
NB_DEV uint32_t nb_find_floor(const struct nb_floors *f, const struct nb_exponents *now, uint32_t width,
                              const uint32_t *e, uint32_t c, uint32_t goal, uint32_t ratio)
{
    const uint32_t most = c < f->high ? c : f->high;
    uint32_t t = c > 4 ? c - 4 : 1;
    int up = 1;
    t = t < f->low ? f->low : t > most ? most : t;
    NB_ROLL
    for (;;) {
        /* Upwards: may it be one more? Then down: may it be this one? */
        const uint32_t next = up ? t + 1 : t;
        const int may = next >= f->low && next <= most && nb_saved(width, e, c, next - 1) < goal &&
                        nb_is_fine(f, now, ratio, next);
        if (up) {
            t += (uint32_t)may;
            up = may;
        } else {
            if (may || t < f->low)
                return t < f->low ? 0 : t;
            t--;
        }
    }
}

/* Choose the floor of a run of `padded` values, of which `judged` cost `cost` bits. 0: none. */
NB_DEV uint32_t nb_choose_floor(const struct nb_floors *f, const struct nb_exponents *now, uint32_t width,
                                const uint32_t *e, uint32_t padded, uint32_t cost, uint32_t judged, uint32_t c)
{
    if (16 * cost <= NB_DELTA4_BITS * judged || c < f->low)
        return 0;
    const uint32_t all = padded == judged ? 16 * cost : 32 * cost, goal = all - NB_DELTA4_BITS * padded;
    uint32_t t = 0;
    NB_ROLL
    for (int hot = 0; hot < 2; hot++) {
        const uint32_t to = hot ? all - NB_DELTA4_HOT_BITS * padded : goal;
        if (hot && (all <= NB_DELTA4_HOT_BITS * padded || (t && nb_saved(width, e, c, t) >= to)))
            break;
        t = nb_find_floor(f, now, width, e, c, to, hot ? NB_DELTA4_HOT_RATIO : NB_DELTA4_RATIO);
    }
    if (!t || t + NB_DELTA4_KMAX < c)
        return 0;
    return nb_saved(width, e, c, t) < (goal < 4 * padded ? goal : 4 * padded) ? 0 : t;
}

#endif
