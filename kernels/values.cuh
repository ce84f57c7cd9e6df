/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values: between memory, shared memory and registers, and the format's arithmetic on the 32 values of a
 * group that one thread holds.
 *
 * A thread has a whole group. Its maximum, its sums and its transform therefore need no steps between
 * threads, and 32 values share the work done once a group. Whole warps read and write global memory in
 * 16-byte pieces and exchange them through shared memory. There the first pieces of all groups lie in a row,
 * then the second ones, and so on: a thread finds its own pieces at equal distances.
 */
#ifndef NIBBLE_KERNELS_VALUES_CUH
#define NIBBLE_KERNELS_VALUES_CUH

#include "work.cuh"

NB_GROUP_IS_32("16-byte words of a group, the transform in five stages");

#define NB_MAGIC 0x1.8p23f /* adding it to a number below 2^22 leaves the nearest integer in the low bits */
#define NB_MAGIC_BITS 0x4b400000u
#define NB_FLOAT_LEAST 0x1p-149f

NB_DEV uint32_t nb_type_bytes(int type)
{
    return type == NB_F32 ? 4 : 2;
}

NB_DEV uint32_t nb_round4(uint32_t bytes)
{
    return (bytes + 3) & ~3u;
}

/* Quads of a group of `type`, and the place of quad c of group g in shared memory: column c. A column exceeds
 * a tile by the padding that puts eight neighbours in memory into different banks. */
#define NB_QUADS(type) ((type) == NB_F32 ? 8u : 4u)
#define NB_COLUMN(quads) (NB_TILE_GROUPS + 8 / (quads))

NB_DEV uint32_t nb_place_quad(uint32_t quads, uint32_t g, uint32_t c)
{
    return c * NB_COLUMN(quads) + g;
}

/* Return the place of a thread's first quad of a whole tile, in bytes. */
NB_DEV uint32_t nb_fetch_place(uint32_t quads)
{
    const uint32_t t = nb_thread();
    return 16 * nb_place_quad(quads, (t & ~31u) + t % 32 / quads, t % quads);
}

/* Begin to copy a whole tile's groups of `quads` quads to shared memory. All threads. A warp copies its own
 * groups, at distances that fit into an instruction. */
NB_DEV void nb_fetch_whole(uint32_t quads, nb_quad *to, const void *from, uint32_t place)
{
    const uint32_t t = nb_thread(), at = (t & ~31u) * (quads - 1) + t;
    const char *p = (const char *)from + 16 * (uint64_t)at;
    NB_UNROLL
    for (uint32_t u = 0; u < quads; u++)
        nb_async16((char *)to + place + 16 * u * (32 / quads), p + 16 * 32 * u);
}

/* Begin to copy `groups` groups of `quads` quads to shared memory. All threads. */
NB_DEV void nb_fetch(uint32_t quads, nb_quad *to, const void *from, uint32_t groups)
{
    const uint32_t t = nb_thread();
    if (groups == NB_TILE_GROUPS) {
        nb_fetch_whole(quads, to, from, nb_fetch_place(quads));
        return;
    }
    NB_RARE;
    const uint32_t place = nb_place_quad(quads, t / quads, t % quads);
    const char *p = (const char *)from + 16 * t;
    NB_ROLL
    for (uint32_t u = 0; u < quads; u++)
        if (t + u * NB_THREADS < groups * quads)
            nb_async16(to + place + u * (NB_THREADS / quads), p + 16 * NB_THREADS * u);
}

/* The same for values without 16-byte alignment, one by one. */
NB_DEV void nb_fetch_slowly(int type, nb_quad *to, const void *from, uint32_t groups)
{
    const uint32_t quads = NB_QUADS(type);
    NB_RARE;
    NB_ROLL
    for (uint32_t i = nb_thread(); i < groups * quads; i += NB_THREADS) {
        nb_quad q;
        const char *p = (const char *)from + 16 * i;
        if (type == NB_F32) {
            q.x = nb_load4(p);
            q.y = nb_load4(p + 4);
            q.z = nb_load4(p + 8);
            q.w = nb_load4(p + 12);
        } else {
            q.x = nb_load2(p) | nb_load2(p + 2) << 16;
            q.y = nb_load2(p + 4) | nb_load2(p + 6) << 16;
            q.z = nb_load2(p + 8) | nb_load2(p + 10) << 16;
            q.w = nb_load2(p + 12) | nb_load2(p + 14) << 16;
        }
        to[nb_place_quad(quads, i / quads, i % quads)] = q;
    }
}

