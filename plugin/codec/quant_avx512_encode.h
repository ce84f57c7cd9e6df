/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding int4 tiles with AVX-512, sixteen groups at a time with a group in each lane: maxima, transforms,
 * sums and scales need no steps across lanes then. What remains are two transpositions, of packed values on
 * the way in and of packed codes on the way out.
 * Lane 4 a + b holds group 4 b + a of the batch ("slots", nb_lane), which spares both a stage of shuffles.
 * Part of quant_avx512.c, included there.
 *
 * Values of a batch lie in memory as rows: row i has value i of all sixteen groups.
 */

typedef float nb_row[16];

/* Slot of each group, and the other way round. */
NB_FN vi nb_t_slots(void)
{
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

/* Bits of slots to bits of groups. */
NB_FN unsigned nb_t_by_group(vm bits)
{
    return _mm_movepi8_mask(_mm_shuffle_epi8(_mm_movm_epi8(bits), _mm512_cvtepi32_epi8(nb_t_slots())));
}

/* Transpose 4x4 dwords in each 128-bit lane. */
NB_FN void nb_t_dwords(vi *a, vi *b, vi *c, vi *d)
{
    vi t0 = _mm512_unpacklo_epi32(*a, *b), t1 = _mm512_unpackhi_epi32(*a, *b);
    vi t2 = _mm512_unpacklo_epi32(*c, *d), t3 = _mm512_unpackhi_epi32(*c, *d);
    *a = _mm512_unpacklo_epi64(t0, t2);
    *b = _mm512_unpackhi_epi64(t0, t2);
    *c = _mm512_unpacklo_epi64(t1, t3);
    *d = _mm512_unpackhi_epi64(t1, t3);
}

/* Rows of 16 dwords of 16 groups that lie `stride` bytes apart. */
NB_FN void nb_t_load(const uint8_t *src, unsigned stride, vi *row)
{
    vi r[16];
    NB_UNROLL16
    for (unsigned l = 0; l < 4; l++) {
        for (unsigned e = 0; e < 4; e++)
            r[4 * l + e] = vi_load(src + stride * (l + 4 * e));
        nb_t_dwords(&r[4 * l], &r[4 * l + 1], &r[4 * l + 2], &r[4 * l + 3]);
    }
    NB_UNROLL16
    for (unsigned k = 0; k < 4; k++) {
        vi u0 = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x44), u1 = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xee);
        vi u2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x44);
        vi u3 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xee);
        row[k] = _mm512_shuffle_i32x4(u0, u2, 0x88);
        row[4 + k] = _mm512_shuffle_i32x4(u0, u2, 0xdd);
        row[8 + k] = _mm512_shuffle_i32x4(u1, u3, 0x88);
        row[12 + k] = _mm512_shuffle_i32x4(u1, u3, 0xdd);
    }
}

/* Has x computed here. GCC 12 moves what is used late, sums of squares and maxima, behind what comes between, and keeps
 * all that they are made of on the stack until then: a store, a load and a copy for each vector. */
#define NB_HERE(x) __asm__ volatile("" : : "v"(x))

/* Values 2d and 2d+1 of the groups. */
NB_FN void nb_t_values(enum nb_dtype type, const vi *row, unsigned d, vf *even, vf *odd)
{
    if (type == NB_F32) {
        *even = vf_cast(row[2 * d]);
        *odd = vf_cast(row[2 * d + 1]);
    } else if (type == NB_BF16) {
        *even = vf_cast(vi_slli(row[d], 16));
        *odd = vf_cast(vi_and(row[d], vi_set1((int)0xffff0000u)));
    } else {
        *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(row[d]));
        *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(vi_srli(row[d], 16)));
    }
}

/* Which of two has the larger magnitude, with its sign; the positive one of equals. */
NB_FN vf nb_t_larger(vf a, vf b)
{
    return _mm512_range_ps(a, b, 0x07);
}

NB_FN vf nb_t_smaller_abs(vf a, vf b)
{
    return _mm512_range_ps(a, b, 0x0a);
}

