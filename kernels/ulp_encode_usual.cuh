/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode usual blocks of deltas, as ulp_usual.cuh defines them. A lane has a group, so that a warp judges all
 * four runs of a block at once: by the c from which the first run's choice begins, and its neighbours. Mostly
 * all runs keep that c. A lane counts its bits, a sum over the warp gives their places, and each lane writes
 * its own bits into the room.
 */
#ifndef NIBBLE_KERNELS_ULP_ENCODE_USUAL_CUH
#define NIBBLE_KERNELS_ULP_ENCODE_USUAL_CUH

#include "ulp_usual.cuh"

#define NB_ULP_OTHERWISE NB_ALL /* the block turned out to be unusual */
#define NB_USUAL_WORDS (NB_ULP_GROUP / 2)
#define NB_USUAL_SAVES (NB_ULP_RUN / 2 / 8) /* bits of the judged half of a run that a step saves at least,
                                               less one */

/* The values of a lane's group: deltas and references, in pairs. */
struct nb_group {
    uint32_t z[NB_USUAL_WORDS], r[NB_USUAL_WORDS];
};

/* Return the zigzagged differences of two values. */
NB_DEV uint32_t nb_pairs_zigzag(const struct nb_pairs *way, uint32_t x, uint32_t r)
{
    const uint32_t d = ~nb_pair_add(~nb_pairs_in_order(way, x), nb_pairs_in_order(way, r));
    return (d << 1 & 0xfffefffeu) ^ nb_pair_signs(d);
}

/* Return the sum over the lane's run, 8 lanes each, for all 32 lanes. */
NB_DEV uint32_t nb_run_sum(uint32_t v)
{
    NB_UNROLL
    for (unsigned by = 1; by < 8; by *= 2)
        v += nb_shfl_xor(v, by);
    return v;
}

/* Price c - 1, c and c + 1 for the judged half of a lane's run: the even values of even groups, the odd
 * values of odd ones. */
NB_DEV void nb_usual_prices(const struct nb_pairs *way, const struct nb_group *of, uint32_t c, uint32_t *price)
{
    const uint32_t odd = nb_thread() & 1, pick = odd ? 0x4432u : 0x4410u, shift = way->shift + 16 * odd;
    const uint32_t outside = way->outside | 0xffff0000u;

    price[0] = price[1] = price[2] = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_USUAL_WORDS; i++) {
        const uint32_t z = nb_bytes(of->z[i], 0, pick), less = ~(of->r[i] >> shift) | outside; /* -1 - e */
        NB_UNROLL
        for (unsigned j = 0; j < 3; j++) {
            const uint32_t k = nb_add_within(c + j, less, NB_ULP_KMAX(2)), high = z >> k;
            price[j] += k + (high > NB_ULP_PLANES ? NB_ULP_EXC_COST(2) : high);
        }
    }
    const uint32_t two = nb_run_sum(price[0] | price[2] << 16);
    price[1] = nb_run_sum(price[1]);
    price[0] = two & 0xffff;
    price[2] = two >> 16;
}

/* Choose the c of the lane's run. *last: the c of the last run, where the first run's choice begins. `some`:
 * lanes with differences. Return 0 when the choice is unusual. */
