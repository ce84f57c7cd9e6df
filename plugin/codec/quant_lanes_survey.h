/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode tiles NB_W groups at a time, one group in each lane: first half of the encoder. Maxima, transforms,
 * sums and scales then stay within lanes. Packed values are transposed on the way in, packed codes on the way
 * out. quant_simd.h includes this file. quant_avx2.c and quant_avx512.c define its primitives:
 *
 *   NB_HERE(x)              have x computed at this place, not later
 *   NB_FORGET()             read rows again behind it, where registers are few
 *   lanes_order             from the order of groups to the order of lanes, and back
 *   lanes_bits, lanes_mask  from a mask of lanes to the bits of groups, and back
 *   lanes_dwords            transposes 4x4 dwords in each part of 128 bits
 *   lanes_load              row i: dword i of sixteen of each group; groups are `stride` bytes apart
 *   lanes_load_bytes        row b: bytes 4b ... 4b+3 of 32 of each group
 *   lanes_store_bytes       the inverse, without the groups of a mask
 *   lanes_store_nibbles     the same for 16 bytes of each group, which are still to be transposed
 *   lanes_halves            values of FP16 in the low and in the high words of dwords
 *   lanes_byte              byte i of each dword, uppermost
 *   lanes_add_unless, _sub_ sum or difference except where the mask is set
 *   lanes_store_if          stores where the mask is set
 *   lanes_eight, _pairs     largest magnitude so far and its sign; smallest of the pairs' larger magnitudes
 *   lanes_most, lanes_least the results
 *
 * Values of a batch lie in memory as rows: row i has value i of all its groups.
 */

NB_GROUP_IS_32("32 rows of a value each, four vectors of codes a row");

typedef float nb_row[NB_W];

/* Hide the address of rows from the compiler. GCC 12 computes all their addresses before a branch whose two
 * sides use them, and keeps each in a register of its own, vector registers among them: four instructions a
 * row. */
#define NB_OPAQUE(rows) __asm__("" : "+r"(rows))

/* Get values 2d and 2d+1 of the groups. */
NB_FN void nb_t_values(enum nb_dtype type, const vi *row, unsigned d, vf *even, vf *odd)
{
    if (type == NB_F32) {
        *even = vf_cast(row[2 * d]);
        *odd = vf_cast(row[2 * d + 1]);
    } else if (type == NB_BF16) {
        *even = vf_cast(vi_slli(row[d], 16));
        *odd = vf_cast(vi_and(row[d], vi_set1((int)0xffff0000u)));
    } else {
        lanes_halves(row[d], even, odd);
    }
}

/* ---- The transform ------------------------------------------------------------------------------------ */

NB_FN void nb_t_butterfly(vf *a, vf *b)
{
    vf s = vf_add(*a, *b);
    *b = vf_sub(*a, *b);
    *a = s;
}

/* Run the stages 8 and 4 of the transform, on every other row of sixteen. */
NB_FN void nb_t_stages84(const vf *v, vf *w)
{
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        w[k] = vf_add(v[k], v[k + 4]);
        w[k + 4] = vf_sub(v[k], v[k + 4]);
    }
    NB_UNROLL
    for (unsigned k = 0; k < 8; k += 4) {
        nb_t_butterfly(&w[k], &w[k + 2]);
        nb_t_butterfly(&w[k + 1], &w[k + 3]);
    }
}

/* Run these stages and stage 2, on rows o, o + 2, ... o + 14, in place. */
NB_FN void nb_t_stages(nb_row *y, unsigned o, struct lanes_max *max)
{
    vf u[8], v[8];
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        u[k] = vf_load(y[o + 2 * k]);
    nb_t_stages84(u, v);
    NB_UNROLL
    for (unsigned k = 0; k < 8; k += 2)
        nb_t_butterfly(&v[k], &v[k + 1]);
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        vf_store(y[o + 2 * k], v[k]);
    lanes_eight(max, v);
}

/* ---- Residuals --------------------------------------------------------------------------------------- */

/* Return byte `i` of each dword times 2^24. */
NB_FN vf nb_t_error(vi row, unsigned i)
{
    return vf_from_int(lanes_byte(row, i));
}