NB_FN vf nb_t_larger_abs(vf a, vf b)
{
    return _mm512_range_ps(a, b, 0x0b);
}

NB_FN void nb_t_butterfly(vf *a, vf *b)
{
    vf s = vf_add(*a, *b);
    *b = vf_sub(*a, *b);
    *a = s;
}

/* The stages 8 and 4 of the transform, on every other row of sixteen. */
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

/* These and 2, on rows o, o + 2, ... o + 14. */
NB_FN void nb_t_stages(nb_row *y, unsigned o, vf *v)
{
    vf u[8];
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        u[k] = vf_load(y[o + 2 * k]);
    nb_t_stages84(u, v);
    NB_UNROLL
    for (unsigned k = 0; k < 8; k += 2)
        nb_t_butterfly(&v[k], &v[k + 1]);
}

/* ---- Errors ------------------------------------------------------------------------------------------- */

/* Where the halves of groups, 16 bytes each, lie in two vectors. */
NB_FN vi nb_t_halves(unsigned upper)
{
    return upper ? _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15)
                 : _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
}

/* Rows of dwords: row b has the error codes 4b ... 4b+3 of the groups. */
NB_FN void nb_t_load_errors(const int8_t *err, vi *row)
{
    for (unsigned k = 0; k < 4; k++) {
        vi a = vi_load(err + 128 * k), b = vi_load(err + 128 * k + 64);
        row[k] = _mm512_permutex2var_epi64(a, nb_t_halves(0), b);
        row[4 + k] = _mm512_permutex2var_epi64(a, nb_t_halves(1), b);
    }
    nb_t_dwords(&row[0], &row[1], &row[2], &row[3]);
    nb_t_dwords(&row[4], &row[5], &row[6], &row[7]);
}

/* Byte `i` of each dword times 2^24. */
NB_FN vf nb_t_error(vi row, unsigned i)
{
    const vi second = _mm512_set4_epi32((int)0x0dffffff, (int)0x09ffffff, (int)0x05ffffff, (int)0x01ffffff);
    const vi third = _mm512_set4_epi32((int)0x0effffff, (int)0x0affffff, (int)0x06ffffff, (int)0x02ffffff);
    vi top = i == 0   ? vi_slli(row, 24)
             : i == 1 ? _mm512_shuffle_epi8(row, second)
             : i == 2 ? _mm512_shuffle_epi8(row, third)
                      : vi_and(row, vi_set1((int)0xff000000u));
    return vf_from_int(top);
}

/* Error units of the batch in slots, times 2^-24. */
NB_FN vf nb_t_units(const uint8_t *err_scale, float factor)
{
    vi scale = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)err_scale));
    vf unit = vf_mul(vf_cast(vi_slli(vi_min_s(scale, vi_set1(254)), 23)), vf_set1(factor));
    vm some = vi_gt(vi_cast(unit), vi_set1((int)(NB_ERROR_SCALE_MIN << 23) - 1));
    unit = _mm512_maskz_mul_ps(some, unit, vf_set1(0x1p-24f));
    return _mm512_permutexvar_ps(nb_t_slots(), unit);
}

/* Four rows of integers to bytes in place: dword of a slot. */
NB_FN vi nb_t_bytes(vi a, vi b, vi c, vi d)
{
    const vi order = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    vi bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_shuffle_epi8(bytes, order);
}

/* ---- First half --------------------------------------------------------------------------------------- */

/* For a batch in which some group is thin: counts of large values in their lanes, 32 for others. Returns the
 * lanes that have outliers. A lane adds up in the order of its group's values, so that nothing is left to
 * nb_group_has_outliers. */
