/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a record to a thread's group of values: docs/wire-format.md sections 4 and 9.
 *
 * The budget for an int4 source (0.54 bytes a value): 1.4 instructions a value turn a nibble into a float.
 * Two add it to both accumulators, one of which gets zeros. The first source begins them with three in all.
 * Work done once a group takes 1.5. The inverse transform, own values and rounding take 9 for a sum, for 4
 * bytes of BF16. A single source needs one accumulator, and its codes are transformed before they become
 * floats: nb_only_int4. With BF16 its values, too, are handled in pairs: nb_brain_codes.
 */
#ifndef NIBBLE_KERNELS_RECORD_CUH
#define NIBBLE_KERNELS_RECORD_CUH

#include "values.cuh"

NB_GROUP_IS_32("places of codes and escapes in a record");

/* The parts of a record in memory. Codes are 4-byte aligned. */
struct nb_view {
    uint32_t kind, escapes;
    int exponent;
    const char *escape, *scale, *domain, *code;
};

NB_DEV struct nb_view nb_view_of(uint32_t header, const char *record, uint32_t groups)
{
    struct nb_view v;
    v.kind = header & 0xff;
    v.escapes = header >> 8 & 0xff;
    v.exponent = (int)(header >> 16 & 0xff) - 127;
    v.escape = record + NB_TILE_HEADER;
    v.scale = v.escape + NB_ESCAPE_BYTES * v.escapes;
    v.domain = v.scale + nb_round4(groups);
    v.code = v.kind == NB_TILE_INT4 || v.kind == NB_TILE_INT4_WIDE ? v.domain + 4 * ((groups + 31) / 32) : v.domain;
    if (v.kind == NB_TILE_ZERO || v.kind == NB_TILE_RAW)
        v.code = v.escape;
    return v;
}

/* Check the parts of a record that its length does not prove: padding, unused bits, escapes. Each thread
 * checks a part. 1: malformed. GET1 and GET4 read a byte or a word, FINE a code of int6 or int8. */
