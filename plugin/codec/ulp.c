/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp and delta4 codecs: deltas against a reference, exact and bounded. This file has the spans, the choice
 * of the reading, and the calls of the selected variant's block coders. ulp.h explains the idea,
 * docs/wire-format.md the format.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/dispatch.h"
#include "codec/fpenv.h"
#include "codec/row.h"

#define SAMPLE_PIECES 4u
#define REMAP_BLOCKS 32u /* blocks after which the coder chooses the map anew */

/* Readings of patterns, in order of preference: bfloat16 and half, E4M3 and E5M2, float, and last without
 * exponent. */
static const struct nb_ulp_map maps[3][4] = {
    {{3, 0, 0}, {2, 0, 0}, {7, 0, 0}, {7, 1, 0}},
    {{7, 0, 0}, {10, 0, 0}, {15, 0, 0}, {15, 1, 0}},
    {{23, 0, 0}, {23, 1, 0}, {31, 0, 0}, {31, 1, 0}},
};

static int width_index(enum nb_ulp_width width)
{
    return width == NB_ULP_8 ? 0 : width == NB_ULP_16 ? 1 : width == NB_ULP_32 ? 2 : -1;
}

/* Choose the cheapest of `count` readings of n values by samples, and a c to start from. Return the bits that
 * NB_ULP_PROBE values would take, 0 when the samples are equal. */
static uint32_t choose_map(const struct nb_ulp_ops *ops, unsigned wi, const struct nb_ulp_map *from,
                           unsigned count, const uint8_t *cur, const uint8_t *ref, size_t n,
                           struct nb_ulp_map *map, unsigned *c)
{
    const size_t w = (size_t)1 << wi, piece = n < NB_ULP_PROBE ? 1 : NB_ULP_PROBE / SAMPLE_PIECES;
    uint8_t a[NB_ULP_PROBE * 4] = {0}, r[NB_ULP_PROBE * 4] = {0};
    uint32_t best = UINT32_MAX;

    /* A few pieces in the middles of equal parts, from multiples of 8 values on, or all values, repeated. */
    for (size_t i = 0; i < NB_ULP_PROBE / piece; i++) {
        size_t at = piece == 1 ? i % n : (2 * i + 1) * n / (2 * SAMPLE_PIECES) / 8 * 8;
        if (at + piece > n)
            at = n - piece;
        memcpy(a + i * piece * w, cur + at * w, piece * w);
        memcpy(r + i * piece * w, ref + at * w, piece * w);
    }
    *map = from[0];
    *c = 0;
    if (memcmp(a, r, NB_ULP_PROBE * w) == 0)
        return 0;
    for (unsigned j = 0; j < count; j++) {
        unsigned at;
        uint32_t bits = ops->probe[wi](&from[j], a, r, &at);
        if (bits < best) {
            best = bits;
            *map = from[j];
            *c = at;
        }
    }
    return best + NB_ULP_PROBE;
}

static size_t blocks_of(size_t bytes, unsigned w)
{
    return bytes / w / NB_ULP_BLOCK + (bytes / w % NB_ULP_BLOCK != 0);
}

size_t nb_ulp_bound(enum nb_ulp_width width, size_t bytes)
{
    if (width_index(width) < 0)
        return 0;
    return 1 + 3 * blocks_of(bytes, width) + bytes;
}

/* Parameters of a codec's spans: the readings to choose from, and whether runs may have floors. */
struct coding {
    unsigned wi;
    const struct nb_ulp_map *maps;
    unsigned nmaps;
    int floors;
    uint64_t lossy; /* runs with a floor */
};

