/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the records of a sum's sources, and copy them to shared memory.
 *
 * Records vary in length, so tickets of their own find them first. A warp for each source guesses that all
 * records have the usual length and reads very many headers at once. Where the guess ends, it begins again.
 * The tickets of tiles wait for the results (`progress`), which take less work than a tile.
 */
#ifndef NIBBLE_KERNELS_PLACES_CUH
#define NIBBLE_KERNELS_PLACES_CUH

#include "values.cuh"

NB_GROUP_IS_32("record sizes and places of codes");

#define NB_NOWHERE 0xffffffffu /* a missing record: the source is malformed */

/* Behind the states: the number of known offsets of each source (in words of their own), then the offsets of
 * all sources, tiles + 1 each, in units of four bytes. */
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

/* Return the length of the record of `groups` groups that begins with this header, 0 when malformed. */
NB_DEV uint32_t nb_record_bytes(int type, uint32_t codec, uint32_t header, uint32_t groups)
{
    const uint32_t kind = header & 0xff, escapes = header >> 8 & 0xff;
    const int exponent = (int)(header >> 16 & 0xff) - 127;
    const uint32_t before = NB_TILE_HEADER + NB_ESCAPE_BYTES * escapes + nb_round4(groups);
    if (kind == NB_TILE_ZERO || kind == NB_TILE_RAW)
        return header >> 8 ? 0 : NB_TILE_HEADER + (kind == NB_TILE_RAW ? groups * NB_GROUP * nb_type_bytes(type) : 0);
    if (kind >= NB_TILE_KIND_COUNT || header >> 24 || exponent < NB_EXPONENT_MIN || exponent > NB_EXPONENT_MAX)
        return 0;
    if (kind == NB_TILE_INT6 || kind == NB_TILE_INT6_WIDE)
        return codec != NB_CODEC_INT6 ? 0 : before + 24 * groups;
    if (kind == NB_TILE_INT8 || kind == NB_TILE_INT8_WIDE)
        return codec == NB_CODEC_INT6 ? 0 : before + 32 * groups;
    if (codec != NB_CODEC_INT4 || escapes > NB_INT4_ESCAPES)
        return 0;
    return before + 4 * ((groups + 31) / 32) + 16 * groups;
}

/* Return the groups of tile `tile` of the descriptor's span. */
NB_DEV uint32_t nb_groups_of(uint64_t group, uint64_t groups, uint32_t tile)
{
    const uint64_t begin = tile ? (group / NB_TILE_GROUPS + tile) * NB_TILE_GROUPS : group;
    const uint64_t end = (group / NB_TILE_GROUPS + tile + 1) * NB_TILE_GROUPS;
    return (uint32_t)((end < group + groups ? end : group + groups) - begin);
}

/* Find the records of a source. One warp. */
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
    const uint32_t codes = s.codec == NB_CODEC_INT6 ? 24 : 32; /* bytes of a group */
    const uint32_t fine = NB_TILE_HEADER + (1 + codes) * NB_TILE_GROUPS;
    uint32_t tile = 0, guess = s.codec == NB_CODEC_INT4 ? usual : fine;
    if (s.codec == NB_CODEC_RAW) {
        if (s.bytes != d->n * size && lane == 0)
            nb_fail(d, EBADMSG);
        if (lane == 0)
            nb_put32_shared_by_blocks(progress, tiles + 1);
        return;
    }
    int bad = s.bytes < at + nb_round4(tail * size) || s.bytes % 4 || s.bytes / 4 >= NB_NOWHERE;
    while (tile < tiles && !bad) {
        /* Up to 8 headers a lane, all in flight at once. */
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

/* Return whether tile `tile` of the source is found. */
NB_DEV int nb_indexed(const struct nb_gpu_desc *d, uint32_t source, uint32_t tile)
{
    return nb_get32_shared_by_blocks(nb_progress(d) + source) >= tile + 2;
}

/* The longest record that shared memory takes. */
#define NB_RECORD_MOST (NB_TILE_HEADER + NB_INT4_ESCAPES * NB_ESCAPE_BYTES + NB_TILE_GROUPS + 16 + 16 * NB_TILE_GROUPS)

/* Begin to copy a record to shared memory, with the same offset from 16-byte alignment as in global memory.
 * All threads. */
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
        if (s.bytes == d->n * nb_type_bytes(NB_TYPE(d))) /* otherwise the index has reported it */
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
        w.whole = w.end & ~15u; /* at least one quad, as every record is longer than 16 bytes */
    }
    return w;
}

#endif