/* Return the units of residuals of the batch in lanes, times 2^-24. */
NB_FN vf nb_t_units(const uint8_t *err_scale, float factor)
{
    uint64_t raw[NB_W / 8];
    memcpy(raw, err_scale, NB_W);
    vi scale = vi_from_bytes(raw);
    vf unit = vf_mul(vf_cast(vi_slli(vi_min_s(scale, vi_set1(254)), 23)), vf_set1(factor));
    vm some = vi_gt(vi_cast(unit), vi_set1((int)(NB_ERROR_SCALE_MIN << 23) - 1));
    return vf_cast(lanes_order(vi_blend(some, vi_set1(0), vi_cast(vf_mul(unit, vf_set1(0x1p-24f))))));
}

/* ---- First half --------------------------------------------------------------------------------------- */

/* Count the large values in each lane of a batch with a thin group, 32 for other groups. Return the lanes
 * with outliers. A lane adds in the order of its group's values, so the result is exact and
 * nb_group_has_outliers need not run. */
static NB_TARGET __attribute__((noinline)) unsigned nb_t_thin(nb_row *h, vm thin, vf max, vf threshold,
                                                              float *counts)
{
    const vi one = vi_set1(1), zero = vi_set1(0), floor = vi_set1((int)NB_FLUSH_BITS - 1);
    vi large = vi_set1(NB_GROUP), small = zero;
    vf sum = vf_set1(0);
    NB_UNROLL16
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const vi a = vi_and(vi_load(h[i]), vi_set1((int)NB_F32_ABS));
        const vm below = vf_lt(vf_cast(a), threshold), counted = vm_and(below, vi_gt(a, floor));
        large = vi_sub(large, vi_blend(below, zero, one));
        small = vi_add(small, vi_blend(counted, zero, one));
        sum = vf_add(sum, vf_cast(vi_blend(counted, zero, a)));
    }
    const vm members = vm_and(thin, vi_gt(small, vi_set1(NB_OUTLIER_MEMBERS - 1)));
    const vf size = vf_mul(max, vf_from_int(small)), limit = vf_mul(sum, vf_set1(NB_OUTLIER));
    vf_store(counts, vf_from_int(vi_blend(thin, vi_set1(NB_GROUP), large)));
    return lanes_bits(vm_and(members, vf_lt(limit, size))); /* the largest value is an outlier if any is */
}

/* Return the maxima that give plain groups their steps (nb_plain_max), for a batch with groups that are thin
 * or flat, those of the mask. */
static NB_TARGET __attribute__((noinline)) vf nb_t_plain_max(nb_row *h, vm special, vf max)
{
    const vf zero = vf_set1(0);
    vf positive = zero, negative = zero; /* times -1 */
    NB_UNROLL16
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const vf x = vf_load(h[i]);
        positive = vf_min(positive, vf_sub(zero, x));
        negative = vf_min(negative, x);
    }
    const vf other = vf_mul(vf_min(vf_sub(zero, positive), vf_sub(zero, negative)), vf_set1(NB_ROOM));
    return vf_cast(vi_blend(special, vi_cast(max), vi_max_s(vi_cast(max), vi_cast(other))));
}

/* The data of a batch, and the results of its survey. */
struct nb_batch {
    vi row[32], code[8]; /* dwords of values, of residual codes */
    vf unit;             /* of these codes times 2^24 */
    vf own, count[2];    /* NB_NORMS_NEAR: squares of half of the values. Any: of the codes, times 2^48 */
    vf squares[16];      /* NB_NORMS_EXACT */
    struct lanes_max max, max_y;
    vi most, least; /* int8: the largest magnitude, and the smallest of the pairs' larger ones */
};

/* Survey four pairs of values. A thin group has a pair of small values. */
NB_FN void nb_t_pairs(bool int4, const vf *a, const vf *b, struct nb_batch *batch)
{
    const vi absolute = vi_set1((int)NB_F32_ABS);
    if (int4) {
        lanes_pairs(&batch->max, a, b);
        return;
    }
    NB_UNROLL
    for (unsigned q = 0; q < 4; q++) {
        const vi larger = vi_max_s(vi_and(vi_cast(a[q]), absolute), vi_and(vi_cast(b[q]), absolute));
        batch->most = vi_max_s(batch->most, larger);
        batch->least = vi_min_s(batch->least, larger);
    }
    NB_HERE(batch->most);
    NB_HERE(batch->least);
}

