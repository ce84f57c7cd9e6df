/* SPDX-License-Identifier: Apache-2.0 */
/* Encode a tile. quant_simd.h includes this. */

NB_GROUP_IS_32("offsets of codes: 16 or 32 bytes a group");

/* ---- Encoding, first half ----------------------------------------------------------------------------- */

/* Sums of squares: none. NEAR: of half of the values and of all residuals, in any order, enough to see that
 * the bound does not act. EXACT: of each group, in order. */
enum nb_norms { NB_NORMS_NONE, NB_NORMS_NEAR, NB_NORMS_EXACT };

/* A batch's contribution to the survey of its tile. */
struct nb_tile_sums {
    vi max, min;
    vf own, carried; /* NB_NORMS_NEAR */
};

NB_FN void nb_s_sums_begin(struct nb_tile_sums *tile)
{
    tile->max = vi_set1(0);
    tile->min = vi_set1((int)NB_F32_INF);
    tile->own = tile->carried = vf_set1(0);
}

/* Return whether the bound certainly does not act. */
NB_FN bool nb_s_unbound(const struct nb_tile_sums *tile, float bound)
{
    float own[NB_W], carried[NB_W];
    vf_store(own, tile->own);
    vf_store(carried, tile->carried);
    for (unsigned g = 1; g < NB_W; g++) {
        own[0] += own[g];
        carried[0] += carried[g];
    }
    return nb_is_unbound(own[0], carried[0], bound);
}

/* Complete the survey of a tile after all of its batches. */
NB_FN enum nb_survey nb_s_survey_end(const struct nb_tile_sums *tile, bool int4, struct nb_tile_work *work)
{
    if (nb_work_has_outliers(work))
        return NB_SURVEY_OUTLIERS;
    uint32_t max[NB_W], min[NB_W], tile_max = 0, tile_min = NB_F32_INF;
    vi_store(max, tile->max);
    vi_store(min, tile->min);
    for (unsigned g = 0; g < NB_W; g++) {
        tile_max = max[g] > tile_max ? max[g] : tile_max;
        tile_min = min[g] < tile_min ? min[g] : tile_min;
    }
    return nb_work_range(work, tile_max, tile_min, int4);
}

/* Return a bit for each of these groups that holds an exact zero. Clear the residuals of zeros. */
static NB_TARGET __attribute__((noinline)) unsigned nb_s_find_zeros(const struct nb_tile_job *job,
                                                                    unsigned j0, unsigned groups)
{
    unsigned found = 0;
    for (unsigned g = 0; g < groups; g++)
        found |= (unsigned)(job->type == NB_F32    ? nb_group_zeros(NB_F32, job, j0 + g)
                            : job->type == NB_BF16 ? nb_group_zeros(NB_BF16, job, j0 + g)
                                                   : nb_group_zeros(NB_F16, job, j0 + g))
                 << g;
    return found;
}

/* The same for the batch from j0 on, where the tile has `left` groups left. Gradients seldom hold zeros, so
 * that one test of all groups is usually enough. */
NB_FN unsigned nb_s_zeros(enum nb_dtype type, const struct nb_tile_job *job, unsigned j0, unsigned left)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type), groups = left < NB_W ? left : NB_W;

    if (groups == NB_W && __builtin_expect(!values_have_zero(type, job->src + bytes * j0), 1))
        return 0;
    return nb_s_find_zeros(job, j0, groups);
}

/* Return the number of magnitudes of a group that are small and above the floor, and their sum in the lanes
 * of *sum. */
NB_FN unsigned nb_s_small(const float *y, vf threshold, vi *sum)
{
    const vi absolute = vi_set1((int)NB_F32_ABS), floor = vi_set1((int)NB_FLUSH_BITS - 1), zero = vi_set1(0);
    const struct vgroup x = vgroup_kept(y);
    vf sums = vf_cast(zero);
    unsigned count = 0;
    NB_EACH_VECTOR(k)
    {
        const vi a = vi_and(vi_cast(x.v[k]), absolute);
        const vm small = vm_and(vf_lt(vf_cast(a), threshold), vi_gt(a, floor));
        sums = vf_add(sums, vf_cast(vi_blend(small, zero, a)));
        count += (unsigned)__builtin_popcount(vm_bits(small));
    }
    *sum = vi_cast(sums);
    return count;
}

