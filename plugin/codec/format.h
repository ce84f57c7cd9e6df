/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constants and sizes of quantized tiles, and the scale code. docs/wire-format.md specifies them.
 */
#ifndef NIBBLE_CODEC_FORMAT_H
#define NIBBLE_CODEC_FORMAT_H

#include <stdbool.h>

#include "codec/fp.h"

#define NB_TILE_GROUPS (NB_TILE / NB_GROUP)

/* Code that is written for groups of 32 values, with 32 as a number, as bits of a word or as a vector's
 * shape, says in its file what depends on it. */
#ifdef __cplusplus
#define NB_STATIC_ASSERT static_assert
#else
#define NB_STATIC_ASSERT _Static_assert
#endif
#define NB_GROUP_IS_32(what) NB_STATIC_ASSERT(NB_GROUP == 32, "written for groups of 32 values: " what)
NB_GROUP_IS_32("record sizes: 16 bytes of int4 codes, 24 of int6 and 32 of int8 codes a group");

/* First byte of a tile record. */
enum nb_tile_kind {
    NB_TILE_ZERO = 0,
    NB_TILE_INT4 = 1,
    NB_TILE_INT4_WIDE = 2,
    NB_TILE_INT8 = 3,
    NB_TILE_INT8_WIDE = 4,
    NB_TILE_RAW = 5,
    NB_TILE_INT6 = 6,
    NB_TILE_INT6_WIDE = 7,
    NB_TILE_KIND_COUNT
};

#define NB_TILE_HEADER 4u
#define NB_ESCAPE_BYTES 8u
#define NB_INT4_ESCAPES 3u   /* most escapes of an int4 tile */
#define NB_INT8_ESCAPES 255u /* of an int6 or int8 tile */

#define NB_ESCAPE_BITS 0x71800000u /* 2^100: magnitudes from here on are always escapes */
#define NB_FLUSH_BITS 0x0f800000u  /* 2^-96: groups below are zeros, residuals below are dropped */
#define NB_FLUSH 0x1p-96f          /* the same as a number */
#define NB_EXPONENT_MIN (-96)
#define NB_EXPONENT_MAX 102

#define NB_OUTLIER_MEMBERS 5u /* small values a group needs before large ones count as outliers */
#define NB_SMALL 0x1p-8f      /* a small value is below this fraction of its group's maximum */
#define NB_OUTLIER 0x1p10f    /* an outlier is more than this many times the mean of the small values */

#define NB_FLAT 0.875f /* in a flat group the larger of each pair is above this fraction of its maximum */
#define NB_ROOM 0x1.24924ap0f /* 8/7: codes reach -8, but only +7 */

/* Steps of int8 and int6 as fractions of the group's scale. With scales rounded up, no code exceeds 127 or
 * 31. */
#define NB_INT8_STEP (129.0f / 16384.0f)
#define NB_INT6_STEP (131.0f / 4096.0f)

/* Residual energies of a tile below this count as 0: they consist of denormal floats. */
#define NB_LEAST_CARRIED 0x1p-100f

NB_INLINE unsigned nb_pad4(unsigned bytes)
{
    return (bytes + 3u) & ~3u;
}

/* Return the body bytes of a tile of `groups` groups after header and escapes, with codes of `bits` bits. */
NB_INLINE size_t nb_tile_body(unsigned bits, unsigned groups)
{
    return nb_pad4(groups) + (bits == 4 ? 4u * ((groups + 31u) / 32u) : 0) + 4u * bits * groups;
}

/* Return the exponent of the tile's scale for the largest group maximum (bits of a finite float, >=
 * 2^-96). */
NB_INLINE int nb_tile_exponent(uint32_t max_bits)
{
    return (int)(max_bits >> 23) - 127 + ((max_bits & 0x7fffffu) > 0x780000u);
}

/*
 * Return the scale code of a group maximum under tile exponent E: 0 (too small) or 1 ... 127. Counted in
 * binades down from E, the codes of four binades keep 4 bits of mantissa, of the next four 3, then 2, then 1,
 * and of seven more 0. They are consecutive, so rounding may carry from one into the next. `up`: round away
 * from zero. Otherwise round to nearest, but down by less than 1/16, so that every value stays within 8.5
 * steps.
 */
NB_INLINE unsigned nb_scale_code(uint32_t bits, int exponent, int up)
{
    unsigned depth = (unsigned)(exponent + 127 - (int)(bits >> 23));
    uint32_t mantissa = bits & 0x7fffffu;
    if (depth > 23)
        return 0;
    unsigned segment = depth >> 2;
    if (segment < 4) {
        unsigned shift = 19 + segment;
        uint32_t bias = (1u << shift) - (up ? 1u : segment ? 1u << 19 : 1u << 18);
        return (64u >> segment) + ((3 - (depth & 3)) << (4 - segment)) + ((mantissa + bias) >> shift);
    }
    return 23 - depth + ((mantissa + (up ? 0x7fffffu : 0x780000u)) >> 23);
}

