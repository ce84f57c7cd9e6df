/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans of the codecs without a reference: n values of a rank block from index `first` on, in the block's
 * tiles. A variant's span operations are the functions here over its tile operations (tile.h).
 */
#ifndef NIBBLE_CODEC_SPAN_H
#define NIBBLE_CODEC_SPAN_H

#include "codec/row.h"
#include "codec/tile.h"

/* The operations that dispatch.c builds for each variant. Callers have checked the arguments: known type, n
 * >= 1, valid residuals, dst large enough, default floating-point environment. */
struct nb_span_ops {
    /* Encode with codes of `bits` bits: 4, 6 or 8. `ef` and `stats` may be NULL. Return the coded length. */
    size_t (*encode)(const struct nb_span_ops *self, unsigned bits, enum nb_dtype type, const uint8_t *src,
                     size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                     struct nb_encode_stats *stats);
    /* Decode records that `record` parses. Return 0 or -EBADMSG. */
    int (*decode)(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                  const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
    /* nb_reduce. `rows` is the table of codecs. Return 0 or -EBADMSG. */
    int (*reduce)(const struct nb_span_ops *self, const struct nb_codec_row *const *rows, enum nb_dtype type,
                  const struct nb_source *sources, size_t nsources, const uint8_t *own, size_t n,
                  uint64_t first, uint8_t *dst);
    const struct nb_tile_ops *tile;
};

/* These three operations, over self->tile. */
size_t nb_span_encode(const struct nb_span_ops *self, unsigned bits, enum nb_dtype type, const uint8_t *src,
                      size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                      struct nb_encode_stats *stats);
int nb_span_decode(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                   const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst);
int nb_span_reduce(const struct nb_span_ops *self, const struct nb_codec_row *const *rows, enum nb_dtype type,
                   const struct nb_source *sources, size_t nsources, const uint8_t *own, size_t n,
                   uint64_t first, uint8_t *dst);

#define NB_MOST_VALUES (SIZE_MAX / 16)

/* Check the arguments that all functions on spans share. */
NB_INLINE bool nb_span_sane(unsigned type, size_t n, uint64_t first, const void *values)
{
    return type < NB_DTYPE_COUNT && n <= NB_MOST_VALUES && first <= UINT64_MAX - n && (values || !n);
}

/* The parts of a span: `head` values of a group that began before it, whole groups, `tail` values of a group
 * that ends behind it. A span inside one group is all head. */
struct nb_span {
    size_t head, groups, tail;
};

NB_INLINE struct nb_span nb_span_cut(size_t n, uint64_t first)
{
    struct nb_span s;
    size_t into = (size_t)(first % NB_GROUP);
    s.head = into ? NB_GROUP - into : 0;
    if (s.head > n)
        s.head = n;
    s.groups = (n - s.head) / NB_GROUP;
    s.tail = (n - s.head) % NB_GROUP;
    return s;
}

/* Return the groups from group `group` of the block to the end of its tile, at most `left`. */
NB_INLINE unsigned nb_tile_groups(uint64_t group, size_t left)
{
    size_t in_tile = NB_TILE_GROUPS - (size_t)(group % NB_TILE_GROUPS);
    return (unsigned)(in_tile < left ? in_tile : left);
}

/* Write `count` values of a partial group, raw and padded, and clear their residuals. Return the bytes
 * written. */
size_t nb_partial_encode(enum nb_dtype type, const uint8_t *src, size_t count, uint64_t first,
                         const struct nb_ef *ef, uint8_t *dst, struct nb_encode_stats *stats);

/* Return the bytes of such values, padding included. */
NB_INLINE size_t nb_partial_bytes(enum nb_dtype type, size_t count)
{
    return nb_pad4((unsigned)(count * nb_value_bytes(type)));
}

/* Return whether the encoder measures the energies of the tile of group `group` of the block. */
NB_INLINE bool nb_measured(const struct nb_encode_stats *stats, uint64_t group)
{
    return group / NB_TILE_GROUPS % (stats->every ? stats->every : NB_STATS_EVERY) == 0;
}

#endif