static NB_TARGET __attribute__((noinline)) vm nb_t_thin(nb_row *h, vm thin, vf max, vf threshold,
                                                        float *counts)
{
    const vi one = vi_set1(1), floor = vi_set1((int)NB_FLUSH_BITS - 1), absolute = vi_set1((int)NB_F32_ABS);
    vi large = vi_set1(0), small = vi_set1(0);
    vf sum = vf_set1(0);
    NB_UNROLL16
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const vf a = vf_cast(vi_and(vi_cast(vf_load(h[i])), absolute));
        const vm below = vf_lt(a, threshold);
        const vm counted = _mm512_mask_cmpgt_epi32_mask(below, vi_cast(a), floor);
        large = _mm512_mask_sub_epi32(large, below, large, one);
        small = _mm512_mask_add_epi32(small, counted, small, one);
        sum = _mm512_mask_add_ps(sum, counted, sum, a);
    }
    const vm members = thin & vi_gt(small, vi_set1(NB_OUTLIER_MEMBERS - 1));
    const vf size = vf_mul(max, vf_from_int(small)), limit = vf_mul(sum, vf_set1(NB_OUTLIER));
    const vi all = vi_set1(NB_GROUP);
    vf_store(counts, vf_from_int(_mm512_mask_add_epi32(all, thin, all, large)));
    return NB_MASK(
        _mm512_mask_cmp_ps_mask(members, size, limit, _CMP_GT_OQ)); /* the largest value is one if any is */
}

