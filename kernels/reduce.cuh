/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding and sums: docs/wire-format.md sections 9 and 10. A block has a tile, a thread a group, with an
 * accumulator for the values and one for the transformed ones of each value in registers.
 *
 * Records have no fixed length, so tickets of their own find them first: a warp to each source guesses that
 * all records are as long as the usual one and looks at very many headers at once; where the guess ends, it
 * begins again. The tickets of tiles wait for what is found (`progress`), which is less work than a tile.
 *
 * The budget for a source of int4 (0.54 bytes): two instructions a value to turn a nibble into a float, two
 * to add it to both accumulators, one of which gets zeros; 0.5 for what is done once a group. The inverse
 * transform, own values and rounding take 9 for a sum, for 4 bytes of BF16. A single source needs one accumulator, and its
 * codes are transformed before they are floats: nb_only_int4; of BF16, values too are worked on in pairs: nb_reduce_pairs.
 */
#ifndef NIBBLE_KERNELS_REDUCE_CUH
#define NIBBLE_KERNELS_REDUCE_CUH

#include "values.cuh"

#define NB_NOWHERE 0xffffffffu /* a record that is not there: the source is malformed */

/* Behind the states: how many offsets of a source are known (in words of their own), then the offsets of all
 * sources: tiles + 1 each, in units of four bytes. */
NB_DEV uint32_t *nb_progress(const struct nb_gpu_desc *d)
{
    return (uint32_t *)(uintptr_t)(d->work + sizeof(struct nb_control));
}

NB_DEV uint32_t nb_sources_padded(const struct nb_gpu_desc *d)
{
    return (d->nsources + 3) & ~3u;
}

NB_DEV uint32_t *nb_places(const struct nb_gpu_desc *d, uint32_t source, uint32_t tiles)
{
    return nb_progress(d) + nb_sources_padded(d) + (uint64_t)source * (tiles + 1);
}

NB_DEV struct nb_gpu_source nb_source_of(const struct nb_gpu_desc *d, uint32_t i)
{
    const struct nb_gpu_source *p = (const struct nb_gpu_source *)(uintptr_t)d->sources + i;
    struct nb_gpu_source s;
    s.coded = nb_load8(&p->coded);
    s.bytes = nb_load8(&p->bytes);
    s.codec = nb_load4(&p->codec);
    s.zero = 0;
    return s;
}

/* Length of the record of `groups` groups that begins with this header; 0: malformed. */
NB_DEV uint32_t nb_record_bytes(int type, uint32_t codec, uint32_t header, uint32_t groups)
{
    const uint32_t kind = header & 0xff, escapes = header >> 8 & 0xff;
    const int exponent = (int)(header >> 16 & 0xff) - 127;
    if (kind == NB_TILE_ZERO || kind == NB_TILE_RAW)
        return header >> 8 ? 0 : NB_TILE_HEADER + (kind == NB_TILE_RAW ? groups * NB_GROUP * nb_type_bytes(type) : 0);
    if (kind >= NB_TILE_KIND_COUNT || header >> 24 || exponent < NB_EXPONENT_MIN || exponent > NB_EXPONENT_MAX)
        return 0;
    if (kind == NB_TILE_INT8 || kind == NB_TILE_INT8_WIDE)
        return NB_TILE_HEADER + NB_ESCAPE_BYTES * escapes + nb_round4(groups) + 32 * groups;
    if (codec != NB_CODEC_INT4 || escapes > NB_INT4_ESCAPES)
        return 0;
    return NB_TILE_HEADER + NB_ESCAPE_BYTES * escapes + nb_round4(groups) + 4 * ((groups + 31) / 32) + 16 * groups;
}

/* Groups of tile `tile` of the descriptor's span. */
NB_DEV uint32_t nb_groups_of(uint64_t group, uint64_t groups, uint32_t tile)
{
    const uint64_t begin = tile ? (group / NB_TILE_GROUPS + tile) * NB_TILE_GROUPS : group;
    const uint64_t end = (group / NB_TILE_GROUPS + tile + 1) * NB_TILE_GROUPS;
    return (uint32_t)((end < group + groups ? end : group + groups) - begin);
}

