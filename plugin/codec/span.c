/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans for the fast variants: cut them into partial groups and tiles, choose the kind of each tile record,
 * and keep the accumulators of sums. The variant's tile operations do the arithmetic.
 */
#include <errno.h>

#include "codec/span.h"

NB_GROUP_IS_32("places of codes in a record");

/* ---- Encoding ------------------------------------------------------------------------------------- */

static bool all_idle(const struct nb_tile_job *job, const struct nb_tile_work *work)
{
    for (unsigned j = 0; j < job->groups; j++)
        if (!work->idle[j])
            return false;
    return true;
}

/* Write the record of a tile with codes of `bits` bits. Return 0 when it has too many escapes for that. */
static size_t encode_as(const struct nb_tile_ops *ops, struct nb_tile_job *job, unsigned bits,
                        struct nb_tile_work *work, uint8_t *dst, struct nb_encode_stats *stats)
{
    const unsigned groups = job->groups;
    const bool int4 = bits == 4, int6 = bits == 6;
    const size_t body = nb_tile_body(bits, groups);

    job->int4 = int4;
    job->split = ops->split;
    work->fine = int6 ? NB_INT6_STEP : NB_INT8_STEP;
    const enum nb_survey rest = ops->survey(job, work);
    if (rest != NB_SURVEY_DONE && nb_tile_survey(job, work, rest))
        return 0;
    if (work->escapes &&
        NB_ESCAPE_BYTES * work->escapes + body > groups * NB_GROUP * nb_value_bytes(job->type))
        return 0;
    const unsigned maxima = rest == NB_SURVEY_DONE ? 0 : nb_work_groups(work, job);
    uint32_t max = rest == NB_SURVEY_DONE ? work->top : 0;
    for (unsigned j = 0; j < maxima; j++)
        max = work->max[j] > max ? work->max[j] : max;
    if (stats) {
        if (job->measure) {
            stats->signal2 += work->signal2;
            stats->carried2 += work->carried2 < NB_LEAST_CARRIED ? 0 : work->carried2;
        }
        stats->escapes += work->escapes;
        stats->bounded += work->factor != 1.0f;
    }
    if (!max && !work->escapes && (!job->err || all_idle(job, work))) {
        nb_put32(dst, NB_TILE_ZERO);
        return NB_TILE_HEADER;
    }
    dst[0] = (uint8_t)((int4 ? NB_TILE_INT4 : int6 ? NB_TILE_INT6 : NB_TILE_INT8) + work->wide);
    dst[1] = (uint8_t)work->escapes;
    dst[2] = (uint8_t)(work->exponent + 127);
    dst[3] = 0;
    uint8_t *p = dst + NB_TILE_HEADER;
    for (unsigned k = 0; k < work->escapes; k++, p += NB_ESCAPE_BYTES) {
        nb_put16(p, work->escape_index[k]);
        nb_put16(p + 2, 0);
        nb_put32(p + 4, work->escape_value[k]);
        if (job->err) /* sent exactly, so it leaves no residual. Clear it before the new residual is
                         computed, which may mix in the old one */
            job->err[work->escape_index[k] - NB_GROUP * job->group0] = 0;
    }
    uint8_t *scales = p, *domains = p + nb_pad4(groups), *codes = domains;
    if (int4) {
        codes += 4 * ((groups + 31) / 32);
        memset(domains, 0, (size_t)(codes - domains));
    }
    memset(scales + groups, 0, nb_pad4(groups) - groups);
    uint8_t bytes[NB_TILE];
    const float noise = ops->quantize(job, work, scales, domains, int6 ? bytes : codes, stats);
    if (int6)
        ops->pack6(bytes, groups, codes);
    if (job->measure)
        stats->noise2 += noise;
    if (max < NB_FLUSH_BITS && !work->escapes) { /* every group flushed */
        nb_put32(dst, NB_TILE_ZERO);
        return NB_TILE_HEADER;
    }
    return (size_t)(p - dst) + body;
}

