/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode a tile: docs/wire-format.md sections 5 to 8 and 11. A block has a tile, a thread a group.
 *
 * First half (survey): value + residual, maxima in both domains, sums for the bound. The bound seldom acts.
 * The survey therefore assumes that it does not act, and runs again where it acts or might act. One exchange
 * between the threads gives the tile's exponent, its factor, and whether the tile holds an unusual value
 * (careful.cuh). Second half (quantize): codes, quantization errors, new residuals.
 *
 * Plain tiles (struct nb_job) and other tiles run the same statements, of which a plain tile needs fewer. A
 * plain tile with an unusual value starts again as an ordinary one.
 *
 * Cost of a value in instructions, where the bound does not act and values are BF16:
 *
 *     to FP32 1                    squares, estimated 0.75         residual to FP32, times its unit, added 2
 *     maximum and thin pairs 1     transform 4, its maxima 0.75    its last stage, where it is chosen 1
 *     sign of the maximum 0.5      times 1/step 1                  rounded 1, at most 7 1, packed 0.75
 *     quantization error 1         transformed back 5              its maximum 0.75
 *     new residual times 1/unit 1  rounded and packed 0.5          through shared memory and to global 0.6
 *
 * The sum is about 24. Work done once a group or a tile adds 9. Without feedback, rounding a code as the bits
 * of a very small number takes 1, and limiting and packing it with another code takes 0.6. Squares of other
 * types take 2.
 */
#ifndef NIBBLE_KERNELS_ENCODE_CUH
#define NIBBLE_KERNELS_ENCODE_CUH

#include "values.cuh"

NB_GROUP_IS_32("a group in the registers of a thread: loops and masks of 32 values");

/* A thread's knowledge of its group after the survey. */
struct nb_group_survey {
    float max;        /* of the chosen domain. Transformed: times 1/8. Above NB_USUAL_MOST: maybe escapes */
    uint32_t positive; /* 1: a value of that magnitude is not negative */
    uint32_t transform;
    uint32_t idle;
    float own2, error2;
    float spare; /* with estimated sums: the share of the bound that the group's own energy leaves */
};

/* How the survey measures the energies of values and residuals. */
enum nb_norms { NB_NORMS_NONE, NB_NORMS_ESTIMATED, NB_NORMS_EXACT };

/* In BF16 the survey adds sixteen squares of a pair's half with a relative error below 2^-9 each. 15/16 of
 * their sum is therefore less than the true sum, apart from numbers too small for its range. These lie far
 * below the smallest energy that counts here. Another 15/16 covers the rounding of sums over the tile, of the
 * true sums, and of the bound's square. NB_GPU_SURE has both factors. */
#define NB_ENERGY_LEAST 0x1.2p-110f
/* A value that must be an escape leaves a group's maximum, or an eighth of it, above this number. careful.cuh
 * encodes a tile with such a group and decides exactly. */
#define NB_USUAL_MOST 0x6f800000u /* 2^96 */
NB_STATIC_ASSERT(NB_USUAL_MOST <= NB_ESCAPE_BITS - (4u << 23), "room for the roundings of a transform");

#define NB_SPARE_MOST 0x76800000u /* 2^110: beyond, a tile's energy might not be a number */

/* Counts for a thin group: values of at least NB_SMALL times the maximum, and whether a value exceeds 2^10
 * times the mean of the small ones. */
NB_DEV uint32_t nb_count_large(const float *h, float max, float threshold, uint32_t *careful)
{
    uint32_t small = 0, large = 0;
    float sum = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const float a = nb_abs(h[i]);
        const int below = a < threshold;
        large += !below;
        if (below && nb_bits(a) >= NB_FLUSH_BITS) {
            small++;
            sum = sum + a;
        }
    }
    if (small >= NB_OUTLIER_MEMBERS && max * nb_from_int((int32_t)small) > sum * 0x1p10f)
        *careful = 1;
    return large;
}

/* Clear the residuals of group g's zeros, in shared memory. */
NB_DEV void nb_clear_errors(int type, nb_quad *stage, uint32_t g)
{
    NB_ROLL
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const unsigned word = type == NB_F32 ? i : i / 2;
        uint32_t v = ((const uint32_t *)(stage + nb_place_quad(NB_QUADS(type), g, word / 4)))[word % 4];
        if (type != NB_F32)
            v = v >> 16 * (i % 2) << 16;
        if (!(v & NB_F32_ABS))
            ((uint8_t *)(stage + NB_ERRORS_AT + nb_place_quad(2, g, i / 16)))[i % 16] = 0;
    }
}