/* Values 2k, 2k+1 and those 8, 16, 24 further, and the first two stages, 1 and 16, of their transform. */
NB_FN void nb_t_eighth(enum nb_dtype type, bool int4, bool feedback, enum nb_norms norms, unsigned k,
                       struct nb_batch *batch, nb_row *h, nb_row *y)
{
    vf v[8];
    NB_UNROLL
    for (unsigned q = 0; q < 4; q++) {
        const unsigned d = k + 4 * q;
        vf even, odd;
        nb_t_values(type, batch->row, d, &even, &odd);
        if (norms == NB_NORMS_EXACT)
            batch->squares[d] = vf_add(vf_mul(even, even), vf_mul(odd, odd)); /* each rounded */
        if (norms == NB_NORMS_NEAR)
            batch->own = vf_muladd(even, even, batch->own);
        NB_HERE(batch->own);
        if (feedback) {
            const vf a = nb_t_error(batch->code[d / 2], 2 * d % 4);
            const vf b = nb_t_error(batch->code[d / 2], 2 * d % 4 + 1);
            if (norms != NB_NORMS_NONE) /* exact */
                batch->count[q % 2] = vf_muladd(b, b, vf_muladd(a, a, batch->count[q % 2]));
            NB_HERE(batch->count[q % 2]);
            const bool bound =
                norms == NB_NORMS_EXACT; /* may hold: a factor is in the unit, and products are rounded */
            even = bound ? vf_add(vf_mul(a, batch->unit), even) : vf_muladd(a, batch->unit, even);
            odd = bound ? vf_add(vf_mul(b, batch->unit), odd) : vf_muladd(b, batch->unit, odd);
        }
        v[2 * q] = even;
        v[2 * q + 1] = odd;
        vf_store(h[2 * d], even);
        vf_store(h[2 * d + 1], odd);
    }
    /* pairs as in nb_is_thin */
    if (k < 2)
        nb_t_pairs(int4, (vf[]){v[0], v[2], v[4], v[6]}, (vf[]){v[1], v[3], v[5], v[7]}, batch);
    if (k == 3) {
        nb_t_pairs(int4, (vf[]){v[0], v[2], v[4], v[6]},
                   (vf[]){vf_load(h[4]), vf_load(h[12]), vf_load(h[20]), vf_load(h[28])}, batch);
        nb_t_pairs(int4, (vf[]){v[1], v[3], v[5], v[7]},
                   (vf[]){vf_load(h[5]), vf_load(h[13]), vf_load(h[21]), vf_load(h[29])}, batch);
    }
    if (!int4)
        return;
    vf t[8];
    NB_UNROLL
    for (unsigned q = 0; q < 8; q += 2) {
        t[q] = vf_add(v[q], v[q + 1]);
        t[q + 1] = vf_sub(v[q], v[q + 1]);
    }
    NB_UNROLL
    for (unsigned q = 0; q < 4; q++) {
        vf_store(y[2 * k + q % 2 + 8 * (q / 2)], vf_add(t[q], t[q + 4]));
        vf_store(y[2 * k + q % 2 + 8 * (q / 2) + 16], vf_sub(t[q], t[q + 4]));
    }
}

/* Load the values and residuals of a batch. */
NB_FN void nb_t_batch(enum nb_dtype type, bool feedback, const uint8_t *src, const int8_t *err,
                      const uint8_t *err_scale, struct nb_tile_work *work, unsigned j0,
                      struct nb_batch *batch)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);

    NB_UNROLL16
    for (unsigned b = 0; b < bytes * NB_W; b += 64)
        __builtin_prefetch(src + b + NB_AHEAD * nb_value_bytes(type));
    lanes_load(src, bytes, batch->row);
    if (type == NB_F32)
        lanes_load(src + 64, bytes, batch->row + 16);
    if (!feedback)
        return;
    vi any = batch->row[0];
    NB_UNROLL16
    for (unsigned i = 1; i < 15; i += 2)
        any = vi_or3(any, batch->row[i], batch->row[i + 1]);
    any = vi_or(any, batch->row[15]);
    if (type == NB_F32)
        NB_UNROLL16
    for (unsigned i = 16; i < 32; i += 2)
        any = vi_or3(any, batch->row[i], batch->row[i + 1]);
    any = vi_and(any, vi_set1(type == NB_F32 ? (int)NB_F32_ABS : 0x7fff7fff));
    const vm idle = vi_eq(any, vi_set1(0));
    vi_store_bytes(work->idle + j0, lanes_order(vi_blend(idle, vi_set1(0), vi_set1(1))));
    NB_UNROLL
    for (unsigned b = 0; b < NB_GROUP * NB_W; b += 64)
        __builtin_prefetch(err + b + NB_AHEAD, 1);
    lanes_load_bytes(err, batch->code);
    batch->unit = vf_cast(vi_blend(idle, vi_cast(nb_t_units(err_scale, work->factor)), vi_set1(0)));
}