static size_t encode_raw(const struct nb_tile_job *job, const struct nb_tile_work *work, uint8_t *dst)
{
    size_t bytes = job->groups * NB_GROUP * nb_value_bytes(job->type);
    nb_put32(dst, NB_TILE_RAW);
    memcpy(dst + NB_TILE_HEADER, job->src, bytes);
    for (unsigned j = 0; job->err && j < job->groups; j++)
        if (!work->idle[j]) {
            memset(job->err + NB_GROUP * j, 0, NB_GROUP);
            job->err_scale[j] = 0;
        }
    return NB_TILE_HEADER + bytes;
}

/* By patterns, which is fast. */
static unsigned count_nonfinite(enum nb_dtype type, const uint8_t *src, unsigned n)
{
    const uint16_t infinity = type == NB_BF16 ? 0x7f80 : 0x7c00;
    unsigned count = 0;

    if (type == NB_F32)
        for (unsigned i = 0; i < n; i++)
            count += (nb_f32_bits(nb_load_value(NB_F32, src, i)) & NB_F32_ABS) >= NB_F32_INF;
    else
        for (unsigned i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, src + 2 * (size_t)i, 2);
            count += (v & 0x7fff) >= infinity;
        }
    return count;
}

size_t nb_span_encode(const struct nb_span_ops *self, unsigned bits, enum nb_dtype type, const uint8_t *src,
                      size_t n, uint64_t first, const struct nb_ef *ef, uint8_t *dst,
                      struct nb_encode_stats *stats)
{
    struct nb_span span = nb_span_cut(n, first);
    size_t size = nb_value_bytes(type), done = 0;
    uint8_t *start = dst;
    struct nb_tile_work work;

    work.doubt = false;
    if (span.head)
        dst += nb_partial_encode(type, src, span.head, first, ef, dst, stats);
    src += span.head * size;
    first += span.head;
    while (done < span.groups) {
        uint64_t group = first / NB_GROUP;
        struct nb_tile_job job = {.type = type,
                                  .src = src,
                                  .measure = stats && nb_measured(stats, group),
                                  .groups = nb_tile_groups(group, span.groups - done),
                                  .group0 = (unsigned)(group % NB_TILE_GROUPS)};
        if (ef) {
            job.err = ef->err + first;
            job.err_scale = ef->scale + group;
            job.mode = ef->mode;
            job.beta = ef->beta;
            job.bound = ef->bound;
        }
        size_t length = encode_as(self->tile, &job, bits, &work, dst, stats);
        if (!length) {
            if (stats)
                stats->fallback++;
            if (bits == 4)
                length = encode_as(self->tile, &job, 8, &work, dst, stats);
            if (!length) {
                if (stats)
                    stats->bounded += work.factor != 1.0f;
                length = encode_raw(&job, &work, dst);
            }
        }
        if (stats && (work.escapes || dst[0] == NB_TILE_RAW))
            stats->nonfinite += count_nonfinite(type, src, job.groups * NB_GROUP);
        dst += length;
        done += job.groups;
        src += job.groups * NB_GROUP * size;
        first += job.groups * NB_GROUP;
    }
    if (span.tail)
        dst += nb_partial_encode(type, src, span.tail, first, ef, dst, stats);
    return (size_t)(dst - start);
}

/* ---- Decoding ------------------------------------------------------------------------------------- */

/* The values of a partial group at p, or -EBADMSG. */
static int partial_check(enum nb_dtype type, const uint8_t *p, size_t len, size_t count)
{
    size_t bytes = nb_partial_bytes(type, count);
    if (len < bytes)
        return -EBADMSG;
    for (size_t i = count * nb_value_bytes(type); i < bytes; i++)
        if (p[i])
            return -EBADMSG;
    return 0;
}

static bool quantized(const struct nb_tile_view *view)
{
    return view->kind != NB_TILE_RAW && view->kind != NB_TILE_ZERO;
}

/* Unpack the codes of an int6 record to `codes`, so that the variant reads them as int8's. */
static void widen(const struct nb_tile_ops *ops, struct nb_tile_view *view, uint8_t codes[NB_TILE])
{
    if (view->kind != NB_TILE_INT6 && view->kind != NB_TILE_INT6_WIDE)
        return;
    ops->unpack6(view->code, view->groups, codes);
    view->code = codes;
    view->kind = view->kind == NB_TILE_INT6 ? NB_TILE_INT8 : NB_TILE_INT8_WIDE;
}