#define NB_CHECK_RECORD(v, groups, group0, GET1, GET4, FINE, bad)                                                      \
    do {                                                                                                               \
        const uint32_t t_ = nb_thread();                                                                               \
        const int int4_ = (v).kind == NB_TILE_INT4 || (v).kind == NB_TILE_INT4_WIDE;                                   \
        if ((v).kind != NB_TILE_ZERO && (v).kind != NB_TILE_RAW) {                                                     \
            if (t_ >= (groups) && t_ < nb_round4(groups))                                                              \
                (bad) |= GET1((v).scale + t_) != 0;                                                                    \
            if (int4_ && t_ == 0 && (groups) % 32)                                                                     \
                (bad) |= GET4((v).domain + 4 * ((groups) / 32)) >> (groups) % 32 != 0;                                 \
            for (uint32_t k_ = t_; k_ < (v).escapes; k_ += NB_THREADS) {                                               \
                const uint32_t index_ = GET4((v).escape + NB_ESCAPE_BYTES * k_), i_ = index_ - 32 * (group0);          \
                if (index_ < 32 * (group0) || i_ >= 32 * (groups)) {                                                   \
                    (bad) |= 1;                                                                                        \
                    continue;                                                                                          \
                }                                                                                                      \
                if (k_)                                                                                                \
                    (bad) |= GET4((v).escape + NB_ESCAPE_BYTES * (k_ - 1)) >= index_;                                  \
                if (int4_)                                                                                             \
                    (bad) |= (GET4((v).domain + 4 * (i_ / 1024)) >> i_ / 32 % 32 & 1) |                                \
                             (GET1((v).code + i_ / 2) >> i_ % 2 * 4 & 15);                                             \
                else                                                                                                   \
                    (bad) |= FINE(v, i_) != 0;                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#define NB_NO_FINE(v, i) 0 /* int4 records have none */

NB_DEV int nb_is_int6(uint32_t kind)
{
    return kind == NB_TILE_INT6 || kind == NB_TILE_INT6_WIDE;
}

#define NB_SHARED1(p) (*(const uint8_t *)(p))
#define NB_SHARED4(p) (*(const uint32_t *)(const void *)(p))

/* Place of code b of an int4 word, 4 k, in the word or in the word rotated by 16 bits: less than 23 bits from
 * the lowest, and never the lowest. */
#define NB_NIBBLE_TURNED(b) ((b) == 0 || (b) > 4)
#define NB_NIBBLE_AT(b) ((b) == 0 ? 4u : (b) > 4 ? (b) - 4u : (b))

/* The float made of a code's bits is 16^k times the code plus this number. Its product with a step of five
 * bits fits a float. */
#define NB_NIBBLE_MORE(k) (0x1p23f + (float)(8u << 4 * (k)))

/* Begin two sums with eight codes of an int4 word, values i0 to i0 + 7, times a step of five bits at most.
 * Then all is exact, and a zero is a positive one. One of the two steps is 0. */
NB_DEV void nb_begin_nibbles(uint32_t word, unsigned i0, float plain, float coded, float *p, float *c)
{
    const uint32_t turned = word << 16 | word >> 16;
    NB_UNROLL
    for (unsigned b = 0; b < 6; b++) {
        if (b & 2)
            continue;
        const unsigned k0 = NB_NIBBLE_AT(b), k1 = NB_NIBBLE_AT(b + 2), i = i0 + b;
        const float by0 = 1.0f / (float)(1u << 4 * k0), by1 = 1.0f / (float)(1u << 4 * k1);
        const float q0 = nb_real(nb_mask_flip(NB_NIBBLE_TURNED(b) ? turned : word, 15u << 4 * k0, 0x4b000000u | 8u << 4 * k0));
        const float q1 = nb_real(nb_mask_flip(NB_NIBBLE_TURNED(b + 2) ? turned : word, 15u << 4 * k1, 0x4b000000u | 8u << 4 * k1));
        p[i] = plain * by0 * -NB_NIBBLE_MORE(k0);
        p[i + 2] = plain * by1 * -NB_NIBBLE_MORE(k1);
        c[i] = coded * by0 * -NB_NIBBLE_MORE(k0);
        c[i + 2] = coded * by1 * -NB_NIBBLE_MORE(k1);
        nb_two_fma(&p[i], &p[i + 2], q0, q1, plain * by0, plain * by1);
        nb_two_fma(&c[i], &c[i + 2], q0, q1, coded * by0, coded * by1);
    }
}

/* Add eight codes to both sums. In the upper half of a byte a code is a signed number times 16. Products are
 * exact. */
NB_DEV void nb_add_nibbles(uint32_t word, unsigned i0, float plain, float coded, float *p, float *c)
{
    const uint32_t even = word << 4 & 0xf0f0f0f0u, odd = word & 0xf0f0f0f0u;
    const float plain16 = plain * 0.0625f, coded16 = coded * 0.0625f;
    NB_UNROLL
    for (unsigned b = 0; b < 6; b++) {
        if (b & 2)
            continue;
        const unsigned i = i0 + b;
        const float q0 = nb_from_byte(b & 1 ? odd : even, b / 2), q1 = nb_from_byte(b & 1 ? odd : even, b / 2 + 1);
        nb_two_fma(&p[i], &p[i + 2], q0, q1, plain16, plain16);
        nb_two_fma(&c[i], &c[i + 2], q0, q1, coded16, coded16);
    }
}

/* Set or add v to value `i` of the group, an index unknown at compile time. */
NB_DEV void nb_add_at(float *p, uint32_t i, float v)
{
    NB_UNROLL
    for (unsigned k = 0; k < NB_GROUP; k++)
        p[k] = k == i ? p[k] + v : p[k];
}

/* A thread's view of an int4 record in shared memory. */
struct nb_int4 {
    const char *codes;
    uint32_t transform;
    float scale; /* with the sign of the step */
};

/* Return whether a record is whole, not wide and without escapes. All threads then have a group of it. */
NB_DEV int nb_is_usual(uint32_t header, uint32_t groups)
{
    return (header & 0xffff) == NB_TILE_INT4 && groups == NB_TILE_GROUPS;
}

NB_DEV void nb_open_usual(const char *record, uint32_t header, struct nb_int4 *r)
{
    const uint32_t t = nb_thread();
    const char *scale = record + NB_TILE_HEADER, *domain = scale + NB_TILE_GROUPS;
    const uint32_t code = NB_SHARED1(scale + t);
    r->transform = NB_SHARED4(domain + t / 32 * 4) >> t % 32 & 1;
    r->scale = nb_real(nb_bits(nb_usual_scale(code & 127, header)) | (code & 0x80) << 24);
    r->codes = domain + 16 + 16 * t;
}

/* Return 1 and fill *r when the thread has a group. */
NB_DEV int nb_open_int4(const char *record, uint32_t header, uint32_t groups, uint32_t group0, struct nb_int4 *r, uint32_t *bad)
{
    const uint32_t t = nb_thread();

    if (nb_is_usual(header, groups)) {
        nb_open_usual(record, header, r);
        return 1;
    }
    NB_RARE;
    const struct nb_view v = nb_view_of(header, record, groups);
    NB_CHECK_RECORD(v, groups, group0, NB_SHARED1, NB_SHARED4, NB_NO_FINE, *bad);
    if (t >= groups)
        return 0;
    const uint32_t code = NB_SHARED1(v.scale + t);
    const float scale = nb_scale_of(v.kind == NB_TILE_INT4_WIDE, code & 127, v.exponent);
    r->transform = NB_SHARED4(v.domain + t / 32 * 4) >> t % 32 & 1;
    r->scale = nb_real(nb_bits(scale) | (code & 0x80) << 24);
    r->codes = v.code + 16 * t;
    return 1;
}

/* Add the escapes of such a record. */
NB_DEV void nb_add_escapes(const char *record, uint32_t header, uint32_t group0, float *p)
{
    const uint32_t t = nb_thread(), escapes = header >> 8 & 0xff;
    const char *escape = record + NB_TILE_HEADER;
    NB_ROLL
    for (uint32_t k = 0; k < escapes; k++) {
        NB_RARE;
        const uint32_t i = NB_SHARED4(escape + NB_ESCAPE_BYTES * k) - 32 * group0;
        if (i / 32 == t)
            nb_add_at(p, i % 32, nb_real(NB_SHARED4(escape + NB_ESCAPE_BYTES * k + 4)));
    }
}

/* Add a group of an int4 record to the sums, or begin them with it. */
NB_DEV void nb_add_group(const struct nb_int4 *r, int first, float *p, float *c)
{
    const float plain = r->transform ? 0 : r->scale * 0.125f, coded = r->transform ? r->scale : 0;
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        const uint32_t word = NB_SHARED4(r->codes + 4 * k);
        if (first)
            nb_begin_nibbles(word, 8 * k, plain, coded, p, c);
        else
            nb_add_nibbles(word, 8 * k, plain, coded, p, c);
    }
}

/* Add an int4 record of any kind. Return 1 if this thread's group was transformed. *bad: malformed. */
NB_DEV uint32_t nb_add_int4(const char *record, uint32_t header, uint32_t groups, uint32_t group0, int escapes, float *p, float *c,
                            uint32_t *bad)
{
    struct nb_int4 r;
    if (!nb_open_int4(record, header, groups, group0, &r, bad))
        return 0;
    nb_add_group(&r, 0, p, c);
    if (header & 0xff00 && escapes)
        nb_add_escapes(record, header, group0, p);
    return r.transform;
}

/* Convert the codes of an int4 word to FP16: h[k] gets number k, and k + 4 in the upper half. */
NB_DEV void nb_half_nibbles(uint32_t word, uint32_t *h)
{
    const uint32_t low = 0x000f000fu, high = 0x00f000f0u, upper = word >> 8;
    h[0] = nb_half_add((word & low) ^ 0x64086408u, 0xe408e408u);              /* 1024 + code + 8 */
    h[1] = nb_half_fma((word & high) ^ 0x64806480u, 0x2c002c00u, 0xd480d480u); /* 1024 + 16 * (code + 8) */
    h[2] = nb_half_add((upper & low) ^ 0x64086408u, 0xe408e408u);
    h[3] = nb_half_fma((upper & high) ^ 0x64806480u, 0x2c002c00u, 0xd480d480u);
}

/* Decode an int4 record that is the only source. Codes are transformed as integers of at most 9 bits, in
 * pairs of FP16. Times the step they are exact as in nb_add_int4, where the order of the stages matters
 * otherwise. */
NB_DEV void nb_only_int4(const struct nb_int4 *r, float *p)
{
    const float step = r->scale * (r->transform ? 0x1p-5f : 0x1p-3f);
    uint32_t h[16];
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++)
        nb_half_nibbles(NB_SHARED4(r->codes + 4 * k), h + 4 * k);
    if (r->transform) {
        NB_UNROLL
        for (unsigned d = 1; d < 16; d *= 2) {
            NB_UNROLL
            for (unsigned i = 0; i < 16; i++)
                if (!(i & d)) {
                    const uint32_t sum = nb_half_add(h[i], h[i + d]);
                    h[i + d] = nb_half_sub(h[i], h[i + d]);
                    h[i] = sum;
                }
        }
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++)
            h[i] = nb_half_cross(h[i]);
    }
    NB_UNROLL
    for (unsigned i = 0; i < 16; i++) { /* a zero is a positive one */
        p[i / 4 * 8 + i % 4] = nb_fma(nb_from_f16(h[i] & 0xffff), step, 0);
        p[i / 4 * 8 + i % 4 + 4] = nb_fma(nb_from_f16(h[i] >> 16), step, 0);
    }
}