NB_DEV void nb_fetch_values(int type, nb_quad *to, const void *from, int aligned, uint32_t groups)
{
    if (!aligned && (uintptr_t)from % 16)
        nb_fetch_slowly(type, to, from, groups);
    else if (type == NB_F32)
        nb_fetch(8, to, from, groups);
    else
        nb_fetch(4, to, from, groups);
}

/* Write values of shared memory back to global memory. */
NB_DEV void nb_flush_values(int type, void *to, const nb_quad *from, uint32_t groups)
{
    const uint32_t quads = NB_QUADS(type), t = nb_thread();
    if ((uintptr_t)to % 16 == 0) {
        const uint32_t place = nb_place_quad(quads, t / quads, t % quads);
        char *p = (char *)to + 16 * t;
        if (groups == NB_TILE_GROUPS) {
            NB_UNROLL
            for (unsigned u = 0; u < 8; u++)
                if (u < quads)
                    nb_store16(p + 16 * NB_THREADS * u, from[place + u * (NB_THREADS / quads)]);
            return;
        }
        NB_RARE;
        NB_ROLL
        for (unsigned u = 0; u < quads; u++)
            if (t + u * NB_THREADS < groups * quads)
                nb_store16(p + 16 * NB_THREADS * u, from[place + u * (NB_THREADS / quads)]);
        return;
    }
    NB_RARE;
    NB_ROLL
    for (uint32_t i = t; i < groups * quads; i += NB_THREADS) {
        const nb_quad q = from[nb_place_quad(quads, i / quads, i % quads)];
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        char *p = (char *)to + 16 * i;
        NB_UNROLL
        for (unsigned k = 0; k < 4; k++) {
            if (type == NB_F32) {
                nb_store4(p + 4 * k, w[k]);
            } else {
                nb_store2(p + 4 * k, w[k]);
                nb_store2(p + 4 * k + 2, w[k] >> 16);
            }
        }
    }
}

/* Get the words of a thread's group of `quads` quads, as they are in memory. */
NB_DEV void nb_group_words(uint32_t quads, const nb_quad *from, uint32_t g, uint32_t *word)
{
    NB_UNROLL
    for (uint32_t c = 0; c < quads; c++) {
        const nb_quad q = from[nb_place_quad(quads, g, c)];
        word[4 * c] = q.x;
        word[4 * c + 1] = q.y;
        word[4 * c + 2] = q.z;
        word[4 * c + 3] = q.w;
    }
}

NB_DEV void nb_group_store(uint32_t quads, nb_quad *to, uint32_t g, const uint32_t *word)
{
    NB_UNROLL
    for (uint32_t c = 0; c < quads; c++) {
        nb_quad q;
        q.x = word[4 * c];
        q.y = word[4 * c + 1];
        q.z = word[4 * c + 2];
        q.w = word[4 * c + 3];
        to[nb_place_quad(quads, g, c)] = q;
    }
}

/* Return whether a half of a result of nb_least_of_16 is zero: only then does subtracting borrow. */
NB_DEV int nb_pair_zero(uint32_t least)
{
    return (((least & NB_PAIR_MAGNITUDES) - 0x00010001u) & 0x80008000u) != 0;
}

/* Return the least magnitude in each half of sixteen words, with some sign. */
NB_DEV uint32_t nb_least_of_16(const uint32_t *word)
{
    uint32_t part[8], least;
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++)
        part[i] = nb_pair_least(word[i], word[i + 8]);
    least = nb_pair_least3(part[0], part[1], part[2]);
    least = nb_pair_least3(least, part[3], part[4]);
    least = nb_pair_least3(least, part[5], part[6]);
    return nb_pair_least(least, part[7]);
}

/* Return 0 if all values of a thread's group are zeros of either sign. 16-bit types. */
NB_DEV uint32_t nb_group_any(const nb_quad *from, uint32_t g)
{
    uint32_t any = 0, word[16];
    nb_group_words(4, from, g, word);
    NB_UNROLL
    for (unsigned i = 0; i < 16; i++)
        any |= word[i];
    return any & 0x7fff7fffu;
}

/* Get the values of a thread's group. Return 0 if all of them are zeros of either sign. *zero: some are. With
 * `measure`, in BF16 only, *energy is the sum of their squares. It is 0 for zeros and for values whose squares
 * are too small, and the function returns 1. */
