/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode tiles with a group in each lane, second half. quant_simd.h includes this behind
 * quant_lanes_survey.h. It needs these further primitives:
 *
 *   vf_nearest              rounds to the nearest integer, ties to even
 *   vi_words                words: the low ones from one vector, the high ones from the low ones of another
 *   vi_packs32, vi_packs16  saturate to words, to bytes: in each 128 bits the first operand's before the second's
 *   vi_nibbles              low four bits of bytes of one, high four bits of bytes of another
 *   lanes_bytes             bytes 0, 4, 8, 12, 1, 5 ... of each 128 bits
 */

NB_GROUP_IS_32("32 rows of a value each, stages of the transform over them");

/* Join the low halves of two vectors, with some bits inverted. */
NB_FN vi nb_t_words(vi low, vi high, int turned)
{
    return vi_xor(vi_words(low, high), vi_set1(turned));
}

/* Run the last stages, 8, 4 and 2, of the transform of quantization errors on rows o, o + 2, ... o + 14, in
 * place. The last stage leaves plain groups alone. */
NB_FN void nb_t_residuals(nb_row *x, unsigned o, bool int4, vm plain, struct lanes_max *max)
{
    vf v[8], w[8];
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        v[k] = vf_load(x[o + 2 * k]);
    if (int4) {
        nb_t_stages84(v, w);
        NB_FORGET();
        NB_UNROLL
        for (unsigned k = 0; k < 8; k += 2) {
            v[k] = lanes_add_unless(plain, vf_load(x[o + 2 * k]), w[k], w[k + 1]);
            v[k + 1] = lanes_sub_unless(plain, vf_load(x[o + 2 * k + 2]), w[k], w[k + 1]);
            vf_store(x[o + 2 * k], v[k]);
            vf_store(x[o + 2 * k + 2], v[k + 1]);
        }
    }
    lanes_eight(max, v);
}

/* Mix a batch's new residuals with the old ones, in place. Return their largest magnitudes. */
NB_FN vi nb_t_mix(const struct nb_tile_job *job, const struct nb_tile_work *work, nb_row *x, vf back,
                  const int8_t *err, const uint8_t *err_scale)
{
    const vf beta = vf_set1(job->beta), rest = vf_set1(1.0f - job->beta);
    const vf unit = nb_t_units(err_scale, work->factor);
    struct lanes_max max;
    vi code[8];
    lanes_load_bytes(err, code);
    lanes_max_begin(&max);
    for (unsigned b = 0; b < NB_GROUP; b += 8) {
        vf kept[8];
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++) {
            const vf e = vf_mul(nb_t_error(code[(b + i) / 4], i % 4), unit),
                     r = vf_mul(vf_load(x[b + i]), back);
            kept[i] = vf_add(vf_mul(beta, e), vf_mul(rest, r));
            vf_store(x[b + i], kept[i]);
        }
        lanes_eight(&max, kept);
    }
    return lanes_most(&max);
}

/* Compute a batch's new residuals from its quantization errors x (in place). For transformed groups x has
 * passed the first two stages of the transform, 1 and 16. */
NB_FN void nb_t_errors(bool int4, const struct nb_tile_job *job, const struct nb_tile_work *work, nb_row *x,
                       vm plain, int8_t *err, uint8_t *err_scale, const uint8_t *idle)
{
    const vi zero = vi_set1(0);
    struct lanes_max max;
    lanes_max_begin(&max);
    nb_t_residuals(x, 0, int4, plain, &max);
    nb_t_residuals(x, 1, int4, plain, &max);
    nb_t_residuals(x, 16, int4, plain, &max);
    nb_t_residuals(x, 17, int4, plain, &max);
    /* Transformed groups still need a division by 32: the exponents of their units do it, unless residuals
     * are mixed. */
    const vf back = vf_cast(vi_blend(plain, vi_cast(vf_set1(0.03125f)), vi_cast(vf_set1(1))));
    vi more = vi_blend(plain, vi_set1(5), zero);
    vi bits = vi_cast(vf_mul(vf_cast(lanes_most(&max)), back));
    if (job->mode == NB_EF_EMA) {
        bits = nb_t_mix(job, work, x, back, err, err_scale);
        more = zero;
    }
    const vm some = vi_gt(bits, vi_set1((int)NB_FLUSH_BITS - 1));
    /* 127.5/64 and more belong to the next power of two, so that 127 is the most. */
    const vi exponent = vi_sub(vi_srli(vi_add(bits, vi_set1(0x10000)), 23), vi_set1(6));
    const vi scale = lanes_order(vi_blend(some, zero, exponent));
    /* Additions round codes, two at a time: a sum with 2^23 + 2^15 units has whole units, a sum with 2^15 +
     * 2^14 + 1/2 units has 256ths, where the other code is. Groups without residuals get a unit beside which
     * all numbers are 0. */
    const vi power = vi_add(vi_blend(some, vi_set1(127), exponent), more);
    const vf unit = vf_cast(vi_slli(power, 23)), whole = vf_mul(unit, vf_set1(0x1.01p23f));
    const vf less = vf_sub(whole, vf_mul(unit, vf_set1(49152.5f)));
    vi out[8];
    NB_UNROLL
    for (unsigned b = 0; b < 8; b++) {
        vf low = vf_sub(vf_add(whole, vf_load(x[4 * b + 1])), less);
        vf high = vf_sub(vf_add(whole, vf_load(x[4 * b + 3])), less);
        low = vf_muladd(vf_load(x[4 * b]), vf_set1(0x1p-8f), low);
        high = vf_muladd(vf_load(x[4 * b + 2]), vf_set1(0x1p-8f), high);
        out[b] = nb_t_words(vi_cast(low), vi_cast(high), 0x00800080);
    }
    uint64_t kept[NB_W / 8];
    memcpy(kept, idle, NB_W);
    if (__builtin_expect((kept[0] | kept[NB_W / 8 - 1]) != 0, 0)) {
        uint8_t codes[NB_GROUP * NB_W], scales[NB_W];
        lanes_store_bytes(codes, out);
        vi_store_bytes(scales, scale);
        for (unsigned g = 0; g < NB_W; g++)
            if (!idle[g]) {
                memcpy(err + NB_GROUP * g, codes + NB_GROUP * g, NB_GROUP);
                err_scale[g] = scales[g];
            }
        return;
    }
    lanes_store_bytes((uint8_t *)err, out);
    vi_store_bytes(err_scale, scale);
}