/* A batch of groups from j0 on. `exact`: products of error codes and units are, because no bound acts. */
NB_FN bool nb_t_survey(enum nb_dtype type, bool feedback, enum nb_norms norms, bool exact, const uint8_t *src,
                       const int8_t *err, const uint8_t *err_scale, struct nb_tile_work *work, unsigned j0,
                       struct nb_tile_sums *tile)
{
    nb_row *const h = (nb_row *)(&work->y[0][0][0] + NB_GROUP * j0), y[NB_GROUP] __attribute__((aligned(64)));
    vi row[32], code[8];
    vf max = vf_set1(0), least = vf_cast(vi_set1((int)NB_F32_INF)), max_y = vf_set1(0), unit = vf_set1(0);
    vf count[2] = {vf_set1(0), vf_set1(0)}, squares[16], own = tile->own;
    vm active = 0xffff;
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);

    NB_UNROLL16
    for (unsigned g = 0; g < NB_W; g++)
        for (unsigned b = 0; b < bytes; b += 64)
            __builtin_prefetch(src + bytes * g + b + NB_AHEAD * nb_value_bytes(type));
    nb_t_load(src, bytes, row);
    if (type == NB_F32)
        nb_t_load(src + 64, bytes, row + 16);
    if (feedback) {
        vi any = row[0];
        NB_UNROLL16
        for (unsigned i = 1; i < 15; i += 2)
            any = _mm512_ternarylogic_epi32(any, row[i], row[i + 1], 0xfe); /* or */
        any = vi_or(any, row[15]);
        if (type == NB_F32)
            NB_UNROLL16
        for (unsigned i = 16; i < 32; i += 2)
            any = _mm512_ternarylogic_epi32(any, row[i], row[i + 1], 0xfe);
        active = _mm512_test_epi32_mask(any, vi_set1(type == NB_F32 ? (int)NB_F32_ABS : 0x7fff7fff));
        vi idle = _mm512_maskz_mov_epi32((vm)~active, vi_set1(1));
        vi_store_bytes(work->idle + j0, _mm512_permutexvar_epi32(nb_t_slots(), idle));
        for (unsigned b = 0; b < NB_GROUP * NB_W; b += 64)
            __builtin_prefetch(err + b + NB_AHEAD, 1);
        nb_t_load_errors(err, code);
        unit = _mm512_maskz_mov_ps(active, nb_t_units(err_scale, work->factor));
    }
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        vf v[8]; /* values 2k, 2k+1 and those 8, 16, 24 further */
        NB_UNROLL
        for (unsigned q = 0; q < 4; q++) {
            unsigned d = k + 4 * q;
            vf even, odd;
            nb_t_values(type, row, d, &even, &odd);
            if (norms == NB_NORMS_EXACT)
                squares[d] = vf_add(vf_mul(even, even), vf_mul(odd, odd)); /* rounded each */
            if (norms == NB_NORMS_NEAR)
                own = _mm512_fmadd_ps(even, even, own);
            NB_HERE(own);
            if (feedback) {
                vf a = nb_t_error(code[d / 2], 2 * d % 4), b = nb_t_error(code[d / 2], 2 * d % 4 + 1);
                if (norms != NB_NORMS_NONE)
                    count[q % 2] = _mm512_fmadd_ps(b, b, _mm512_fmadd_ps(a, a, count[q % 2])); /* exact */
                NB_HERE(count[q % 2]);
                even = exact ? _mm512_fmadd_ps(a, unit, even) : vf_add(vf_mul(a, unit), even);
                odd = exact ? _mm512_fmadd_ps(b, unit, odd) : vf_add(vf_mul(b, unit), odd);
            }
            v[2 * q] = even;
            v[2 * q + 1] = odd;
            vf_store(h[2 * d], even);
            vf_store(h[2 * d + 1], odd);
        }
        if (k != 2) { /* pairs as in nb_is_thin */
            vf p[4], low[4];
            NB_UNROLL
            for (unsigned q = 0; q < 4; q++) {
                p[q] = low[q] = nb_t_larger(v[2 * q], k == 3 ? vf_load(h[8 * q + 4]) : v[2 * q + 1]);
                if (k == 3) {
                    vf o = nb_t_larger(v[2 * q + 1], vf_load(h[8 * q + 5]));
                    low[q] = nb_t_smaller_abs(p[q], o);
                    p[q] = nb_t_larger(p[q], o);
                }
            }
            max = nb_t_larger(max, nb_t_larger(nb_t_larger(p[0], p[1]), nb_t_larger(p[2], p[3])));
            low[0] = nb_t_smaller_abs(nb_t_smaller_abs(low[0], low[1]), nb_t_smaller_abs(low[2], low[3]));
            least = nb_t_smaller_abs(least, low[0]);
            NB_HERE(max);
            NB_HERE(least);
        }
        for (unsigned q = 0; q < 8; q += 2)
            nb_t_butterfly(&v[q], &v[q + 1]); /* 1 */
        for (unsigned q = 0; q < 4; q++)
            nb_t_butterfly(&v[q], &v[q + 4]); /* 16 */
        for (unsigned q = 0; q < 8; q++)
            vf_store(y[2 * k + q % 2 + 8 * (q / 2)], v[q]);
    }
    vf last = max;
    NB_UNROLL
    for (unsigned s = 0; s < 4; s++) {
        unsigned o = s % 2 + 16 * (s / 2);
        vf v[8];
        nb_t_stages(y, o, v);
        for (unsigned k = 0; k < 8; k++)
            vf_store(y[o + 2 * k], v[k]);
        last = v[0];
        for (unsigned k = 0; k < 4; k++)
            v[k] = nb_t_larger(v[k], v[k + 4]);
        max_y = nb_t_larger(max_y, nb_t_larger(nb_t_larger(v[0], v[1]), nb_t_larger(v[2], v[3])));
        NB_HERE(max_y);
    }
    const vi absolute = vi_set1((int)NB_F32_ABS);
    vi a = vi_and(vi_cast(max), absolute);
    /* Maxima ignore NaN, but the transform of one is NaN all over. */
    if (vi_gt(a, vi_set1((int)NB_ESCAPE_BITS - 1)) | NB_MASK(_mm512_cmp_ps_mask(last, last, _CMP_UNORD_Q)))
        return false;
    vf threshold = vf_mul(vf_cast(a), vf_set1(NB_SMALL));
    vf ratio = vf_set1(0x1.6a09e6p0f); /* sqrt(64 / 32) */
    vm thin = vf_lt(least, threshold);
    if (__builtin_expect(thin, 0)) {
        float counts[NB_W] __attribute__((aligned(64)));
        nb_put16(work->outliers + j0 / 8, nb_t_by_group(nb_t_thin(h, thin, vf_cast(a), threshold, counts)));
        ratio = vf_sqrt(vf_div(vf_set1(64.0f), vf_load(counts)));
    }
    vf scaled = vf_mul(vf_cast(vi_and(vi_cast(max_y), absolute)), vf_set1(0.125f));
    vm better = vf_lt(vf_mul(scaled, ratio), vf_cast(a));
    vi bits = vi_blend(better, a, vi_cast(scaled));
    vi sign = vi_srli(vi_blend(better, vi_cast(max), vi_cast(max_y)), 31);
    vm coded = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));
    better &= coded;
    tile->max = vi_max_s(tile->max, bits);
    tile->min = vi_min_s(tile->min, vi_blend(coded, vi_set1((int)NB_F32_INF), bits));
    vi_store(work->max + j0, bits);
    vi_store(work->positive + j0, vi_sub(vi_set1(1), sign));
    vi_store(work->transform + j0, _mm512_maskz_mov_epi32(better, vi_set1(1)));
    NB_UNROLL16
    for (unsigned i = 0; i < NB_GROUP; i++)
        _mm512_mask_store_ps(h[i], better, vf_load(y[i]));
    tile->own = own;
    /* codes times 2^24, units times 2^-24 */
    vf carried = vf_add(count[0], count[1]);
    carried = vf_mul(vf_mul(carried, unit), unit);
    if (norms == NB_NORMS_NEAR)
        tile->carried = vf_add(tile->carried, carried);
    if (norms == NB_NORMS_EXACT) {
        NB_UNROLL16
        for (unsigned half = 8; half; half /= 2)
            for (unsigned d = 0; d < half; d++)
                squares[d] = vf_add(squares[d], squares[d + half]);
        vf_store(work->own2 + j0, _mm512_permutexvar_ps(nb_t_slots(), squares[0]));
        if (feedback)
            vf_store(work->error2 + j0, _mm512_permutexvar_ps(nb_t_slots(), carried));
    }
    return true;
}