/* nb_plain_max of codec/format.h, of the thin or flat group h. With NB_READS_ANEW its values are read anew,
 * one by one. */
NB_DEV float nb_plain_max_of(int type, int feedback, const nb_quad *stage, uint32_t g, float factor, int idle,
                             const float *values, float max)
{
    if (!NB_READS_ANEW(type)) {
        float most = 0, least = 0;
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++) {
            most = nb_fmax(most, values[i]);
            least = nb_fmin(least, values[i]);
        }
        return nb_fmax(max, nb_fmin(most, -least) * NB_ROOM);
    }
    const uint8_t *scales = (const uint8_t *)(stage + NB_SCALES_AT);
    const float unit = feedback && !idle ? nb_unit_of(scales[g], factor) : 0;
    float positive = 0, negative = 0;
    NB_ROLL
    for (unsigned i = 0; i < NB_GROUP; i++) {
        const unsigned word = type == NB_F32 ? i : i / 2;
        uint32_t v = ((const uint32_t *)(stage + nb_place_quad(NB_QUADS(type), g, word / 4)))[word % 4];
        if (type != NB_F32)
            v = v >> 16 * (i % 2) & 0xffff;
        float h = nb_widen(type, v);
        if (feedback) {
            const int8_t *errors = (const int8_t *)(stage + NB_ERRORS_AT + nb_place_quad(2, g, i / 16));
            h = h + nb_from_int(errors[i % 16]) * unit;
        }
        positive = nb_fmax(positive, h);
        negative = nb_fmin(negative, h);
    }
    return nb_fmax(max, nb_fmin(positive, -negative) * NB_ROOM);
}

/* Return the larger magnitude of a pair, or a NaN. */
NB_DEV uint32_t nb_larger(float a, float b)
{
    return nb_bits(nb_fmax_or_nan(nb_abs(a), nb_abs(b)));
}

/* Survey group g and fill x with the values of the chosen domain. `share` times a group's energy
 * limits its residual where the survey estimates sums. `six`: for int6, which has no transform. */
