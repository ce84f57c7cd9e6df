/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode unusual tiles: tiles with escapes, with groups too far apart for one scale, or with sums that
 * overflow. Also measured and partial tiles of int6, tiles of int8, and tiles whose type or alignment rules
 * out whole pieces. A thread still has a group, but its values lie in shared memory and it loops over them:
 * the code is short rather than fast.
 */
#ifndef NIBBLE_KERNELS_CAREFUL_CUH
#define NIBBLE_KERNELS_CAREFUL_CUH

#include "encode.cuh"

NB_GROUP_IS_32("a row of 32 values in shared memory for each thread, masks of a bit a value");

/* Value i of this thread's group. Each thread uses a bank of its own. */
#define NB_ROW(rows, i) ((rows)[32 * nb_thread() + (((i) ^ nb_thread()) & 31)])

/* A thread's knowledge of its group. */
struct nb_careful_group {
    uint32_t escaped; /* a bit for each value */
    uint32_t max;     /* bits */
    uint32_t positive, transform, idle;
};

NB_DEV float nb_careful_value(int type, const struct nb_job *job, uint32_t i)
{
    return nb_widen(type, nb_element(type, (const void *)(uintptr_t)job->src, 32 * nb_thread() + i));
}

/* A zero has no residual. */
NB_DEV float nb_careful_error(int type, const struct nb_job *job, uint32_t i, float unit)
{
    if (nb_careful_value(type, job, i) == 0)
        return 0;
    const uint32_t e = nb_load1((const char *)(uintptr_t)job->err + 32 * nb_thread() + i);
    return unit != 0 ? nb_from_int((int8_t)e) * unit : 0;
}

/* Return the same sum as nb_sum32 of a row, which it overwrites. */
NB_DEV float nb_row_sum(float *rows)
{
    NB_ROLL
    for (unsigned i = 0; i < 16; i++)
        NB_ROW(rows, i) = NB_ROW(rows, 2 * i) + NB_ROW(rows, 2 * i + 1);
    NB_ROLL
    for (unsigned half = 8; half; half /= 2) {
        NB_ROLL
        for (unsigned i = 0; i < half; i++)
            NB_ROW(rows, i) = NB_ROW(rows, i) + NB_ROW(rows, i + half);
    }
    return NB_ROW(rows, 0);
}

NB_DEV void nb_row_transform(float *rows)
{
    NB_ROLL
    for (unsigned stage = 0; stage < 5; stage++) {
        const unsigned d = stage ? 32u >> stage : 1;
        NB_ROLL
        for (unsigned i = 0; i < 32; i++)
            if (!(i & d)) {
                const float a = NB_ROW(rows, i), b = NB_ROW(rows, i + d);
                NB_ROW(rows, i) = a + b;
                NB_ROW(rows, i + d) = a - b;
            }
    }
}

/* Return the bits of the largest magnitude. *positive: a value of that magnitude is not negative. */
NB_DEV uint32_t nb_row_max(const float *rows, uint32_t *positive)
{
    uint32_t max = 0;
    *positive = 1;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const uint32_t bits = nb_bits(NB_ROW(rows, i)), a = bits & NB_F32_ABS;
        if (a > max)
            *positive = !(bits >> 31);
        else if (a == max)
            *positive |= !(bits >> 31);
        max = a > max ? a : max;
    }
    return max;
}

/* Return the values below the threshold, a bit each. */
NB_DEV uint32_t nb_row_below(const float *rows, float threshold)
{
    uint32_t below = 0;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++)
        below |= (uint32_t)(nb_abs(NB_ROW(rows, i)) < threshold) << i;
    return below;
}

NB_DEV int nb_thin(uint32_t small)
{
    return ((small & small >> 1 & 0x05050505u) | (small & small >> 2 & 0x30303030u)) != 0;
}

/* One round of section 7, step 2: return the values to escape. */
NB_DEV uint32_t nb_row_outliers(const float *rows, uint32_t members)
{
    uint32_t positive, small = 0, found = 0;
    const float threshold = nb_real(nb_row_max(rows, &positive)) * NB_SMALL;
    const uint32_t below = nb_row_below(rows, threshold);
    float sum = 0;
    if (members == NB_OUTLIER_MEMBERS && !nb_thin(below))
        return 0;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const float a = nb_abs(NB_ROW(rows, i));
        if (nb_bits(a) >= NB_FLUSH_BITS && a < threshold) {
            sum = sum + a;
            small++;
        }
    }
    if (small < members)
        return 0;
    sum = sum * 0x1p10f;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const float a = nb_abs(NB_ROW(rows, i));
        found |= (uint32_t)(a >= threshold && a * nb_from_int((int32_t)small) > sum) << i;
    }
    return found;
}