static ssize_t encode_span(struct coding *how, const uint8_t *cur, const uint8_t *ref, size_t bytes,
                           size_t limit, uint8_t *dst, size_t cap)
{
    const struct nb_ulp_ops *ops = nb_variant()->ulp;
    const unsigned wi = how->wi, w = 1u << wi;
    const size_t n = bytes / w, blocks = blocks_of(bytes, w), tail = bytes % w;
    struct nb_ulp_map map = {0, 0, 0};
    unsigned c = 0;
    size_t at = 1 + 2 * blocks;
    int changed = 0, was_raw = 0, known = 0;

    if (cap < nb_ulp_bound((enum nb_ulp_width)w, bytes))
        return -ENOSPC;
    if (limit == 0)
        return -E2BIG;
    dst[0] = NB_ULP_SPAN_BLOCKS;
    for (size_t b = 0; b < blocks; b++) {
        const size_t from = b * NB_ULP_BLOCK * w,
                     count = n - b * NB_ULP_BLOCK < NB_ULP_BLOCK ? n - b * NB_ULP_BLOCK : NB_ULP_BLOCK;
        uint8_t scratch[NB_ULP_DST_SLACK], *to = cap - at < NB_ULP_DST_SLACK ? scratch : dst + at;
        uint32_t bits = 0;
        size_t len;

        if (b % REMAP_BLOCKS == 0 || was_raw || !known) {
            bits = choose_map(ops, wi, how->maps, how->nmaps, cur + from, ref + from, count, &map, &c);
            known = bits != 0;
        }
        if (was_raw && bits >= NB_ULP_PROBE * 8 * w * 15 / 16) {
            to[0] = NB_ULP_RAW;
            memcpy(to + 1, cur + from, count * w);
            len = 1 + count * w;
        } else if (how->floors) {
            len = ops->encode_floors[wi - 1](&map, cur + from, ref + from, count, &c, to, &how->lossy);
        } else {
            len = ops->encode[wi](&map, cur + from, ref + from, count, &c, to);
        }
        was_raw = len == 1 + count * w;
        changed |= len != 0;
        if (to == scratch)
            memcpy(dst + at, scratch, len);
        dst[1 + 2 * b] = (uint8_t)len;
        dst[2 + 2 * b] = (uint8_t)(len >> 8);
        at += len;
        /* Until the first difference the whole span may still become one byte. */
        if (changed && at + tail >= limit)
            return -E2BIG;
    }
    if (!changed && memcmp(cur + n * w, ref + n * w, tail) == 0) {
        dst[0] = NB_ULP_SPAN_EQUAL;
        return limit > 1 ? 1 : -E2BIG;
    }
    memcpy(dst + at, cur + n * w, tail);
    at += tail;
    return at < limit ? (ssize_t)at : -E2BIG;
}

/* `two` decodes two blocks at once, or is NULL. */
static int decode_span(nb_ulp_decode_block_fn *decode, nb_ulp_decode_two_fn *two, unsigned w,
                       const uint8_t *coded, size_t len, const uint8_t *ref, size_t bytes, uint8_t *dst)
{
    const size_t n = bytes / w, blocks = blocks_of(bytes, w), tail = bytes % w;
    size_t at = 1 + 2 * blocks;

    if (len == 0)
        return -EBADMSG;
    if (coded[0] == NB_ULP_SPAN_EQUAL) {
        if (len != 1)
            return -EBADMSG;
        if (dst != ref)
            memcpy(dst, ref, bytes);
        return 0;
    }
    if (coded[0] != NB_ULP_SPAN_BLOCKS || len < at + tail)
        return -EBADMSG;
    for (size_t b = 0; b < blocks; b++) {
        const size_t from = b * NB_ULP_BLOCK * w,
                     count = n - b * NB_ULP_BLOCK < NB_ULP_BLOCK ? n - b * NB_ULP_BLOCK : NB_ULP_BLOCK;
        const size_t size = coded[1 + 2 * b] | (size_t)coded[2 + 2 * b] << 8;
        uint8_t scratch[1 + NB_ULP_BLOCK * 4 + NB_ULP_SRC_SLACK];
        const uint8_t *block = coded + at;
        int err;

        if (size > len - tail - at || size > 1 + count * w)
            return -EBADMSG;
        if (size == 0) {
            if (dst != ref)
                memcpy(dst + from, ref + from, count * w);
            continue;
        }
        if (two && n - b * NB_ULP_BLOCK >= 2 * NB_ULP_BLOCK) {
            const size_t next = coded[3 + 2 * b] | (size_t)coded[4 + 2 * b] << 8;
            if (next && next <= 1 + NB_ULP_BLOCK * w && len - at - size >= next + NB_ULP_SRC_SLACK &&
                len - at - size - next >= tail) {
                err = two(block, size, block + size, next, ref + from, dst + from);
                if (err)
                    return err;
                at += size + next;
                b++;
                continue;
            }
        }
        if (len - at - size < NB_ULP_SRC_SLACK) {
            memcpy(scratch, block, size);
            memset(scratch + size, 0, NB_ULP_SRC_SLACK);
            block = scratch;
        }
        err = decode(block, size, ref + from, count, dst + from);
        if (err)
            return err;
        at += size;
    }
    if (len - at != tail)
        return -EBADMSG;
    memcpy(dst + n * w, coded + at, tail);
    return 0;
}

ssize_t nb_ulp_encode(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes, size_t limit,
                      void *dst, size_t cap)
{
    const int wi = width_index(width);

    if (wi < 0)
        return -EINVAL;
    return encode_span(&(struct coding){.wi = (unsigned)wi, .maps = maps[wi], .nmaps = 4}, cur, ref, bytes,
                       limit, dst, cap);
}

int nb_ulp_decode(enum nb_ulp_width width, const void *coded, size_t len, const void *ref, size_t bytes,
                  void *dst)
{
    const int wi = width_index(width);

    if (wi < 0)
        return -EINVAL;
    return decode_span(nb_variant()->ulp->decode[wi], nb_variant()->ulp->decode_two[wi], width, coded, len,
                       ref, bytes, dst);
}

