/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the tile format that all variants share: the scale table, the parser of tile records, and
 * partial groups.
 */
#include <errno.h>
#include <stdbool.h>

#include "codec/span.h"

NB_GROUP_IS_32("places of codes in a record, and a domain bit a group in words of 32");

/* Four, three, two, one bits of mantissa for four binades each, then seven powers of two. Codes count up. */
#define M4(d) \
    0x1.0p-##d, 0x1.1p-##d, 0x1.2p-##d, 0x1.3p-##d, 0x1.4p-##d, 0x1.5p-##d, 0x1.6p-##d, 0x1.7p-##d, \
        0x1.8p-##d, 0x1.9p-##d, 0x1.ap-##d, 0x1.bp-##d, 0x1.cp-##d, 0x1.dp-##d, 0x1.ep-##d, 0x1.fp-##d
#define M3(d) 0x1.0p-##d, 0x1.2p-##d, 0x1.4p-##d, 0x1.6p-##d, 0x1.8p-##d, 0x1.ap-##d, 0x1.cp-##d, 0x1.ep-##d
#define M2(d) 0x1.0p-##d, 0x1.4p-##d, 0x1.8p-##d, 0x1.cp-##d
#define M1(d) 0x1.0p-##d, 0x1.8p-##d
#define M0(d) 0x1.0p-##d
/* Powers of two, eight a line. */
#define P8(a, b, c, d, e, f, g, h) \
    0x1p-##a, 0x1p-##b, 0x1p-##c, 0x1p-##d, 0x1p-##e, 0x1p-##f, 0x1p-##g, 0x1p-##h

const float nb_scale_table[2][128] = {
    {0,      M0(22), M0(21), M0(20), M0(19), M0(18), M0(17), M0(16), M1(15), M1(14), M1(13), M1(12),
     M2(11), M2(10), M2(9),  M2(8),  M3(7),  M3(6),  M3(5),  M3(4),  M4(3),  M4(2),  M4(1),  M4(0)},
    {0,
     P8(125, 124, 123, 122, 121, 120, 119, 118),
     P8(117, 116, 115, 114, 113, 112, 111, 110),
     P8(109, 108, 107, 106, 105, 104, 103, 102),
     P8(101, 100, 99, 98, 97, 96, 95, 94),
     P8(93, 92, 91, 90, 89, 88, 87, 86),
     P8(85, 84, 83, 82, 81, 80, 79, 78),
     P8(77, 76, 75, 74, 73, 72, 71, 70),
     P8(69, 68, 67, 66, 65, 64, 63, 62),
     P8(61, 60, 59, 58, 57, 56, 55, 54),
     P8(53, 52, 51, 50, 49, 48, 47, 46),
     P8(45, 44, 43, 42, 41, 40, 39, 38),
     P8(37, 36, 35, 34, 33, 32, 31, 30),
     P8(29, 28, 27, 26, 25, 24, 23, 22),
     P8(21, 20, 19, 18, 17, 16, 15, 14),
     P8(13, 12, 11, 10, 9, 8, 7, 6),
     0x1p-5,
     0x1p-4,
     0x1p-3,
     0x1p-2,
     0x1p-1,
     0x1p0,
     0x1p1},
};

/* ---- Pieces of the format --------------------------------------------------------------------------- */

static bool all_zero(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i])
            return false;
    return true;
}

/* Return the int6 code of value i of a group, 0 to 63. */
static unsigned code6(const uint8_t *packed, unsigned i)
{
    const unsigned k = i % 8;
    return i < 24 ? packed[i] & 63u
                  : (unsigned)(packed[k] >> 6 | packed[8 + k] >> 6 << 2 | packed[16 + k] >> 6 << 4);
}

static bool is_int6(enum nb_tile_kind kind)
{
    return kind == NB_TILE_INT6 || kind == NB_TILE_INT6_WIDE;
}

static bool is_int4(enum nb_tile_kind kind)
{
    return kind == NB_TILE_INT4 || kind == NB_TILE_INT4_WIDE;
}

/* Return whether the escapes are valid: indices ascend and lie inside, the group of each is plain and its
 * code is 0. Adding an escape and writing it then give the same result. */