NB_DEV uint32_t nb_group_values(int type, const nb_quad *from, uint32_t g, float *x, int measure, float *energy, int *zero)
{
    uint32_t any = 0, word[NB_GROUP];
    if (type == NB_F32) {
        float smallest = nb_real(NB_F32_INF);
        nb_group_words(8, from, g, word);
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++) {
            any |= word[i];
            x[i] = nb_real(word[i]);
            smallest = nb_fmin(smallest, nb_abs(x[i]));
        }
        *zero = smallest == 0;
        return any & NB_F32_ABS;
    }
    nb_group_words(4, from, g, word);
    const uint32_t least = nb_least_of_16(word);
    *zero = nb_pair_zero(least);
    if (type == NB_BF16 && measure) {
        uint32_t squares = 0;
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++)
            squares = nb_brain_fma(word[i], word[i], squares);
        *energy = nb_real(squares << 16) + nb_real(squares & 0xffff0000u);
        any = 1;
    } else {
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++)
            any |= word[i];
        any &= 0x7fff7fffu;
    }
    if (type == NB_BF16) {
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++) {
            x[2 * i] = nb_real(word[i] << 16);
            x[2 * i + 1] = nb_real(word[i] & 0xffff0000u);
        }
    } else {
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++) {
            x[2 * i] = nb_from_f16(word[i] & 0xffff);
            x[2 * i + 1] = nb_from_f16(word[i] >> 16);
        }
    }
    return any;
}

/* A sum of two NaN or infinities: replace a NaN in a word by the NaN that sums give. */
NB_DEV void nb_round_nans(int type, const float *x, uint32_t *word)
{
    const uint32_t nan = type == NB_BF16 ? 0x7fc0u : 0x7e00u;
    NB_UNROLL
    for (unsigned i = 0; i < 16; i++) {
        if (x[2 * i] != x[2 * i])
            word[i] = (word[i] & 0xffff0000u) | nan;
        if (x[2 * i + 1] != x[2 * i + 1])
            word[i] = (word[i] & 0xffffu) | nan << 16;
    }
}

/* Round the values once, into the place of the thread's group. With `nans`, replace each NaN by the NaN that
 * sums give. */
NB_DEV void nb_round_values(int type, int nans, const float *x, nb_quad *to, uint32_t g)
{
    uint32_t word[NB_GROUP];
    if (type == NB_F32) {
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            word[i] = !nans || x[i] == x[i] ? nb_bits(x[i]) : NB_F32_NAN;
        nb_group_store(8, to, g, word);
        return;
    }
    uint32_t zero = 0; /* of each half, or a NaN if a value is a NaN or infinite */
    if (type == NB_BF16) {
        /* Products that overflow only cause a needless check. */
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++)
            word[i] = nb_round_bf16(x[2 * i], x[2 * i + 1]);
        NB_UNROLL
        for (unsigned i = 0; i < 16; i += 2)
            zero = nb_brain_fma(word[i], word[i + 1], zero);
        zero = nb_brain_fma(zero, 0, 0);
    } else {
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++) {
            word[i] = nb_round_f16(x[2 * i], x[2 * i + 1]);
            zero = nb_half_fma(word[i], 0, zero);
        }
    }
    nb_group_store(4, to, g, word);
    if (nans && zero & 0x7fff7fffu) {
        NB_RARE;
        nb_round_nans(type, x, word);
        nb_group_store(4, to, g, word);
    }
}

/* ---- One value at a time, for rare cases ------------------------------------------------------------ */

NB_DEV uint32_t nb_element(int type, const void *base, uint64_t i)
{
    return type == NB_F32 ? nb_load4((const char *)base + 4 * i) : nb_load2((const char *)base + 2 * i);
}

NB_DEV void nb_put_element(int type, void *base, uint64_t i, uint32_t bits)
{
    if (type == NB_F32)
        nb_store4((char *)base + 4 * i, bits);
    else
        nb_store2((char *)base + 2 * i, bits);
}

/* Convert the bits of a value to FP32 and back, NaN payloads included, as docs/wire-format.md section 2
 * says. */
NB_DEV float nb_widen(int type, uint32_t v)
{
    if (type == NB_F32)
        return nb_real(v);
    if (type == NB_BF16)
        return nb_real(v << 16);
    uint32_t sign = (v & 0x8000) << 16, exponent = v >> 10 & 31, mantissa = v & 0x3ff;
    if (exponent == 31)
        return nb_real(sign | NB_F32_INF | mantissa << 13 | (mantissa ? 0x00400000u : 0));
    if (exponent)
        return nb_real(sign | (exponent + 112) << 23 | mantissa << 13);
    return nb_real(sign | nb_bits(nb_from_int((int32_t)mantissa) * 0x1p-24f));
}