/* Return which of these groups of a batch have outliers. They are thin, and at least NB_OUTLIER_MEMBERS of
 * their values are below the threshold, which is no evidence for zeros. */
static NB_TARGET __attribute__((noinline)) unsigned nb_s_outliers(unsigned groups,
                                                                  const struct nb_tile_work *work,
                                                                  unsigned j0, const float *threshold)
{
    float sum[NB_W] __attribute__((aligned(64)));
    unsigned small[NB_W];
    vi sums[NB_W];
    unsigned result = 0;

    for (unsigned g = 0; g < NB_W; g++)
        small[g] = nb_s_small(work->y[j0 + g][0], vf_set1(threshold[g]), &sums[g]);
    vf_store(sum, vf_cast(across_add(sums)));
    for (; groups; groups &= groups - 1) {
        const unsigned g = (unsigned)__builtin_ctz(groups);
        int found = nb_outliers_near(threshold[g] * (1 / NB_SMALL), small[g], sum[g]);
        if (found == NB_OUTLIERS_UNSURE) {
            float x[NB_GROUP];
            nb_s_in_order(work->y[j0 + g][0], x);
            found = nb_group_has_outliers(x);
        }
        result |= (unsigned)(found != 0) << g;
    }
    return result;
}

/* Return the largest magnitude from the signed maximum (largest positive, if any) and the unsigned one
 * (largest negative). */
NB_FN vi nb_s_magnitude(vi s, vi u, vm *negative)
{
    vi zero = vi_set1(0);
    vi p = vi_max_s(s, zero), n = vi_and(vi_and(u, vi_srai31(u)), vi_set1((int)NB_F32_ABS));
    *negative = vi_gt(n, p);
    return vi_max_s(p, n);
}

/* Return the maxima that give plain groups of a batch their steps (nb_plain_max). `count` is below NB_GROUP
 * for thin groups. Two pairs rule out that most other groups are flat. */
NB_FN vi nb_s_plain_max(const struct nb_tile_work *work, unsigned j0, vi max, vi count)
{
    float most[NB_W] __attribute__((aligned(64)));
    const unsigned thin = vm_bits(vi_gt(vi_set1(NB_GROUP), count));
    bool changed = false;

    vf_store(most, vf_cast(max));
    for (unsigned g = 0; g < NB_W; g++) {
        const float *y = work->y[j0 + g][0], least = most[g] * NB_FLAT;
        const bool maybe = __builtin_fabsf(y[0]) > least || __builtin_fabsf(y[16]) > least;
        if ((thin >> g & 1) || (maybe && (__builtin_fabsf(y[1]) > least || __builtin_fabsf(y[17]) > least))) {
            most[g] = nb_group_plain_max(y, true, thin >> g & 1, most[g]);
            changed = true;
        }
    }
    return changed ? vi_cast(vf_load(most)) : max;
}

/* Survey groups j0 ... j0 + NB_W - 1. `norms`: also find idle groups. Return false when a value is so large
 * that it needs an escape. */
