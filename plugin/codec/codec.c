/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantizing codecs' public functions: validation, names, bounds, raw spans, and the pieces of the format
 * that every variant shares (partial groups, the parser of tile records, the scale table).
 */
#include <errno.h>
#include <stdbool.h>

#include "codec/fpenv.h"
#include "codec/ops.h"

size_t nb_dtype_size(enum nb_dtype type)
{
    switch (type) {
    case NB_F32:
        return 4;
    case NB_BF16:
    case NB_F16:
        return 2;
    default:
        return 0;
    }
}

const char *nb_dtype_name(enum nb_dtype type)
{
    static const char *const names[NB_DTYPE_COUNT] = {"float32", "bfloat16", "float16"};
    return (unsigned)type < NB_DTYPE_COUNT ? names[type] : "unknown";
}

const char *nb_codec_name(enum nb_codec codec)
{
    static const char *const names[NB_CODEC_COUNT] = {"raw", "int4", "int8", "ulp", "delta4"};
    return (unsigned)codec < NB_CODEC_COUNT ? names[codec] : "unknown";
}

size_t nb_ef_err_bytes(size_t n)
{
    return n;
}

size_t nb_ef_scale_bytes(size_t n)
{
    return n / NB_GROUP + (n % NB_GROUP != 0);
}

/* Four, three, two, one bits of mantissa for four binades each, then seven powers of two; codes count up. */
#define M4(d)                                                                                       \
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

static bool is_int4(enum nb_tile_kind kind)
{
    return kind == NB_TILE_INT4 || kind == NB_TILE_INT4_WIDE;
}

/* Indices ascend and lie inside; the group of each is plain and the code there is 0, so that adding an escape
 * and writing it come to the same. */
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
        if (is_int4(v->kind)
                ? (v->domain[j / 8] >> j % 8 & 1) || (v->code[16 * j + i / 2] >> (i % 2 * 4) & 15)
                : v->code[index] != 0)
            return false;
    }
    return true;
}

ssize_t nb_tile_parse(enum nb_codec codec, enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0,
                      unsigned groups, struct nb_tile_view *view)
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
        bytes = v.kind == NB_TILE_RAW ? groups * NB_GROUP * nb_dtype_size(type) : 0;
        if (p[1] || p[2] || len < NB_TILE_HEADER + bytes)
            return -EBADMSG;
        v.code = body;
        *view = v;
        return (ssize_t)(NB_TILE_HEADER + bytes);
    case NB_TILE_INT4:
    case NB_TILE_INT4_WIDE:
        if (codec != NB_CODEC_INT4)
            return -EBADMSG;
        bytes = nb_int4_body(groups);
        most = NB_INT4_ESCAPES;
        break;
    case NB_TILE_INT8:
    case NB_TILE_INT8_WIDE:
        bytes = nb_int8_body(groups);
        break;
    default:
        return -EBADMSG;
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
    if (!escapes_valid(&v, group0))
        return -EBADMSG;
    *view = v;
    return (ssize_t)bytes;
}

size_t nb_partial_encode(enum nb_dtype type, const uint8_t *src, size_t count, uint64_t first,
                         const struct nb_ef *ef, uint8_t *dst, struct nb_encode_stats *stats)
{
    size_t bytes = count * nb_dtype_size(type), padded = nb_partial_bytes(type, count);
    memcpy(dst, src, bytes);
    memset(dst + bytes, 0, padded - bytes);
    if (ef && count)
        memset(ef->err + first, 0, count);
    for (size_t i = 0; stats && i < count; i++)
        stats->nonfinite += (nb_f32_bits(nb_load_value(type, src, i)) & NB_F32_ABS) >= NB_F32_INF;
    return padded;
}

#define MOST_VALUES (SIZE_MAX / 16)

/* ---- Public functions ------------------------------------------------------------------------------ */

static bool quantizing(enum nb_codec codec)
{
    return codec == NB_CODEC_RAW || codec == NB_CODEC_INT4 || codec == NB_CODEC_INT8;
}