NB_DEV uint32_t nb_narrow(int type, float f)
{
    uint32_t u = nb_bits(f), a = u & NB_F32_ABS;
    if (type == NB_F32)
        return u;
    if (type == NB_BF16)
        return a > NB_F32_INF ? u >> 16 | (u >> 16 & 0x7f ? 0 : 0x40) : nb_round_bf16(f, 0) & 0xffff;
    return a > NB_F32_INF ? (u >> 16 & 0x8000) | 0x7e00 | (a >> 13 & 0x3ff) : nb_round_f16(f, 0) & 0xffff;
}

/* ---- Arithmetic on groups ------------------------------------------------------------------------------ */

#define NB_BUTTERFLY(v, a, b)             \
    do {                                  \
        float sum_ = (v)[a] + (v)[b];     \
        (v)[b] = (v)[a] - (v)[b];         \
        (v)[a] = sum_;                    \
    } while (0)

/* The transform without its last stage: distances 1, 16, 8, 4, of pairs that are 2 apart. */
NB_DEV void nb_transform_most(float *v)
{
    NB_UNROLL
    for (unsigned i = 0; i < 32; i += 4)
        nb_two_cross(&v[i], &v[i + 2], &v[i + 1], &v[i + 3]);
    NB_UNROLL
    for (unsigned k = 0; k < 3; k++) {
        const unsigned d = 16u >> k;
        NB_UNROLL
        for (unsigned i = 0; i < 32; i++)
            if (!(i & d) && !(i & 2))
                nb_two_cross(&v[i], &v[i + 2], &v[i + d], &v[i + d + 2]);
    }
}

/* The whole transform. The last stage's distance is 2. */
NB_DEV void nb_transform(float *v)
{
    nb_transform_most(v);
    NB_UNROLL
    for (unsigned i = 0; i < 32; i++)
        if (!(i & 2))
            NB_BUTTERFLY(v, i, i + 2);
}

/* Transform where `by` is 1, and leave the values where it is 0. Differences get the other sign: so does each
 * number whose index has an odd number of set bits. */
NB_DEV void nb_transform_by(float by, float *v)
{
    NB_UNROLL
    for (unsigned k = 0; k < 5; k++) {
        const unsigned d = k ? 32u >> k : 1, other = d == 2 ? 4 : 2;
        NB_UNROLL
        for (unsigned i = 0; i < 32; i++)
            if (!(i & d) && !(i & other)) {
                float sum0 = v[i], sum1 = v[i + other];
                nb_two_fma(&sum0, &sum1, v[i + d], v[i + d + other], by, by);
                nb_two_fma(&v[i + d], &v[i + d + other], v[i], v[i + other], -by, -by);
                v[i] = sum0;
                v[i + other] = sum1;
            }
    }
}

#define NB_TURNED(i) (((i) ^ (i) >> 1 ^ (i) >> 2 ^ (i) >> 3 ^ (i) >> 4) & 1)

/* Return the sum of 32 numbers, at the distances 1, 16, 8, 4, 2. */
NB_DEV float nb_sum32(float *s)
{
    NB_UNROLL
    for (unsigned i = 0; i < 16; i++)
        s[i] = s[2 * i] + s[2 * i + 1];
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        const unsigned half = 8u >> k;
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++)
            if (i < half)
                s[i] = s[i] + s[i + half];
    }
    return s[0];
}

/* Return the sum over a warp, in all of its lanes. */
NB_DEV float nb_warp_total(float sum)
{
    NB_UNROLL
    for (unsigned half = 16; half; half /= 2)
        sum = sum + nb_real(nb_shfl_xor(nb_bits(sum), half));
    return sum;
}

/* Return the sums over the groups of a tile of sh->sums[0] and [1] (0 for missing groups). One whole warp,
 * all lanes get both. */
NB_DEV float nb_sum128(const float *s)
{
    const uint32_t lane = nb_thread() & 31;
    return nb_warp_total((s[lane] + s[lane + 64]) + (s[lane + 32] + s[lane + 96]));
}

/* Scale codes: as in codec/format.h. */
NB_DEV uint32_t nb_code_of(uint32_t bits, int exponent, int up)
{
    const uint32_t depth = (uint32_t)(exponent + 127 - (int)(bits >> 23)), mantissa = bits & 0x7fffffu;
    if (depth > 23)
        return 0;
    const uint32_t segment = depth >> 2;
    if (segment < 4) {
        const uint32_t shift = 19 + segment;
        const uint32_t bias = (1u << shift) - (up ? 1u : segment ? 1u << 19 : 1u << 18);
        return (64u >> segment) + ((3 - (depth & 3)) << (4 - segment)) + ((mantissa + bias) >> shift);
    }
    return 23 - depth + ((mantissa + (up ? 0x7fffffu : 0x780000u)) >> 23);
}