NB_FN bool nb_s_survey(enum nb_dtype type, bool int4, bool feedback, enum nb_norms norms, const uint8_t *src,
                       const int8_t *err, const float *unit, unsigned zeros, struct nb_tile_work *work,
                       unsigned j0, struct nb_tile_sums *tile)
{
    vi s[NB_W], u[NB_W], st[NB_W], ut[NB_W], own[NB_W], carried[NB_W];
    float threshold[NB_W] __attribute__((aligned(64)));
    uint64_t large[NB_W / 8] = {0}; /* a byte each. Vectors of them would wait for stores */
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);

    for (unsigned g = 0; g < NB_W; g++) {
        struct vgroup x = group_load(type, src + bytes * g);
        __builtin_prefetch(src + bytes * g + NB_AHEAD * nb_value_bytes(type));
        if (type == NB_F32)
            __builtin_prefetch(src + bytes * g + NB_AHEAD * 4 + 64);
        if (norms != NB_NORMS_NONE)
            work->idle[j0 + g] = vgroup_is_zero(&x);
        if (norms == NB_NORMS_EXACT) {
            own[g] = nb_s_squares(&x);
            carried[g] = vi_set1(0);
        }
        if (norms == NB_NORMS_NEAR)
            NB_UNROLL
        for (unsigned k = 0; k < NB_K; k++)
            tile->own = vf_muladd(x.v[k], x.v[k], tile->own);
        if (feedback && !work->idle[j0 + g]) {
            __builtin_prefetch(err + NB_GROUP * g + NB_AHEAD);
            if (norms != NB_NORMS_NONE) { /* no factor in the unit */
                errors_add(&x, err + NB_GROUP * g, unit[g]);
            } else {
                struct vgroup e = errors_load(err + NB_GROUP * g, unit[g]);
                NB_EACH_VECTOR(k)
                x.v[k] = vf_add(x.v[k], e.v[k]);
            }
            if (norms == NB_NORMS_EXACT) {
                struct vgroup codes = bytes_load(err + NB_GROUP * g);
                carried[g] = nb_s_squares(&codes);
            }
            if (norms == NB_NORMS_NEAR)
                tile->carried = vf_muladd(vf_mul(bytes_squares(err + NB_GROUP * g), vf_set1(unit[g])),
                                          vf_set1(unit[g]), tile->carried);
        }
        vgroup_keep(work->y[j0 + g][0], &x);
        s[g] = vgroup_max_s(&x);
        u[g] = vgroup_max_u(&x);
        if (int4) {
            hadamard(&x);
            vgroup_keep(work->y[j0 + g][1], &x);
            st[g] = vgroup_max_s(&x);
            ut[g] = vgroup_max_u(&x);
        }
    }
    vm negative, better;
    if (norms == NB_NORMS_EXACT) {
        vf_store(work->own2 + j0, vf_cast(across_add(own)));
        if (feedback) {
            vf units = vf_load(unit);
            vf_store(work->error2 + j0, vf_mul(vf_mul(vf_cast(across_add(carried)), units), units));
        }
    }
    vi max = nb_s_magnitude(across_max_s(s), across_max_u(u), &negative);
    if (vm_bits(vi_gt(max, vi_set1((int)NB_ESCAPE_BITS - 1))))
        return false;
    vf_store(threshold, vf_mul(vf_cast(max), vf_set1(NB_SMALL)));
    NB_UNROLL16
    for (unsigned g = 0; g < NB_W; g++)
        large[g / 8] |= (uint64_t)vgroup_large(work->y[j0 + g][0], threshold[g]) << 8 * (g % 8);
    vi count = vi_from_bytes(large);
    unsigned suspects = vm_bits(vi_gt(vi_set1((int)(NB_GROUP - NB_OUTLIER_MEMBERS) + 1), count));
    if (__builtin_expect(suspects, 0)) {
        suspects = nb_s_outliers(suspects, work, j0, threshold);
        for (unsigned b = 0; b < NB_W / 8; b++)
            work->outliers[j0 / 8 + b] = (uint8_t)(suspects >> 8 * b);
    }
    if (int4) {
        vm negative_t;
        max = nb_s_plain_max(work, j0, max, count);
        vi max_t = nb_s_magnitude(across_max_s(st), across_max_u(ut), &negative_t);
        vf scaled = vf_mul(vf_cast(max_t), vf_set1(0.125f));
        vf ratio = vf_sqrt(vf_div(vf_set1(64.0f), vf_from_int(count)));
        better = vm_and(vf_lt(vf_mul(scaled, ratio), vf_cast(max)), vm_from_bits(~zeros));
        max = vi_blend(better, max, vi_cast(scaled));
        negative = vm_blend(better, negative, negative_t);
        vi_store(work->transform + j0, vi_blend(better, vi_set1(0), vi_set1(1)));
    } else {
        vi_store(work->transform + j0, vi_set1(0));
    }
    vi_store(work->max + j0, max);
    vi_store(work->positive + j0, vi_blend(negative, vi_set1(1), vi_set1(0)));
    tile->max = vi_max_s(tile->max, max);
    vm codable = vi_gt(max, vi_set1((int)NB_FLUSH_BITS - 1));
    tile->min = vi_min_s(tile->min, vi_blend(codable, vi_set1((int)NB_F32_INF), max));
    return true;
}

