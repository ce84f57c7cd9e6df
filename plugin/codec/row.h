/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description of a codec for the rest of the library: a row of a table, found by the code in message
 * headers. The engine asks the row whether the codec needs a reference and whether it may carry an
 * all-gather. It hands the work to a device (device/device.h), which calls the row's functions or runs a
 * kernel of its own that gives the same bytes. docs/adding.md, section "A codec", is the recipe for a new
 * one.
 *
 * The table is an object file of its own (table.c), so that a program that links the library statically can
 * bring another table: tests/codec/test_table.c adds a codec that way.
 */
#ifndef NIBBLE_CODEC_ROW_H
#define NIBBLE_CODEC_ROW_H

#include <stdbool.h>

#include "nibble/codec.h"

struct nb_codec_row;
struct nb_tile_view;

/* The meaning of `format`, which becomes the type byte of a message header. */
enum nb_format_of {
    NB_FORMAT_BYTES,   /* unused: bytes are bytes */
    NB_FORMAT_VALUES,  /* enum nb_dtype: the type of the values */
    NB_FORMAT_PATTERNS /* enum nb_ulp_width: the bytes of a pattern */
};

/* A span to encode. The struct itself need only live as long as the call. */
struct nb_encoding {
    const struct nb_codec_row *codec;
    unsigned format;
    const void *src;
    size_t bytes;           /* bytes at src and at ref. Without a reference a whole number of values */
    uint64_t first;         /* number of the span's first value in its rank block. Unused with a reference */
    const void *ref;        /* NULL for a codec without */
    size_t limit;           /* with a reference: -E2BIG unless the coded length is smaller */
    const struct nb_ef *ef; /* residuals (error feedback), or NULL */
    void *dst;
    size_t cap;
    struct nb_encode_stats *stats; /* NULL: unwanted */
    struct nb_delta4_stats *runs;  /* lossy codecs with a reference. NULL: unwanted */
};

/* A span to decode, likewise. */
struct nb_decoding {
    const struct nb_codec_row *codec;
    unsigned format;
    const void *coded;
    size_t len;
    const void *ref; /* the encoder's. NULL for a codec without */
    size_t bytes;    /* decoded bytes */
    uint64_t first;
    void *dst; /* may be ref */
};

/* Parse the record of `groups` groups, the first of which is group `group0` of its tile, from `len` bytes at
 * p. Set *view (codec/format.h) and return the record's length, or -EBADMSG. */
typedef ssize_t nb_record_fn(enum nb_dtype type, const uint8_t *p, size_t len, unsigned group0,
                             unsigned groups, struct nb_tile_view *view);

struct nb_codec_row {
    const char *name;   /* in settings and log lines */
    enum nb_codec code; /* in message headers */
    enum nb_format_of format;
    bool reference; /* spans are deltas against bytes that sender and receivers hold: all-gathers only */
    bool lossy;
    bool transformed;    /* groups may be in the transform domain: sums take such sources first */
    unsigned bits;       /* of a value's code. 0: varies */
    enum nb_codec exact; /* lossy with a reference: the exact codec for data that must arrive exactly */
    enum nb_codec finer; /* with residuals: the codec for data whose error is too large. Itself if there is
                            no finer one */
    const char *loss;    /* lossy: the largest error of results, for a log line */

    /* Return an upper bound of the coded length of `bytes` bytes that start anywhere in a block, 0 for an
     * unknown format. */
    size_t (*bound)(unsigned format, size_t bytes);
    /* Return the coded length, or -EINVAL, -ENOSPC, -E2BIG. */
    ssize_t (*encode)(const struct nb_encoding *e);
    /* Return 0, -EINVAL or -EBADMSG. */
    int (*decode)(const struct nb_decoding *d);
    /* Without a reference: parse a span for nb_reduce, as tile records between partial groups that are raw
     * and padded to 4 bytes. NULL: the span is the values themselves. */
    nb_record_fn *record;
};

/* All codecs: code, row. A new codec is one line here, and a number in enum nb_codec. */
#define NB_CODEC_ROWS(X) \
    X(NB_CODEC_RAW, nb_row_raw) \
    X(NB_CODEC_INT4, nb_row_int4) \
    X(NB_CODEC_INT8, nb_row_int8) \
    X(NB_CODEC_ULP, nb_row_ulp) \
    X(NB_CODEC_DELTA4, nb_row_delta4) \
    X(NB_CODEC_INT6, nb_row_int6)

#define NB_CODEC_DECLARE(code, row) extern const struct nb_codec_row row;
NB_CODEC_ROWS(NB_CODEC_DECLARE)
#undef NB_CODEC_DECLARE

#define NB_CODEC_CODES 16u /* codes that the table has room for */

/* By code. Unused codes have NULL. */
extern const struct nb_codec_row *const nb_codec_table[NB_CODEC_CODES];

static inline const struct nb_codec_row *nb_codec_row(unsigned code)
{
    return code < NB_CODEC_CODES ? nb_codec_table[code] : NULL;
}

/* Return the longest coded length of `bytes` bytes, over all codecs and formats. */
size_t nb_codec_most(size_t bytes);

#endif