NB_DEV void nb_survey(int type, int feedback, int six, enum nb_norms norms, float share, nb_quad *stage,
                      uint32_t g, float factor, float *x, struct nb_group_survey *s)
{
    float h[NB_GROUP], energy = 0;
    int zero;

    const int measure = NB_ESTIMATES && norms == NB_NORMS_ESTIMATED;
    s->idle = !nb_group_values(type, stage, g, h, measure, &energy, &zero);
    if (feedback && nb_any(zero || (measure && energy == 0))) {
        NB_RARE;
        if (measure && energy == 0)
            s->idle = !nb_group_any(stage, g);
        if (zero && !s->idle)
            nb_clear_errors(type, stage, g);
    }
    s->own2 = s->error2 = s->spare = 0;
    if (norms == NB_NORMS_EXACT) {
        if (!feedback || (NB_ESTIMATES && type == NB_BF16))
            NB_RARE;
        float squares[NB_GROUP];
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            squares[i] = h[i] * h[i];
        s->own2 = nb_sum32(squares);
    }
    if (feedback) {
        const uint32_t scale = ((const uint8_t *)(stage + NB_SCALES_AT))[g];
        /* A unit is a power of two. Its product with the factor is rounded once. */
        const float one = s->idle ? 0 : nb_unit_of(scale, 1);
        const float power = factor != 1 && nb_unit_of(scale, factor) == 0 ? 0 : one;
        uint32_t word[8];
        int32_t count = 0;
        nb_group_words(2, stage + NB_ERRORS_AT, g, word);
        NB_UNROLL
        for (unsigned k = 0; k < 8; k++)
            count = nb_dot4(word[k], word[k], count);
        if (factor == 1) { /* products are exact */
            NB_UNROLL
            for (unsigned i = 0; i < NB_GROUP; i++)
                if (!(i & 2))
                    nb_two_fma(&h[i], &h[i + 2], nb_from_byte(word[i / 4], i % 4), nb_from_byte(word[i / 4], i % 4 + 2), power, power);
        } else {
            NB_RARE;
            NB_UNROLL
            for (unsigned i = 0; i < NB_GROUP; i++)
                h[i] = h[i] + nb_from_byte(word[i / 4], i % 4) * power * factor;
        }
        s->error2 = nb_from_int(count) * one * one;
        if (NB_ESTIMATES && norms == NB_NORMS_ESTIMATED)
            s->spare = nb_fma(nb_fmax(energy - NB_ENERGY_LEAST, 0), share, -s->error2);
    }

    /* Maximum, and the smallest of the pairs' larger values (nb_is_thin). A pair of NaN exceeds all
     * others. */
    uint32_t most = 0, fewest = NB_F32_INF;
    NB_UNROLL
    for (unsigned i = 0; i < 32; i += 8) {
        const uint32_t pair[4] = {
            nb_larger(h[i], h[i + 1]), nb_larger(h[i + 2], h[i + 3]),
            nb_larger(h[i + 4], h[i + 6]), nb_larger(h[i + 5], h[i + 7])};
        most = nb_max3(nb_max3(most, pair[0], pair[1]), pair[2], pair[3]);
        fewest = nb_min3(nb_min3(fewest, pair[0], pair[1]), pair[2], pair[3]);
    }
    const float max = nb_real(most);
    /* The bound leaves the tile alone if the shares of each warp's groups add up to a number that is not
     * negative. Mostly none of them is. */
    const int bounded = !NB_SCARCE && measure && nb_bits(s->spare) >= NB_SPARE_MOST;
    if (six) {
        s->transform = s->positive = 0;
        s->max = max;
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            x[i] = h[i];
        if (nb_any(nb_real(fewest) < max * NB_SMALL || bounded)) {
            NB_RARE;
            uint32_t careful = 0;
            if (nb_real(fewest) < max * NB_SMALL)
                (void)nb_count_large(h, max, max * NB_SMALL, &careful);
            const float spare = measure ? nb_warp_total(s->spare) : 0;
            if (careful || nb_bits(spare) >= NB_SPARE_MOST)
                s->max = nb_real(NB_F32_INF);
        }
        return;
    }
    /* The transform up to its last stage. That stage only adds and subtracts two values: the larger magnitude
     * of its results is the sum of both magnitudes, rounded alike. */
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i++)
        x[i] = h[i];
    nb_transform_most(x);
    most = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i += 4)
        most = nb_max3(most, nb_bits(nb_abs(x[i]) + nb_abs(x[i + 2])), nb_bits(nb_abs(x[i + 1]) + nb_abs(x[i + 3])));
    const float max_y = nb_real(most);
    float ratio = NB_RATIO_OF_ALL, plain = max;
    const float threshold = max * NB_SMALL;
    if (NB_SCARCE) { /* the same, without votes, which would keep all of h in registers */
        if (nb_real(fewest) < threshold) {
            NB_RARE;
            uint32_t careful = 0;
            ratio = nb_ratio_of(nb_count_large(h, max, threshold, &careful));
            plain = nb_plain_max_of(type, feedback, stage, g, factor, (int)s->idle, h, max);
            if (careful)
                ratio = plain = nb_real(NB_F32_INF); /* no transform, and an unusual maximum */
        }
        if (nb_real(fewest) > max * NB_FLAT) {
            NB_RARE;
            plain = nb_plain_max_of(type, feedback, stage, g, factor, (int)s->idle, h, max);
        }
    }
    const int thin = nb_real(fewest) < threshold, flat = nb_real(fewest) > max * NB_FLAT;
    if (!NB_SCARCE && nb_any(thin | flat | bounded)) {
        NB_RARE;
        if (thin | flat)
            plain = nb_plain_max_of(type, feedback, stage, g, factor, (int)s->idle, h, max);
        if (thin) {
            uint32_t careful = 0;
            ratio = nb_ratio_of(nb_count_large(h, max, threshold, &careful));
            if (careful)
                ratio = plain = nb_real(NB_F32_INF); /* no transform, and an unusual maximum */
        }
        const float spare = measure ? nb_warp_total(s->spare) : 0;
        if (nb_bits(spare) >= NB_SPARE_MOST)
            ratio = plain = nb_real(NB_F32_INF);
    }
    const float scaled = max_y * 0.125f;
    const int better = !zero && scaled * ratio < plain; /* zeros must arrive as zeros */
    /* Below the floor a group has no transform. Only its residual shows whether it was transformed here. */
    s->transform = better && (!feedback || nb_bits(scaled) >= NB_FLUSH_BITS);
    const float chosen = s->transform ? max_y : max;
    if (s->transform) {
        NB_BRANCH;
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++)
            if (!(i & 2)) {
                h[i] = x[i] + x[i + 2];
                h[i + 2] = x[i] - x[i + 2];
            }
    }
    /* As integers, negative numbers are less than all others. */
    int32_t top = (int32_t)nb_bits(h[0]);
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i++)
        x[i] = h[i];
    NB_UNROLL
    for (unsigned i = 1; i + 1 < NB_GROUP; i += 2)
        top = nb_signed_max3(top, (int32_t)nb_bits(x[i]), (int32_t)nb_bits(x[i + 1]));
    top = nb_signed_max3(top, top, (int32_t)nb_bits(x[NB_GROUP - 1]));
    s->positive = (uint32_t)top == nb_bits(chosen);
    s->max = better ? scaled : plain;
}

