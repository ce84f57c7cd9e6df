/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of nibble/codec.h that work with any codec. They look the codec up in the table and check the
 * arguments that all codecs share. Codecs with a reference have functions of their own in nibble/codec.h
 * (ulp.c).
 */
#include <errno.h>

#include "codec/dispatch.h"
#include "codec/fpenv.h"
#include "codec/row.h"

const char *nb_codec_name(enum nb_codec codec)
{
    const struct nb_codec_row *row = nb_codec_row(codec);
    return row ? row->name : "unknown";
}

static bool sane(enum nb_dtype type, size_t n)
{
    return (unsigned)type < NB_DTYPE_COUNT && n <= NB_MOST_VALUES;
}

/* Return the codec if its spans need no reference, else NULL. */
static const struct nb_codec_row *self_contained(enum nb_codec codec)
{
    const struct nb_codec_row *row = nb_codec_row(codec);
    return row && !row->reference ? row : NULL;
}

size_t nb_encode_bound(enum nb_codec codec, enum nb_dtype type, size_t n)
{
    const struct nb_codec_row *row = self_contained(codec);
    return row && sane(type, n) ? row->bound(type, n * nb_value_bytes(type)) : 0;
}

ssize_t nb_encode(enum nb_codec codec, enum nb_dtype type, const void *src, size_t n, uint64_t first,
                  const struct nb_ef *ef, void *dst, size_t cap, struct nb_encode_stats *stats)
{
    const struct nb_codec_row *row = self_contained(codec);

    if (!row || !sane(type, n))
        return -EINVAL;
    return row->encode(&(struct nb_encoding){.codec = row,
                                             .format = type,
                                             .src = src,
                                             .bytes = n * nb_value_bytes(type),
                                             .first = first,
                                             .ef = ef,
                                             .dst = dst,
                                             .cap = cap,
                                             .stats = stats});
}

int nb_decode(enum nb_codec codec, enum nb_dtype type, const void *coded, size_t len, size_t n,
              uint64_t first, void *dst)
{
    const struct nb_codec_row *row = self_contained(codec);

    if (!row || !sane(type, n))
        return -EINVAL;
    return row->decode(&(struct nb_decoding){.codec = row,
                                             .format = type,
                                             .coded = coded,
                                             .len = len,
                                             .bytes = n * nb_value_bytes(type),
                                             .first = first,
                                             .dst = dst});
}

int nb_reduce(enum nb_dtype type, const struct nb_source *sources, size_t nsources, const void *own, size_t n,
              uint64_t first, void *dst)
{
    const size_t size = nb_value_bytes(type);

    if (!nb_span_sane(type, n, first, dst) || nsources > NB_MAX_SOURCES || (nsources && !sources))
        return -EINVAL;
    for (size_t s = 0; s < nsources; s++) {
        const struct nb_codec_row *row = self_contained(sources[s].codec);
        if (!row || (sources[s].len && !sources[s].coded))
            return -EINVAL;
        if (row->record ? !n && sources[s].len : sources[s].len != n * size)
            return -EBADMSG;
    }
    if (!n)
        return 0;
    const struct nb_span_ops *span = &nb_variant()->span;
    const nb_fp_environment fp = nb_fp_enter();
    const int result = span->reduce(span, nb_codec_table, type, sources, nsources, own, n, first, dst);
    nb_fp_leave(fp);
    return result;
}

size_t nb_codec_most(size_t bytes)
{
    size_t most = bytes;

    for (unsigned code = 0; code < NB_CODEC_CODES; code++) {
        const struct nb_codec_row *row = nb_codec_table[code];
        /* Formats of all kinds are small numbers. */
        for (unsigned format = 0; row && format <= NB_ULP_32; format++) {
            const size_t bound = row->bound(format, bytes);
            most = bound > most ? bound : most;
        }
    }
    return most;
}