/* One warp: find the records of a source. */
NB_DEV void nb_index(int type, const struct nb_gpu_desc *d, const struct nb_job *job, uint32_t source)
{
    const struct nb_gpu_source s = nb_source_of(d, source);
    const uint32_t lane = nb_thread() & 31, tiles = job->tiles, size = nb_type_bytes(type);
    const uint32_t into = (uint32_t)(d->first % NB_GROUP);
    const uint32_t head = !into ? 0 : d->n < NB_GROUP - into ? (uint32_t)d->n : NB_GROUP - into;
    const uint32_t tail = (uint32_t)((d->n - head) % NB_GROUP);
    const uint64_t group = (d->first + head) / NB_GROUP, groups = (d->n - head - tail) / NB_GROUP;
    const uint32_t usual = NB_TILE_HEADER + NB_TILE_GROUPS + 16 + 16 * NB_TILE_GROUPS;
    uint32_t *place = nb_places(d, source, tiles), *progress = nb_progress(d) + source;
    uint64_t at = nb_round4(head * size);
    const uint64_t end = s.bytes - nb_round4(tail * size);
    uint32_t tile = 0, guess = s.codec == NB_CODEC_INT4 ? usual
                                                        : NB_TILE_HEADER + NB_TILE_GROUPS + 32 * NB_TILE_GROUPS;
    if (s.codec == NB_CODEC_RAW) {
        if (s.bytes != d->n * size && lane == 0)
            nb_fail(d, EBADMSG);
        if (lane == 0)
            nb_put32_shared_by_blocks(progress, tiles + 1);
        return;
    }
    int bad = s.bytes < at + nb_round4(tail * size) || s.bytes % 4 || s.bytes / 4 >= NB_NOWHERE;
    while (tile < tiles && !bad) {
        /* Up to 8 headers a lane, all on their way at once. */
        uint32_t header[8], stop = NB_NOWHERE, length = 0;
        NB_UNROLL
        for (uint32_t u = 0; u < 8; u++) {
            const uint64_t p = at + (uint64_t)(lane + 32 * u) * guess;
            header[u] = 0xffffffffu;
            if (tile + lane + 32 * u < tiles && p + NB_TILE_HEADER <= end)
                header[u] = nb_load4((const char *)(uintptr_t)s.coded + p);
        }
        NB_UNROLL
        for (uint32_t u = 0; u < 8; u++) {
            const uint32_t k = lane + 32 * u;
            const uint64_t p = at + (uint64_t)k * guess;
            uint32_t bytes = 0;
            if (tile + k < tiles) {
                bytes = nb_record_bytes(type, s.codec, header[u], nb_groups_of(group, groups, tile + k));
                if (bytes && p + bytes > end)
                    bytes = 0;
            }
            const uint32_t other = nb_ballot(bytes != guess);
            if (stop == NB_NOWHERE && tile + k < tiles && !(other & ((1u << lane) - 1)))
                nb_store4(&place[tile + k], (uint32_t)(p / 4));
            if (other && stop == NB_NOWHERE) {
                const uint32_t first = nb_ffs(other) - 1;
                stop = 32 * u + first;
                length = nb_shfl(bytes, first);
            }
        }
        if (stop == NB_NOWHERE) {
            tile += 256;
            at += (uint64_t)256 * guess;
        } else if (tile + stop >= tiles) {
            at += (uint64_t)(tiles - tile) * guess;
            tile = tiles;
        } else if (length == 0) {
            bad = 1;
        } else {
            at += (uint64_t)stop * guess + length;
            tile += stop + 1;
            guess = stop ? guess : length;
        }
        if (!bad && tile <= tiles) {
            if (lane == 0)
                nb_store4(&place[tile], (uint32_t)(at / 4));
            nb_warp_barrier();
            if (lane == 0) {
                nb_fence();
                nb_put32_shared_by_blocks(progress, tile + 1);
            }
        }
    }
    if (!bad && at != end)
        bad = 1;
    if (!bad && tiles)
        return;
    if (bad && lane == 0)
        nb_fail(d, EBADMSG);
    if (bad) {
        NB_ROLL
        for (uint32_t i = tile + lane; i <= tiles; i += 32)
            nb_store4(&place[i], NB_NOWHERE);
        nb_warp_barrier();
        if (lane == 0) {
            nb_fence();
            nb_put32_shared_by_blocks(progress, tiles + 1);
        }
    }
}

/* Is tile `tile` of the source found yet? */
NB_DEV int nb_indexed(const struct nb_gpu_desc *d, uint32_t source, uint32_t tile)
{
    return nb_get32_shared_by_blocks(nb_progress(d) + source) >= tile + 2;
}