/* Store the new residual of a group and its scale. Idle groups keep theirs. r is the quantization error times
 * 2^(down / 2^23), in the order of nb_transform_by where `turned`. */
NB_DEV void nb_keep_error(char *errors, char *scales, const float *r, uint32_t down, int turned, int idle)
{
    uint32_t word[8], most = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_GROUP; i += 4)
        most = nb_max3(most, nb_bits(nb_fmax(nb_abs(r[i]), nb_abs(r[i + 1]))), nb_bits(nb_fmax(nb_abs(r[i + 2]), nb_abs(r[i + 3]))));
    const uint32_t bits = most - down; /* the product, where it is not below the floor */
    uint32_t scale = 0;
    float inverse = 0;
    if ((int32_t)bits >= (int32_t)NB_FLUSH_BITS) {
        const uint32_t above = bits + 0x10000; /* 127.5/64 and more belong to the next power of two */
        scale = (above >> 23) - 6;
        inverse = nb_real(((133u + 127u) << 23) - (above & 0xff800000u) - down);
    }
    const float by[2] = {inverse, turned ? -inverse : inverse};
    NB_UNROLL
    for (unsigned k = 0; k < 8; k++)
        word[k] = nb_round_bytes(r[4 * k] * by[NB_TURNED(4 * k)], r[4 * k + 1] * by[NB_TURNED(4 * k + 1)],
                                 r[4 * k + 2] * by[NB_TURNED(4 * k + 2)], r[4 * k + 3] * by[NB_TURNED(4 * k + 3)]);
    if (idle)
        return;
    NB_UNROLL
    for (unsigned k = 0; k < 2; k++) { /* half a sector each, which the second cache puts together */
        nb_quad q;
        q.x = word[4 * k];
        q.y = word[4 * k + 1];
        q.z = word[4 * k + 2];
        q.w = word[4 * k + 3];
        nb_store16(errors + 16 * k, q);
    }
    nb_store1(scales, scale);
}

/* Words of a whole tile's record without escapes: before its codes, and in all. Then the record's place in
 * sh->record, which aligns the codes. A record of fewer groups begins later there, and its codes begin at the
 * same place. */
#define NB_WORDS_BEFORE (1 + NB_TILE_GROUPS / 4 + NB_TILE_GROUPS / 32)
#define NB_WORDS_MOST (NB_WORDS_BEFORE + 4 * NB_TILE_GROUPS)
#define NB_RECORD_AT ((0u - NB_WORDS_BEFORE) & 3)

/* The same of an int6 record. It lies where the tile's values were, since the room behind a stage is too
 * small. So it is delivered within its ticket, and the next one fetches there. */
#define NB_SIX_WORDS_BEFORE (1 + NB_TILE_GROUPS / 4)
#define NB_SIX_WORDS_MOST (NB_SIX_WORDS_BEFORE + 6 * NB_TILE_GROUPS)
NB_STATIC_ASSERT(((NB_WORDS_BEFORE ^ NB_SIX_WORDS_BEFORE) & 3) == 0, "NB_RECORD_AT aligns the codes of both");

/* Return the words before the codes. */
NB_DEV uint32_t nb_words_before(uint32_t groups)
{
    return 1 + (groups + 3) / 4 + (groups + 31) / 32;
}

/* Return the bytes of the partial groups that a ticket writes besides its record. */
NB_DEV uint32_t nb_ticket_bytes(int type, const struct nb_job *job)
{
    return nb_round4(job->head * nb_type_bytes(type)) + nb_round4(job->tail * nb_type_bytes(type));
}

/* Copy the values of partial groups, padded to four bytes, and clear their residuals. */
NB_DEV void nb_partial(int type, const struct nb_gpu_desc *d, uint64_t at, uint32_t count, char *out)
{
    const uint32_t t = nb_thread(), bytes = nb_type_bytes(type);
    const void *src = (const void *)(uintptr_t)d->src;
    if (t < count) {
        NB_RARE;
        const uint32_t v = nb_element(type, src, at + t);
        nb_put_element(type, out, t, v);
        if (NB_MODE(d) != NB_EF_OFF)
            nb_store1((char *)(uintptr_t)d->err + d->first + at + t, 0);
        if ((d->flags & NB_GPU_STATS) && (nb_bits(nb_widen(type, v)) & NB_F32_ABS) >= NB_F32_INF)
            nb_add64(&nb_control_of(d)->nonfinite, 1);
    }
    if (t == count && count * bytes % 4) {
        NB_RARE;
        nb_store2(out + count * bytes, 0);
    }
}