NB_FN bool nb_t_survey_batches(enum nb_dtype type, bool feedback, enum nb_norms norms, bool exact,
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
        if (!nb_t_survey(type, feedback, norms, exact, src, err, err_scale, work, j, tile))
            return false;
    }
    return true;
}

NB_FN enum nb_survey nb_t_survey_tile(enum nb_dtype type, bool feedback, const struct nb_tile_job *job,
                                      struct nb_tile_work *work, bool measure)
{
    struct nb_tile_sums tile;

    nb_work_begin(work);
    const bool near = feedback && !measure && !work->doubt;
    if (near && !nb_t_survey_batches(type, true, NB_NORMS_NEAR, true, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    if (!near && !(feedback || measure) &&
        !nb_t_survey_batches(type, false, NB_NORMS_NONE, true, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    if (near ? !nb_s_unbound(&tile, job->bound) : feedback || measure) {
        if (feedback ? !nb_t_survey_batches(type, true, NB_NORMS_EXACT, true, job, work, &tile)
                     : !nb_t_survey_batches(type, false, NB_NORMS_EXACT, true, job, work, &tile))
            return NB_SURVEY_CAREFUL;
        if (!nb_work_norms(work, job))
            return NB_SURVEY_CAREFUL;
    }
    /* The bound seldom acts: survey as if it did not, and once more where it does. */
    if (work->factor != 1 && !nb_t_survey_batches(type, true, NB_NORMS_NONE, false, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    work->lanes = true;
    if (nb_work_has_outliers(work))
        return NB_SURVEY_OUTLIERS;
    return nb_work_range(work, (uint32_t)_mm512_reduce_max_epi32(tile.max),
                         (uint32_t)_mm512_reduce_min_epi32(tile.min), job->int4);
}

/* ---- Second half -------------------------------------------------------------------------------------- */

/* The low halves of two, with some bits turned. */
NB_FN vi nb_t_words(vi low, vi high, int turned)
{
    return _mm512_xor_si512(_mm512_mask_blend_epi16(0xaaaaaaaau, low, vi_slli(high, 16)), vi_set1(turned));
}

/* New errors of a batch from its residuals x (in place), of transformed groups from what the first two stages of the
 * transform, 1 and 16, make of them. The last stage leaves alone what is not transformed. */
NB_FN void nb_t_errors(const struct nb_tile_job *job, const struct nb_tile_work *work, nb_row *x,
                       vm transform, int8_t *err, uint8_t *err_scale, const uint8_t *idle)
{
    vf max = vf_set1(0);
    NB_UNROLL
    for (unsigned s = 0; s < 4; s++) {
        unsigned o = s % 2 + 16 * (s / 2);
        vf v[8], w[8];
        NB_UNROLL
        for (unsigned k = 0; k < 8; k++)
            v[k] = vf_load(x[o + 2 * k]);
        nb_t_stages84(v, w);
        NB_UNROLL
        for (unsigned k = 0; k < 8; k += 2) {
            v[k] = _mm512_mask_add_ps(v[k], transform, w[k], w[k + 1]);
            v[k + 1] = _mm512_mask_sub_ps(v[k + 1], transform, w[k], w[k + 1]);
            vf_store(x[o + 2 * k], v[k]);
            vf_store(x[o + 2 * k + 2], v[k + 1]);
        }
        for (unsigned k = 0; k < 8; k += 2)
            max = nb_t_larger_abs(max, nb_t_larger_abs(v[k], v[k + 1]));
        NB_HERE(max);
    }
    /* Transformed ones are still to be divided by 32: by the exponents of their units, unless they are mixed. */
    vm times32 = transform;
    max = _mm512_mask_mul_ps(max, transform, max, vf_set1(0.03125f));
    if (job->mode == NB_EF_EMA) {
        vf beta = vf_set1(job->beta), rest = vf_set1(1.0f - job->beta);
        vf unit = nb_t_units(err_scale, work->factor);
        vi code[8];
        nb_t_load_errors(err, code);
        max = vf_set1(0);
        times32 = 0;
        NB_UNROLL16
        for (unsigned i = 0; i < NB_GROUP; i++) {
            vf e = vf_mul(nb_t_error(code[i / 4], i % 4), unit), r = vf_load(x[i]);
            r = _mm512_mask_mul_ps(r, transform, r, vf_set1(0.03125f));
            vf kept = vf_add(vf_mul(beta, e), vf_mul(rest, r));
            vf_store(x[i], kept);
            max = nb_t_larger_abs(max, kept);
        }
    }
    vi bits = vi_cast(max);
    vm some = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));
    /* 127.5/64 and more belongs to the next power of two, so nothing exceeds 127. */
    vi exponent = vi_srli(vi_add(bits, vi_set1(0x10000)), 23);
    vi scale = _mm512_permutexvar_epi32(nb_t_slots(), _mm512_maskz_sub_epi32(some, exponent, vi_set1(6)));
    /* Codes are rounded by additions, two at a time: a sum with 2^23 + 2^15 units has whole units, one with 2^15 + 2^14
     * + 1/2 of them has 256ths, where the other code is. Groups without errors get a unit beside which all is 0. */
    vi power = _mm512_mask_sub_epi32(vi_set1(127), some, exponent, vi_set1(6));
    power = _mm512_mask_add_epi32(power, times32, power, vi_set1(5));
    const vf unit = vf_cast(vi_slli(power, 23)), whole = vf_mul(unit, vf_set1(0x1.01p23f));
    const vf less = vf_sub(whole, vf_mul(unit, vf_set1(49152.5f)));
    vi out[8], group[8];
    NB_UNROLL
    for (unsigned b = 0; b < 8; b++) {
        vf w[2];
        for (unsigned i = 0; i < 2; i++) {
            w[i] = vf_sub(vf_add(whole, vf_load(x[4 * b + 2 * i + 1])), less);
            w[i] = _mm512_fmadd_ps(vf_load(x[4 * b + 2 * i]), vf_set1(0x1p-8f), w[i]);
        }
        out[b] = nb_t_words(vi_cast(w[0]), vi_cast(w[1]), 0x00800080);
    }
    nb_t_dwords(&out[0], &out[1], &out[2], &out[3]);
    nb_t_dwords(&out[4], &out[5], &out[6], &out[7]);
    const vi first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
             second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        group[2 * k] = _mm512_permutex2var_epi64(out[k], first, out[4 + k]);
        group[2 * k + 1] = _mm512_permutex2var_epi64(out[k], second, out[4 + k]);
    }
    __m128i kept = _mm_loadu_si128((const __m128i *)(const void *)idle);
    vm keep = _mm_test_epi8_mask(kept, kept);
    if (__builtin_expect(keep, 0)) {
        NB_UNROLL
        for (unsigned k = 0; k < 8; k++)
            _mm512_mask_storeu_epi64(
                err + 64 * k, (__mmask8)((keep >> 2 * k & 1 ? 0 : 0x0f) | (keep >> 2 * k & 2 ? 0 : 0xf0)),
                group[k]);
        _mm_mask_storeu_epi8(err_scale, (vm)~keep, _mm512_cvtepi32_epi8(scale));
        return;
    }
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        vi_store(err + 64 * k, group[k]);
    vi_store_bytes(err_scale, scale);
}

/* Scales of a tile, found for all groups at once so that divisions keep nobody waiting; in slots. */
struct nb_plan {
    float step[NB_TILE_GROUPS] __attribute__((aligned(64)));
    float inverse[NB_TILE_GROUPS] __attribute__((aligned(64)));
    uint8_t scales[NB_TILE_GROUPS];
    vm transform[NB_TILE_GROUPS / NB_W];
};

/* Codes of a batch, eight rows to a dword of out, from values in a domain. *noise: squares of what is lost, if they are
 * wanted. */
NB_FN void nb_t_codes(bool measure, nb_row *x, vf inv, vf unit, vi *out, vf *noise)
{
    const vi most = _mm512_set1_epi8(7), nibble = _mm512_set1_epi8(15);
    const vi order = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    NB_UNROLL
    for (unsigned b = 0; b < 4; b++) {
        vi q[8];
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++) {
            vf y = vf_load(x[8 * b + i]);
            q[i] = vi_round(vf_mul(y, inv));
            if (measure) {
                vf r = vf_residual(y, vf_from_int(vi_min_s(q[i], vi_set1(7))), unit);
                *noise = _mm512_fmadd_ps(r, r, *noise);
            }
        }
        vi low = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[2]), _mm512_packs_epi32(q[4], q[6]));
        vi high = _mm512_packs_epi16(_mm512_packs_epi32(q[1], q[3]), _mm512_packs_epi32(q[5], q[7]));
        low = _mm512_min_epi8(low, most);
        high = _mm512_slli_epi16(_mm512_min_epi8(high, most), 4);
        out[b] = _mm512_shuffle_epi8(_mm512_ternarylogic_epi32(low, high, nibble, 0xe4), order);
    }
}