/* Survey a batch of groups from j0 on. Return false when a value is so large that it needs an escape. */
NB_FN bool nb_t_survey(enum nb_dtype type, bool int4, bool feedback, enum nb_norms norms, const uint8_t *src,
                       const int8_t *err, const uint8_t *err_scale, unsigned zeros, struct nb_tile_work *work,
                       unsigned j0, struct nb_tile_sums *tile)
{
    nb_row *h = (nb_row *)(&work->y[0][0][0] + NB_GROUP * j0), y[NB_GROUP] __attribute__((aligned(64)));
    struct nb_batch batch;

    NB_OPAQUE(h);
    batch.unit = vf_set1(0);
    nb_t_batch(type, feedback, src, err, err_scale, work, j0, &batch);
    batch.own = tile->own;
    batch.count[0] = batch.count[1] = vf_set1(0);
    lanes_max_begin(&batch.max);
    lanes_max_begin(&batch.max_y);
    batch.most = vi_set1(0);
    batch.least = vi_set1((int)NB_F32_INF);
    nb_t_eighth(type, int4, feedback, norms, 0, &batch, h, y);
    nb_t_eighth(type, int4, feedback, norms, 1, &batch, h, y);
    nb_t_eighth(type, int4, feedback, norms, 2, &batch, h, y);
    nb_t_eighth(type, int4, feedback, norms, 3, &batch, h, y);
    if (norms == NB_NORMS_NEAR)
        tile->own = batch.own;
    vm nan = vm_from_bits(0);
    if (int4) {
        nb_t_stages(y, 0, &batch.max_y);
        nb_t_stages(y, 1, &batch.max_y);
        nb_t_stages(y, 16, &batch.max_y);
        nb_t_stages(y, 17, &batch.max_y);
        nan = vf_is_nan(vf_load(y[0]));
    }
    vi bits = int4 ? lanes_most(&batch.max) : batch.most;
    /* Maxima of int4 ignore NaN, but the transform spreads one over all values. */
    if (vm_bits(vi_gt(bits, vi_set1((int)NB_ESCAPE_BITS - 1))) | vm_bits(nan))
        return false;
    vf max = vf_cast(bits);
    const vf threshold = vf_mul(max, vf_set1(NB_SMALL));
    vf ratio = vf_set1(0x1.6a09e6p0f); /* sqrt(64 / 32) */
    const vm thin = vf_lt(int4 ? lanes_least(&batch.max) : vf_cast(batch.least), threshold);
    if (__builtin_expect(vm_bits(thin), 0)) {
        float counts[NB_W] __attribute__((aligned(64)));
        const unsigned outliers = nb_t_thin(h, thin, max, threshold, counts);
        for (unsigned b = 0; b < NB_W / 8; b++)
            work->outliers[j0 / 8 + b] = (uint8_t)(outliers >> 8 * b);
        ratio = vf_sqrt(vf_div(vf_set1(64.0f), vf_load(counts)));
    }
    vm better = vm_from_bits(0), coded;
    if (int4) {
        const vm flat = vf_lt(vf_mul(max, vf_set1(NB_FLAT)), lanes_least(&batch.max));
        if (__builtin_expect(vm_bits(thin) | vm_bits(flat), 0)) {
            max = nb_t_plain_max(h, vm_blend(thin, flat, vm_from_bits(~0u)), max);
            bits = vi_cast(max);
        }
        const vf scaled = vf_mul(vf_cast(lanes_most(&batch.max_y)), vf_set1(0.125f));
        better = vf_lt(vf_mul(scaled, ratio), max);
        if (__builtin_expect(zeros, 0))
            better = vm_and(better, lanes_mask(~zeros));
        bits = vi_blend(better, bits, vi_cast(scaled));
        vm positive = vm_blend(better, lanes_positive(&batch.max), lanes_positive(&batch.max_y));
        vi_store(work->positive + j0, vi_blend(positive, vi_set1(0), vi_set1(1)));
    }
    coded = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));
    better = vm_and(better, coded);
    tile->max = vi_max_s(tile->max, bits);
    tile->min = vi_min_s(tile->min, vi_blend(coded, vi_set1((int)NB_F32_INF), bits));
    vi_store(work->max + j0, bits);
    vi_store(work->transform + j0, vi_blend(better, vi_set1(0), vi_set1(1)));
    if (int4)
        NB_UNROLL16
    for (unsigned i = 0; i < NB_GROUP; i++)
        lanes_store_if(better, h[i], y[i]);
    /* codes times 2^24, units times 2^-24 */
    vf carried = vf_add(batch.count[0], batch.count[1]);
    carried = vf_mul(vf_mul(carried, batch.unit), batch.unit);
    if (norms == NB_NORMS_NEAR)
        tile->carried = vf_add(tile->carried, carried);
    if (norms == NB_NORMS_EXACT) {
        NB_UNROLL16
        for (unsigned half = 8; half; half /= 2)
            for (unsigned d = 0; d < half; d++)
                batch.squares[d] = vf_add(batch.squares[d], batch.squares[d + half]);
        vf_store(work->own2 + j0, vf_cast(lanes_order(vi_cast(batch.squares[0]))));
        if (feedback)
            vf_store(work->error2 + j0, vf_cast(lanes_order(vi_cast(carried))));
    }
    return true;
}

