/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizing codecs, slow and obvious: from bytes to values and to sums of several nodes' values. See
 * reference_quant.c. */
#include <errno.h>
#include <stdbool.h>

#include "reference.h"

void reference_hadamard(float v[NB_GROUP])
{
    static const unsigned distances[5] = {1, 16, 8, 4, 2}; /* the order of roundings */
    for (unsigned stage = 0; stage < 5; stage++) {
        unsigned distance = distances[stage];
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (!(i & distance)) {
                float a = v[i], b = v[i + distance];
                v[i] = a + b;
                v[i + distance] = a - b;
            }
    }
}

/* Read the values of a tile record: plain[] and, for transformed groups, coefficients[]. plain[] has the
 * exact values of escapes. */
static ssize_t read_tile(nb_record_fn *record, enum nb_dtype type, const uint8_t *p, size_t len,
                         unsigned group0, unsigned groups, float *plain, float *coefficients, bool *transform)
{
    struct nb_tile_view view;
    ssize_t used = record(type, p, len, group0, groups, &view);
    if (used < 0)
        return used;
    memset(plain, 0, groups * 4 * NB_GROUP);
    memset(coefficients, 0, groups * 4 * NB_GROUP);
    memset(transform, 0, groups * sizeof *transform);
    for (unsigned i = 0; i < groups * NB_GROUP; i++) {
        unsigned j = i / NB_GROUP, k = i % NB_GROUP;
        if (view.kind == NB_TILE_RAW)
            plain[i] = nb_load_value(type, view.code, i);
        if (view.kind == NB_TILE_INT4 || view.kind == NB_TILE_INT4_WIDE) {
            int q = view.code[16 * j + k / 2] >> (k % 2 ? 4 : 0) & 15;
            if (q > 7)
                q -= 16;
            if (view.scale[j] & 0x80)
                q = -q;
            float unit = nb_scale_value(view.kind == NB_TILE_INT4_WIDE, view.scale[j] & 127, view.unit);
            transform[j] = view.domain[j / 8] >> j % 8 & 1;
            float value = (float)q * (transform[j] ? unit : unit * 0.125f);
            (transform[j] ? coefficients : plain)[i] = 0.0f + value;
        }
        if (view.kind == NB_TILE_INT8 || view.kind == NB_TILE_INT8_WIDE) {
            float unit = nb_scale_value(view.kind == NB_TILE_INT8_WIDE, view.scale[j] & 127, view.unit);
            float value = (float)(int8_t)view.code[i] * (unit * NB_INT8_STEP);
            plain[i] = 0.0f + value;
        }
    }
    if (view.kind == NB_TILE_INT6 || view.kind == NB_TILE_INT6_WIDE)
        for (unsigned i = 0; i < groups * NB_GROUP; i++) {
            const unsigned j = i / NB_GROUP, k = i % NB_GROUP;
            const uint8_t *code = view.code + 24 * j;
            int q = k < 24 ? code[k] & 63 : 0;
            for (unsigned part = 0; part < 3 && k >= 24; part++)
                q |= code[8 * part + k - 24] >> 6 << 2 * part;
            const float unit = nb_scale_value(view.kind == NB_TILE_INT6_WIDE, view.scale[j] & 127, view.unit);
            const float value = (float)(q > 31 ? q - 64 : q) * (unit * NB_INT6_STEP);
            plain[i] = 0.0f + value;
        }
    for (unsigned k = 0; k < view.escapes; k++)
        plain[nb_get16(view.escape + 8 * k) - 32 * group0] = nb_bits_f32(nb_get32(view.escape + 8 * k + 4));
    return used;
}

static void inverse(float *plain, float *coefficients, const bool *transform, unsigned groups)
{
    for (unsigned j = 0; j < groups; j++)
        if (transform[j]) {
            reference_hadamard(coefficients + 32 * j);
            for (unsigned i = 32 * j; i < 32 * j + 32; i++) {
                float x = coefficients[i] * 0.03125f;
                plain[i] = plain[i] + x;
            }
        }
}

