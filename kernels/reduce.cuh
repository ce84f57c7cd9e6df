/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode and sum: docs/wire-format.md sections 9 and 10. A block has a tile, a thread a group. For each value
 * the thread holds two accumulators in registers, one in each domain. places.cuh finds the records,
 * record.cuh takes them apart.
 */
#ifndef NIBBLE_KERNELS_REDUCE_CUH
#define NIBBLE_KERNELS_REDUCE_CUH

#include "places.cuh"
#include "record.cuh"

NB_GROUP_IS_32("escapes: their index counts 32 values a group");

/* Sum the values of partial groups of all sources (at byte `at` of the coded ones, value `i0` of raw ones and
 * own). */
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

/* Number of records that fit behind the own values in a stage, and their places. */
#define NB_SOURCE_BUFFERS(type) ((type) == NB_F32 ? 2u : 5u)
#define NB_SOURCE_BUFFER(type, stage, i) ((stage) + NB_COLUMN(NB_QUADS(type)) * NB_QUADS(type) + (i) * NB_RECORD_QUADS)

NB_DEV int nb_is_int4(uint32_t header)
{
    return (header & 0xff) == NB_TILE_INT4 || (header & 0xff) == NB_TILE_INT4_WIDE;
}

/* Look up the first records of a tile, as far as they are known. One warp. */
NB_DEV void nb_reduce_look(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                           uint32_t stage)
{
    const uint32_t lane = nb_thread() & 31, most = d->nsources < NB_SOURCE_BUFFERS(type) ? d->nsources : NB_SOURCE_BUFFERS(type);
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

/* Begin to fetch own values and those records. */
NB_DEV void nb_reduce_fetch(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                            uint32_t stage, int plain)
{
    const int own = NB_OP(d) == NB_GPU_REDUCE && job->own;
    if (plain || job->plain) {
        if (own)
            nb_fetch_values(type, sh->stage[stage], (const void *)(uintptr_t)job->own, 1, NB_TILE_GROUPS);
    } else {
        NB_RARE;
        if (job->index || !job->groups)
            return;
        if (own)
            nb_fetch_values(type, sh->stage[stage], (const void *)(uintptr_t)job->own, 0, job->groups);
    }
    NB_ROLL
    for (uint32_t i = 0; i < sh->ready[stage]; i++) {
        NB_EACH_SOURCE;
        const struct nb_where w = sh->where[stage][i];
        nb_fetch_record(NB_SOURCE_BUFFER(type, sh->stage[stage], i), &w);
    }
}

/* Fetch sources base + ready to base + count - 1, which were unknown when the tile was fetched. */
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
        nb_fetch_record(NB_SOURCE_BUFFER(type, sh->stage[s], i), &w);
    }
    nb_async_end();
    nb_async_wait_all();
    nb_barrier();
}

/* Complete a decoded tile: bit-exact groups, raw records and escapes. */
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

/* Decode a tile of one source in BF16, an int4 record without escapes in shared memory, a pair of values at
 * once. */
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
                /* every zero is positive, so every sum is */
                const uint32_t plus = nb_brain_fma(own[i], NB_BRAIN_ONE, 0);
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

/* Begin a sum with its first source, whose record lies in `buffer`. Return 0 when the record is unusual and
 * still to be added. */
NB_DEV int nb_begin_sum(uint32_t stage_number, const nb_quad *buffer, const struct nb_shared *sh, uint32_t groups, uint32_t *transformed,
                        float *p, float *c)
{
    const struct nb_where *w = &sh->where[stage_number][0];
    const char *record = (const char *)buffer + w->begin;
    const uint32_t header = NB_SHARED4(record);
    struct nb_int4 r;
    if (!w->end || !nb_is_usual(header, groups))
        return 0;
    nb_open_usual(record, header, &r);
    nb_add_group(&r, 1, p, c);
    *transformed = r.transform;
    return 1;
}