/* The longest record that is brought to shared memory. */
#define NB_RECORD_MOST (NB_TILE_HEADER + NB_INT4_ESCAPES * NB_ESCAPE_BYTES + NB_TILE_GROUPS + 16 + 16 * NB_TILE_GROUPS)

/* Begin to bring a record to shared memory, where it lies as far from 16-byte alignment as it does in global memory;
 * all threads. */
NB_DEV void nb_fetch_record(nb_quad *to, const struct nb_where *w)
{
    const uint32_t t = nb_thread(), i = 16 * t;
    const char *p = (const char *)(uintptr_t)(w->from & ~(uint64_t)15);
    if (i >= w->first && i < w->whole)
        nb_async16((char *)to + i, p + i);
    if (t < 32) { /* the rest, and up to three words at either end */
        NB_ONE_WARP;
        const uint32_t more = i + 16 * NB_THREADS, word = t < 4 ? w->begin + 4 * t : w->whole + 4 * (t - 4);
        if (more < w->whole)
            nb_async16((char *)to + more, p + more);
        if (t < 8 && word < (t < 4 ? w->first : w->end))
            nb_async4((char *)to + word, p + word);
    }
}

NB_DEV struct nb_where nb_where_is(const struct nb_gpu_desc *d, const struct nb_job *job, uint32_t source)
{
    const struct nb_gpu_source s = nb_source_of(d, source);
    struct nb_where w;
    w.codec = s.codec;
    w.from = s.coded;
    w.bytes = w.first = w.whole = w.begin = w.end = 0;
    if (s.codec == NB_CODEC_RAW) {
        if (s.bytes == d->n * nb_type_bytes(NB_TYPE(d))) /* else the index has said so */
            w.bytes = 1;
        return w;
    }
    const uint32_t *place = nb_places(d, source, job->tiles) + job->tile;
    const uint32_t begin = nb_load4(place), end = nb_load4(place + 1);
    if (begin != NB_NOWHERE && end != NB_NOWHERE) {
        w.bytes = 4 * (end - begin);
        w.from += 4 * (uint64_t)begin;
    }
    if (w.codec == NB_CODEC_INT4 && w.bytes > NB_TILE_HEADER && w.bytes <= NB_RECORD_MOST) {
        w.begin = (uint32_t)(w.from & 15);
        w.end = w.begin + w.bytes;
        w.first = (w.begin + 15) & ~15u;
        w.whole = w.end & ~15u; /* at least one quad: no record is as short as 16 bytes */
    }
    return w;
}

/* A record in memory: its parts. Codes are 4-byte aligned. */
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

/* What a decoder must not take on trust and the length does not tell: padding, unused bits, escapes. Each
 * thread looks at something; 1: malformed. GET1, GET4 read a byte or a word. */
#define NB_CHECK_RECORD(v, groups, group0, GET1, GET4, bad)                                                            \
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
                    (bad) |= GET1((v).code + i_) != 0;                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#define NB_SHARED1(p) (*(const uint8_t *)(p))
#define NB_SHARED4(p) (*(const uint32_t *)(const void *)(p))

/* Add eight codes of an int4 word, values i0 to i0 + 7. `plain` and `coded`: the step in the domain of each
 * sum, 0 in the other; times 1, 1/16 and 1/256. */
NB_DEV void nb_add_nibbles(uint32_t word, unsigned i0, const float *plain, const float *coded, float *p, float *c)
{
    const uint32_t w[3] = {word, word >> 12, word >> 24};
    NB_UNROLL
    for (unsigned b = 0; b < 8; b++) {
        const unsigned k = b % 3;
        const float magic = 0x1p23f + (float)(8u << 4 * k);
        const float q = nb_real(nb_mask_flip(w[b / 3], 15u << 4 * k, 0x4b000000u | 8u << 4 * k)) - magic; /* code times 16^k */
        p[i0 + b] = nb_fma(q, plain[k], p[i0 + b]); /* products are exact */
        c[i0 + b] = nb_fma(q, coded[k], c[i0 + b]);
    }
}

/* Value `i` of the group, which is not known when compiling, becomes or gets more by v. */
NB_DEV void nb_add_at(float *p, uint32_t i, float v)
{
    NB_UNROLL
    for (unsigned k = 0; k < NB_GROUP; k++)
        p[k] = k == i ? p[k] + v : p[k];
}