/* Survey all batches of a tile, with residuals times work->factor. */
NB_FN bool nb_s_survey_batches(enum nb_dtype type, bool int4, bool feedback, enum nb_norms norms,
                               const struct nb_tile_job *job, struct nb_tile_work *work,
                               struct nb_tile_sums *tile)
{
    float unit[NB_W] = {0};
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);

    memset(work->outliers, 0, sizeof work->outliers);
    nb_s_sums_begin(tile);
    for (unsigned j = 0; j < job->groups; j += NB_W) {
        const uint8_t *src = job->src + bytes * j;
        const int8_t *err = feedback ? job->err + NB_GROUP * j : NULL;
        unsigned left = job->groups - j;
        const unsigned zeros = int4 || feedback ? nb_s_zeros(type, job, j, left) : 0;
        struct nb_padded pad;
        for (unsigned g = 0; feedback && g < NB_W; g++)
            unit[g] = g < left ? nb_error_unit(job->err_scale[j + g], work->factor) : 0;
        if (left < NB_W) {
            memset(pad.src, 0, sizeof pad.src);
            memcpy(pad.src, src, bytes * left);
            src = pad.src;
            if (feedback) {
                memset(pad.err, 0, sizeof pad.err);
                memcpy(pad.err, err, NB_GROUP * left);
                err = pad.err;
            }
        }
        if (!nb_s_survey(type, int4, feedback, norms, src, err, unit, zeros, work, j, tile))
            return false;
    }
    return true;
}

NB_FN enum nb_survey nb_s_survey_tile(enum nb_dtype type, bool int4, bool feedback,
                                      const struct nb_tile_job *job, struct nb_tile_work *work, bool measure)
{
    struct nb_tile_sums tile;

    nb_work_begin(work);
    const bool near = feedback && !measure && !work->doubt;
    if (near && !nb_s_survey_batches(type, int4, true, NB_NORMS_NEAR, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    if (near ? !nb_s_unbound(&tile, job->bound) : feedback || measure) {
        if (!nb_s_survey_batches(type, int4, feedback, NB_NORMS_EXACT, job, work, &tile))
            return NB_SURVEY_CAREFUL;
        if (!nb_work_norms(work, job))
            return NB_SURVEY_CAREFUL;
    }
    /* The bound seldom acts: survey as if it did not, and survey again where it does. */
    if ((work->factor != 1 || !(feedback || measure)) &&
        !nb_s_survey_batches(type, int4, feedback, NB_NORMS_NONE, job, work, &tile))
        return NB_SURVEY_CAREFUL;
    return nb_s_survey_end(&tile, int4, work);
}

/* ---- Encoding, second half ---------------------------------------------------------------------------- */

/* Compute scale codes, signed steps and their reciprocals of a batch. Return the groups that are
 * transformed. */
NB_FN unsigned nb_s_scales(bool int4, const struct nb_tile_work *work, unsigned j0, uint8_t *scales,
                           float *step, float *inverse, struct nb_encode_stats *stats)
{
    const vi one = vi_set1(1), zero = vi_set1(0);
    vi bits = vi_load(work->max + j0), code, value;
    vm coded = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));

    if (__builtin_expect(work->wide, 0)) {
        uint32_t codes[NB_W], values[NB_W];
        for (unsigned g = 0; g < NB_W; g++) {
            codes[g] = nb_scale_code_wide(work->max[j0 + g], work->exponent, !int4);
            values[g] = nb_f32_bits(nb_scale_table[1][codes[g] & 127] * nb_pow2(work->exponent));
        }
        code = vi_load(codes);
        value = vi_load(values);
    } else {
        vi depth = vi_sub(vi_set1(work->exponent + 127), vi_srli(bits, 23));
        vi segment = vi_min_s(vi_srli(depth, 2), vi_set1(4));
        vi shift = vi_add(segment, vi_set1(19)), unit = vi_sllv(one, shift), mask = vi_sub(unit, one);
        vi rounded = vi_add(bits, int4 ? vi_sub(unit, vi_min_s(vi_srli(unit, 1), vi_set1(1 << 19))) : mask);
        value = vi_andnot(mask, rounded);
        vi in_binade = vi_srlv(vi_sub(rounded, vi_andnot(vi_set1(0x7fffff), bits)), shift);
        vi high = vi_add(vi_srlv(vi_set1(64), segment),
                         vi_sllv(vi_sub(vi_set1(3), vi_and(depth, vi_set1(3))), vi_sub(vi_set1(4), segment)));
        vi low = vi_sub(vi_set1(23), depth);
        code = vi_add(vi_blend(vi_gt(vi_set1(4), segment), low, high), in_binade);
        /* The survey keeps every group above the floor within reach of the last code, except for rounding to
         * zero. */
    }
    coded = vm_and(coded, vi_gt(code, zero));
    code = vi_blend(coded, zero, code);
    if (stats)
        stats->flushed += (unsigned)__builtin_popcount(vm_bits(vi_gt(bits, zero)) & ~vm_bits(coded));
    vf scale = vf_cast(vi_blend(coded, zero, value));
    vm transform = vm_and(coded, vi_gt(vi_load(work->transform + j0), zero));
    if (int4) {
        vi sign = vi_sllv(vi_and(vi_load(work->positive + j0), vi_blend(coded, zero, one)), vi_set1(31));
        vf plain = vf_mul(scale, vf_set1(0.125f));
        scale = vf_cast(vi_or(vi_blend(transform, vi_cast(plain), vi_cast(scale)), sign));
        code = vi_or(code, vi_srli(sign, 24));
    } else {
        scale = vf_mul(scale, vf_set1(work->fine));
    }
    vf_store(step, scale);
    vf_store(inverse, vf_cast(vi_blend(coded, zero, vi_cast(vf_div(vf_set1(1.0f), scale)))));
    vi_store_bytes(scales, code);
    return vm_bits(transform);
}