int reference_decode(const struct nb_span_ops *self, nb_record_fn *record, enum nb_dtype type,
                     const uint8_t *coded, size_t len, size_t n, uint64_t first, uint8_t *dst)
{
    static _Thread_local float plain[NB_TILE], coefficients[NB_TILE];
    bool transform[NB_TILE_GROUPS];
    struct nb_span span = nb_span_cut(n, first);
    (void)self;
    size_t size = nb_dtype_size(type), done = 0, partial = nb_partial_bytes(type, span.head);
    const uint8_t *end = coded + len;

    if (len < partial + nb_partial_bytes(type, span.tail))
        return -EBADMSG;
    memcpy(dst, coded, span.head * size);
    for (size_t i = span.head * size; i < partial; i++)
        if (coded[i])
            return -EBADMSG;
    coded += partial;
    dst += span.head * size;
    first += span.head;
    while (done < span.groups) {
        uint64_t group = first / NB_GROUP;
        unsigned groups = nb_tile_groups(group, span.groups - done);
        ssize_t used = read_tile(record, type, coded, (size_t)(end - coded),
                                 (unsigned)(group % NB_TILE_GROUPS), groups, plain, coefficients, transform);
        if (used < 0)
            return (int)used;
        inverse(plain, coefficients, transform, groups);
        for (unsigned i = 0; i < groups * NB_GROUP; i++)
            nb_store_value(type, dst, i, plain[i]);
        if (coded[0] == NB_TILE_RAW) /* copies bytes, so that a signalling NaN stays one */
            memcpy(dst, coded + NB_TILE_HEADER, groups * NB_GROUP * size);
        coded += used;
        dst += groups * NB_GROUP * size;
        first += groups * NB_GROUP;
        done += groups;
    }
    partial = nb_partial_bytes(type, span.tail);
    if ((size_t)(end - coded) != partial)
        return -EBADMSG;
    memcpy(dst, coded, span.tail * size);
    for (size_t i = span.tail * size; i < partial; i++)
        if (coded[i])
            return -EBADMSG;
    return 0;
}

int reference_reduce(const struct nb_span_ops *self, const struct nb_codec_row *const *rows,
                     enum nb_dtype type, const struct nb_source *sources, size_t nsources, const uint8_t *own,
                     size_t n, uint64_t first, uint8_t *dst)
{
    static _Thread_local float plain[NB_TILE], coefficients[NB_TILE], sum[NB_TILE], csum[NB_TILE];
    static _Thread_local size_t at[NB_MAX_SOURCES];
    struct nb_span span = nb_span_cut(n, first);
    (void)self;
    size_t size = nb_dtype_size(type), done = 0;

    memset(at, 0, nsources * sizeof *at);
    while (done < n) {
        bool partial = (done == 0 && span.head) || done == span.head + span.groups * NB_GROUP;
        uint64_t group = (first + done) / NB_GROUP;
        unsigned groups = 0, group0 = (unsigned)(group % NB_TILE_GROUPS);
        size_t count = done == 0 && span.head ? span.head : span.tail;
        if (!partial) {
            groups = nb_tile_groups(group, span.groups - (done - span.head) / NB_GROUP);
            count = groups * NB_GROUP;
        }
        memset(sum, 0, sizeof sum);
        memset(csum, 0, sizeof csum);
        bool any[NB_TILE_GROUPS] = {false}, transform[NB_TILE_GROUPS];
        for (unsigned pass = 0; pass < 2; pass++) {
            for (size_t s = 0; s < nsources; s++) {
                const uint8_t *p = (const uint8_t *)sources[s].coded + at[s];
                size_t left = sources[s].len - at[s];
                const struct nb_codec_row *row = rows[sources[s].codec];
                if (row->transformed != (pass == 0))
                    continue;
                if (partial || !row->record) {
                    size_t bytes = row->record ? nb_partial_bytes(type, count) : count * size;
                    if (left < bytes)
                        return -EBADMSG;
                    for (size_t i = count * size; i < bytes; i++)
                        if (p[i])
                            return -EBADMSG;
                    for (size_t i = 0; i < count; i++)
                        sum[i] = sum[i] + nb_load_value(type, p, i);
                    at[s] += bytes;
                    continue;
                }
                ssize_t used =
                    read_tile(row->record, type, p, left, group0, groups, plain, coefficients, transform);
                if (used < 0)
                    return (int)used;
                at[s] += (size_t)used;
                for (size_t i = 0; i < count; i++)
                    if (transform[i / NB_GROUP]) {
                        csum[i] = csum[i] + coefficients[i];
                        any[i / NB_GROUP] = true;
                    } else {
                        sum[i] = sum[i] + plain[i];
                    }
            }
            if (pass == 0)
                inverse(sum, csum, any, groups);
        }
        for (size_t i = 0; i < count; i++) {
            float value = sum[i];
            if (own)
                value = value + nb_load_value(type, own, done + i);
            nb_store_value(type, dst, done + i, nb_canonical(value));
        }
        done += count;
    }
    for (size_t s = 0; s < nsources; s++)
        if (at[s] != sources[s].len)
            return -EBADMSG;
    return 0;
}