void nb_encode_stats_add(struct nb_encode_stats *to, const struct nb_encode_stats *from)
{
    to->values += from->values;
    to->nonfinite += from->nonfinite;
    to->escapes += from->escapes;
    to->fallback += from->fallback;
    to->flushed += from->flushed;
    to->bounded += from->bounded;
    to->signal2 += from->signal2;
    to->noise2 += from->noise2;
    to->carried2 += from->carried2;
}

/* Arguments that every function has. */
static bool sane(enum nb_dtype type, size_t n, uint64_t first, const void *values)
{
    size_t size = nb_dtype_size(type);
    return size && n <= MOST_VALUES && first <= UINT64_MAX - n && (values || !n);
}

size_t nb_encode_bound(enum nb_codec codec, enum nb_dtype type, size_t n)
{
    size_t size = nb_dtype_size(type);
    if (!size || !quantizing(codec) || n > MOST_VALUES)
        return 0;
    if (codec == NB_CODEC_RAW)
        return n * size;
    /* A raw tile is the longest record; the ends of a span add at most one tile and two paddings. */
    return n * size + (n / NB_TILE + 2) * NB_TILE_HEADER + 8;
}

static bool feedback_sane(const struct nb_ef *ef)
{
    return ef->err && ef->scale && (ef->mode == NB_EF_FULL || ef->mode == NB_EF_EMA) && ef->bound >= 0 &&
           (ef->mode != NB_EF_EMA || (ef->beta >= 0 && ef->beta < 1));
}

ssize_t nb_encode(enum nb_codec codec, enum nb_dtype type, const void *src, size_t n, uint64_t first,
                  const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats)
{
    if (!quantizing(codec) || !sane(type, n, first, src) || (n && !dst))
        return -EINVAL;
    if (codec == NB_CODEC_RAW || (ef && ef->mode == NB_EF_OFF))
        ef = NULL;
    if (ef && !feedback_sane(ef))
        return -EINVAL;
    if (cap < nb_encode_bound(codec, type, n))
        return -ENOSPC;
    if (!n)
        return 0;
    if (stats)
        stats->values += n;
    if (codec == NB_CODEC_RAW) {
        memcpy(dst, src, n * nb_dtype_size(type));
        return (ssize_t)(n * nb_dtype_size(type));
    }
    const struct nb_codec_ops *ops = nb_codec_ops();
    nb_fp_environment fp = nb_fp_enter();
    size_t length = ops->encode(ops, codec, type, src, n, first, ef, dst, stats);
    nb_fp_leave(fp);
    return (ssize_t)length;
}

int nb_decode(enum nb_codec codec, enum nb_dtype type, const void *coded, size_t len, size_t n,
              uint64_t first, void *dst)
{
    if (!quantizing(codec) || !sane(type, n, first, dst) || (len && !coded))
        return -EINVAL;
    if (codec == NB_CODEC_RAW) {
        if (len != n * nb_dtype_size(type))
            return -EBADMSG;
        if (n)
            memcpy(dst, coded, len);
        return 0;
    }
    if (!n)
        return len ? -EBADMSG : 0;
    const struct nb_codec_ops *ops = nb_codec_ops();
    nb_fp_environment fp = nb_fp_enter();
    int result = ops->decode(ops, codec, type, coded, len, n, first, dst);
    nb_fp_leave(fp);
    return result;
}

int nb_reduce(enum nb_dtype type, const struct nb_source *sources, size_t nsources, const void *own, size_t n,
              uint64_t first, void *dst)
{
    if (!sane(type, n, first, dst) || nsources > NB_MAX_SOURCES || (nsources && !sources))
        return -EINVAL;
    for (size_t s = 0; s < nsources; s++) {
        if (!quantizing(sources[s].codec) || (sources[s].len && !sources[s].coded))
            return -EINVAL;
        if (sources[s].codec == NB_CODEC_RAW ? sources[s].len != n * nb_dtype_size(type)
                                             : !n && sources[s].len)
            return -EBADMSG;
    }
    if (!n)
        return 0;
    const struct nb_codec_ops *ops = nb_codec_ops();
    nb_fp_environment fp = nb_fp_enter();
    int result = ops->reduce(ops, type, sources, nsources, own, n, first, dst);
    nb_fp_leave(fp);
    return result;
}