/* Scales of a tile, in the order of lanes. All groups' scales are computed together, which hides the
 * divisions' latency. */
struct nb_plan {
    float step[NB_TILE_GROUPS] __attribute__((aligned(64)));
    float inverse[NB_TILE_GROUPS] __attribute__((aligned(64)));
    uint8_t scales[NB_TILE_GROUPS];
    unsigned transform[NB_TILE_GROUPS / NB_W]; /* bits of lanes */
};

/* Return the error of coding y as q, and add its square to *noise if `measure`. */
NB_FN vf nb_t_residual(bool measure, vf y, vf q, vf unit, vf *noise)
{
    const vf r = vf_residual(y, q, unit);
    if (measure)
        *noise = vf_muladd(r, r, *noise);
    return r;
}

/* Return int4 codes of a batch, eight rows from x in a dword, from values in a domain. *noise: squared
 * errors, if `measure`. */
NB_FN vi nb_t_codes(bool measure, nb_row *x, vf inv, vf unit, vf *noise)
{
    vi q[8];
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        const vf y = vf_load(x[i]);
        q[i] = vi_round(vf_mul(y, inv));
        if (measure)
            nb_t_residual(true, y, vf_from_int(vi_min_s(q[i], vi_set1(7))), unit, noise);
    }
    const vi low = vi_packs16(vi_packs32(q[0], q[2]), vi_packs32(q[4], q[6]));
    const vi high = vi_packs16(vi_packs32(q[1], q[3]), vi_packs32(q[5], q[7]));
    return lanes_bytes(vi_nibbles(vi_min_7(low), vi_slli(vi_min_7(high), 4)));
}

/* The same for four rows, with quantization errors. The codes are floats here, joined as digits of a 16-bit
 * number, whose carries a later step undoes. */
NB_FN vi nb_t_four_codes(bool measure, nb_row *x, vf inv, vf unit, vf *r, vf *noise)
{
    const vf digit = vf_set1(16);
    vf q[4];
    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const vf y = vf_load(x[i]);
        q[i] = vf_min(vf_nearest(vf_mul(y, inv)), vf_set1(7));
        r[i] = nb_t_residual(measure, y, q[i], unit, noise);
    }
    const vf high = vf_muladd(q[3], digit, q[2]);
    const vf low = vf_add(vf_muladd(q[1], digit, q[0]), vf_set1(0x1.8p23f + 0x888));
    return vi_cast(vf_muladd(high, vf_set1(256), low));
}

/* Replace rows x to x + 3 and those 16 further by quantization errors, which for transformed groups pass the
 * stages 1 and 16. Their codes are *word and word[4]. */
NB_FN void nb_t_codes_and_errors(bool measure, nb_row *x, vf inv, vf unit, vm plain, vi *word, vf *noise)
{
    vf r[8], t[8];
    word[0] = nb_t_four_codes(measure, x, inv, unit, r, noise);
    word[4] = nb_t_four_codes(measure, x + 16, inv, unit, r + 4, noise);
    NB_UNROLL
    for (unsigned i = 0; i < 8; i += 2) {
        t[i] = vf_add(r[i], r[i + 1]);
        t[i + 1] = vf_sub(r[i], r[i + 1]);
    }
    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        vf_store(x[i], lanes_add_unless(plain, r[i], t[i], t[i + 4]));
        vf_store(x[i + 16], lanes_sub_unless(plain, r[i + 4], t[i], t[i + 4]));
    }
}