NB_DEV int nb_usual_choose(const struct nb_pairs *way, const struct nb_group *of, uint32_t some, uint32_t *mine, uint32_t *last)
{
    const uint32_t lane = nb_thread() & 31, active = some >> (lane & 24) & 0xff;
    uint32_t c = *last ? *last : 1, price[3], from = 0;

    *mine = 0;
    nb_usual_prices(way, of, c, price);
    NB_ROLL
    for (;;) {
        const int up = c + 1 <= 254 && price[2] + NB_USUAL_SAVES < price[1];
        const int down = c >= 2 && price[0] + NB_USUAL_SAVES < price[1];
        const int dear = price[1] > 8 * NB_ULP_RUN / 2;
        const uint32_t moves = nb_ballot(active && lane >= from && (up || down || dear));
        const uint32_t first = moves ? (nb_ffs(moves) - 1) & 24 : 32;
        if (active && lane >= from && lane < first)
            *mine = c;
        if (first == 32)
            break;
        NB_RARE;
        /* The run of lane `first` chooses another c. */
        const uint32_t step = nb_shfl(up ? 1 : down ? NB_ALL : 0, first);
        uint32_t now;
        if (!step)
            return 0;
        NB_ROLL
        for (;;) {
            c += step;
            nb_usual_prices(way, of, c, price);
            now = nb_shfl(price[1], first);
            const uint32_t then = nb_shfl(step == 1 ? price[2] : price[0], first);
            if (c + step < 1 || c + step > 254 || then + NB_USUAL_SAVES >= now)
                break;
        }
        if (now > 8 * NB_ULP_RUN / 2)
            return 0;
        if ((lane & 24) == first)
            *mine = c;
        from = first + 8;
        if (from == 32)
            break;
    }
    *last = some ? c : *last;
    return 1;
}

/* A lane's part of a bit string in zeroed shared memory. The lane that fills a word stores it. Other lanes
 * add their bits of that word, at the end of their parts, after all lanes have stored. */
struct nb_usual_bits {
    uint32_t *at;      /* the word of bit `pos` */
    uint32_t pos, acc; /* the bits of that word */
};

NB_DEV void nb_usual_put(struct nb_usual_bits *b, uint32_t v, uint32_t bits)
{
    const uint32_t end = b->pos + bits, over = nb_funnel_left(v, 0, b->pos), full = (b->pos ^ end) & 32;
    b->acc |= nb_funnel_left(0, v, b->pos);
    if (full)
        *b->at = b->acc;
    b->acc = full ? over : b->acc;
    b->at += full ? 1 : 0;
    b->pos = end;
}

/* Build a lane's planes from high parts, which come in order. */
NB_DEV void nb_usual_plane(uint32_t *plane, uint32_t high)
{
    uint32_t bits = nb_ones(high), by = 1; /* a bit a plane */
    NB_UNROLL
    for (unsigned j = 0; j < NB_ULP_PLANES; j++) {
        plane[j] = nb_funnel_right(plane[j], bits, by);
        by = bits & 1;
        bits >>= 1;
    }
}

/* Return the exceptions, a bit each, and set their differences to 0. */
NB_DEV uint32_t nb_usual_take_out(struct nb_group *of)
{
    uint32_t out = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_USUAL_WORDS; i++) {
        const uint32_t k = of->r[i];
        if ((of->z[i] & 0xffff) >> (k & 0xffff) > NB_ULP_PLANES) {
            out |= 1u << 2 * i;
            of->z[i] &= 0xffff0000u;
        }
        if (of->z[i] >> 16 >> (k >> 16) > NB_ULP_PLANES) {
            out |= 2u << 2 * i;
            of->z[i] &= 0xffffu;
        }
    }
    return out;
}

/* Return the first plane without its empty cells. *cells: the non-empty ones. */
NB_DEV uint32_t nb_usual_cells(uint32_t plane, uint32_t *cells)
{
    uint32_t bits = 0, have = 0;
    *cells = 0;
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t cell = plane >> 4 * i & 15;
        bits |= cell << have % 32; /* the last of eight would be one too far, and is dense */
        have += cell ? 4 : 0;
        *cells |= (uint32_t)(cell != 0) << i;
    }
    return bits;
}

/* Write a warp's exceptions behind the bit string. `before`: exceptions of lower lanes. */
NB_DEV void nb_usual_exceptions(uint8_t *to, const char *cur, uint32_t out, uint32_t before)
{
    const uint32_t lane = nb_thread() & 31;
    NB_ROLL
    while (out) {
        const uint32_t at = 32 * lane + nb_ffs(out) - 1, x = nb_load2(cur + 2 * at);
        uint8_t *p = to + 4 * before;
        p[0] = (uint8_t)at;
        p[1] = (uint8_t)(at >> 8);
        p[2] = (uint8_t)x;
        p[3] = (uint8_t)(x >> 8);
        out &= out - 1;
        before++;
    }
}