/* ---- Sparse spans ------------------------------------------------------------------------------------ */

size_t nb_ulp_sparse_bound(enum nb_ulp_width width, size_t bytes)
{
    const size_t bound = nb_ulp_bound(width, bytes), chunks = bytes / NB_ULP_CHUNK + 1;

    return bound ? bound + 3 * chunks + NB_ULP_SPARSE_SLACK : 0;
}

ssize_t nb_ulp_encode_sparse(enum nb_ulp_width width, const void *cur, const void *ref, size_t bytes,
                             size_t limit, void *dst, size_t cap)
{
    const int wi = width_index(width);
    const struct nb_ulp_ops *ops = nb_variant()->ulp;
    struct nb_ulp_sparse choices = {.records = 0};
    const uint8_t *now = cur, *before = ref;
    uint8_t *to = dst;

    if (wi < 0)
        return -EINVAL;
    if (cap < nb_ulp_sparse_bound(width, bytes))
        return -ENOSPC;
    if (limit == 0)
        return -E2BIG;
    const size_t tail = bytes % width, whole = bytes - tail,
                 chunks = whole / NB_ULP_CHUNK + !!(whole % NB_ULP_CHUNK);
    size_t at = 1 + 2 * chunks;
    bool changed = false;

    to[0] = NB_ULP_SPAN_CHUNKS;
    for (size_t i = 0; i < chunks; i++) {
        const size_t from = i * NB_ULP_CHUNK,
                     size = whole - from < NB_ULP_CHUNK ? whole - from : NB_ULP_CHUNK;
        size_t len =
            ops->encode_sparse[wi](&choices, maps[wi], now + from, before + from, size / width, to + at);

        if (len == NB_ULP_NOT_SPARSE)
            len = (size_t)encode_span(&(struct coding){.wi = (unsigned)wi, .maps = maps[wi], .nmaps = 4},
                                      now + from, before + from, size, SIZE_MAX, to + at, cap - at);
        nb_put16(to + 1 + 2 * i, (uint16_t)len);
        at += len;
        changed |= len != 0;
        if (changed && at + tail >= limit)
            return -E2BIG;
    }
    if (!changed && memcmp(now + whole, before + whole, tail) == 0) {
        to[0] = NB_ULP_SPAN_EQUAL;
        return limit > 1 ? 1 : -E2BIG;
    }
    memcpy(to + at, now + whole, tail);
    at += tail;
    return at < limit ? (ssize_t)at : -E2BIG;
}

int nb_ulp_decode_sparse(enum nb_ulp_width width, const void *coded, size_t len, const void *ref,
                         size_t bytes, void *dst)
{
    const int wi = width_index(width);
    const uint8_t *p = coded, *before = ref;
    uint8_t *to = dst;

    if (wi < 0)
        return -EINVAL;
    if (len == 0 || p[0] != NB_ULP_SPAN_CHUNKS)
        return nb_ulp_decode(width, coded, len, ref, bytes, dst);
    const size_t tail = bytes % width, whole = bytes - tail,
                 chunks = whole / NB_ULP_CHUNK + !!(whole % NB_ULP_CHUNK);
    size_t at = 1 + 2 * chunks;

    if (len < at + tail)
        return -EBADMSG;
    for (size_t i = 0; i < chunks; i++) {
        const size_t from = i * NB_ULP_CHUNK,
                     size = whole - from < NB_ULP_CHUNK ? whole - from : NB_ULP_CHUNK;
        const size_t record = nb_get16(p + 1 + 2 * i);
        int err = 0;

        if (record > len - tail - at)
            return -EBADMSG;
        if (record == 0) {
            if (dst != ref)
                memcpy(to + from, before + from, size);
        } else if (p[at] & NB_ULP_SPARSE) {
            err =
                nb_variant()->ulp->decode_sparse[wi](p + at, record, before + from, size / width, to + from);
        } else {
            err = nb_ulp_decode(width, p + at, record, before + from, size, to + from);
        }
        if (err)
            return err;
        at += record;
    }
    if (len - at != tail)
        return -EBADMSG;
    memcpy(to + whole, p + at, tail);
    return 0;
}

/* ---- delta4 -------------------------------------------------------------------------------------------- */

/* The reading of each type's patterns. */
static const struct nb_ulp_map type_map[NB_DTYPE_COUNT] = {
    [NB_F32] = {23, 0, 0}, [NB_BF16] = {7, 0, 0}, [NB_F16] = {10, 0, 0}};

size_t nb_delta4_bound(enum nb_dtype type, size_t bytes)
{
    return nb_ulp_bound((enum nb_ulp_width)nb_dtype_size(type), bytes);
}