/* Find the place of the record of `bytes` in the output, for all threads (sh->offset), and write the partial
 * groups before and behind it. One warp. */
NB_DEV void nb_settle(int type, int plain, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh, uint32_t bytes)
{
    const uint32_t more = plain ? 0 : nb_ticket_bytes(type, job), lead = plain ? 0 : nb_round4(job->head * nb_type_bytes(type));
    const uint64_t offset = nb_look_back(nb_states(d), job->ticket, more + bytes);
    char *dst = (char *)(uintptr_t)d->dst + offset;

    if (!plain && (job->head | job->tail)) {
        NB_RARE;
        nb_partial(type, d, 0, job->head, dst);
        nb_partial(type, d, d->n - job->tail, job->tail, dst + lead + bytes);
    }
    if (nb_thread() == 0) {
        sh->offset = offset + lead;
        if (!plain && job->ticket + 1 == d->tickets)
            nb_store8(&nb_control_of(d)->length, offset + more + bytes);
    }
}

/* Copy the record of a plain tile to its place in the output. */
NB_DEV void nb_copy_record(int six, const nb_quad *quads, char *dst)
{
    const uint32_t t = nb_thread(), words = six ? NB_SIX_WORDS_MOST : NB_WORDS_MOST;
    const uint32_t whole = words / NB_THREADS;
    const uint32_t *record = (const uint32_t *)quads + NB_RECORD_AT;
    dst += 4 * t;
    if (t < words - whole * NB_THREADS)
        nb_store4(dst + 4 * NB_THREADS * whole, record[t + NB_THREADS * whole]);
    NB_UNROLL
    for (unsigned u = 0; u < whole; u++)
        nb_store4(dst + 4 * NB_THREADS * u, record[t + NB_THREADS * u]);
}

/* Deliver the record that the ticket in place `before` left in shared memory. Its team has worked on another
 * ticket since, and the tickets before it have mostly published their lengths, so nobody waits. */
NB_DEV void nb_deliver(struct nb_shared *sh, uint32_t before)
{
    const struct nb_gpu_desc *d = &sh->kept[before];
    if (nb_thread() < 32) {
        NB_ONE_WARP;
        const uint64_t offset = nb_look_back(nb_states(d), sh->pending_ticket[before], 4 * NB_WORDS_MOST);
        if (nb_thread() == 0)
            sh->pending_at = d->dst + offset;
    }
    nb_barrier();
    nb_copy_record(0, nb_record_of(sh->stage[before]), (char *)(uintptr_t)sh->pending_at);
}

/* Return the warp's number: `kept`, or where registers are scarce a number that the compiler cannot keep. It
 * does not know that d->zero is 0. */
NB_DEV uint32_t nb_warp_of(uint32_t kept, const struct nb_gpu_desc *d)
{
    return NB_SCARCE ? (nb_thread() + d->zero[0]) / 32 : kept;
}

/* Encode a tile whose values (and residuals) are in the stage of `place`. Return 1 when the tile is unusual
 * and still to be encoded. `six`: a plain tile of int6, otherwise one of int4. */