/* Return the bits of nb_plain_max where the group is thin or flat, else `max`. */
NB_DEV uint32_t nb_row_plain_max(const float *rows, uint32_t max, int thin)
{
    const float least = nb_real(max) * NB_FLAT;
    float positive = 0, negative = 0;
    int flat = 1;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const float x = NB_ROW(rows, i), other = NB_ROW(rows, i ^ (i / 4 % 2 ? 2u : 1u));
        flat &= nb_fmax(nb_abs(x), nb_abs(other)) > least;
        positive = nb_fmax(positive, x);
        negative = nb_fmin(negative, x);
    }
    if (!thin && !flat)
        return max;
    return nb_bits(nb_fmax(nb_real(max), nb_fmin(positive, -negative) * NB_ROOM));
}

/* Fill the row with the group's values, without the values of `escaped`. */
NB_DEV void nb_row_load(int type, const struct nb_job *job, float *rows, uint32_t escaped, float unit)
{
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        float h = nb_careful_value(type, job, i);
        if (unit != 0)
            h = h + nb_careful_error(type, job, i, unit);
        NB_ROW(rows, i) = escaped >> i & 1 ? 0 : h;
    }
}

NB_DEV void nb_careful_survey(int type, const struct nb_job *job, int int4, uint32_t members, float *rows, float unit,
                              struct nb_careful_group *s)
{
    uint32_t more, large = NB_GROUP, positive, zeros = 0;

    s->escaped = 0;
    nb_row_load(type, job, rows, 0, unit);
    NB_ROLL
    for (unsigned i = 0; i < 32; i++)
        if ((nb_bits(NB_ROW(rows, i)) & NB_F32_ABS) >= NB_ESCAPE_BITS) {
            NB_ROW(rows, i) = 0;
            s->escaped |= 1u << i;
        }
    while ((more = nb_row_outliers(rows, members)) != 0) {
        s->escaped |= more;
        NB_ROLL
        for (unsigned i = 0; i < 32; i++)
            if (more >> i & 1)
                NB_ROW(rows, i) = 0;
    }
    s->transform = 0;
    s->max = nb_row_max(rows, &s->positive);
    if (!int4)
        return;
    const uint32_t below = nb_row_below(rows, nb_real(s->max) * NB_SMALL);
    s->max = nb_row_plain_max(rows, s->max, nb_thin(below));
    if (s->escaped)
        return;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++)
        zeros += nb_careful_value(type, job, i) == 0;
    if (zeros)
        return;
    if (nb_thin(below))
        large = NB_GROUP - nb_popc(below);
    nb_row_transform(rows);
    const float scaled = nb_real(nb_row_max(rows, &positive)) * 0.125f;
    if (nb_better(nb_real(s->max), scaled, large)) {
        s->transform = nb_bits(scaled) >= NB_FLUSH_BITS;
        s->max = nb_bits(scaled);
        s->positive = positive;
    }
}

/* Give all threads the largest maximum of the tile, the smallest one above the floor, and the number of
 * escapes. */
NB_DEV void nb_careful_exchange(struct nb_shared *sh, uint32_t max, uint32_t escapes, uint32_t *most, uint32_t *least,
                                uint32_t *count)
{
    const uint32_t warp = nb_thread() / 32;
    const uint32_t a = nb_warp_max(max), b = nb_warp_min(max >= NB_FLUSH_BITS ? max : NB_F32_INF);
    const uint32_t c = nb_warp_sum(escapes);
    nb_barrier();
    if (nb_thread() % 32 == 0) {
        sh->part[0][warp] = a;
        sh->part[1][warp] = b;
        sh->part[2][warp] = c;
    }
    nb_barrier();
    *most = *count = 0;
    *least = NB_F32_INF;
    NB_ROLL
    for (unsigned w = 0; w < NB_WARPS; w++) {
        *most = sh->part[0][w] > *most ? sh->part[0][w] : *most;
        *least = sh->part[1][w] < *least ? sh->part[1][w] : *least;
        *count += sh->part[2][w];
    }
}

NB_DEV int nb_careful_exponent(uint32_t most)
{
    return most < NB_FLUSH_BITS ? NB_EXPONENT_MIN
                                : (int)(most >> 23) - 127 + ((most & 0x7fffffu) > 0x780000u);
}