/* What a thread needs of an int4 record that lies in shared memory. */
struct nb_int4 {
    const char *codes;
    uint32_t transform;
    float scale; /* with the sign of the step */
};

/* 1: the thread has a group, and *r tells of it. */
NB_DEV int nb_open_int4(const char *record, uint32_t header, uint32_t groups, uint32_t group0, struct nb_int4 *r, uint32_t *bad)
{
    const uint32_t t = nb_thread();
    const char *scale = record + NB_TILE_HEADER, *domain = scale + NB_TILE_GROUPS, *codes = domain + 16;

    if ((header & 0xffff) != NB_TILE_INT4 || groups != NB_TILE_GROUPS) {
        NB_RARE;
        const struct nb_view v = nb_view_of(header, record, groups);
        NB_CHECK_RECORD(v, groups, group0, NB_SHARED1, NB_SHARED4, *bad);
        if (t >= groups)
            return 0;
        scale = v.scale;
        domain = v.domain;
        codes = v.code;
    }
    const uint32_t code = NB_SHARED1(scale + t);
    r->transform = NB_SHARED4(domain + t / 32 * 4) >> t % 32 & 1;
    r->scale = nb_usual_scale(code & 127, header);
    if ((header & 0xff) != NB_TILE_INT4) {
        NB_RARE;
        r->scale = nb_scale_of(1, code & 127, (int)(header >> 16 & 0xff) - 127);
    }
    r->scale = nb_real(nb_bits(r->scale) | (code & 0x80) << 24);
    r->codes = codes + 16 * t;
    return 1;
}

/* Escapes of such a record. */
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

/* Add an int4 record. Returns 1 if this thread's group was transformed; *bad. */
NB_DEV int nb_add_int4(const char *record, uint32_t header, uint32_t groups, uint32_t group0, int escapes, float *p, float *c,
                       uint32_t *bad)
{
    struct nb_int4 r;
    if (!nb_open_int4(record, header, groups, group0, &r, bad))
        return 0;
    const float as_is = r.transform ? 0 : r.scale * 0.125f, as_coded = r.transform ? r.scale : 0;
    const float plain[3] = {as_is, as_is * 0.0625f, as_is * 0.00390625f};
    const float coded[3] = {as_coded, as_coded * 0.0625f, as_coded * 0.00390625f};
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++)
        nb_add_nibbles(NB_SHARED4(r.codes + 4 * k), 8 * k, plain, coded, p, c);
    if (header & 0xff00 && escapes)
        nb_add_escapes(record, header, group0, p);
    return (int)r.transform;
}

/* The codes of an int4 word as FP16: in h[k] number k, and k + 4 in the upper half. */
NB_DEV void nb_half_nibbles(uint32_t word, uint32_t *h)
{
    const uint32_t low = 0x000f000fu, high = 0x00f000f0u, upper = word >> 8;
    h[0] = nb_half_add((word & low) ^ 0x64086408u, 0xe408e408u);              /* 1024 + code + 8 */
    h[1] = nb_half_fma((word & high) ^ 0x64806480u, 0x2c002c00u, 0xd480d480u); /* 1024 + 16 * (code + 8) */
    h[2] = nb_half_add((upper & low) ^ 0x64086408u, 0xe408e408u);
    h[3] = nb_half_fma((upper & high) ^ 0x64806480u, 0x2c002c00u, 0xd480d480u);
}

/* The values of an int4 record where it is the only source. Codes are transformed as integers of at
 * most 9 bits, in pairs of FP16; times the step they are exact as in nb_add_int4, where the order of the stages
 * would matter otherwise. */
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

/* The same in pairs of BF16, a pair of neighbours to a word: no sum of 32 codes is more than 256. */
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

/* The steps of a pair. */
NB_DEV uint32_t nb_brain_step(const struct nb_int4 *r)
{
    const uint32_t step = nb_bits(r->scale * (r->transform ? 0x1p-5f : 0x1p-3f));
    return nb_bytes(step, step, 0x3232);
}

/* The values eight further to the front: lets a loop that is not unrolled go through a group eight at a time.
 * */
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

/* Add a record (or the values of a raw source) that is read where it lies: all kinds but int4. Seldom used:
 * short code rather than fast. */