#define NB_BRAIN_ONE 0x3f803f80u
#define NB_BRAIN_LESS 0xbf80bf80u /* -1 */

/* The same in pairs of BF16, a pair of neighbours to a word. A sum of 32 codes is at most 256. */
NB_DEV void nb_brain_codes(const struct nb_int4 *r, uint32_t *h)
{
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        const uint32_t word = NB_SHARED4(r->codes + 4 * k);
        uint32_t four[4]; /* 136 more than the codes j and j + 4 */
        NB_UNROLL
        for (unsigned j = 0; j < 4; j++)
            four[j] = nb_mask_flip(word >> 4 * j, 0x000f000fu, 0x43084308u);
        NB_UNROLL
        for (unsigned j = 0; j < 2; j++) {
            h[4 * k + j] = nb_brain_fma(nb_bytes(four[2 * j], four[2 * j + 1], 0x5410), NB_BRAIN_ONE, 0xc308c308u);
            h[4 * k + j + 2] = nb_brain_fma(nb_bytes(four[2 * j], four[2 * j + 1], 0x7632), NB_BRAIN_ONE, 0xc308c308u);
        }
    }
    if (r->transform) {
        NB_UNROLL
        for (unsigned d = 1; d < 16; d *= 2) {
            NB_UNROLL
            for (unsigned i = 0; i < 16; i++)
                if (!(i & d)) {
                    const uint32_t sum = nb_brain_fma(h[i], NB_BRAIN_ONE, h[i + d]);
                    h[i + d] = nb_brain_fma(h[i + d], NB_BRAIN_LESS, h[i]);
                    h[i] = sum;
                }
        }
        NB_UNROLL
        for (unsigned i = 0; i < 16; i++) /* the sum of both, and their difference */
            h[i] = nb_brain_fma(nb_bytes(h[i], h[i], 0x3232), 0xbf803f80u, nb_bytes(h[i], h[i], 0x1010));
    }
}