ssize_t nb_delta4_encode(enum nb_dtype type, const void *cur, const void *ref, size_t bytes, size_t limit,
                         void *dst, size_t cap, struct nb_delta4_stats *stats)
{
    const size_t w = nb_dtype_size(type);
    ssize_t len;

    if (!w)
        return -EINVAL;
    struct coding how = {.wi = w == 2 ? 1 : 2, .maps = &type_map[type], .nmaps = 1, .floors = 1};
    nb_fp_environment fp = nb_fp_enter();
    len = encode_span(&how, cur, ref, bytes, limit, dst, cap);
    nb_fp_leave(fp);
    if (stats && len >= 0) {
        stats->runs += (bytes / w + NB_DELTA4_RUN - 1) / NB_DELTA4_RUN;
        stats->lossy += how.lossy;
    }
    return len;
}

int nb_delta4_decode(enum nb_dtype type, const void *coded, size_t len, const void *ref, size_t bytes,
                     void *dst)
{
    const size_t w = nb_dtype_size(type);
    int result;

    if (!w)
        return -EINVAL;
    nb_fp_environment fp = nb_fp_enter();
    result =
        decode_span(nb_variant()->ulp->decode_floors[w == 4], NULL, (unsigned)w, coded, len, ref, bytes, dst);
    nb_fp_leave(fp);
    return result;
}

enum nb_ulp_width nb_ulp_guess_width(const void *cur, const void *ref, size_t bytes)
{
    static const enum nb_ulp_width widths[3] = {NB_ULP_16, NB_ULP_32, NB_ULP_8};
    const struct nb_ulp_ops *ops = nb_variant()->ulp;
    enum nb_ulp_width best = NB_ULP_16;
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 3; i++) {
        const unsigned w = widths[i], wi = (unsigned)width_index(widths[i]);
        struct nb_ulp_map map;
        unsigned c;
        uint64_t bits = 0;

        /* Samples in four parts, so that one odd part cannot decide. */
        for (size_t q = 0; q < 4; q++) {
            const size_t from = bytes / 4 * q / 128 * 128;
            const size_t upto = q == 3 ? bytes : bytes / 4 * (q + 1) / 128 * 128;
            if (upto - from >= w)
                bits += choose_map(ops, wi, maps[wi], 4, (const uint8_t *)cur + from,
                                   (const uint8_t *)ref + from, (upto - from) / w, &map, &c);
        }
        bits *= 4 / w; /* a value each of fewer bytes */
        if (bits < least) {
            least = bits;
            best = widths[i];
        }
    }
    return best;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static size_t ulp_bound(unsigned format, size_t bytes)
{
    return nb_ulp_bound((enum nb_ulp_width)format, bytes);
}

static ssize_t ulp_encode(const struct nb_encoding *e)
{
    if (!e->ref && e->bytes)
        return -EINVAL;
    return nb_ulp_encode((enum nb_ulp_width)e->format, e->src, e->ref, e->bytes, e->limit, e->dst, e->cap);
}

static int ulp_decode(const struct nb_decoding *d)
{
    if (!d->ref && d->bytes)
        return -EINVAL;
    return nb_ulp_decode((enum nb_ulp_width)d->format, d->coded, d->len, d->ref, d->bytes, d->dst);
}

const struct nb_codec_row nb_row_ulp = {
    .name = "ulp",
    .code = NB_CODEC_ULP,
    .format = NB_FORMAT_PATTERNS,
    .reference = true,
    .exact = NB_CODEC_ULP,
    .finer = NB_CODEC_ULP,
    .bound = ulp_bound,
    .encode = ulp_encode,
    .decode = ulp_decode,
};

static size_t delta4_bound(unsigned format, size_t bytes)
{
    return nb_delta4_bound((enum nb_dtype)format, bytes);
}

static ssize_t delta4_encode(const struct nb_encoding *e)
{
    if (!e->ref && e->bytes)
        return -EINVAL;
    return nb_delta4_encode((enum nb_dtype)e->format, e->src, e->ref, e->bytes, e->limit, e->dst, e->cap,
                            e->runs);
}

static int delta4_decode(const struct nb_decoding *d)
{
    if (!d->ref && d->bytes)
        return -EINVAL;
    return nb_delta4_decode((enum nb_dtype)d->format, d->coded, d->len, d->ref, d->bytes, d->dst);
}

const struct nb_codec_row nb_row_delta4 = {
    .name = "delta4",
    .code = NB_CODEC_DELTA4,
    .format = NB_FORMAT_VALUES,
    .reference = true,
    .lossy = true,
    .bits = 4,
    .exact = NB_CODEC_ULP,
    .finer = NB_CODEC_ULP,
    .loss = "within the rounding of bfloat16, usually 1/20 to 1/4 of it, while learning rates are high; none "
            "later",
    .bound = delta4_bound,
    .encode = delta4_encode,
    .decode = delta4_decode,
};
