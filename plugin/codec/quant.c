/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codecs without a reference: raw, int4, int6 and int8. This file checks their arguments and has their
 * rows. The spans of the selected variant do the work (span.c).
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "codec/dispatch.h"
#include "codec/fpenv.h"
#include "codec/row.h"
#include "codec/tile.h"

size_t nb_ef_err_bytes(size_t n)
{
    return n;
}

size_t nb_ef_scale_bytes(size_t n)
{
    return n / NB_GROUP + (n % NB_GROUP != 0);
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

/* ---- raw ------------------------------------------------------------------------------------------- */

static size_t raw_bound(unsigned format, size_t bytes)
{
    (void)format;
    return bytes;
}

static ssize_t raw_encode(const struct nb_encoding *e)
{
    const size_t size = nb_value_bytes((enum nb_dtype)e->format);

    if (!nb_span_sane(e->format, e->bytes / size, e->first, e->src) || (e->bytes && !e->dst))
        return -EINVAL;
    if (e->cap < e->bytes)
        return -ENOSPC;
    if (e->stats)
        e->stats->values += e->bytes / size;
    if (e->bytes)
        memcpy(e->dst, e->src, e->bytes);
    return (ssize_t)e->bytes;
}

static int raw_decode(const struct nb_decoding *d)
{
    const size_t size = nb_value_bytes((enum nb_dtype)d->format);

    if (!nb_span_sane(d->format, d->bytes / size, d->first, d->dst) || (d->len && !d->coded))
        return -EINVAL;
    if (d->len != d->bytes)
        return -EBADMSG;
    if (d->bytes)
        memcpy(d->dst, d->coded, d->len);
    return 0;
}

const struct nb_codec_row nb_row_raw = {
    .name = "raw",
    .code = NB_CODEC_RAW,
    .format = NB_FORMAT_BYTES,
    .exact = NB_CODEC_RAW,
    .finer = NB_CODEC_RAW,
    .bound = raw_bound,
    .encode = raw_encode,
    .decode = raw_decode,
};

/* ---- int4, int6, int8 ------------------------------------------------------------------------------ */

static size_t tiled_bound(unsigned format, size_t bytes)
{
    const size_t n = bytes / nb_value_bytes((enum nb_dtype)format);

    /* A raw tile is the longest record. The ends of a span add at most one tile and two paddings. */
    return format < NB_DTYPE_COUNT ? bytes + (n / NB_TILE + 2) * NB_TILE_HEADER + 8 : 0;
}

static bool feedback_sane(const struct nb_ef *ef)
{
    return ef->err && ef->scale && (ef->mode == NB_EF_FULL || ef->mode == NB_EF_EMA) && ef->bound >= 0 &&
           (ef->mode != NB_EF_EMA || (ef->beta >= 0 && ef->beta < 1));
}

static ssize_t tiled_encode(const struct nb_encoding *e)
{
    const enum nb_dtype type = (enum nb_dtype)e->format;
    const size_t n = e->bytes / nb_value_bytes(type);
    const struct nb_ef *ef = e->ef && e->ef->mode != NB_EF_OFF ? e->ef : NULL;

    if (!nb_span_sane(e->format, n, e->first, e->src) || (n && !e->dst) || (ef && !feedback_sane(ef)))
        return -EINVAL;
    if (e->cap < tiled_bound(e->format, e->bytes))
        return -ENOSPC;
    if (!n)
        return 0;
    if (e->stats)
        e->stats->values += n;
    const struct nb_span_ops *span = &nb_variant()->span;
    const nb_fp_environment fp = nb_fp_enter();
    const size_t length = span->encode(span, e->codec->bits, type, e->src, n, e->first, ef, e->dst, e->stats);
    nb_fp_leave(fp);
    return (ssize_t)length;
}

static int tiled_decode(const struct nb_decoding *d)
{
    const enum nb_dtype type = (enum nb_dtype)d->format;
    const size_t n = d->bytes / nb_value_bytes(type);

    if (!nb_span_sane(d->format, n, d->first, d->dst) || (d->len && !d->coded))
        return -EINVAL;
    if (!n)
        return d->len ? -EBADMSG : 0;
    const struct nb_span_ops *span = &nb_variant()->span;
    const nb_fp_environment fp = nb_fp_enter();
    const int result = span->decode(span, d->codec->record, type, d->coded, d->len, n, d->first, d->dst);
    nb_fp_leave(fp);
    return result;
}

/* The fields that the rows of these codecs share. */
#define TILED \
    .format = NB_FORMAT_VALUES, .lossy = true, .exact = NB_CODEC_RAW, .finer = NB_CODEC_INT8, \
    .bound = tiled_bound, .encode = tiled_encode, .decode = tiled_decode

const struct nb_codec_row nb_row_int4 = {
    TILED, .name = "int4", .code = NB_CODEC_INT4, .transformed = true, .bits = 4, .record = nb_record_int4,
};

const struct nb_codec_row nb_row_int6 = {
    TILED,
    .name = "int6",
    .code = NB_CODEC_INT6,
    .bits = 6,
    .loss = "within 1/62 of the largest of 32 neighbours",
    .record = nb_record_int6,
};

const struct nb_codec_row nb_row_int8 = {
    TILED,
    .name = "int8",
    .code = NB_CODEC_INT8,
    .bits = 8,
    .loss = "within 1/254 of the largest of 32 neighbours",
    .record = nb_record_int8,
};