NB_FN bool nb_t_survey_batches(enum nb_dtype type, bool int4, bool feedback, enum nb_norms norms,
                               const struct nb_tile_job *job, struct nb_tile_work *work,
                               struct nb_tile_sums *tile)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    memset(work->outliers, 0, sizeof work->outliers);
    nb_s_sums_begin(tile);
    for (unsigned j = 0; j < job->groups; j += NB_W) {
        const uint8_t *src = job->src + bytes * j, *err_scale = feedback ? job->err_scale + j : NULL;
        const int8_t *err = feedback ? job->err + NB_GROUP * j : NULL;
        unsigned left = job->groups - j;
        const unsigned zeros = int4 || feedback ? nb_s_zeros(type, job, j, left) : 0;
        struct nb_padded pad;
        if (left < NB_W) {
            memset(&pad, 0, sizeof pad);
            memcpy(pad.src, src, bytes * left);
            src = pad.src;
            if (feedback) {
                memcpy(pad.err, err, NB_GROUP * left);
                memcpy(pad.err_scale, err_scale, left);
                err = pad.err;
                err_scale = pad.err_scale;
            }
        }
        if (!nb_t_survey(type, int4, feedback, norms, src, err, err_scale, zeros, work, j, tile))
            return false;
    }
    return true;
}

NB_FN enum nb_survey nb_t_survey_tile(enum nb_dtype type, bool int4, bool feedback,
                                      const struct nb_tile_job *job, struct nb_tile_work *work, bool measure)
{
    struct nb_tile_sums tile;

    nb_work_begin(work);
    const bool near = feedback && !measure && !work->doubt;
    if (near && !nb_t_survey_batches(type, int4, true, NB_NORMS_NEAR, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    if (!near && !(feedback || measure) &&
        !nb_t_survey_batches(type, int4, false, NB_NORMS_NONE, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    if (near ? !nb_s_unbound(&tile, job->bound) : feedback || measure) {
        if (feedback ? !nb_t_survey_batches(type, int4, true, NB_NORMS_EXACT, job, work, &tile)
                     : !nb_t_survey_batches(type, int4, false, NB_NORMS_EXACT, job, work, &tile))
            return NB_SURVEY_CAREFUL;
        if (!nb_work_norms(work, job))
            return NB_SURVEY_CAREFUL;
    }
    /* The bound seldom acts: survey as if it did not, and survey again with the same code where it does. */
    if (work->factor != 1 && !nb_t_survey_batches(type, int4, true, NB_NORMS_EXACT, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    work->lanes = NB_W;
    return nb_s_survey_end(&tile, int4, work);
}