/* Return int8 codes of rows x to x + 3. With feedback the rows become quantization errors. */
NB_FN vi nb_t_bytes(bool feedback, bool measure, nb_row *x, vf inv, vf unit, vf *noise)
{
    vi q[4];
    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const vf y = vf_load(x[i]);
        q[i] = vi_round(vf_mul(y, inv)); /* scales keep every value within 127 */
        if (!feedback && !measure)
            continue;
        const vf r = nb_t_residual(measure, y, vf_from_int(q[i]), unit, noise);
        if (feedback)
            vf_store(x[i], r);
    }
    return lanes_bytes(vi_packs16(vi_packs32(q[0], q[1]), vi_packs32(q[2], q[3])));
}

NB_FN void nb_t_quantize(bool int4, bool feedback, bool measure, const struct nb_tile_job *job,
                         struct nb_tile_work *work, unsigned j0, uint8_t *scales, uint8_t *domains,
                         uint8_t *codes, int8_t *err, uint8_t *err_scale, const uint8_t *idle,
                         const struct nb_plan *plan)
{
    const unsigned transform = int4 ? plan->transform[j0 / NB_W] : 0;
    const vm plain = vm_from_bits(~transform);
    nb_row *x = (nb_row *)(&work->y[0][0][0] + NB_GROUP * j0);
    NB_OPAQUE(x);
    const vf inv = vf_load(plan->inverse + j0), unit = vf_load(plan->step + j0);
    vi out[8];
    vf noise = vf_set1(0);
    uint64_t raw[NB_W / 8];

    memcpy(raw, plan->scales + j0, NB_W);
    vi_store_bytes(scales, lanes_order(vi_from_bytes(raw)));
    if (!int4) {
        NB_UNROLL
        for (unsigned b = 0; b < 8; b++)
            out[b] = nb_t_bytes(feedback, measure, x + 4 * b, inv, unit, &noise);
        lanes_store_bytes(codes, out);
    } else {
        const unsigned bits = lanes_bits(vm_from_bits(transform));
        NB_UNROLL
        for (unsigned b = 0; b < NB_W / 8; b++)
            domains[b] = (uint8_t)(bits >> 8 * b);
        if (feedback) {
            vi word[8];
            nb_t_codes_and_errors(measure, x + 0, inv, unit, plain, word + 0, &noise);
            nb_t_codes_and_errors(measure, x + 4, inv, unit, plain, word + 1, &noise);
            nb_t_codes_and_errors(measure, x + 8, inv, unit, plain, word + 2, &noise);
            nb_t_codes_and_errors(measure, x + 12, inv, unit, plain, word + 3, &noise);
            NB_UNROLL
            for (unsigned b = 0; b < 4; b++)
                out[b] = nb_t_words(word[2 * b], word[2 * b + 1], 0x08880888);
        } else {
            NB_UNROLL
            for (unsigned b = 0; b < 4; b++)
                out[b] = nb_t_codes(measure, x + 8 * b, inv, unit, &noise);
        }
        lanes_store_nibbles(codes, out);
    }
    if (measure) {
        float sum[NB_W];
        vf_store(sum,
                 vf_mul(noise, vf_cast(vi_blend(plain, vi_cast(vf_set1(0.03125f)), vi_cast(vf_set1(1))))));
        for (unsigned g = 0; g < NB_W; g++)
            work->noise2 += sum[g];
    }
    if (feedback)
        nb_t_errors(int4, job, work, x, plain, err, err_scale, idle);
}

NB_FN float nb_t_quantize_tile(bool int4, bool feedback, bool measure, const struct nb_tile_job *job,
                               struct nb_tile_work *work, uint8_t *scales, uint8_t *domains, uint8_t *codes,
                               struct nb_encode_stats *stats)
{
    const unsigned code_bytes = int4 ? 16 : 32;
    struct nb_plan plan;
    work->noise2 = 0;
    for (unsigned j = 0; j < job->groups; j += NB_W)
        plan.transform[j / NB_W] =
            nb_s_scales(int4, work, j, plan.scales + j, plan.step + j, plan.inverse + j, stats);
    for (unsigned j = 0; j < job->groups; j += NB_W) {
        unsigned left = job->groups - j;
        int8_t *err = feedback ? job->err + NB_GROUP * j : NULL;
        uint8_t *err_scale = feedback ? job->err_scale + j : NULL;
        if (left >= NB_W) {
            nb_t_quantize(int4, feedback, measure, job, work, j, scales + j, domains + j / 8,
                          codes + code_bytes * j, err, err_scale, work->idle + j, &plan);
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
        nb_t_quantize(int4, feedback, measure, job, work, j, pad.scales, bits, pad.codes, pad.err,
                      pad.err_scale, pad.idle, &plan);
        memcpy(scales + j, pad.scales, left);
        memcpy(codes + code_bytes * j, pad.codes, code_bytes * left);
        if (int4)
            memcpy(domains + j / 8, bits, (left + 7) / 8);
        if (feedback) {
            memcpy(err, pad.err, NB_GROUP * left);
            memcpy(err_scale, pad.err_scale, left);
        }
    }
    return work->noise2;
}