/* Return the steps of a pair. */
NB_DEV uint32_t nb_brain_step(const struct nb_int4 *r)
{
    const uint32_t step = nb_bits(r->scale * (r->transform ? 0x1p-5f : 0x1p-3f));
    return nb_bytes(step, step, 0x3232);
}

/* Move the values eight places to the front. A loop that is not unrolled so goes through a group eight at a
 * time. */
NB_DEV void nb_turn(float *p)
{
    float first[8];
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++)
        first[i] = p[i];
    NB_UNROLL
    for (unsigned i = 0; i < 24; i++)
        p[i] = p[i + 8];
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++)
        p[24 + i] = first[i];
}

/* Return the code of value i of an int6 or int8 record: of int6 the six bits, without extending the sign. */
NB_DEV uint32_t nb_fine_code(struct nb_view v, uint32_t i)
{
    const char *six = v.code + 24 * (i / 32) + i % 8;

    if (!nb_is_int6(v.kind))
        return nb_load1(v.code + i);
    if (i % 32 < 24)
        return nb_load1(v.code + 24 * (i / 32) + i % 32) & 63;
    return nb_load1(six) >> 6 | nb_load1(six + 8) >> 6 << 2 | nb_load1(six + 16) >> 6 << 4;
}

/* Return whether a record of int6 is whole, not wide and without escapes: nothing of it needs a check. */
NB_DEV int nb_is_usual_int6(uint32_t header, uint32_t groups)
{
    return (header & 0xffff) == NB_TILE_INT6 && groups == NB_TILE_GROUPS;
}

/* Add four codes of int6, the low six bits of a word's bytes, to values i0 to i0 + 3. */
NB_DEV void nb_add_sixes(uint32_t word, unsigned i0, float step, float *p)
{
    const uint32_t above = nb_mask_flip(word, 0x3f3f3f3fu, 0x20202020u); /* each code and 32 */
    float q[4];
    NB_UNROLL
    for (unsigned b = 0; b < 4; b++) /* the byte becomes the lowest of 2^23 */
        q[b] = nb_real(nb_bytes(above, 0x4b000000u, 0x7440 | b));
    NB_UNROLL
    for (unsigned b = 0; b < 2; b++) {
        nb_two_plus(&q[b], &q[b + 2], -(0x1p23f + 32), -(0x1p23f + 32)); /* exact */
        nb_two_fma(&p[i0 + b], &p[i0 + b + 2], q[b], q[b + 2], step, step);
    }
}