/* The same in a wide tile: powers of two down to 2^(E-125). */
NB_INLINE unsigned nb_scale_code_wide(uint32_t bits, int exponent, int up)
{
    int e = (int)(bits >> 23) - 127 + ((bits & 0x7fffffu) >= (up ? 1u : 0x80000u));
    int code = 126 - exponent + e;
    return code < 0 ? 0 : (unsigned)code;
}

/* Return the sum of a group's 32 numbers, pairwise, at the distances 1, 16, 8, 4, 2. */
NB_INLINE float nb_sum_group(float s[NB_GROUP])
{
    for (unsigned i = 0; i < NB_GROUP / 2; i++)
        s[i] = s[2 * i] + s[2 * i + 1];
    for (unsigned half = NB_GROUP / 4; half; half /= 2)
        for (unsigned i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

/* Return the sum of the numbers of a record's groups, with 0 for missing groups. */
NB_INLINE float nb_sum_groups(float s[NB_TILE_GROUPS])
{
    for (unsigned half = NB_TILE_GROUPS / 2; half; half /= 2)
        for (unsigned j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

/*
 * Return whether the transform is the better domain. `max` and `transformed` are the largest magnitudes, the
 * latter of the unnormalised transform times 1/8. `large` is the number of values of at least NB_SMALL times
 * `max`, or 32 for a group that is not thin.
 *
 * Rounding errors grow with the square of the maximum times the number of rounded values: all 32 values of
 * the transform, but only the large values of a plain group. Sparse groups therefore stay plain, and sparse.
 */
NB_INLINE bool nb_transform_better(float max, float transformed, unsigned large)
{
    float ratio = 64.0f / (float)large; /* 32 times the square of sqrt(32)/8, which normalises, is 64 */
    return transformed * nb_sqrtf(ratio) < max;
}

/* Return whether the group is thin, that is whether it has pairs of small values. `small` has a bit for each
 * value below NB_SMALL times the maximum. In every other four values pairs are neighbors, in the rest they
 * lie two apart. Five small values in a row hold a pair, and so does every regular pattern. In a group
 * without a pair nearly all values are large: it has no outliers, and the encoder need not count. */
NB_INLINE bool nb_is_thin(uint32_t small)
{
    return ((small & small >> 1 & 0x05050505u) | (small & small >> 2 & 0x30303030u)) != 0;
}

/* Return the maximum that gives a plain group of int4 its step. `positive` and `negative` are the largest
 * magnitudes of each sign. Codes reach -8 on the side of the larger one and 7 on the other. In groups that
 * are thin or flat many values may lie at the end of that other side, and a larger step fits both ends. In
 * all other groups it would cost the small values more than it saves. */
NB_INLINE float nb_plain_max(float max, float positive, float negative)
{
    const float other = (positive < negative ? positive : negative) * NB_ROOM;
    return other > max ? other : max;
}

/* Return the factor that limits the norm of residuals to `bound` times the norm of a tile's values. Arguments
 * are the squares of both norms. */
NB_INLINE float nb_error_factor(float own, float carried, float bound)
{
    float limit = bound * bound;
    limit = limit * own;
    if (!(carried > limit))
        return 1;
    float ratio = own / carried;
    ratio = nb_sqrtf(ratio);
    return bound * ratio;
}

/* Return the value of one step of a residual's code: 2^(scale - 127), times the tile's factor. A step below
 * the smallest one that an encoder stores counts as 0, so that codes can be multiplied by any power of
 * two. */
#define NB_ERROR_SCALE_MIN 25u
NB_INLINE float nb_error_unit(uint8_t scale, float factor)
{
    float unit = nb_bits_f32((uint32_t)(scale < 254 ? scale : 254) << 23) * factor;
    return nb_f32_bits(unit) < NB_ERROR_SCALE_MIN << 23 ? 0 : unit;
}

/* Magnitude of a scale code, as a multiple of 2^E. [wide][code] */
extern const float nb_scale_table[2][128];

/* Return the magnitude of scale code `code` in a tile whose unit is 2^E, 0 for one below the floor, which no
 * encoder writes. All further numbers therefore stay clear of denormals. */
NB_INLINE float nb_scale_value(bool wide, unsigned code, float unit)
{
    float value = nb_scale_table[wide][code] * unit;
    return nb_f32_bits(value) < NB_FLUSH_BITS ? 0 : value;
}

/* A parsed tile record, checked against its length. */
struct nb_tile_view {
    enum nb_tile_kind kind;
    unsigned groups;       /* full groups */
    unsigned escapes;      /* number of escapes */
    const uint8_t *escape; /* 8 bytes each, indices ascending and inside the tile */
    const uint8_t *scale;  /* a byte a group */
    const uint8_t *domain; /* int4: a bit for each group, set when transformed */
    const uint8_t *code;   /* codes, or the values of a raw tile */
    float unit;            /* 2^E */
    float fine;            /* int6, int8: the step as a fraction of a group's scale */
};

#endif