/* The same with residuals: x becomes these, of transformed groups what the stages 1 and 16 make of them. The codes
 * are floats here; four of them are put together as digits of a number of 16 bits, whose carries are turned back. */
NB_FN void nb_t_codes_and_errors(bool measure, nb_row *x, vf inv, vf unit, vi *out, vf *noise, vm transform)
{
    const vf most = vf_set1(7), digit = vf_set1(16), bias = vf_set1(0x1.8p23f + 0x888);
    vf word[8];
    NB_UNROLL
    for (unsigned m = 0; m < 4; m++) {
        vf r[8];
        NB_UNROLL
        for (unsigned half = 0; half < 2; half++) {
            nb_row *const row = x + 4 * m + 16 * half;
            vf q[4];
            for (unsigned i = 0; i < 4; i++) {
                vf y = vf_load(row[i]);
                q[i] = _mm512_roundscale_ps(vf_mul(y, inv), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
                q[i] = _mm512_min_ps(q[i], most);
                r[4 * half + i] = vf_residual(y, q[i], unit);
                if (measure)
                    *noise = _mm512_fmadd_ps(r[4 * half + i], r[4 * half + i], *noise);
            }
            q[2] = _mm512_fmadd_ps(q[3], digit, q[2]);
            q[0] = vf_add(_mm512_fmadd_ps(q[1], digit, q[0]), bias);
            word[m + 4 * half] = _mm512_fmadd_ps(q[2], vf_set1(256), q[0]);
        }
        vf t[8];
        for (unsigned i = 0; i < 8; i += 2) {
            t[i] = vf_add(r[i], r[i + 1]);
            t[i + 1] = vf_sub(r[i], r[i + 1]);
        }
        for (unsigned i = 0; i < 4; i++) {
            vf_store(x[4 * m + i], _mm512_mask_add_ps(r[i], transform, t[i], t[i + 4]));
            vf_store(x[4 * m + i + 16], _mm512_mask_sub_ps(r[i + 4], transform, t[i], t[i + 4]));
        }
    }
    for (unsigned b = 0; b < 4; b++)
        out[b] = nb_t_words(vi_cast(word[2 * b]), vi_cast(word[2 * b + 1]), 0x08880888);
}

NB_FN void nb_t_quantize(bool feedback, bool measure, const struct nb_tile_job *job,
                         struct nb_tile_work *work, unsigned j0, uint8_t *scales, uint8_t *domains,
                         uint8_t *codes, int8_t *err, uint8_t *err_scale, const uint8_t *idle,
                         const struct nb_plan *plan)
{
    const __m128i slots = _mm512_cvtepi32_epi8(nb_t_slots());
    const vm transform = plan->transform[j0 / NB_W];
    nb_row *x = (nb_row *)(&work->y[0][0][0] + NB_GROUP * j0);
    const vf inv = vf_load(plan->inverse + j0), unit = vf_load(plan->step + j0);
    vi out[4];
    vf noise = vf_set1(0);

    _mm_storeu_si128(
        (__m128i *)(void *)scales,
        _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(plan->scales + j0)), slots));
    nb_put16(domains, nb_t_by_group(transform));
    if (feedback)
        nb_t_codes_and_errors(measure, x, inv, unit, out, &noise, transform);
    else
        nb_t_codes(measure, x, inv, unit, out, &noise);
    nb_t_dwords(&out[0], &out[1], &out[2], &out[3]);
    NB_UNROLL
    for (unsigned b = 0; b < 4; b++)
        vi_store(codes + 64 * b, out[b]);
    if (measure)
        work->noise2 += _mm512_reduce_add_ps(_mm512_mask_mul_ps(noise, transform, noise, vf_set1(0.03125f)));
    if (feedback)
        nb_t_errors(job, work, x, transform, err, err_scale, idle);
}