NB_DEV void nb_add_other(int type, uint32_t header, const char *record, uint32_t groups, uint32_t group0, int escapes,
                         float *p, uint32_t *bad)
{
    const uint32_t t = nb_thread();
    const struct nb_view v = nb_view_of(header, record, groups);

    NB_CHECK_RECORD(v, groups, group0, nb_load1, nb_load4, *bad);
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
    const float step = nb_scale_of(v.kind == NB_TILE_INT8_WIDE, code & 127, v.exponent) * NB_INT8_STEP;
    NB_ROLL
    for (unsigned k = 0; k < 4; k++) {
        const uint32_t word[2] = {nb_load4(v.code + 32 * t + 8 * k), nb_load4(v.code + 32 * t + 8 * k + 4)};
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

/* Values of partial groups of all sources (at byte `at` of the coded ones, value `i0` of raw ones and own).
 * */
NB_DEV void nb_reduce_partial(int type, const struct nb_gpu_desc *d, uint64_t i0, uint32_t count, int last)
{
    const uint32_t t = nb_thread(), size = nb_type_bytes(type), padded = nb_round4(count * size);
    float sum = 0;
    uint32_t bits = 0, bad = 0;
    if (!count)
        return;
    NB_RARE;
    for (int int4 = 1; int4 >= 0; int4--)
        NB_ROLL
        for (uint32_t i = 0; i < d->nsources; i++) {
            const struct nb_gpu_source s = nb_source_of(d, i);
            const char *p = (const char *)(uintptr_t)s.coded;
            if ((s.codec == NB_CODEC_INT4) != int4)
                continue;
            if (s.codec == NB_CODEC_RAW) {
                if (s.bytes != d->n * size)
                    continue;
                p += i0 * size;
            } else {
                if (s.bytes < padded || s.bytes % 4) {
                    bad = 1;
                    continue;
                }
                p += last ? s.bytes - padded : 0;
                if (t == count && count * size % 4)
                    bad |= nb_load2(p + count * size) != 0;
            }
            if (t < count) {
                bits = nb_element(type, p, t);
                sum = sum + nb_widen(type, bits);
            }
        }
    if (bad)
        nb_fail(d, EBADMSG);
    if (t >= count)
        return;
    if (NB_OP(d) == NB_GPU_REDUCE) {
        if (d->own)
            sum = sum + nb_widen(type, nb_element(type, (const void *)(uintptr_t)d->own, i0 + t));
        bits = nb_narrow(type, sum == sum ? sum : nb_real(NB_F32_NAN));
    }
    nb_put_element(type, (void *)(uintptr_t)d->dst, i0 + t, bits);
}

/* How many records fit behind the own values in a stage, and where. */
#define NB_SLOTS(type) ((type) == NB_F32 ? 2u : 5u)
#define NB_SLOT(type, stage, i) ((stage) + NB_TILE_GROUPS * NB_QUADS(type) + (i) * NB_RECORD_QUADS)

NB_DEV int nb_is_int4(uint32_t header)
{
    return (header & 0xff) == NB_TILE_INT4 || (header & 0xff) == NB_TILE_INT4_WIDE;
}

/* One warp: where the first records of a tile are, as far as that is known already. */
NB_DEV void nb_reduce_look(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                           uint32_t stage)
{
    const uint32_t lane = nb_thread() & 31, most = d->nsources < NB_SLOTS(type) ? d->nsources : NB_SLOTS(type);
    int known = 0;
    if (!job->index && job->groups && lane < most)
        known = nb_indexed(d, lane, job->tile);
    const uint32_t all = nb_ballot(known);
    const uint32_t ready = nb_ffs(~all) - 1;
    nb_fence();
    if (lane < ready)
        sh->where[stage][lane] = nb_where_is(d, job, lane);
    if (lane == 0)
        sh->ready[stage] = ready;
}

/* Begin to bring own values and those records. */
NB_DEV void nb_reduce_fetch(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh, uint32_t stage)
{
    if (job->index || !job->groups)
        return;
    if (NB_OP(d) == NB_GPU_REDUCE && job->own)
        nb_fetch_values(type, sh->stage[stage], (const void *)(uintptr_t)job->own, job->groups);
    NB_ROLL
    for (uint32_t i = 0; i < sh->ready[stage]; i++) {
        NB_EACH_SOURCE;
        const struct nb_where w = sh->where[stage][i];
        nb_fetch_record(NB_SLOT(type, sh->stage[stage], i), &w);
    }
}

/* Sources base + ready to base + count - 1, which were not found when the tile was fetched. */
NB_DEV void nb_reduce_await(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh, uint32_t s,
                            uint32_t base, uint32_t ready, uint32_t count)
{
    const uint32_t t = nb_thread();
    if (t >= ready && t < count) {
        while (!nb_indexed(d, base + t, job->tile))
            nb_pause();
        nb_fence();
        sh->where[s][t] = nb_where_is(d, job, base + t);
    }
    nb_barrier();
    NB_ROLL
    for (uint32_t i = ready; i < count; i++) {
        const struct nb_where w = sh->where[s][i];
        nb_fetch_record(NB_SLOT(type, sh->stage[s], i), &w);
    }
    nb_async_end();
    nb_async_wait_all();
    nb_barrier();
}

/* What is left to do where decoded values have been written: what goes bit for bit, raw records and escapes. */
NB_DEV void nb_decode_rest(int type, const struct nb_job *job, const struct nb_where *w)
{
    const uint32_t t = nb_thread(), groups = job->groups;
    void *out = (void *)(uintptr_t)job->out;
    if (w->codec == NB_CODEC_RAW || w->bytes <= NB_TILE_HEADER)
        return;
    const uint32_t header = nb_load4((const void *)(uintptr_t)w->from);
    const char *body = (const char *)(uintptr_t)w->from + NB_TILE_HEADER;
    nb_barrier();
    if ((header & 0xff) == NB_TILE_RAW) {
        NB_ROLL
        for (uint32_t i = t; i < groups * NB_GROUP; i += NB_THREADS)
            nb_put_element(type, out, i, nb_element(type, body, i));
        return;
    }
    NB_ROLL
    for (uint32_t k = t; k < (header >> 8 & 0xff); k += NB_THREADS) {
        const uint32_t i = nb_load4(body + NB_ESCAPE_BYTES * k) - 32 * job->group0;
        if (i < groups * NB_GROUP)
            nb_put_element(type, out, i, nb_narrow(type, nb_real(nb_load4(body + NB_ESCAPE_BYTES * k + 4))));
    }
}

/* A tile of one source, an int4 record without escapes that is in shared memory, in BF16, where a pair of values is
 * worked on at once. */
NB_DEV void nb_reduce_pairs(const struct nb_gpu_desc *d, const struct nb_job *job, nb_quad *stage, const char *record)
{
    const uint32_t t = nb_thread(), header = NB_SHARED4(record);
    const int decode = NB_OP(d) == NB_GPU_DECODE;
    uint32_t h[16], bad = 0;
    struct nb_int4 r;

    if (nb_open_int4(record, header, job->groups, job->group0, &r, &bad)) {
        nb_brain_codes(&r, h);
        const uint32_t steps = nb_brain_step(&r);
        if (decode) {
            NB_UNROLL
            for (unsigned i = 0; i < 16; i++) /* a zero is a positive one */
                h[i] = nb_brain_fma(h[i], steps, 0);
            nb_group_store(4, stage, t, h);
        } else {
            const float step = nb_real(steps & 0xffff0000u);
            float p[NB_GROUP];
            uint32_t own[16];
            NB_UNROLL
            for (unsigned i = 0; i < 16; i++)
                own[i] = 0;
            if (job->own)
                nb_group_words(4, stage, t, own);
            NB_UNROLL
            for (unsigned i = 0; i < 16; i++) { /* products are exact */
                const uint32_t plus = nb_brain_fma(own[i], NB_BRAIN_ONE, 0); /* no zero is negative, so no sum is */
                p[2 * i] = nb_fma(nb_real(h[i] << 16), step, nb_real(plus << 16));
                p[2 * i + 1] = nb_fma(nb_real(h[i] & 0xffff0000u), step, nb_real(plus & 0xffff0000u));
            }
            nb_round_values(NB_BF16, 1, p, stage, t);
        }
    }
    if (bad) {
        NB_RARE;
        nb_fail(d, EBADMSG);
    }
    nb_barrier();
    nb_flush_values(NB_BF16, (void *)(uintptr_t)job->out, stage, job->groups);
}

/* The ticket whose first bytes are in `stage`, or on their way. */
NB_DEV void nb_reduce_tile(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                           uint32_t stage_number)
{
    const uint32_t t = nb_thread(), groups = job->groups, slots = NB_SLOTS(type);
    const int decode = NB_OP(d) == NB_GPU_DECODE, alone = NB_ALONE(d), active = t < groups;
    nb_quad *stage = sh->stage[stage_number];
    float p[NB_GROUP], c[NB_GROUP];
    uint32_t bad = 0;
    int transformed = 0, others = 0;

    if (job->index) {
        NB_RARE;
        if (4 * job->tile + t / 32 < d->nsources)
            nb_index(type, d, job, 4 * job->tile + t / 32);
        return;
    }
    if (job->head | job->tail) {
        NB_RARE;
        nb_reduce_partial(type, d, 0, job->head, 0);
        nb_reduce_partial(type, d, d->n - job->tail, job->tail, 1);
    }
    if (!groups)
        return;
    if (alone && type == NB_BF16) {
        if (!sh->ready[stage_number]) {
            NB_RARE;
            nb_barrier();
            nb_reduce_await(type, d, job, sh, stage_number, 0, 0, 1);
            if (t == 0)
                sh->ready[stage_number] = 1;
            nb_barrier();
        }
        const struct nb_where *w = &sh->where[stage_number][0];
        const char *record = (const char *)NB_SLOT(type, stage, 0) + w->begin;
        if (w->end && nb_is_int4(NB_SHARED4(record)) && !(NB_SHARED4(record) & 0xff00)) {
            nb_reduce_pairs(d, job, stage, record);
            return;
        }
        NB_RARE;
    }
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i++)
        p[i] = c[i] = 0;
    NB_ROLL
    for (uint32_t base = 0; base < d->nsources; base += slots) {
        const uint32_t count = d->nsources - base < slots ? d->nsources - base : slots;
        const uint32_t ready = base ? 0 : sh->ready[stage_number];
        if (ready < count) {
            NB_RARE;
            nb_barrier();
            nb_reduce_await(type, d, job, sh, stage_number, base, ready, count);
        }
        NB_ROLL
        for (uint32_t i = 0; i < count; i++) {
            NB_EACH_SOURCE;
            const struct nb_where *w = &sh->where[stage_number][i];
            const char *record = (const char *)NB_SLOT(type, stage, i) + w->begin;
            const uint32_t header = NB_SHARED4(record);
            if (w->end && nb_is_int4(header)) {
                if (alone) {
                    struct nb_int4 r;
                    if (nb_open_int4(record, header, groups, job->group0, &r, &bad)) {
                        nb_only_int4(&r, p);
                        if (header & 0xff00 && !decode)
                            nb_add_escapes(record, header, job->group0, p);
                    }
                } else {
                    transformed |= nb_add_int4(record, header, groups, job->group0, !decode, p, c, &bad);
                }
            } else if (w->codec != NB_CODEC_INT4) {
                NB_RARE;
                others = 1;
            } else if (w->bytes > NB_TILE_HEADER) {
                NB_RARE;
                nb_add_other(type, nb_load4((const void *)(uintptr_t)w->from), (const char *)(uintptr_t)w->from, groups,
                             job->group0, !decode, p, &bad);
            }
        }
    }
    if (!alone && nb_ballot(transformed)) {
        nb_transform(c);
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            p[i] = nb_fma(c[i], 0.03125f, p[i]); /* the product is exact */
    }
    if (others) {
        NB_RARE;
        NB_ROLL
        for (uint32_t i = 0; i < d->nsources; i++) {
            const struct nb_where w = nb_where_is(d, job, i);
            if (w.codec == NB_CODEC_RAW && w.bytes)
                nb_add_other(type, NB_TILE_RAW,
                             (const char *)(uintptr_t)(w.from + job->at * nb_type_bytes(type)) - NB_TILE_HEADER, groups,
                             job->group0, 1, p, &bad);
            else if (w.codec == NB_CODEC_INT8 && w.bytes > NB_TILE_HEADER)
                nb_add_other(type, nb_load4((const void *)(uintptr_t)w.from), (const char *)(uintptr_t)w.from, groups,
                             job->group0, !decode, p, &bad);
        }
    }
    if (!decode && job->own && active) {
        (void)nb_group_values(type, stage, t, c);
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            p[i] = p[i] + c[i];
    }
    if (bad) {
        NB_RARE;
        nb_fail(d, EBADMSG);
    }
    if (active)
        nb_round_values(type, !decode || others, p, stage, t);
    nb_barrier();
    void *out = (void *)(uintptr_t)job->out;
    nb_flush_values(type, out, stage, groups);
    if (decode) {
        const struct nb_where w = sh->where[stage_number][0];
        nb_decode_rest(type, job, &w);
    }
}

#endif
