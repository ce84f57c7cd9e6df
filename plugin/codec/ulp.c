/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ulp codec: lossless differences against a reference. Spans, the choice of how patterns are read, and the
 * way to the block coders of the variant in force. See ulp.h for the idea and docs/wire-format.md for the
 * format.
 */
#include "codec/ulp.h"

#include <errno.h>
#include <string.h>

#include "codec/ulp_bits.h"
#include "nibble/codec.h"

#define SAMPLE_GROUPS 4u
#define REMAP_BLOCKS 16u /* blocks after which the map is chosen anew */

/* Ways to read patterns, in order of preference. bfloat16 and half, E4M3 and E5M2, float; else without
 * exponent. */
static const struct nb_ulp_map maps[3][4] = {
    {{3, 0}, {2, 0}, {7, 0}, {7, 1}},
    {{7, 0}, {10, 0}, {15, 0}, {15, 1}},
    {{23, 0}, {23, 1}, {31, 0}, {31, 1}},
};

static int width_index(enum nb_ulp_width width)
{
    return width == NB_ULP_8 ? 0 : width == NB_ULP_16 ? 1 : width == NB_ULP_32 ? 2 : -1;
}

static const struct nb_ulp_ops *selected(void)
{
    switch (nb_codec_selected()) {
    case NB_VARIANT_REFERENCE:
        return &nb_ulp_reference;
#ifdef NB_ULP_X86
    case NB_VARIANT_AVX2:
        return &nb_ulp_avx2;
    case NB_VARIANT_AVX512:
        return &nb_ulp_avx512;
#endif
    default:
        return &nb_ulp_portable;
    }
}

static uint32_t load(const uint8_t *p, unsigned w)
{
    uint32_t x = 0;

    for (unsigned i = 0; i < w; i++)
        x |= (uint32_t)p[i] << 8 * i;
    return x;
}

/* Cost of samples with parameter c, as the block coders reckon it. */
static uint32_t sample_cost(const uint32_t *zz, const uint32_t *ex, size_t n, unsigned c, unsigned w)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned k = c <= ex[i] ? 0 : c - ex[i] < NB_ULP_KMAX(w) ? c - ex[i] : NB_ULP_KMAX(w);
        uint32_t high = zz[i] >> k;
        sum += k + (high > NB_ULP_PLANES ? NB_ULP_EXC_COST(w) : high);
    }
    return sum;
}

/* The cheapest way to read n values, judged by sample groups spread over them, and a c to start from. Returns
 * the bits that the samples would take, times 32 * SAMPLE_GROUPS over the number of samples; 0 when they are
 * equal. */
static uint32_t choose_map(unsigned w, const uint8_t *cur, const uint8_t *ref, size_t n,
                           struct nb_ulp_map *map, unsigned *c)
{
    uint32_t a[32 * SAMPLE_GROUPS], r[32 * SAMPLE_GROUPS], zz[32 * SAMPLE_GROUPS], ex[32 * SAMPLE_GROUPS];
    const size_t groups = n / 32 < SAMPLE_GROUPS ? n / 32 : SAMPLE_GROUPS;
    const uint32_t sign = 1u << (8 * w - 1);
    uint32_t best = UINT32_MAX;
    size_t count = 0;