NB_FN float nb_t_quantize_tile(bool feedback, bool measure, const struct nb_tile_job *job,
                               struct nb_tile_work *work, uint8_t *scales, uint8_t *domains, uint8_t *codes,
                               struct nb_encode_stats *stats)
{
    struct nb_plan plan;
    work->noise2 = 0;
    for (unsigned j = 0; j < job->groups; j += NB_W)
        plan.transform[j / NB_W] =
            (vm)nb_s_scales(true, work, j, plan.scales + j, plan.step + j, plan.inverse + j, stats);
    for (unsigned j = 0; j < job->groups; j += NB_W) {
        unsigned left = job->groups - j;
        int8_t *err = feedback ? job->err + NB_GROUP * j : NULL;
        uint8_t *err_scale = feedback ? job->err_scale + j : NULL;
        if (left >= NB_W) {
            nb_t_quantize(feedback, measure, job, work, j, scales + j, domains + j / 8, codes + 16 * j, err,
                          err_scale, work->idle + j, &plan);
            continue;
        }
        struct nb_padded pad;
        uint8_t bits[NB_W / 8];
        memset(&pad, 0, sizeof pad);
        if (feedback) {
            memset(pad.idle, 1, sizeof pad.idle);
            memcpy(pad.err, err, NB_GROUP * left);
            memcpy(pad.err_scale, err_scale, left);
            memcpy(pad.idle, work->idle + j, left);
        }
        nb_t_quantize(feedback, measure, job, work, j, pad.scales, bits, pad.codes, pad.err, pad.err_scale,
                      pad.idle, &plan);
        memcpy(scales + j, pad.scales, left);
        memcpy(codes + 16 * j, pad.codes, 16 * left);
        memcpy(domains + j / 8, bits, (left + 7) / 8);
        if (feedback) {
            memcpy(err, pad.err, NB_GROUP * left);
            memcpy(err_scale, pad.err_scale, left);
        }
    }
    return work->noise2;
}