/* Store the new residuals of a batch, given each group's error. `times32`: groups whose error is still to be
 * divided by 32. */
NB_FN void nb_s_store_errors(float (*r)[NB_GROUP], unsigned times32, const uint8_t *idle, int8_t *err,
                             uint8_t *err_scale)
{
    vi max[NB_W];
    float inverse[NB_W] __attribute__((aligned(64)));
    uint8_t scales[NB_W];

    for (unsigned g = 0; g < NB_W; g++) {
        struct vgroup x = vgroup_kept(r[g]);
        max[g] = vgroup_max_abs(&x);
    }
    const vf back = vf_cast(vi_blend(vm_from_bits(times32), vi_cast(vf_set1(1)), vi_cast(vf_set1(0.03125f))));
    vi bits = vi_cast(vf_mul(vf_cast(across_max_s(max)), back));
    vm kept = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));
    /* 127.5/64 and more belong to the next power of two, so that 127 is the most. */
    vi exponent = vi_srli(vi_add(bits, vi_set1(0x10000)), 23);
    vi_store_bytes(scales, vi_blend(kept, vi_set1(0), vi_sub(exponent, vi_set1(6))));
    vi power = vi_slli(vi_sub(vi_set1(133 + 127), exponent), 23);
    vf_store(inverse, vf_mul(vf_cast(vi_blend(kept, vi_set1(0), power)), back));
    for (unsigned g = 0; g < NB_W; g++) {
        if (__builtin_expect(idle[g], 0))
            continue;
        struct vgroup x = vgroup_kept(r[g]);
        vf inv = vf_set1(inverse[g]);
        vi q[2 * NB_K];
        NB_EACH_VECTOR(k)
        q[k] = vi_round(vf_mul(x.v[k], inv));
        bytes_store(err + NB_GROUP * g, q);
        err_scale[g] = scales[g];
    }
}

NB_FN void nb_s_quantize(bool int4, bool feedback, bool measure, const struct nb_tile_job *job,
                         struct nb_tile_work *work, unsigned j0, uint8_t *scales, uint8_t *domains,
                         uint8_t *codes, int8_t *err, uint8_t *err_scale, const uint8_t *idle, float *noise,
                         struct nb_encode_stats *out)
{
    float step[NB_W] __attribute__((aligned(64))), inverse[NB_W] __attribute__((aligned(64)));
    float r[NB_W][NB_GROUP] __attribute__((aligned(64)));
    vi squares[NB_W];
    unsigned transform = nb_s_scales(int4, work, j0, scales, step, inverse, out);