/* Write the codes of this thread's group to `codes` and its new residual. The row holds the coded domain's
 * values. Return the scale byte. *noise: the sum of the squared quantization errors. codes: null for a tile
 * of zeros. */
NB_DEV uint32_t nb_careful_quantize(int type, const struct nb_gpu_desc *d, const struct nb_job *job,
                                    int bits_a_code, int wide, int exponent, float *rows, uint32_t scale,
                                    float factor, struct nb_careful_group *s, char *codes, float *noise)
{
    const uint32_t t = nb_thread();
    const int int4 = bits_a_code == 4, int6 = bits_a_code == 6;
    const float low = int4 ? -8.0f : -127.0f, high = int4 ? 7.0f : 127.0f;
    float step = 0, inverse = 0;
    uint32_t code = 0, word = 0, last[2] = {0, 0}; /* int6: codes 24 to 31 */

    if (s->max >= NB_FLUSH_BITS)
        code = wide ? nb_wide_code_of(s->max, exponent, !int4) : nb_code_of(s->max, exponent, !int4);
    if (code) {
        step = nb_scale_of(wide, code, exponent);
        if (!int4)
            step = step * (int6 ? NB_INT6_STEP : NB_INT8_STEP);
        else if (!s->transform)
            step = step * 0.125f;
        if (int4 && s->positive) {
            step = -step;
            code |= 0x80;
        }
        inverse = nb_reciprocal(step);
    }
    if (int6)
        NB_ROLL
        for (unsigned i = 0; i < 4; i++) {
            const float low4 = NB_ROW(rows, 24 + i) * inverse, high4 = NB_ROW(rows, 28 + i) * inverse;
            last[0] |= (nb_bits(low4 + NB_MAGIC) & 63) << 8 * i;
            last[1] |= (nb_bits(high4 + NB_MAGIC) & 63) << 8 * i;
        }
    float squares = 0;
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const float y = NB_ROW(rows, i);
        float q = y * inverse;
        q = (q + NB_MAGIC) - NB_MAGIC;
        q = q < low ? low : q > high ? high : q;
        const uint32_t bits = nb_bits(q + NB_MAGIC);
        const float r = nb_fma(q, -step, y); /* the product is exact */
        NB_ROW(rows, i) = r;
        squares = squares + r * r;
        word |= int4 ? (bits & 15) << 4 * (i % 8) : (bits & (int6 ? 63 : 255)) << 8 * (i % 4);
        if (i % (int4 ? 8 : 4) == (int4 ? 7u : 3u)) {
            if (int6)
                word |= ((i & 4 ? last[1] : last[0]) >> 2 * (i / 8) & 0x03030303u) << 6;
            if (codes && !(int6 && i >= 24))
                nb_store4(codes + (int4 ? i / 8 : i / 4) * 4, word);
            word = 0;
        }
    }
    *noise = s->transform ? squares * 0.03125f : squares;
    if (NB_MODE(d) == NB_EF_OFF || s->idle)
        return code;
    const float unit = nb_unit_of(scale, factor);
    uint32_t max = 0, power = 0;
    float times = 0;
    if (s->transform)
        nb_row_transform(rows);
    NB_ROLL
    for (unsigned i = 0; i < 32; i++) {
        const uint32_t escaped = s->escaped >> i & 1; /* sent exactly, so it leaves no residual */
        float r = NB_ROW(rows, i);
        if (s->transform)
            r = r * 0.03125f;
        if (NB_MODE(d) == NB_EF_EMA) {
            const float kept = d->beta * (escaped ? 0 : nb_careful_error(type, job, i, unit));
            float added = 1.0f - d->beta;
            added = added * r;
            r = kept + added;
        }
        if (escaped)
            r = 0;
        NB_ROW(rows, i) = r;
        max = (nb_bits(r) & NB_F32_ABS) > max ? nb_bits(r) & NB_F32_ABS : max;
    }
    if (max >= NB_FLUSH_BITS) {
        power = (max + 0x10000) >> 23;
        times = nb_real((133 + 127 - power) << 23);
        power -= 6;
    }
    NB_ROLL
    for (unsigned i = 0; i < 32; i++)
        nb_store1((char *)(uintptr_t)job->err + 32 * t + i, nb_bits(nb_fma(NB_ROW(rows, i), times, NB_MAGIC)));
    nb_store1((char *)(uintptr_t)job->scale + t, power);
    return code;
}

/* Give all threads the sum over the tile of each thread's number. */
NB_DEV float nb_careful_sum(struct nb_shared *sh, float mine)
{
    nb_barrier();
    sh->sums[0][nb_thread()] = mine;
    nb_barrier();
    return nb_sum128(sh->sums[0]);
}