/* Run the ticket whose first bytes are in `stage`, or in flight to it. */
NB_DEV void nb_reduce_tile(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                           uint32_t stage_number)
{
    const uint32_t t = nb_thread(), groups = job->groups, buffers = NB_SOURCE_BUFFERS(type);
    const int decode = NB_OP(d) == NB_GPU_DECODE, alone = NB_ALONE(d), active = t < groups;
    nb_quad *stage = sh->stage[stage_number];
    float p[NB_GROUP], c[NB_GROUP];
    uint32_t bad = 0;
    uint32_t transformed = 0;
    int others = 0;

    if (!job->plain) {
        NB_RARE;
        if (job->index) {
            if (4 * job->tile + t / 32 < d->nsources)
                nb_index(type, d, job, 4 * job->tile + t / 32);
            return;
        }
        nb_reduce_partial(type, d, 0, job->head, 0);
        nb_reduce_partial(type, d, d->n - job->tail, job->tail, 1);
        if (!groups)
            return;
    }
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
        const char *record = (const char *)NB_SOURCE_BUFFER(type, stage, 0) + w->begin;
        if (w->end && nb_is_int4(NB_SHARED4(record)) && !(NB_SHARED4(record) & 0xff00)) {
            nb_reduce_pairs(d, job, stage, record);
            return;
        }
        NB_RARE;
    }
    uint32_t base = 0, count = d->nsources < buffers ? d->nsources : buffers, source = 0;
    if (sh->ready[stage_number] < count) {
        NB_RARE;
        nb_barrier();
        nb_reduce_await(type, d, job, sh, stage_number, 0, sh->ready[stage_number], count);
    }
    if (!alone && nb_begin_sum(stage_number, NB_SOURCE_BUFFER(type, stage, 0), sh, groups, &transformed, p, c)) {
        source = 1;
    } else {
        if (!alone)
            NB_RARE;
        NB_UNROLL
        for (unsigned k = 0; k < NB_GROUP; k++)
            p[k] = c[k] = 0;
    }
    NB_ROLL
    for (;;) {
        NB_ROLL
        for (; source < count; source++) {
            NB_EACH_FURTHER;
            const struct nb_where *w = &sh->where[stage_number][source];
            const char *record = (const char *)NB_SOURCE_BUFFER(type, stage, source) + w->begin;
            const uint32_t header = NB_SHARED4(record);
            if (!alone && w->end && nb_is_usual(header, groups)) {
                struct nb_int4 r;
                nb_open_usual(record, header, &r);
                nb_add_group(&r, 0, p, c);
                transformed |= r.transform;
                continue;
            }
            if (!alone)
                NB_RARE;
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
        base += buffers;
        if (base >= d->nsources)
            break;
        NB_RARE;
        count = d->nsources - base < buffers ? d->nsources - base : buffers;
        source = 0;
        nb_barrier();
        nb_reduce_await(type, d, job, sh, stage_number, base, 0, count);
    }
    if (!alone && nb_ballot((int)transformed)) {
        nb_transform(c);
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (!(i & 2)) /* products are exact */
                nb_two_fma(&p[i], &p[i + 2], c[i], c[i + 2], 0.03125f, 0.03125f);
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
            else if ((w.codec == NB_CODEC_INT8 || w.codec == NB_CODEC_INT6) && w.bytes > NB_TILE_HEADER) {
                const char *record = (const char *)(uintptr_t)w.from;
                const uint32_t header = nb_load4(record);
                if (nb_is_usual_int6(header, groups))
                    nb_add_usual_int6(record, header, p);
                else
                    nb_add_other(type, header, record, groups, job->group0, !decode, p, &bad);
            }
        }
    }
    if (!decode && job->own && active) {
        float energy;
        int zero;
        (void)nb_group_values(type, stage, t, c, 0, &energy, &zero);
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (!(i & 2))
                nb_two_plus(&p[i], &p[i + 2], c[i], c[i + 2]);
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