    if (int4)
        for (unsigned b = 0; b < NB_W / 8; b++)
            domains[b] = (uint8_t)(transform >> 8 * b);
    for (unsigned g = 0; g < NB_W; g++) {
        struct vgroup y = vgroup_kept(work->y[j0 + g][transform >> g & 1]);
        vf inv = vf_set1(inverse[g]);
        vi q[2 * NB_K];
        NB_EACH_VECTOR(k)
        {
            q[k] = vi_round(vf_mul(y.v[k], inv));
            if (int4) /* scales keep int4 codes at -8 or more, and int8 codes within 127 */
                q[k] = vi_min_s(q[k], vi_set1(7));
        }
        if (int4)
            nibbles_store(codes + 16 * g, q);
        else
            bytes_store(codes + 32 * g, q);
        if (!feedback && !measure)
            continue;
        vf unit = vf_set1(step[g]);
        NB_EACH_VECTOR(k)
        y.v[k] = vf_residual(y.v[k], vf_from_int(q[k]), unit);
        if (feedback)
            vgroup_keep(r[g], &y);
        if (measure)
            squares[g] = nb_s_squares(&y);
    }
    if (measure) {
        vi weight = vi_blend(vm_from_bits(transform), vi_cast(vf_set1(1)), vi_cast(vf_set1(0.03125f)));
        vf_store(noise + j0, vf_mul(vf_cast(across_add(squares)), vf_cast(weight)));
    }
    if (!feedback)
        return;
    for (unsigned rest = transform; rest; rest &= rest - 1) {
        float *p = r[__builtin_ctz(rest)];
        struct vgroup x = vgroup_kept(p);
        hadamard(&x);
        if (job->mode == NB_EF_EMA)
            NB_EACH_VECTOR(k)
        x.v[k] = vf_mul(x.v[k], vf_set1(0.03125f));
        vgroup_keep(p, &x);
    }
    if (job->mode == NB_EF_EMA) {
        transform = 0;
        for (unsigned g = 0; g < NB_W; g++) {
            struct vgroup x = vgroup_kept(r[g]);
            struct vgroup e = errors_load(err + NB_GROUP * g, nb_error_unit(err_scale[g], work->factor));
            vf beta = vf_set1(job->beta), rest = vf_set1(1.0f - job->beta);
            NB_EACH_VECTOR(k)
            x.v[k] = vf_add(vf_mul(beta, e.v[k]), vf_mul(rest, x.v[k]));
            vgroup_keep(r[g], &x);
        }
    }
    nb_s_store_errors(r, transform, idle, err, err_scale);
}

NB_FN float nb_s_quantize_tile(bool int4, bool feedback, bool measure, const struct nb_tile_job *job,
                               struct nb_tile_work *work, uint8_t *scales, uint8_t *domains, uint8_t *codes,
                               struct nb_encode_stats *out)
{
    float noise[NB_TILE_GROUPS] = {0};
    const unsigned code_bytes = int4 ? 16 : 32;

    for (unsigned j = 0; j < job->groups; j += NB_W) {
        unsigned left = job->groups - j;
        int8_t *err = feedback ? job->err + NB_GROUP * j : NULL;
        uint8_t *err_scale = feedback ? job->err_scale + j : NULL;
        if (left >= NB_W) {
            nb_s_quantize(int4, feedback, measure, job, work, j, scales + j, domains + j / 8,
                          codes + code_bytes * j, err, err_scale, work->idle + j, noise, out);
            continue;
        }
        struct nb_padded pad;
        uint8_t bits[NB_W / 8] = {0};
        for (unsigned g = left; g < NB_W; g++) {
            work->max[j + g] = 0;
            memset(work->y[j + g][0], 0, sizeof work->y[j + g][0]);
        }
        if (feedback) {
            memset(pad.err, 0, sizeof pad.err);
            memset(pad.err_scale, 0, sizeof pad.err_scale);
            memset(pad.idle, 1, sizeof pad.idle);
            memcpy(pad.err, err, NB_GROUP * left);
            memcpy(pad.err_scale, err_scale, left);
            memcpy(pad.idle, work->idle + j, left);
        }
        nb_s_quantize(int4, feedback, measure, job, work, j, pad.scales, bits, pad.codes, pad.err,
                      pad.err_scale, pad.idle, noise, out);
        memcpy(scales + j, pad.scales, left);
        memcpy(codes + code_bytes * j, pad.codes, code_bytes * left);
        if (int4)
            memcpy(domains + j / 8, bits, (left + 7) / 8);
        if (feedback) {
            memcpy(err, pad.err, NB_GROUP * left);
            memcpy(err_scale, pad.err_scale, left);
        }
    }
    return nb_sum_groups(noise);
}