/* Return the sum of the numbers of the threads before this one. */
NB_DEV uint32_t nb_careful_rank(struct nb_shared *sh, uint32_t mine)
{
    const uint32_t lane = nb_thread() & 31, warp = nb_thread() / 32;
    uint32_t sum = mine;
    for (unsigned by = 1; by < 32; by *= 2) {
        const uint32_t other = nb_shfl_up(sum, by);
        sum += lane >= by ? other : 0;
    }
    nb_barrier();
    if (lane == 31)
        sh->part[3][warp] = sum;
    nb_barrier();
    for (unsigned w = 0; w < warp; w++)
        sum += sh->part[3][w];
    return sum - mine;
}

/* Encode a tile of which only the place of its values is known. `stage` is overwritten. All threads. Ends
 * like nb_encode_tile. */
NB_DEV void nb_careful(int type, const struct nb_gpu_desc *d, const struct nb_job *job, struct nb_shared *sh,
                       nb_quad *stage, int measure)
{
    const uint32_t t = nb_thread(), groups = job->groups;
    const int active = t < groups, stats = d->flags & NB_GPU_STATS, feedback = NB_MODE(d) != NB_EF_OFF;
    float *rows = (float *)stage, factor = 1, own2 = 0, error2 = 0;
    uint32_t scale = 0, most = 0, least, count = 0;
    int int4 = d->codec == NB_CODEC_INT4, wide = 0, exponent = NB_EXPONENT_MIN, fallback = 0;
    const int fine = d->codec == NB_CODEC_INT6 ? 6 : 8; /* bits of a code, unless int4 */
    struct nb_careful_group s;
    char *dst = (char *)(uintptr_t)d->dst;

    s.escaped = s.max = s.positive = s.transform = 0;
    s.idle = 1;
    if (active) {
        int32_t squares = 0;
        uint32_t any = 0;
        if (feedback)
            scale = nb_load1((const char *)(uintptr_t)job->scale + t);
        NB_ROLL
        for (unsigned i = 0; i < 32; i++) {
            const float g = nb_careful_value(type, job, i);
            any |= nb_bits(g) & NB_F32_ABS;
            NB_ROW(rows, i) = (nb_bits(g) & NB_F32_ABS) >= NB_ESCAPE_BITS ? 0 : g * g;
            if (feedback) {
                const int32_t e = (int8_t)nb_load1((const char *)(uintptr_t)job->err + 32 * t + i);
                squares += g == 0 ? 0 : e * e;
            }
        }
        s.idle = !any;
        own2 = nb_row_sum(rows);
        if (any) {
            const float unit = nb_unit_of(scale, 1);
            error2 = nb_from_int(squares) * unit * unit;
        }
    }
    if (feedback) {
        own2 = nb_careful_sum(sh, own2);
        error2 = nb_careful_sum(sh, error2);
        factor = nb_factor_of(own2, error2, d->bound);
    }
    const float unit = feedback && !s.idle ? nb_unit_of(scale, factor) : 0;
    for (;;) {
        if (active)
            nb_careful_survey(type, job, int4, NB_OUTLIER_MEMBERS, rows, unit, &s);
        nb_careful_exchange(sh, s.max, nb_popc(s.escaped), &most, &least, &count);
        exponent = nb_careful_exponent(most);
        wide = 0;
        if (most >= NB_FLUSH_BITS && !nb_code_of(least, exponent, !int4)) {
            if (active)
                nb_careful_survey(type, job, int4, 1, rows, unit, &s);
            nb_careful_exchange(sh, s.max, nb_popc(s.escaped), &most, &least, &count);
            exponent = nb_careful_exponent(most);
            wide = most >= NB_FLUSH_BITS && !nb_code_of(least, exponent, !int4);
        }
        const uint32_t body = int4 ? nb_round4(groups) + 4 * ((groups + 31) / 32) + 16 * groups
                                   : nb_round4(groups) + 4 * fine * groups;
        if (count <= (int4 ? NB_INT4_ESCAPES : NB_INT8_ESCAPES) &&
            (!count || NB_ESCAPE_BYTES * count + body <= groups * NB_GROUP * nb_type_bytes(type)))
            break;
        fallback++;
        if (!int4)
            break;
        int4 = 0;
    }
    const int raw = fallback && (fallback == 2 || d->codec != NB_CODEC_INT4);
    const int kind = (int4 ? NB_TILE_INT4 : fine == 6 ? NB_TILE_INT6 : NB_TILE_INT8) + wide;
    const int zero = !raw && most < NB_FLUSH_BITS && !count;
    const uint32_t before = NB_TILE_HEADER + NB_ESCAPE_BYTES * count;
    const uint32_t codes = before + nb_round4(groups) + (int4 ? 4 * ((groups + 31) / 32) : 0);
    const uint32_t bytes = raw    ? NB_TILE_HEADER + groups * NB_GROUP * nb_type_bytes(type)
                           : zero ? NB_TILE_HEADER
                                  : codes + 4 * (int4 ? 4 : fine) * groups;
    if (t == 0)
        nb_publish(job->state, nb_ticket_bytes(type, job) + bytes);
    if (t < 32)
        nb_settle(type, 0, d, job, sh, bytes);
    nb_barrier();
    dst += sh->offset;

    if (t == 0)
        nb_store4(dst, raw    ? (uint32_t)NB_TILE_RAW
                       : zero ? (uint32_t)NB_TILE_ZERO
                              : (uint32_t)kind | count << 8 | (uint32_t)(exponent + 127) << 16);
    if (raw) {
        NB_ROLL
        for (uint32_t i = t; i < groups * NB_GROUP; i += NB_THREADS)
            nb_put_element(type, dst + NB_TILE_HEADER, i,
                           nb_element(type, (const void *)(uintptr_t)job->src, i));
        if (feedback && active && !s.idle) {
            NB_ROLL
            for (unsigned i = 0; i < 32; i++)
                nb_store1((char *)(uintptr_t)job->err + 32 * t + i, 0);
            nb_store1((char *)(uintptr_t)job->scale + t, 0);
        }
    } else {
        uint32_t at = nb_careful_rank(sh, nb_popc(s.escaped)), code = 0;
        float noise = 0, signal2 = 0, carried2 = 0;
        for (uint32_t rest = s.escaped; rest; rest &= rest - 1, at++) {
            const uint32_t i = nb_ffs(rest) - 1;
            nb_store4(dst + NB_TILE_HEADER + 8 * at, 32 * (job->group0 + t) + i);
            nb_store4(dst + NB_TILE_HEADER + 8 * at + 4, nb_bits(nb_careful_value(type, job, i)));
        }
        if (active) {
            if (measure) {
                NB_ROLL
                for (unsigned i = 0; i < 32; i++)
                    if (!(s.escaped >> i & 1)) {
                        const float g = nb_careful_value(type, job, i);
                        signal2 = signal2 + g * g;
                        if (unit != 0) {
                            const float e = nb_careful_error(type, job, i, unit);
                            carried2 = carried2 + e * e;
                        }
                    }
            }
            nb_row_load(type, job, rows, s.escaped, unit);
            if (s.transform)
                nb_row_transform(rows);
            code = nb_careful_quantize(type, d, job, int4 ? 4 : fine, wide, exponent, rows, scale, factor, &s,
                                       zero ? (char *)0 : dst + codes + 4 * (int4 ? 4 : fine) * t, &noise);
            if (stats && s.max && !code)
                nb_add64(&nb_control_of(d)->flushed, 1);
        }
        const uint32_t domain = nb_ballot((int)s.transform);
        if (!zero) {
            if (t < nb_round4(groups))
                nb_store1(dst + before + t, code);
            if (int4 && t % 32 == 0 && active)
                nb_store4(dst + before + nb_round4(groups) + t / 8, domain);
        }
        if (measure) {
            noise = nb_careful_sum(sh, noise);
            signal2 = nb_careful_sum(sh, signal2);
            carried2 = nb_careful_sum(sh, carried2);
            if (t == 0) {
                float *energy = nb_energies(d) + 3 * (uint64_t)job->ticket;
                energy[0] = signal2;
                energy[1] = noise;
                energy[2] = carried2 < NB_LEAST_CARRIED ? 0 : carried2;
            }
        }
    }
    if (stats) {
        struct nb_control *control = nb_control_of(d);
        uint32_t bad = 0;
        if (active)
            NB_ROLL
            for (unsigned i = 0; i < 32; i++)
                bad += (nb_bits(nb_careful_value(type, job, i)) & NB_F32_ABS) >= NB_F32_INF;
        if (bad)
            nb_add64(&control->nonfinite, bad);
        if (t == 0) {
            if (!raw && count)
                nb_add64(&control->escapes, count);
            if (fallback)
                nb_add64(&control->fallback, 1);
            if (factor != 1)
                nb_add64(&control->bounded, 1);
        }
    }
}

#endif