int nb_span_decode(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                   const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst)
{
    struct nb_span span = nb_span_cut(n, first);
    size_t size = nb_value_bytes(type), done = 0;
    uint8_t codes[NB_TILE];

    if (partial_check(type, coded, len, span.head))
        return -EBADMSG;
    memcpy(dst, coded, span.head * size);
    coded += nb_partial_bytes(type, span.head);
    len -= nb_partial_bytes(type, span.head);
    dst += span.head * size;
    for (uint64_t group = (first + span.head) / NB_GROUP; done < span.groups;) {
        struct nb_tile_view view;
        unsigned group0 = (unsigned)(group % NB_TILE_GROUPS),
                 groups = nb_tile_groups(group, span.groups - done);
        ssize_t used = record(type, coded, len, group0, groups, &view);
        if (used < 0)
            return (int)used;
        widen(self->tile, &view, codes);
        size_t bytes = groups * NB_GROUP * size;
        if (view.kind == NB_TILE_RAW)
            memcpy(dst, view.code, bytes);
        else if (view.kind == NB_TILE_ZERO)
            memset(dst, 0, bytes);
        else
            self->tile->decode(type, &view, NULL, dst);
        for (unsigned k = 0; k < view.escapes; k++) {
            const uint8_t *p = view.escape + NB_ESCAPE_BYTES * k;
            nb_store_value(type, dst, nb_get16(p) - NB_GROUP * group0, nb_bits_f32(nb_get32(p + 4)));
        }
        coded += used;
        len -= (size_t)used;
        dst += bytes;
        done += groups;
        group += groups;
    }
    if (partial_check(type, coded, len, span.tail) || len != nb_partial_bytes(type, span.tail))
        return -EBADMSG;
    memcpy(dst, coded, span.tail * size);
    return 0;
}

/* ---- Sums ----------------------------------------------------------------------------------------- */

struct sums {
    float plain[NB_TILE] __attribute__((aligned(64)));
    float coeff[NB_TILE] __attribute__((aligned(64)));
    uint8_t any[NB_TILE_GROUPS];
    uint8_t codes[NB_TILE]; /* of an int6 record */
};

/* The read position of each source, and the order: sources of transformed codecs come first. */
struct cursors {
    const struct nb_source *sources;
    const struct nb_codec_row *const *rows;
    size_t n, transformed;
    size_t at[NB_MAX_SOURCES];
    uint16_t order[NB_MAX_SOURCES];
};

static void cursors_begin(struct cursors *c)
{
    size_t at = 0;

    for (size_t s = 0; s < c->n; s++)
        if (c->rows[c->sources[s].codec]->transformed)
            c->order[at++] = (uint16_t)s;
    c->transformed = at;
    for (size_t s = 0; s < c->n; s++) {
        c->at[s] = 0;
        if (!c->rows[c->sources[s].codec]->transformed)
            c->order[at++] = (uint16_t)s;
    }
}

/* Sum `count` values of a partial group. */
static int reduce_partial(enum nb_dtype type, struct cursors *c, const uint8_t *own, size_t count,
                          uint8_t *dst)
{
    float sum[NB_GROUP] = {0};
    for (size_t k = 0; k < c->n; k++) {
        const size_t s = c->order[k];
        const uint8_t *p = (const uint8_t *)c->sources[s].coded + c->at[s];
        size_t bytes = count * nb_value_bytes(type);
        if (c->rows[c->sources[s].codec]->record) {
            if (partial_check(type, p, c->sources[s].len - c->at[s], count))
                return -EBADMSG;
            bytes = nb_partial_bytes(type, count);
        }
        for (size_t i = 0; i < count; i++)
            sum[i] += nb_load_value(type, p, i);
        c->at[s] += bytes;
    }
    for (size_t i = 0; i < count; i++)
        nb_store_value(type, dst, i, nb_canonical(own ? sum[i] + nb_load_value(type, own, i) : sum[i]));
    return 0;
}

static void add_escapes(const struct nb_tile_view *view, unsigned group0, bool split, float *plain)
{
    for (unsigned k = 0; k < view->escapes; k++) {
        const uint8_t *p = view->escape + NB_ESCAPE_BYTES * k;
        unsigned i = nb_get16(p) - NB_GROUP * group0;
        plain[i / NB_GROUP * NB_GROUP + nb_place(split, i % NB_GROUP)] += nb_bits_f32(nb_get32(p + 4));
    }
}