NB_DEV uint32_t nb_wide_code_of(uint32_t bits, int exponent, int up)
{
    int e = (int)(bits >> 23) - 127 + ((bits & 0x7fffffu) >= (up ? 1u : 0x80000u));
    int code = 126 - exponent + e;
    return code < 0 ? 0 : (uint32_t)code;
}

/* Return the magnitude of a code, 0 below the floor. This is the table of section 5 by its rule: two bits of
 * exponent follow the leading bit of a code, then the bits of the mantissa. */
NB_DEV float nb_scale_of(int wide, uint32_t code, int exponent)
{
    uint32_t bits;
    if (code == 0)
        return 0;
    if (wide) {
        int e = exponent + 1 + (int)code; /* biased */
        bits = e < 1 ? 0 : (uint32_t)e << 23;
    } else if (code < 8) {
        bits = (uint32_t)(exponent + 127 - 23 + (int)code) << 23;
    } else {
        const uint32_t lead = 31 - nb_clz(code), segment = 6 - lead;
        bits = ((uint32_t)(exponent + 124 - 4 * (int)segment) << 23) + ((code - (1u << lead)) << (19 + segment));
    }
    return bits < NB_FLUSH_BITS ? 0 : nb_real(bits);
}

/* The same for a record with kind 1 and no escapes, from its header, which has the exponent above the kind.
 * In most codes, read as a number with as many bits as a float, the leading bit falls into the exponent, four
 * times as large, and the next two bits fall below it. */
NB_DEV float nb_usual_scale(uint32_t code, uint32_t header)
{
    const uint32_t tile = (header << 7) - (1u << 7) - (535u << 23); /* the exponent, less four times a float's bias and 27 */
    const float f = nb_real(code | 0x4b000000u) - 0x1p23f;
    uint32_t bits = (nb_bits(f) << 2) + tile;
    if (code < 4)
        bits = (code << 23) + tile; /* modulo 2^32, where 2^9 exponents vanish */
    return code == 0 || bits < NB_FLUSH_BITS ? 0 : nb_real(bits);
}

NB_DEV float nb_unit_of(uint32_t scale, float factor)
{
    float unit = nb_real((scale < 254 ? scale : 254) << 23) * factor;
    return nb_bits(unit) < NB_ERROR_SCALE_MIN << 23 ? 0 : unit;
}

/* Square roots of 64 / n for n = 1 ... 32, quotient and root rounded. */
NB_TABLE float nb_ratios[32] = {
    0x1.0p3f, 0x1.6a09e6p2f, 0x1.279a74p2f, 0x1.0p2f, 0x1.c9f25cp1f, 0x1.a20bd8p1f,
    0x1.83091ep1f, 0x1.6a09e6p1f, 0x1.555556p1f, 0x1.43d136p1f, 0x1.34bf64p1f, 0x1.279a74p1f,
    0x1.1c01aap1f, 0x1.11aceep1f, 0x1.08654ap1f, 0x1.0p1f, 0x1.f0b684p0f, 0x1.e2b7dep0f,
    0x1.d5d7eap0f, 0x1.c9f25cp0f, 0x1.bee906p0f, 0x1.b4a294p0f, 0x1.ab099cp0f, 0x1.a20bd8p0f,
    0x1.99999ap0f, 0x1.91a556p0f, 0x1.8a2346p0f, 0x1.83091ep0f, 0x1.7c4dd6p0f, 0x1.75e976p0f,
    0x1.6fd4e8p0f, 0x1.6a09e6p0f,
};

#define NB_RATIO_OF_ALL 0x1.6a09e6p0f /* of n = 32 */

NB_DEV float nb_ratio_of(uint32_t large)
{
    return large == NB_GROUP ? NB_RATIO_OF_ALL : nb_ratios[(large - 1) & 31];
}

/* Return 1 when the transform is the better domain of a group with these maxima. */
NB_DEV int nb_better(float max, float transformed, uint32_t large)
{
    return transformed * nb_ratio_of(large) < max;
}

NB_DEV float nb_factor_of(float own, float carried, float bound)
{
    float limit = bound * bound;
    limit = limit * own;
    if (!(carried > limit))
        return 1;
    return bound * nb_root(nb_quotient(own, carried));
}

#endif