NB_DEV uint32_t nb_warp_upto(uint32_t v)
{
    const uint32_t lane = nb_thread() & 31;
    NB_UNROLL
    for (unsigned by = 1; by < 32; by *= 2) {
        const uint32_t other = nb_shfl_up(v, by);
        v += lane >= by ? other : 0;
    }
    return v;
}

/* Encode the block at byte `place`, with the reading `reading`, into the room, and copy it to the scratch
 * space in 16-byte pieces. *c: start of the choice on entry, last c on return. Return as nb_ulp_encode_block,
 * or NB_ULP_OTHERWISE when the block is still to be encoded. One warp. Addresses are computed where they are
 * used, since registers are short. */
NB_DEV uint32_t nb_ulp_encode_usual(const struct nb_gpu_desc *d, uint64_t place, uint32_t reading, uint32_t *c, uint32_t *room)
{
    const uint32_t lane = nb_thread() & 31, raw = 1 + NB_USUAL_BYTES;
    const struct nb_pairs way = nb_pairs_of(reading);
    struct nb_group of;
    uint32_t any = 0, mine, last = *c;

    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const nb_quad x = nb_load16((const char *)(uintptr_t)(d->src + place) + 64 * lane + 16 * i);
        const nb_quad r = nb_load16((const char *)(uintptr_t)(d->ref + place) + 64 * lane + 16 * i);
        of.z[4 * i] = nb_pairs_zigzag(&way, x.x, r.x);
        of.z[4 * i + 1] = nb_pairs_zigzag(&way, x.y, r.y);
        of.z[4 * i + 2] = nb_pairs_zigzag(&way, x.z, r.z);
        of.z[4 * i + 3] = nb_pairs_zigzag(&way, x.w, r.w);
        of.r[4 * i] = r.x;
        of.r[4 * i + 1] = r.y;
        of.r[4 * i + 2] = r.z;
        of.r[4 * i + 3] = r.w;
    }
    NB_UNROLL
    for (unsigned i = 0; i < NB_USUAL_WORDS; i++)
        any |= of.z[i];
    const uint32_t some = nb_ballot(any != 0);
    if (!some)
        return 0;
    /* A run whose differences all lie outside the judged half is judged by all values. */
    const uint32_t judged = nb_ballot((any & (lane & 1 ? 0xffff0000u : 0xffffu)) != 0);
    NB_UNROLL
    for (unsigned i = 0; i < 32; i += 8)
        if ((some >> i & 0xff) && !(judged >> i & 0xff))
            return NB_ULP_OTHERWISE;
    if (!nb_usual_choose(&way, &of, some, &mine, &last))
        return NB_ULP_OTHERWISE;

    uint32_t plane[NB_ULP_PLANES], sum = 0, out = 0, exceptions = 0, before = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_USUAL_WORDS; i++) {
        of.r[i] = nb_pairs_low(&way, NB_BOTH(mine + 1), of.r[i]);
        sum += of.r[i];
    }
    NB_ROLL
    for (;;) {
        uint32_t most = 0;
        NB_UNROLL
        for (unsigned j = 0; j < NB_ULP_PLANES; j++)
            plane[j] = 0;
        NB_UNROLL
        for (unsigned i = 0; i < NB_USUAL_WORDS; i++) {
            const uint32_t low = nb_funnel_right(of.z[i] & 0xffff, 0, of.r[i]), high = of.z[i] >> 16 >> (of.r[i] >> 16);
            nb_usual_plane(plane, low);
            nb_usual_plane(plane, high);
            most = most > low ? most : low;
            most = most > high ? most : high;
        }
        if (!nb_ballot(most > NB_ULP_PLANES))
            break;
        NB_RARE;
        out = nb_usual_take_out(&of);
        before = nb_warp_upto(nb_popc(out));
        exceptions = nb_shfl(before, 31);
        before -= nb_popc(out);
        if (exceptions > NB_ULP_MAX_EXC)
            return raw;
        any = 0;
        NB_UNROLL
        for (unsigned i = 0; i < NB_USUAL_WORDS; i++)
            any |= of.z[i];
    }
    uint32_t bits[NB_ULP_PLANES]; /* of the planes */
    bits[1] = nb_popc(plane[0]);
    NB_UNROLL
    for (unsigned j = 1; j < NB_ULP_PLANES; j++) {
        plane[j] >>= (32 - bits[j]) % 32; /* bits shifted in at the top */
        if (j + 1 < NB_ULP_PLANES)
            bits[j + 1] = nb_popc(plane[j]);
    }
    uint32_t cells, first = nb_usual_cells(plane[0], &cells), mode = NB_ULP_MODE_SPARSE;
    bits[0] = 4 * nb_popc(cells);
    uint32_t length = 8 + bits[0];
    if (nb_popc(cells) >= NB_ULP_DENSE) {
        mode = NB_ULP_MODE_DENSE;
        first = plane[0];
        bits[0] = length = 32;
    }
    length += bits[1] + bits[2] + bits[3] + ((sum + (sum >> 16)) & 0xffff);
    if (!any)
        mode = length = 0;
    const uint32_t upto = nb_warp_upto(length) + 8 * NB_USUAL_HEAD, bytes = (nb_shfl(upto, 31) + 7) / 8;
    const uint32_t whole = bytes + 4 * exceptions;
    if (whole > NB_USUAL_BYTES)
        return raw;
    *c = last;

    nb_quad zero;
    zero.x = zero.y = zero.z = zero.w = 0;
    nb_warp_barrier();
    NB_ROLL
    for (uint32_t i = lane; i < (whole + 15) / 16; i += 32) {
        NB_TIMES(2);
        ((nb_quad *)room)[i] = zero;
    }
    nb_warp_barrier();
    struct nb_usual_bits b;
    b.pos = upto - length;
    b.at = room + b.pos / 32;
    b.acc = 0;
    if (any) {
        if (mode == NB_ULP_MODE_SPARSE)
            nb_usual_put(&b, cells, 8);
        nb_usual_put(&b, first, bits[0]);
        NB_UNROLL
        for (unsigned j = 1; j < NB_ULP_PLANES; j++)
            nb_usual_put(&b, plane[j], bits[j]);
        NB_UNROLL
        for (unsigned i = 0; i < NB_USUAL_WORDS; i++) {
            const uint32_t k0 = of.r[i] & 0xffff, k1 = of.r[i] >> 16;
            nb_usual_put(&b, (of.z[i] & nb_ones(k0)) | (of.z[i] >> 16 & nb_ones(k1)) << k0, k0 + k1);
        }
    }
    nb_warp_barrier();
    if (b.acc)
        nb_or32_shared(b.at, b.acc);
    /* The head: reading, exceptions, c, modes. */
    if (mode)
        nb_or32_shared(room + (48 + 2 * lane) / 32, mode << (48 + 2 * lane) % 32);
    if (lane % 8 == 0)
        nb_or32_shared(room + (16 + lane) / 32, (mine << (16 + lane) % 32) | (lane ? 0 : reading | exceptions << 8));
    nb_warp_barrier();
    if (exceptions) {
        NB_RARE;
        nb_usual_exceptions((uint8_t *)room + bytes, (const char *)(uintptr_t)(d->src + place), out, before);
        nb_warp_barrier();
    }
    NB_ROLL
    for (uint32_t i = lane; i < (whole + 15) / 16; i += 32) {
        NB_TIMES(2);
        nb_store16((char *)(uintptr_t)(d->scratch + place) + 16 * i, ((const nb_quad *)room)[i]);
    }
    return whole;
}

#endif