NB_DEV int nb_encode_tile(int type, int feedback, int plain, int six, const struct nb_gpu_desc *d,
                          const struct nb_job *job, struct nb_shared *sh, uint32_t warp, uint32_t place)
{
    nb_quad *stage = sh->stage[place];
    const uint32_t t = nb_thread(), groups = plain ? NB_TILE_GROUPS : job->groups;
    const int measure = plain ? 0 : (int)job->measure;
    const int active = plain || t < groups;
    float x[NB_GROUP], factor = 1;
    uint32_t domain = 0; /* bit i: thread i of the warp transforms its group */
    struct nb_group_survey s;
    /* Mostly an estimate shows that the bound does not act. A plain tile in which it acts or might act is
     * surveyed again as an ordinary tile. */
    enum nb_norms norms = feedback || measure ? NB_NORMS_EXACT : NB_NORMS_NONE;
    if (NB_ESTIMATES && feedback && plain && type == NB_BF16)
        norms = NB_NORMS_ESTIMATED;

    for (;;) {
        /* Threads without a group work on stale values: values that only some threads set would take
         * registers all through the kernel. */
        nb_survey(type, feedback, six, norms, d->share, stage, t, factor, x, &s);
        if (!plain && !active) {
            NB_RARE;
            s.max = s.own2 = s.error2 = s.spare = 0;
            s.transform = 0;
            s.idle = 1;
        }
        const int estimated = NB_ESTIMATES && feedback && plain && norms == NB_NORMS_ESTIMATED;
        if (NB_SCARCE && estimated && nb_any(nb_bits(s.spare) >= NB_SPARE_MOST)) {
            NB_RARE;
            if (nb_bits(nb_warp_total(s.spare)) >= NB_SPARE_MOST)
                s.max = nb_real(NB_F32_INF);
        }
        if (!NB_SCARCE)
            domain = nb_ballot((int)s.transform);
        /* A maximum below the floor counts as larger than all others. */
        nb_max32_shared(&sh->largest, nb_bits(s.max));
        nb_min32_shared(&sh->smallest, nb_bits(s.max) - NB_FLUSH_BITS);
        if (norms == NB_NORMS_EXACT) {
            if (!feedback || (NB_ESTIMATES && type == NB_BF16))
                NB_RARE;
            sh->sums[0][t] = s.own2;
            sh->sums[1][t] = s.error2;
        }
        nb_barrier();
        if (norms != NB_NORMS_EXACT)
            break;
        if (!feedback || (NB_ESTIMATES && type == NB_BF16))
            NB_RARE;
        if (NB_SCARCE ? nb_thread() < 32 : warp == 0) {
            NB_ONE_WARP;
            const float own = nb_sum128(sh->sums[0]), carried = feedback ? nb_sum128(sh->sums[1]) : 0;
            if (t == 0) {
                const float f = feedback ? nb_factor_of(own, carried, d->bound) : 1;
                sh->factor = f;
                sh->signal2 = own;
                sh->carried2 = f != 0 ? f * carried * f : 0;
                /* because of values that do not count */
                sh->flag[0] = !((nb_bits(own) & NB_F32_ABS) < NB_F32_INF);
            }
        }
        nb_barrier();
        if (!feedback || sh->flag[0] || sh->factor == factor)
            break;
        NB_RARE;
        factor = sh->factor;
        if (t == 0)
            nb_reset_extremes(sh);
        nb_barrier();
        if (plain)
            return 1;
    }

    uint32_t most = sh->largest;
    const uint32_t least = sh->smallest;
    /* The tile's exponent, biased, in its place in a float. */
    uint32_t words = six ? NB_SIX_WORDS_MOST : NB_WORDS_BEFORE + 4 * groups, first = 0;
    uint32_t exponent = (most + 0x7ffffu) & 0xff800000u;
    uint32_t header = (uint32_t)(six ? NB_TILE_INT6 : NB_TILE_INT4) + (exponent >> 7);
    const int apart = least + (NB_FLUSH_BITS + (six ? 0x7fffffu : 0x780000u) + (22u << 23)) < exponent;
    if (norms == NB_NORMS_EXACT) {
        if (!feedback || (NB_ESTIMATES && type == NB_BF16))
            NB_RARE;
        if (sh->flag[0])
            most = NB_ALL;
    }
    if (apart || most - NB_FLUSH_BITS >= NB_USUAL_MOST - NB_FLUSH_BITS) {
        NB_RARE;
        if (plain || most >= NB_FLUSH_BITS) {
            nb_barrier();
            if (t == 0)
                nb_reset_extremes(sh);
            nb_barrier();
            return 1;
        }
        exponent = (uint32_t)(NB_EXPONENT_MIN + 127) << 23;
        header = NB_TILE_ZERO;
        words = 1;
    }
    if (!plain) {
        first = NB_WORDS_BEFORE - nb_words_before(groups);
        words = words == 1 ? 1 : words - first;
    }
    if (t == 0) {
        NB_ONE_WARP;
        nb_publish(job->state, (plain ? 0 : nb_ticket_bytes(type, job)) + 4 * words);
        if (plain && !six) { /* nb_deliver writes the record after the next ticket's work */
            sh->pending_ticket[place] = job->ticket;
            sh->deferred = 1;
        }
    }

    /* ---- Second half */
    uint32_t *record = (uint32_t *)(six ? stage : nb_record_of(stage)) + NB_RECORD_AT;
    const uint32_t bits = nb_bits(s.max);
    const uint32_t segment = nb_min((exponent + 0x7fffffu - bits) >> 25, 4);
    const uint32_t keeps = 0xfff80000u << segment; /* bits of the code */
    /* The value of the code: of int4 to nearest, but down by less than a sixteenth, of int6 up. */
    const uint32_t up = six ? bits - keeps - 1u : bits + nb_add_max(0u - keeps, 0u - (1u << 19), 1u << 18);
    const uint32_t stands = up & keeps;
    /* nb_code_of(bits, exponent, six): the inverse of nb_usual_scale. */
    const uint32_t above = stands - exponent + (23u << 23); /* modulo 2^32, where 2^9 exponents vanish */
    uint32_t code = nb_bits(nb_real(above >> 2 | 0x40000000u) + 0x1p23f) & 0x7f;
    code = (int32_t)above < 4 << 23 ? above >> 23 : code;
    float step = nb_real(stands);
    if (six)
        step = step * NB_INT6_STEP; /* exact */
    else if (!s.transform)
        step = step * 0.125f;
    if (s.positive) { /* the extreme value becomes -8 */
        step = -step;
        code |= 0x80;
    }
    float inverse = nb_reciprocal(step);
    if (NB_SCARCE ? bits < NB_FLUSH_BITS : nb_any(bits < NB_FLUSH_BITS)) {
        NB_RARE;
        if (bits < NB_FLUSH_BITS) {
            code = s.transform = 0;
            step = inverse = 0;
            if (bits && active && (d->flags & NB_GPU_STATS))
                nb_add64(&nb_control_of(d)->flushed, 1);
        }
        if (!NB_SCARCE)
            domain = nb_ballot((int)s.transform);
    }
    if (NB_SCARCE)
        domain = nb_ballot((int)s.transform);
    if (plain) {
        ((uint8_t *)(record + 1))[t] = (uint8_t)code;
        if (!six) /* all lanes store the same word */
            record[1 + NB_TILE_GROUPS / 4 + nb_warp_of(warp, d)] = domain;
        if (t == 0)
            record[0] = header;
    } else {
        record += first;
        if (t < ((groups + 3) & ~3u))
            ((uint8_t *)(record + 1))[t] = (uint8_t)code;
        if (t % 32 == 0 && active)
            record[1 + (groups + 3) / 4 + nb_warp_of(warp, d)] = domain;
        if (t == 0)
            record[0] = header;
    }
    uint32_t out[4], sixes[8]; /* int6: codes, a byte each */
    NB_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        float y[8];
        NB_UNROLL
        for (unsigned b = 0; b < 6; b++) {
            if (b & 2)
                continue;
            y[b] = x[8 * k + b];
            y[b + 2] = x[8 * k + b + 2];
            nb_two_times(&y[b], &y[b + 2], inverse);
        }
        if (six) {
            uint32_t raised[8]; /* codes in the lowest bits */
            NB_UNROLL
            for (unsigned b = 0; b < 6; b++) {
                if (b & 2)
                    continue;
                const unsigned i = 8 * k + b;
                nb_two_plus(&y[b], &y[b + 2], NB_MAGIC, NB_MAGIC);
                raised[b] = nb_bits(y[b]);
                raised[b + 2] = nb_bits(y[b + 2]);
                if (feedback) {
                    nb_two_plus(&y[b], &y[b + 2], -NB_MAGIC, -NB_MAGIC);
                    nb_two_fma(&x[i], &x[i + 2], y[b], y[b + 2], -step, -step); /* products are exact */
                }
            }
            NB_UNROLL
            for (unsigned b = 0; b < 8; b += 4)
                sixes[2 * k + b / 4] = nb_bytes(nb_bytes(raised[b], raised[b + 1], 0x0040),
                                                nb_bytes(raised[b + 2], raised[b + 3], 0x0040), 0x5410);
        } else if (feedback) {
            NB_UNROLL
            for (unsigned b = 0; b < 6; b++) {
                if (b & 2)
                    continue;
                const unsigned i = 8 * k + b;
                nb_two_round(&y[b], &y[b + 2]);
                y[b] = nb_fmin(y[b], 7.0f);
                y[b + 2] = nb_fmin(y[b + 2], 7.0f);
                nb_two_fma(&x[i], &x[i + 2], y[b], y[b + 2], -step, -step); /* products are exact */
            }
            const uint32_t even = nb_round_bytes(y[0], y[2], y[4], y[6]), odd = nb_round_bytes(y[1], y[3], y[5], y[7]);
            out[k] = nb_choose(0x0f0f0f0fu, even, odd << 4);
        } else {
            uint32_t word = 0, raised[8]; /* plus 8: at most 16 */
            NB_UNROLL
            for (unsigned b = 0; b < 6; b++) {
                if (b & 2)
                    continue;
                /* The bits of the smallest floats are integers, and the codes are rounded as such. */
                float q0 = 8 * NB_FLOAT_LEAST, q1 = 8 * NB_FLOAT_LEAST;
                nb_two_fma(&q0, &q1, y[b], y[b + 2], NB_FLOAT_LEAST, NB_FLOAT_LEAST);
                raised[b] = nb_bits(q0);
                raised[b + 2] = nb_bits(q1);
            }
            NB_UNROLL
            for (unsigned b = 0; b < 8; b += 2)
                word = nb_pack_nibbles(raised[6 - b], raised[7 - b], word);
            out[k] = word ^ 0x88888888u;
        }
    }
    if (six) {
        uint64_t *to = (uint64_t *)(void *)(record + NB_SIX_WORDS_BEFORE) + 3 * t;
        NB_UNROLL
        for (unsigned p = 0; p < 3; p++) { /* codes 24 to 31 go into the upper two bits of the others */
            const uint32_t w0 = nb_choose(0x3f3f3f3fu, sixes[2 * p], sixes[6] << (6 - 2 * p));
            const uint32_t w1 = nb_choose(0x3f3f3f3fu, sixes[2 * p + 1], sixes[7] << (6 - 2 * p));
            to[p] = (uint64_t)w1 << 32 | w0;
        }
    } else {
        nb_quad codes;
        codes.x = out[0];
        codes.y = out[1];
        codes.z = out[2];
        codes.w = out[3];
        /* threads without a group store behind the sent words */
        nb_record_of(stage)[(NB_RECORD_AT + NB_WORDS_BEFORE) / 4 + t] = codes;
    }
    if (!six && measure) {
        NB_RARE;
        float squares[NB_GROUP];
        NB_UNROLL
        for (unsigned i = 0; i < NB_GROUP; i++) {
            const int32_t q = (int32_t)(out[i / 8] << (28 - 4 * (i % 8))) >> 28;
            const float rest = feedback ? x[i] : nb_fma(nb_from_int(q), -step, x[i]);
            squares[i] = rest * rest;
        }
        const float sum = nb_sum32(squares) * (s.transform ? 0.03125f : 1.0f);
        sh->sums[0][t] = active ? sum : 0;
    }
    if (feedback && active) {
        int turned = (int)s.transform;
        uint32_t down = turned ? 5u << 23 : 0;
        /* Almost every warp transforms some groups. Skipping the transform elsewhere takes more instructions
         * than it saves. */
        if (!six)
            nb_transform_by(turned ? 1 : 0, x);
        if (NB_MODE(d) == NB_EF_EMA) {
            NB_RARE;
            const uint32_t scale = ((const uint8_t *)(stage + NB_SCALES_AT))[t];
            const float beta = d->beta, rest = 1.0f - beta, unit = nb_unit_of(scale, factor);
            const float back = turned ? 0.03125f : 1;
            uint32_t word[8];
            nb_group_words(2, stage + NB_ERRORS_AT, t, word);
            NB_UNROLL
            for (unsigned i = 0; i < NB_GROUP; i++) {
                const float e = nb_from_byte(word[i / 4], i % 4) * unit;
                const float kept = beta * e, added = rest * (x[i] * (turned && NB_TURNED(i) ? -back : back));
                x[i] = kept + added;
            }
            turned = 0;
            down = 0;
        }
        nb_keep_error((char *)(uintptr_t)job->err + 32 * t, (char *)(uintptr_t)job->scale + t, x, down, turned,
                      (int)s.idle);
    }
    if (plain && !six)
        return 0;
    if (!six)
        NB_RARE;
    nb_barrier();
    if (NB_SCARCE ? nb_thread() < 32 : warp == 0) {
        NB_ONE_WARP;
        nb_settle(type, plain, d, job, sh, 4 * words);
        if (measure) {
            NB_RARE;
            const float noise = nb_sum128(sh->sums[0]);
            if (t == 0) {
                float *energy = nb_energies(d) + 3 * (uint64_t)job->ticket;
                energy[0] = sh->signal2;
                energy[1] = noise;
                energy[2] = sh->carried2 < NB_LEAST_CARRIED ? 0 : sh->carried2;
            }
        }
        if (t == 0 && factor != 1 && (d->flags & NB_GPU_STATS)) {
            NB_RARE;
            nb_add64(&nb_control_of(d)->bounded, 1);
        }
    }
    nb_barrier();
    char *dst = (char *)(uintptr_t)d->dst + sh->offset;
    if (plain) {
        nb_copy_record(six, six ? stage : nb_record_of(stage), dst);
        return 0;
    }
    dst += 4 * t;
    record = (uint32_t *)nb_record_of(stage) + NB_RECORD_AT;
    NB_ROLL
    for (uint32_t i = t; i < words; i += NB_THREADS, dst += 4 * NB_THREADS)
        nb_store4(dst, record[first + i]);
    return 0;
}

#endif