static bool escapes_valid(const struct nb_tile_view *v, unsigned group0)
{
    unsigned next = group0 * NB_GROUP, end = next + v->groups * NB_GROUP;
    for (unsigned k = 0; k < v->escapes; k++) {
        const uint8_t *p = v->escape + NB_ESCAPE_BYTES * k;
        unsigned index = nb_get16(p);
        if (index < next || index >= end || nb_get16(p + 2))
            return false;
        next = index + 1;
        index -= group0 * NB_GROUP;
        unsigned j = index / NB_GROUP, i = index % NB_GROUP;
        const uint8_t *code = v->code;
        if (is_int4(v->kind)   ? (v->domain[j / 8] >> j % 8 & 1) || (code[16 * j + i / 2] >> (i % 2 * 4) & 15)
            : is_int6(v->kind) ? code6(code + 24 * j, i) != 0
                               : code[NB_GROUP * j + i] != 0)
            return false;
    }
    return true;
}

/* Parse a record of codec `codec`. */
NB_INLINE ssize_t parse(enum nb_codec codec, enum nb_dtype type, const uint8_t *p, size_t len,
                        unsigned group0, unsigned groups, struct nb_tile_view *view)
{
    if (len < NB_TILE_HEADER || p[3])
        return -EBADMSG;
    struct nb_tile_view v = {.kind = p[0], .groups = groups, .escapes = p[1], .escape = p + NB_TILE_HEADER};
    const uint8_t *body = v.escape + NB_ESCAPE_BYTES * v.escapes;
    unsigned most = NB_INT8_ESCAPES;
    size_t bytes;

    switch (v.kind) {
    case NB_TILE_ZERO:
    case NB_TILE_RAW:
        bytes = v.kind == NB_TILE_RAW ? groups * NB_GROUP * nb_value_bytes(type) : 0;
        if (p[1] || p[2] || len < NB_TILE_HEADER + bytes)
            return -EBADMSG;
        v.code = body;
        *view = v;
        return (ssize_t)(NB_TILE_HEADER + bytes);
    case NB_TILE_INT4:
    case NB_TILE_INT4_WIDE:
        if (codec != NB_CODEC_INT4)
            return -EBADMSG;
        bytes = nb_tile_body(4, groups);
        most = NB_INT4_ESCAPES;
        break;
    case NB_TILE_INT6:
    case NB_TILE_INT6_WIDE:
        if (codec != NB_CODEC_INT6)
            return -EBADMSG;
        bytes = nb_tile_body(6, groups);
        v.fine = NB_INT6_STEP;
        break;
    case NB_TILE_INT8:
    case NB_TILE_INT8_WIDE:
        if (codec == NB_CODEC_INT6)
            return -EBADMSG;
        bytes = nb_tile_body(8, groups);
        v.fine = NB_INT8_STEP;
        break;
    default: return -EBADMSG;
    }
    bytes += NB_TILE_HEADER + NB_ESCAPE_BYTES * v.escapes;
    int exponent = (int)p[2] - 127;
    if (exponent < NB_EXPONENT_MIN || exponent > NB_EXPONENT_MAX || v.escapes > most || len < bytes)
        return -EBADMSG;
    v.unit = nb_pow2(exponent);
    v.scale = body;
    v.domain = v.code = body + nb_pad4(groups);
    if (!all_zero(v.scale + groups, nb_pad4(groups) - groups))
        return -EBADMSG;
    if (is_int4(v.kind)) {
        v.code += 4 * ((groups + 31) / 32);
        if (groups % 32 && nb_get32(v.domain + groups / 32 * 4) >> groups % 32)
            return -EBADMSG;
    }
    if (v.escapes && !escapes_valid(&v, group0))
        return -EBADMSG;
    *view = v;
    return (ssize_t)bytes;
}

ssize_t nb_record_int4(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view)
{
    return parse(NB_CODEC_INT4, type, p, len, group0, groups, view);
}

ssize_t nb_record_int6(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view)
{
    return parse(NB_CODEC_INT6, type, p, len, group0, groups, view);
}

ssize_t nb_record_int8(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                       struct nb_tile_view *view)
{
    return parse(NB_CODEC_INT8, type, p, len, group0, groups, view);
}

size_t nb_partial_encode(enum nb_dtype type, const uint8_t *src, size_t count, uint64_t first,
                         const struct nb_ef *ef, uint8_t *dst, struct nb_encode_stats *stats)
{
    size_t bytes = count * nb_value_bytes(type), padded = nb_partial_bytes(type, count);
    memcpy(dst, src, bytes);
    memset(dst + bytes, 0, padded - bytes);
    if (ef && count)
        memset(ef->err + first, 0, count);
    for (size_t i = 0; stats && i < count; i++)
        stats->nonfinite += (nb_f32_bits(nb_load_value(type, src, i)) & NB_F32_ABS) >= NB_F32_INF;
    return padded;
}
