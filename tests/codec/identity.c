/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The identity codec. It cuts a span as all codecs do: partial groups travel raw, padded to 4 bytes. The
 * whole groups of each tile make a record, here a header of 4 bytes and the values.
 */
#include "identity.h"

#include <errno.h>
#include <string.h>

#include "codec/dispatch.h"

#define HEADER 4u
#define MARK 0x1du

unsigned long identity_encoded, identity_decoded;

size_t identity_bound(unsigned format, size_t bytes)
{
    const size_t tile = NB_TILE * (size_t)nb_value_bytes((enum nb_dtype)format);

    /* A span that begins inside a tile has one record more than whole tiles. Add the padding of both ends. */
    return format < NB_DTYPE_COUNT ? bytes + (bytes / tile + 2) * HEADER + 8 : 0;
}

/* Write the record of `groups` groups from `first` on. The codec loses nothing, so the residuals are zero. */
static uint8_t *put_record(const struct nb_encoding *e, const uint8_t *src, uint64_t first, unsigned groups,
                           uint8_t *to)
{
    const size_t bytes = groups * NB_GROUP * (size_t)nb_value_bytes((enum nb_dtype)e->format);

    nb_put32(to, MARK);
    memcpy(to + HEADER, src, bytes);
    if (e->ef && e->ef->mode != NB_EF_OFF) {
        memset(e->ef->err + first, 0, groups * NB_GROUP);
        memset(e->ef->scale + first / NB_GROUP, 0, groups);
    }
    return to + HEADER + bytes;
}

ssize_t identity_encode(const struct nb_encoding *e)
{
    const enum nb_dtype type = (enum nb_dtype)e->format;
    const size_t size = nb_value_bytes(type), n = e->bytes / size;
    const struct nb_ef *ef = e->ef && e->ef->mode != NB_EF_OFF ? e->ef : NULL;
    const uint8_t *src = e->src;
    const struct nb_span span = nb_span_cut(n, e->first);
    uint64_t first = e->first + span.head;
    uint8_t *to = e->dst;

    if (!nb_span_sane(e->format, n, e->first, e->src) || (n && !e->dst))
        return -EINVAL;
    if (e->cap < identity_bound(e->format, e->bytes))
        return -ENOSPC;
    if (e->stats)
        e->stats->values += n;
    if (span.head)
        to += nb_partial_encode(type, src, span.head, e->first, ef, to, e->stats);
    src += span.head * size;
    for (size_t left = span.groups; left;) {
        const unsigned groups = nb_tile_groups(first / NB_GROUP, left);
        to = put_record(e, src, first, groups, to);
        src += groups * NB_GROUP * size;
        first += groups * NB_GROUP;
        left -= groups;
    }
    if (span.tail)
        to += nb_partial_encode(type, src, span.tail, first, ef, to, e->stats);
    identity_encoded += e->bytes;
    return to - (uint8_t *)e->dst;
}

ssize_t identity_record(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0, unsigned groups,
                        struct nb_tile_view *view)
{
    const size_t bytes = groups * NB_GROUP * (size_t)nb_value_bytes(type);

    (void)group0;
    if (len < HEADER + bytes || nb_get32(p) != MARK)
        return -EBADMSG;
    *view = (struct nb_tile_view){.kind = NB_TILE_RAW, .groups = groups, .code = p + HEADER};
    identity_decoded += bytes;
    return (ssize_t)(HEADER + bytes);
}

int identity_decode(const struct nb_decoding *d)
{
    const struct nb_span_ops *span = &nb_variant()->span;
    const size_t n = d->bytes / nb_value_bytes((enum nb_dtype)d->format);

    if (!nb_span_sane(d->format, n, d->first, d->dst) || (d->len && !d->coded))
        return -EINVAL;
    if (!n)
        return d->len ? -EBADMSG : 0;
    return span->decode(span, identity_record, (enum nb_dtype)d->format, d->coded, d->len, n, d->first,
                        d->dst);
}

const struct nb_codec_row identity_row = {
    .name = "identity",
    .code = CODEC_IDENTITY,
    .format = NB_FORMAT_VALUES,
    .exact = NB_CODEC_RAW,
    .finer = CODEC_IDENTITY,
    .bound = identity_bound,
    .encode = identity_encode,
    .decode = identity_decode,
    .record = identity_record,
};