/* Get the tile record (or the raw values) of source s. */
static int next_record(enum nb_dtype type, struct cursors *c, size_t s, unsigned group0, unsigned groups,
                       struct nb_tile_view *view)
{
    const struct nb_source *source = &c->sources[s];
    const uint8_t *p = (const uint8_t *)source->coded + c->at[s];
    nb_record_fn *record = c->rows[source->codec]->record;
    if (!record) { /* plain values, whose length is already checked */
        *view = (struct nb_tile_view){.kind = NB_TILE_RAW, .groups = groups, .code = p};
        c->at[s] += groups * NB_GROUP * nb_value_bytes(type);
        return 0;
    }
    ssize_t used = record(type, p, source->len - c->at[s], group0, groups, view);
    if (used < 0)
        return (int)used;
    c->at[s] += (size_t)used;
    return 0;
}

static void clear(struct sums *sums, unsigned groups)
{
    memset(sums->plain, 0, groups * NB_GROUP * sizeof(float));
    memset(sums->coeff, 0, groups * NB_GROUP * sizeof(float));
    memset(sums->any, 0, groups);
}

static int reduce_tile(const struct nb_tile_ops *ops, enum nb_dtype type, struct cursors *c,
                       const uint8_t *own, unsigned group0, unsigned groups, uint8_t *dst, struct sums *sums)
{
    struct nb_tile_view view;

    if (c->n == 1) {
        int result = next_record(type, c, 0, group0, groups, &view);
        if (result)
            return result;
        widen(ops, &view, sums->codes);
        if (quantized(&view) && !view.escapes) {
            ops->decode(type, &view, own, dst);
            return 0;
        }
        clear(sums, groups);
        if (view.kind != NB_TILE_ZERO)
            ops->add(type, &view, sums->plain, sums->coeff, sums->any);
        /* A source of another codec than int4 comes after the (empty) sum of transformed ones. */
        add_escapes(&view, group0, ops->split, sums->plain);
        ops->inverse(sums->plain, sums->coeff, sums->any, groups);
        ops->store(type, sums->plain, own, groups, dst);
        return 0;
    }
    clear(sums, groups);
    for (size_t k = 0; k < c->n; k++) {
        int result = next_record(type, c, c->order[k], group0, groups, &view);
        if (result)
            return result;
        widen(ops, &view, sums->codes);
        if (view.kind != NB_TILE_ZERO) {
            ops->add(type, &view, sums->plain, sums->coeff, sums->any);
            add_escapes(&view, group0, ops->split, sums->plain);
        }
        if (k + 1 == c->transformed)
            ops->inverse(sums->plain, sums->coeff, sums->any, groups);
    }
    ops->store(type, sums->plain, own, groups, dst);
    return 0;
}

int nb_span_reduce(const struct nb_span_ops *self, const struct nb_codec_row *const *rows, enum nb_dtype type,
                   const struct nb_source *sources, size_t nsources, const uint8_t *own, size_t n,
                   uint64_t first, uint8_t *dst)
{
    struct nb_span span = nb_span_cut(n, first);
    size_t size = nb_value_bytes(type), done = 0;
    struct sums sums;
    struct cursors c;

    c.sources = sources;
    c.rows = rows;
    c.n = nsources;
    cursors_begin(&c);
    if (span.head && reduce_partial(type, &c, own, span.head, dst))
        return -EBADMSG;
    uint64_t group = (first + span.head) / NB_GROUP;
    size_t offset = span.head * size;
    while (done < span.groups) {
        unsigned groups = nb_tile_groups(group, span.groups - done);
        int result = reduce_tile(self->tile, type, &c, own ? own + offset : NULL,
                                 (unsigned)(group % NB_TILE_GROUPS), groups, dst + offset, &sums);
        if (result)
            return result;
        offset += groups * NB_GROUP * size;
        done += groups;
        group += groups;
    }
    if (span.tail && reduce_partial(type, &c, own ? own + offset : NULL, span.tail, dst + offset))
        return -EBADMSG;
    for (size_t s = 0; s < nsources; s++)
        if (c.at[s] != sources[s].len)
            return -EBADMSG;
    return 0;
}