    for (size_t g = 0; g < groups; g++) {
        /* The middles of equal parts, at multiples of 32. */
        size_t at = (2 * g + 1) * n / (2 * groups) / 32 * 32;
        for (size_t i = at; i < at + 32 && i < n; i++, count++) {
            a[count] = load(cur + i * w, w);
            r[count] = load(ref + i * w, w);
        }
    }
    for (size_t i = 0; groups == 0 && i < n; i++, count++) {
        a[count] = load(cur + i * w, w);
        r[count] = load(ref + i * w, w);
    }
    *map = maps[w / 2][0];
    *c = 0;
    if (memcmp(a, r, count * sizeof(a[0])) == 0)
        return 0;
    for (unsigned j = 0; j < 4; j++) {
        const struct nb_ulp_map *m = &maps[w / 2][j];
        const uint32_t flip = m->plain ? 0 : sign - 1;
        unsigned differ = 0, at;
        uint64_t sum = 0;
        uint32_t bits;

        for (size_t i = 0; i < count; i++) {
            uint32_t d =
                ((a[i] ^ (a[i] & sign ? flip : 0)) - (r[i] ^ (r[i] & sign ? flip : 0))) & (2 * sign - 1);
            zz[i] = (d << 1 ^ (d & sign ? UINT32_MAX : 0)) & (2 * sign - 1);
            ex[i] = (r[i] & (sign - 1)) >> m->shift;
            if (zz[i]) {
                sum += ex[i] + (32 - (unsigned)__builtin_clz(zz[i]));
                differ++;
            }
        }
        at = nb_ulp_estimate(sum, differ);
        bits = sample_cost(zz, ex, count, at, w);
        for (int dir = 1; dir >= -1; dir -= 2) {
            while (at + (unsigned)dir <= 255) {
                uint32_t next = sample_cost(zz, ex, count, at + (unsigned)dir, w);
                if (next >= bits)
                    break;
                bits = next;
                at += (unsigned)dir;
            }
        }
        if (bits < best) {
            best = bits;
            *map = *m;
            *c = at;
        }
    }
    best += (uint32_t)count;
    return (uint32_t)((uint64_t)best * 32 * SAMPLE_GROUPS / count);
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

ssize_t nb_ulp_encode(enum nb_ulp_width width, const void *cur_, const void *ref_, size_t bytes, size_t limit,
                      void *dst_, size_t cap)
{
    const int wi = width_index(width);
    const struct nb_ulp_ops *ops = selected();
    const uint8_t *cur = cur_, *ref = ref_;
    uint8_t *dst = dst_;

    if (wi < 0)
        return -EINVAL;
    if (cap < nb_ulp_bound(width, bytes))
        return -ENOSPC;
    if (limit == 0)
        return -E2BIG;

    const unsigned w = width;
    const size_t n = bytes / w, blocks = blocks_of(bytes, w), tail = bytes % w;
    struct nb_ulp_map map = {0, 0};
    unsigned c = 0;
    size_t at = 1 + 2 * blocks;
    int changed = 0, was_raw = 0, known = 0;

    dst[0] = NB_ULP_SPAN_BLOCKS;
    for (size_t b = 0; b < blocks; b++) {
        const size_t from = b * NB_ULP_BLOCK * w,
                     count = n - b * NB_ULP_BLOCK < NB_ULP_BLOCK ? n - b * NB_ULP_BLOCK : NB_ULP_BLOCK;
        uint8_t scratch[NB_ULP_DST_SLACK], *to = cap - at < NB_ULP_DST_SLACK ? scratch : dst + at;
        uint32_t bits = 0;
        size_t len;

        if (b % REMAP_BLOCKS == 0 || was_raw || !known) {
            bits = choose_map(w, cur + from, ref + from, count, &map, &c);
            known = bits != 0;
        }
        if (was_raw && bits >= 32 * SAMPLE_GROUPS * (8 * w - w / 2)) {
            to[0] = NB_ULP_RAW;
            memcpy(to + 1, cur + from, count * w);
            len = 1 + count * w;
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
        /* Until something differs the whole may still be one byte. */
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

int nb_ulp_decode(enum nb_ulp_width width, const void *coded_, size_t len, const void *ref_, size_t bytes,
                  void *dst_)
{
    const int wi = width_index(width);
    const struct nb_ulp_ops *ops = selected();
    const uint8_t *coded = coded_, *ref = ref_;
    uint8_t *dst = dst_;

    if (wi < 0)
        return -EINVAL;
    if (len == 0)
        return -EBADMSG;
    if (coded[0] == NB_ULP_SPAN_EQUAL) {
        if (len != 1)
            return -EBADMSG;
        if (dst != ref)
            memcpy(dst, ref, bytes);
        return 0;
    }

    const unsigned w = width;
    const size_t n = bytes / w, blocks = blocks_of(bytes, w), tail = bytes % w;
    size_t at = 1 + 2 * blocks;

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
        if (len - at - size < NB_ULP_SRC_SLACK) {
            memcpy(scratch, block, size);
            memset(scratch + size, 0, NB_ULP_SRC_SLACK);
            block = scratch;
        }
        err = ops->decode[wi](block, size, ref + from, count, dst + from);
        if (err)
            return err;
        at += size;
    }
    if (len - at != tail)
        return -EBADMSG;
    memcpy(dst + n * w, coded + at, tail);
    return 0;
}

enum nb_ulp_width nb_ulp_guess_width(const void *cur, const void *ref, size_t bytes)
{
    static const enum nb_ulp_width widths[3] = {NB_ULP_16, NB_ULP_32, NB_ULP_8};
    enum nb_ulp_width best = NB_ULP_16;
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 3; i++) {
        const unsigned w = widths[i];
        struct nb_ulp_map map;
        unsigned c;
        uint64_t bits = 0;

        /* Samples in four parts, so that one odd part does not decide. */
        for (size_t q = 0; q < 4; q++) {
            const size_t from = bytes / 4 * q / 128 * 128,
                         upto = q == 3 ? bytes : bytes / 4 * (q + 1) / 128 * 128;
            if (upto - from >= w)
                bits += choose_map(w, (const uint8_t *)cur + from, (const uint8_t *)ref + from,
                                   (upto - from) / w, &map, &c);
        }
        bits *= 4 / w; /* a value each of fewer bytes */
        if (bits < least) {
            least = bits;
            best = widths[i];
        }
    }
    return best;
}