/* Add such a record from its place in memory. A thread requests all of its words before it uses the first. */
NB_DEV void nb_add_usual_int6(const char *record, uint32_t header, float *p)
{
    const uint32_t t = nb_thread();
    const char *scale = record + NB_TILE_HEADER, *codes = scale + NB_TILE_GROUPS + 24 * t;
    uint32_t word[6];
    NB_UNROLL
    for (unsigned k = 0; k < 6; k++)
        word[k] = nb_load4(codes + 4 * k);
    const uint32_t as_int4 = header - NB_TILE_INT6 + NB_TILE_INT4; /* nb_usual_scale expects this kind */
    const float step = nb_usual_scale(nb_load1(scale + t) & 127, as_int4) * NB_INT6_STEP;
    NB_UNROLL
    for (unsigned k = 0; k < 6; k++)
        nb_add_sixes(word[k], 4 * k, step, p);
    NB_UNROLL
    for (unsigned h = 0; h < 2; h++) /* codes 24 to 31: each eight codes before carry two bits of them */
        nb_add_sixes((word[h] >> 6 & 0x03030303u) | (word[2 + h] >> 4 & 0x0c0c0c0cu) |
                         (word[4 + h] >> 2 & 0x30303030u),
                     24 + 4 * h, step, p);
}

/* Add a record (or the values of a raw source) from its place in memory: all kinds but int4. Short
 * rather than fast. */
NB_DEV void nb_add_other(int type, uint32_t header, const char *record, uint32_t groups, uint32_t group0, int escapes,
                         float *p, uint32_t *bad)
{
    const uint32_t t = nb_thread();
    const struct nb_view v = nb_view_of(header, record, groups);

    NB_CHECK_RECORD(v, groups, group0, nb_load1, nb_load4, nb_fine_code, *bad);
    if (t >= groups || v.kind == NB_TILE_ZERO)
        return;
    if (v.kind == NB_TILE_RAW) {
        NB_ROLL
        for (unsigned k = 0; k < 4; k++) {
            NB_UNROLL
            for (unsigned i = 0; i < 8; i++)
                p[i] = p[i] + nb_widen(type, nb_element(type, v.code, 32 * t + 8 * k + i));
            nb_turn(p);
        }
        return;
    }
    const uint32_t code = nb_load1(v.scale + t);
    const int six = nb_is_int6(v.kind), wide = v.kind == NB_TILE_INT8_WIDE || v.kind == NB_TILE_INT6_WIDE;
    const float step = nb_scale_of(wide, code & 127, v.exponent) * (six ? NB_INT6_STEP : NB_INT8_STEP);
    const char *codes = v.code + (six ? 24 : 32) * t;
    uint32_t last[2] = {0, 0}; /* int6: codes 24 to 31, of which each eight codes before carry two bits */
    NB_ROLL
    for (unsigned k = 0; k < 4; k++) {
        uint32_t word[2] = {last[0], last[1]};
        if (!six || k < 3) {
            word[0] = nb_load4(codes + 8 * k);
            word[1] = nb_load4(codes + 8 * k + 4);
        }
        if (six) {
            NB_UNROLL
            for (unsigned h = 0; h < 2; h++) {
                last[h] |= (word[h] >> 6 & 0x03030303u) << 2 * k;
                word[h] = (word[h] & 0x3f3f3f3fu) ^ 0x20202020u; /* extends the sign, in each byte */
                word[h] = ((word[h] | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
            }
        }
        NB_UNROLL
        for (unsigned b = 0; b < 8; b++)
            p[b] = nb_fma(nb_from_int((int8_t)(word[b / 4] >> 8 * (b % 4))), step, p[b]);
        nb_turn(p);
    }
    if (escapes)
        NB_ROLL
        for (uint32_t k = 0; k < v.escapes; k++) {
            const uint32_t i = nb_load4(v.escape + NB_ESCAPE_BYTES * k) - 32 * group0;
            if (i / 32 == t)
                nb_add_at(p, i % 32, nb_real(nb_load4(v.escape + NB_ESCAPE_BYTES * k + 4)));
        }
}

#endif
