/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encode deltas: docs/wire-format.md sections 13 and 14, with the choices of all variants of the codec.
 *
 * A choice begins at the c of the previous run. The blocks between two choices of a reading (32) are
 * therefore one warp's work, one after the other, and a ticket is four of these segments. Only one bit of the
 * previous segment matters (whether its last block went raw), and that seldom. A lane has a value of each
 * group of a run: planes are ballots, and a choice costs a few values a lane and a sum over the warp.
 *
 * The lengths of blocks are unknown beforehand. Blocks wait in the descriptor's scratch space until the
 * lengths of the previous segments are known. The scratch space is mostly in the second cache, since it takes
 * a quarter to a half of the bytes read. Raw blocks are copied from their source. Whole warps read values, 64
 * or 128 bytes at a time, eight such pieces at once.
 */
#ifndef NIBBLE_KERNELS_ULP_ENCODE_CUH
#define NIBBLE_KERNELS_ULP_ENCODE_CUH

#include "delta4.cuh"
#include "ulp.cuh"
#include "ulp_encode_usual.cuh"

/* Bytes of a warp's room: a record until the encoder gives it up (4096 and a group), indices of exceptions, c
 * and floors of runs, modes, lengths. */
#define NB_ULP_INDEX_AT 4400u
#define NB_ULP_HEAD_AT 4912u
#define NB_ULP_LENGTHS_AT 4928u /* of the segment's blocks: up to 5056 of 5216 */

/* Return the price of c. `half`: of every second value of a lane, by which a run is judged. */
NB_DEV uint32_t nb_ulp_cost(uint32_t width, const uint32_t *z, const uint32_t *e, int half, uint32_t c)
{
    uint32_t sum = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_RUN_GROUPS; i++) {
        const unsigned g = 2 * i % NB_RUN_GROUPS + i / 4;
        if (i >= 4 && half)
            break;
        const uint32_t k = nb_low_bits(width, c, NB_EXPONENT(e, g)), high = z[g] >> k;
        sum += k + (high > NB_ULP_PLANES ? NB_ULP_EXC_COST(width) : high);
    }
    return nb_warp_sum(sum);
}

/* Return the start of a search without history. */
NB_DEV uint32_t nb_ulp_mean(const uint32_t *z, const uint32_t *e, int half)
{
    uint32_t sum = 0, count = 0;
    NB_UNROLL
    for (unsigned i = 0; i < NB_RUN_GROUPS; i++) {
        const unsigned g = 2 * i % NB_RUN_GROUPS + i / 4;
        if (i >= 4 && half)
            break;
        sum += z[g] ? NB_EXPONENT(e, g) + 32 - nb_clz(z[g]) : 0;
        count += z[g] != 0;
    }
    sum = nb_warp_sum(sum);
    count = nb_warp_sum(count);
    const uint32_t mean = count ? sum / count : 0;
    return mean < 1 ? 0 : mean > 256 ? 255 : mean - 1;
}

/* Search from *c upwards while a step saves more than 1/8 bit a value, otherwise downwards. `n` values are
 * judged. */
NB_DEV uint32_t nb_ulp_walk(uint32_t width, const uint32_t *z, const uint32_t *e, int half, uint32_t n, uint32_t *c)
{
    uint32_t at = *c ? *c : 1, now = 0;
    int32_t step = 0; /* 0: the direction is still open */
    int moved = 0;
    NB_ROLL
    for (;;) {
        const uint32_t next = at + (uint32_t)step;
        const int inside = step == 0 || (next >= 1 && next <= 254);
        const uint32_t then = nb_ulp_cost(width, z, e, half, inside ? next : at);
        if (step == 0) {
            now = then;
            step = 1;
        } else if (inside && then + n / 8 < now) {
            now = then;
            at = next;
            moved = 1;
        } else if (step == 1 && !moved) {
            step = -1;
        } else {
            break;
        }
    }
    *c = at;
    return now;
}

/* Return the zigzagged difference. */
NB_DEV uint32_t nb_ulp_zigzag(uint32_t width, uint32_t x, uint32_t r, uint32_t flip)
{
    const uint32_t all = NB_ALL >> (32 - 8 * width);
    const uint32_t d = (nb_in_order(width, x, flip) - nb_in_order(width, r, flip)) & all;
    return (d << 1 ^ (0u - (d >> (8 * width - 1)))) & all;
}

/* Return the four readings of patterns of a width, in order of preference, as first bytes of a record. */
NB_DEV uint32_t nb_ulp_readings(uint32_t width)
{
    return width == 1 ? 0x27070203u : width == 2 ? 0x2f0f0a07u : 0x3f1f3717u;
}

/* Choose the cheapest of `count` readings of a block of n values, and a c to begin with. Return the price of
 * 128 values, 0 where the samples are equal. One warp, four samples a lane. */
NB_DEV uint32_t nb_ulp_choose(uint32_t width, uint32_t readings, uint32_t count, const void *cur, const void *ref,
                              uint64_t n, uint32_t *reading, uint32_t *c)
{
    const uint32_t lane = nb_thread() & 31, magnitude = (NB_ALL >> (32 - 8 * width)) >> 1;
    uint32_t x[4], r[4], z[NB_RUN_GROUPS], e[2], differ = 0, best = NB_ALL;

    NB_UNROLL
    for (unsigned s = 0; s < 4; s++) {
        uint64_t at = (2 * s + 1) * n / 8 / 8 * 8;
        at = (at + 32 > n ? n - 32 : at) + lane;
        if (n < NB_ULP_PROBE)
            at = (32 * s + lane) % (uint32_t)n;
        x[s] = nb_pattern(width, cur, at);
        r[s] = nb_pattern(width, ref, at);
        differ |= x[s] ^ r[s];
    }
    *reading = readings & 0xff;
    *c = 0;
    if (!nb_warp_or(differ))
        return 0;
    NB_ROLL
    for (uint32_t j = 0; j < count; j++) {
        const uint32_t way = readings >> 8 * j & 0xff, flip = way & NB_ULP_PLAIN ? 0 : magnitude;
        e[0] = e[1] = 0;
        NB_UNROLL
        for (unsigned s = 0; s < 4; s++) {
            z[2 * s] = nb_ulp_zigzag(width, x[s], r[s], flip);
            z[2 * s + 1] = 0;
            e[s / 2] |= (r[s] & magnitude) >> (way & NB_ULP_SHIFT_MASK) << 16 * (s % 2);
        }
        uint32_t from = nb_ulp_mean(z, e, 1);
        const uint32_t bits = nb_ulp_walk(width, z, e, 1, NB_ULP_PROBE, &from);
        if (bits < best) {
            best = bits;
            *reading = way;
            *c = from;
        }
    }
    return best + NB_ULP_PROBE;
}

/* Exchange the values of even and odd groups between odd lanes. A run is judged by the even values of even
 * groups and the odd values of odd groups. Afterwards these are at even places in all lanes. */
NB_DEV void nb_ulp_turn(uint32_t *v, uint32_t *e)
{
    const uint32_t odd = nb_thread() & 1;
    NB_UNROLL
    for (unsigned i = 0; i < 2; i++)
        e[i] = odd ? (e[i] >> 8 & 0x00ff00ffu) | (e[i] & 0x00ff00ffu) << 8 : e[i];
    NB_UNROLL
    for (unsigned g = 0; g < NB_RUN_GROUPS; g += 2) {
        const uint32_t a = v[g], b = v[g + 1];
        v[g] = odd ? b : a;
        v[g + 1] = odd ? a : b;
    }
}

/* Choose the c of a run of `n` values, padding included (missing values have z = 0, e = 255). *judged: the
 * cost of the values by which it is judged. z and e are exchanged (nb_ulp_turn). */
NB_DEV uint32_t nb_ulp_choose_c(uint32_t width, const uint32_t *z, const uint32_t *e, uint32_t n, uint32_t *c,
                                uint32_t *judged)
{
    const int half = n == NB_ULP_RUN && nb_warp_or(z[0] | z[2] | z[4] | z[6]) != 0;
    uint32_t cost = 0;

    n = half ? NB_ULP_RUN / 2 : n;
    *judged = n;
    NB_ROLL
    for (int again = 0; again < 2; again++) {
        uint32_t from = *c;
        if (again) {
            if (cost <= 4 * n * width)
                break;
            from = nb_ulp_mean(z, e, half);
        }
        const uint32_t bits = nb_ulp_walk(width, z, e, half, n, &from);
        if (!again || bits < cost) {
            cost = bits;
            *c = from;
        }
    }
    return cost;
}

/* A bit string in a warp's room. Every lane holds the same state. */
struct nb_ulp_bits {
    uint32_t *room;
    uint32_t word, have, acc; /* whole words, and the bits behind them */
};

NB_DEV void nb_ulp_put(struct nb_ulp_bits *b, uint32_t v, uint32_t bits)
{
    const uint64_t both = (uint64_t)v << b->have | b->acc;
    b->have += bits;
    b->acc = (uint32_t)both;
    if (b->have >= 32) {
        if ((nb_thread() & 31) == 0)
            b->room[b->word] = (uint32_t)both;
        b->word++;
        b->acc = (uint32_t)(both >> 32);
        b->have -= 32;
    }
}

/* Append the low k bits of every lane, in order. */
NB_DEV void nb_ulp_put_all(struct nb_ulp_bits *b, uint32_t low, uint32_t k)
{
    const uint32_t lane = nb_thread() & 31;
    uint32_t upto = k;
    NB_UNROLL
    for (unsigned by = 1; by < 32; by *= 2) {
        const uint32_t other = nb_shfl_up(upto, by);
        upto += lane >= by ? other : 0;
    }
    const uint32_t at = b->have + upto - k, end = b->have + nb_shfl(upto, 31);
    const uint64_t mine = (uint64_t)low << at % 32;
    NB_ROLL
    for (uint32_t i = 0; i <= end / 32; i++) {
        uint32_t v = at / 32 == i ? (uint32_t)mine : at / 32 + 1 == i ? (uint32_t)(mine >> 32) : 0;
        v = nb_warp_or(v) | (i ? 0 : b->acc);
        if (i < end / 32 && lane == 0)
            b->room[b->word + i] = v;
        if (i == end / 32)
            b->acc = v;
    }
    b->word += end / 32;
    b->have = end % 32;
}

/* A word for each segment, behind the states: how its last block was sent. 0: still unknown. */
#define NB_ULP_UNKNOWN 0u
#define NB_ULP_WENT_CODED 1u
#define NB_ULP_WENT_RAW 2u

/* The work of a warp and its state from block to block. */
struct nb_ulp_way {
    uint32_t width;
    uint32_t reading, c;
    int lossy;     /* floors are allowed */
    uint32_t here; /* blocks of the segment */
    uint32_t last; /* how the previous block was read. 0: its reading was not worth keeping */
};

/* Encode a block of n values at byte `place` into the room, and copy it to the scratch space in 16-byte
 * pieces. Return its length. 0: equal. 1 + n * width: to be sent raw, and the scratch space is unchanged.
 * *lossy: runs with a floor. One warp. */
NB_DEV uint32_t nb_ulp_encode_block(const struct nb_gpu_desc *d, struct nb_ulp_way *way, uint64_t place, uint32_t n,
                                    uint32_t *room, uint32_t *lossy)
{
#define NB_CUR ((const char *)(uintptr_t)(d->src + place))
#define NB_REF ((const char *)(uintptr_t)(d->ref + place))
    const uint32_t width = way->width, lane = nb_thread() & 31, below = (1u << lane) - 1;
    const uint32_t magnitude = (NB_ALL >> (32 - 8 * width)) >> 1;
    const uint32_t shift = way->reading & NB_ULP_SHIFT_MASK, flip = way->reading & NB_ULP_PLAIN ? 0 : magnitude;
    const uint32_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + 31) / 32;
    const uint32_t head = 2 + runs + (groups + 3) / 4, most = n * width, raw = 1 + most;
    uint16_t *index = (uint16_t *)((char *)room + NB_ULP_INDEX_AT);
    uint8_t *parts = (uint8_t *)room + NB_ULP_HEAD_AT;
    uint32_t exceptions = 0, nfloors = 0, changed = 0;
    struct nb_ulp_bits b;

    b.room = room;
    b.word = head / 4;
    b.have = 8 * (head % 4);
    b.acc = 0;
    nb_warp_barrier();
    if (lane < 16)
        parts[lane] = 0;
    nb_warp_barrier();
    NB_ROLL
    for (uint32_t run = 0; run < runs; run++) {
        uint32_t modes = 0;
        uint32_t z[NB_RUN_GROUPS], e[2] = {0, 0}, any = 0, judged, floor = 0;
        const uint32_t here = groups - NB_RUN_GROUPS * run < NB_RUN_GROUPS ? groups - NB_RUN_GROUPS * run : NB_RUN_GROUPS;
        uint32_t r[NB_RUN_GROUPS];
        NB_UNROLL
        for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
            const uint32_t i = NB_ULP_RUN * run + 32 * g + lane;
            z[g] = i < n ? nb_pattern(width, NB_CUR, i) : magnitude;
            r[g] = i < n ? nb_pattern(width, NB_REF, i) : magnitude;
            if (g % 4 == 3)
                NB_APART; /* addresses take registers */
        }
        NB_UNROLL
        for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
            z[g] = nb_ulp_zigzag(width, z[g], r[g], flip);
            e[g / 4] |= (g < here ? (r[g] & magnitude) >> shift : 255) << 8 * (g % 4);
            any |= z[g];
        }
        if (!nb_warp_or(any))
            continue;
        changed = 1;
        nb_ulp_turn(z, e);
        const uint32_t cost = nb_ulp_choose_c(width, z, e, 32 * here, &way->c, &judged);
        nb_ulp_turn(z, e);
        if (way->lossy && 16 * cost > NB_DELTA4_BITS * judged) {
            const struct nb_floors format = nb_floors_of(width, shift);
            struct nb_exponents now;
            now.word[0] = now.word[1] = now.real = 0;
            NB_UNROLL
            for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
                const uint32_t i = NB_ULP_RUN * run + 32 * g + lane;
                const uint32_t x = i < n ? nb_pattern(width, NB_CUR, i) : 0;
                now.word[g / 4] |= (x & magnitude) >> shift << 8 * (g % 4);
                now.real |= (uint32_t)(i < n) << g;
                if (g % 2)
                    NB_APART;
            }
            floor = nb_choose_floor(&format, &now, width, e, 32 * here, cost, judged, way->c);
            if (floor) {
                NB_UNROLL
                for (unsigned g = 0; g < NB_RUN_GROUPS; g++) {
                    const uint32_t i = NB_ULP_RUN * run + 32 * g + lane;
                    if (NB_EXPONENT(e, g) >= floor)
                        continue;
                    z[g] = i < n ? nb_in_steps(&format, width, floor, nb_pattern(width, NB_CUR, i),
                                               nb_pattern(width, NB_REF, i))
                                 : 0;
                    e[g / 4] = (e[g / 4] & ~(0xffu << 8 * (g % 4))) | floor << 8 * (g % 4);
                }
                nfloors++;
            }
        }
        if (lane == 0) {
            parts[run] = (uint8_t)way->c;
            parts[4 + run] = (uint8_t)floor;
        }
        NB_ROLL
        for (uint32_t g = 0; g < here; g++) {
            const uint32_t k = nb_low_bits(width, way->c, e[0] & 0xff);
            uint32_t v = z[0], high = v >> k;
            const uint32_t out = nb_ballot(high > NB_ULP_PLANES);
            NB_UNROLL
            for (unsigned i = 0; i + 1 < NB_RUN_GROUPS; i++)
                z[i] = z[i + 1];
            e[0] = e[0] >> 8 | e[1] << 24;
            e[1] >>= 8;
            if (out) {
                const uint32_t count = nb_popc(out);
                if (exceptions + count > NB_ULP_MAX_EXC)
                    return raw;
                if (out >> lane & 1) {
                    index[exceptions + nb_popc(out & below)] = (uint16_t)(NB_ULP_RUN * run + 32 * g + lane);
                    v = high = 0;
                }
                exceptions += count;
            }
            if (!nb_ballot(v != 0))
                continue;
            uint32_t m0 = nb_ballot(high > 0);
            /* Set a bit at the end of each non-empty cell of four. */
            uint32_t cells = m0 | m0 >> 1;
            cells = (cells | cells >> 2) & 0x11111111u;
            const int sparse = nb_popc(cells) < NB_ULP_DENSE;
            modes |= (sparse ? NB_ULP_MODE_SPARSE : NB_ULP_MODE_DENSE) << 2 * g;
            if (sparse) {
                const uint32_t first = lane & ~3u, at = 4 * nb_popc(cells & ((1u << first) - 1)) + lane % 4;
                uint32_t map = (cells | cells >> 3) & 0x03030303u;
                map = (map | map >> 6) & 0x000f000fu;
                nb_ulp_put(&b, (map | map >> 12) & 0xff, 8);
                if (cells) {
                    const uint32_t bits = nb_warp_or(m0 >> lane & 1 ? 1u << at : 0);
                    nb_ulp_put(&b, bits, 4 * nb_popc(cells));
                }
            } else {
                nb_ulp_put(&b, m0, 32);
            }
            NB_ROLL
            for (uint32_t j = 1; j < NB_ULP_PLANES && m0; j++) {
                const uint32_t m1 = nb_ballot(high > j);
                const uint32_t bits = m1 ? nb_warp_or(m1 >> lane & 1 ? 1u << nb_popc(m0 & below) : 0) : 0;
                nb_ulp_put(&b, bits, nb_popc(m0));
                m0 = m1;
            }
            nb_ulp_put_all(&b, v & ((1u << k) - 1), k);
            if (4 * b.word + b.have / 8 > most)
                return raw;
        }
        if (lane < 2)
            parts[8 + 2 * run + lane] = (uint8_t)(modes >> 8 * lane);
    }
    if (!changed)
        return 0;
    uint32_t length = 4 * b.word + (b.have + 7) / 8;
    const uint32_t whole = length + exceptions * (2 + width) + (nfloors ? runs : 0);
    if (whole > most)
        return raw;
    uint8_t *bytes = (uint8_t *)room;
    if (lane == 0)
        room[b.word] = b.acc;
    nb_warp_barrier();
    /* The head, whose last word may hold the first bits. */
    if (lane < head)
        bytes[lane] = (uint8_t)(lane == 0         ? way->reading | (nfloors ? NB_ULP_FLOORS : 0)
                                : lane == 1       ? exceptions
                                : lane < 2 + runs ? parts[lane - 2]
                                                  : parts[8 + lane - 2 - runs]);
    NB_ROLL
    for (uint32_t i = lane; i < exceptions; i += 32) {
        uint8_t *p = bytes + length + i * (2 + width);
        const uint32_t x = nb_pattern(width, NB_CUR, index[i]);
        p[0] = (uint8_t)index[i];
        p[1] = (uint8_t)(index[i] >> 8);
        for (uint32_t k = 0; k < width; k++)
            p[2 + k] = (uint8_t)(x >> 8 * k);
    }
    length += exceptions * (2 + width);
    if (nfloors && lane < runs)
        bytes[length + lane] = parts[4 + lane];
    nb_warp_barrier();
    NB_ROLL
    for (uint32_t i = lane; i < (whole + 15) / 16; i += 32)
        nb_store16((char *)(uintptr_t)(d->scratch + place) + 16 * i, ((const nb_quad *)room)[i]);
    *lossy += nfloors;
    return whole;
#undef NB_CUR
#undef NB_REF
}

NB_DEV uint32_t *nb_ulp_went(const struct nb_gpu_desc *d)
{
    return (uint32_t *)(uintptr_t)(d->work + sizeof(struct nb_control) + 8 * NB_WARPS * (uint64_t)d->tickets);
}

/* Wait for the previous segment, with a whole warp. */
NB_DEV uint32_t nb_ulp_went_before(const struct nb_gpu_desc *d, uint32_t segment)
{
    uint32_t went = 0;
    while (nb_ballot(went == 0)) {
        if (!went)
            went = nb_get32_shared_by_blocks(nb_ulp_went(d) + segment - 1);
        if (!went)
            nb_pause();
    }
    return went;
}

/* Return the length of the record of block b of the segment, given how the previous blocks were sent. 1 + its
 * bytes: it goes raw. For a guess: return the price of samples of a warp's part of the bytes, where b gives
 * the width. One function serves both, to save code. */
NB_DEV uint32_t nb_ulp_encode_one(const struct nb_gpu_desc *d, struct nb_ulp_way *way, uint32_t segment, uint32_t b,
                                  uint32_t *room)
{
    const int guess = NB_OP(d) == NB_GPU_ULP_GUESS;
    uint64_t at = ((uint64_t)segment * NB_ULP_SEGMENT + b) * NB_ULP_BLOCK * way->width, left = d->n - at, count;
    uint32_t price = 0, more = 0, length;

    count = left < NB_ULP_BLOCK * way->width ? (uint32_t)left >> way->width / 2 : NB_ULP_BLOCK;
    if (guess) {
        at = d->n / 4 * segment / 128 * 128;
        left = (segment == 3 ? d->n : d->n / 4 * (segment + 1) / 128 * 128) - at;
        way->width = 1u << b;
        count = left >> b;
        if (!count)
            return 0;
    }
    const char *cur = (const char *)(uintptr_t)d->src + at, *ref = (const char *)(uintptr_t)d->ref + at;
    const uint32_t last = way->last;
    way->last = NB_ULP_WENT_CODED;
    if (b == 0 || last != NB_ULP_WENT_CODED || guess) {
        NB_RARE; /* once in 32 blocks */
        const uint32_t readings = !way->lossy ? nb_ulp_readings(way->width)
                                  : NB_TYPE(d) == NB_BF16 ? 7 : NB_TYPE(d) == NB_F16 ? 10 : 23;
        price = nb_ulp_choose(way->width, readings, way->lossy ? 1 : 4, cur, ref, count, &way->reading, &way->c);
        way->last = price ? NB_ULP_WENT_CODED : NB_ULP_UNKNOWN;
    }
    if (guess)
        return price;
    const int dear = price >= NB_ULP_PROBE * 8 * way->width * 15 / 16;
    const uint32_t raw = 1 + (uint32_t)count * way->width;
    length = raw;
    if (last != NB_ULP_WENT_RAW || !dear) {
        length = NB_ULP_OTHERWISE;
#ifndef NB_NO_USUAL_ENCODE
        if (way->width == 2 && !way->lossy && count == NB_ULP_BLOCK && !((d->src | d->ref) & 15))
            length = nb_ulp_encode_usual(d, at, way->reading, &way->c, room);
#endif
        if (length == NB_ULP_OTHERWISE) {
            NB_RARE;
            length = nb_ulp_encode_block(d, way, at, (uint32_t)count, room, &more);
        }
        /* An attempt that did not shorten the block has the same result as no attempt. */
        if (b == 0 && segment && dear && length != raw && nb_ulp_went_before(d, segment) == NB_ULP_WENT_RAW) {
            length = raw;
            more = 0;
        }
    }
    if (more && (nb_thread() & 31) == 0)
        nb_add64(&nb_control_of(d)->value, more);
    if (length == raw)
        way->last = NB_ULP_WENT_RAW;
    return length;
}

/* Choose the width with the cheapest deltas, from the warps' prices. All threads. */
NB_DEV void nb_ulp_guess(const struct nb_gpu_desc *d, struct nb_shared *sh)
{
    nb_barrier();
    if (nb_thread())
        return;
    uint32_t least = NB_ALL, best = 1;
    NB_UNROLL
    for (unsigned i = 0; i < 3; i++) {
        const unsigned way = (i + 1) % 3; /* in order of preference: two bytes, four, one */
        const uint32_t sum = sh->part[way][0] + sh->part[way][1] + sh->part[way][2] + sh->part[way][3];
        if (sum < least) {
            least = sum;
            best = way;
        }
    }
    nb_store8(&nb_control_of(d)->value, 1u << best);
}

/* Return the blocks of a segment. */
NB_DEV uint32_t nb_ulp_blocks_of(const struct nb_gpu_desc *d, uint32_t width, uint32_t segment)
{
    const uint64_t blocks = ((d->n >> width / 2) + NB_ULP_BLOCK - 1) / NB_ULP_BLOCK;
    const uint64_t first = (uint64_t)segment * NB_ULP_SEGMENT;
    return first >= blocks ? 0 : blocks - first < NB_ULP_SEGMENT ? (uint32_t)(blocks - first) : NB_ULP_SEGMENT;
}

/* Run the ticket's 128 blocks, 32 a warp. */
NB_DEV void nb_ulp_encode_ticket(const struct nb_gpu_desc *d, uint32_t ticket, struct nb_shared *sh, uint32_t s)
{
    const uint32_t segment = ticket * NB_WARPS + nb_thread() / 32;
    const uint32_t given_up = nb_shfl(nb_get32_shared_by_blocks(&nb_control_of(d)->failed), 0);
    struct nb_ulp_way way;

    way.lossy = NB_OP(d) == NB_GPU_DELTA4_ENCODE;
    way.width = way.lossy ? nb_type_bytes(NB_TYPE(d)) : NB_OP(d) == NB_GPU_ULP_GUESS ? 1 : d->width;
    way.reading = way.c = way.last = 0;
    way.here = NB_OP(d) == NB_GPU_ULP_GUESS ? 3 : given_up ? 0 : nb_ulp_blocks_of(d, way.width, segment);
    NB_ROLL
    for (uint32_t b = 0; b < way.here; b++) {
        NB_TIMES(32);
        uint32_t *room = (uint32_t *)(sh->stage[s] + segment % NB_WARPS * (NB_STAGE_QUADS / NB_WARPS));
        const uint32_t length = nb_ulp_encode_one(d, &way, segment, b, room);
        if (nb_thread() % 32 == 0)
            *(uint32_t *)((char *)room + NB_ULP_LENGTHS_AT + 4 * b) = length;
    }
    nb_warp_barrier();
    /* The loop is short of registers, so the values needed from here on are computed again. */
    const uint32_t here = way.here, lane = nb_thread() & 31;
    const uint64_t n = d->n >> way.width / 2, blocks = (n + NB_ULP_BLOCK - 1) / NB_ULP_BLOCK;
    const uint64_t first = (uint64_t)segment * NB_ULP_SEGMENT;
    const nb_quad *room = sh->stage[s] + segment % NB_WARPS * (NB_STAGE_QUADS / NB_WARPS);
    const uint32_t mine = lane < here ? ((const uint32_t *)room)[NB_ULP_LENGTHS_AT / 4 + lane] : 0;
    if (NB_OP(d) == NB_GPU_ULP_GUESS) {
        if (lane < 3)
            sh->part[lane][segment % NB_WARPS] = mine * (4u >> lane); /* a value each of fewer bytes */
        nb_ulp_guess(d, sh);
        return;
    }
    if (lane == 0)
        nb_put32_shared_by_blocks(nb_ulp_went(d) + segment, way.last == NB_ULP_WENT_RAW ? NB_ULP_WENT_RAW : NB_ULP_WENT_CODED);
    uint32_t upto = mine;
    NB_UNROLL
    for (unsigned by = 1; by < 32; by *= 2) {
        const uint32_t other = nb_shfl_up(upto, by);
        upto += lane >= by ? other : 0;
    }
    const uint32_t length = nb_shfl(upto, 31);
    if (lane == 0)
        nb_publish((uint64_t)(uintptr_t)(nb_states(d) + segment), length);
    nb_warp_barrier();
    const uint64_t before = nb_look_back(nb_states(d), segment, length), table = 1 + 2 * blocks;
    const uint32_t tail = (uint32_t)d->n & (way.width - 1), block = NB_ULP_BLOCK * way.width;
    const char *cur = (const char *)(uintptr_t)d->src;
    char *dst = (char *)(uintptr_t)d->dst;
    if (before + length && table + before + length + tail >= d->limit) {
        if (lane == 0)
            nb_fail(d, E2BIG);
    } else if (here) {
        if (lane < here) {
            nb_store1(dst + 1 + 2 * (first + lane), mine & 0xff);
            nb_store1(dst + 2 + 2 * (first + lane), mine >> 8);
        }
        NB_ROLL
        for (uint32_t b = 0; b < here; b++) {
            NB_TIMES(32);
            const uint32_t its = nb_shfl(mine, b), behind = nb_shfl(upto, b);
            const uint64_t at = (first + b) * block, left = n * way.width - at;
            char *to = dst + table + before + behind - its;
            if (its == 1 + (left < block ? (uint32_t)left : block)) {
                NB_RARE;
                if (lane == 0)
                    nb_store1(to, NB_ULP_RAW);
                nb_warp_copy(to + 1, cur + at, its - 1);
            } else {
                nb_warp_copy(to, (const char *)(uintptr_t)d->scratch + at, its);
            }
        }
    }
    if (segment + 1 != d->tickets * NB_WARPS)
        return;
    /* The last warp knows the whole. */
    uint32_t differ = 0;
    if (lane < tail)
        differ = nb_load1(cur + n * way.width + lane) ^ nb_load1((const char *)(uintptr_t)d->ref + n * way.width + lane);
    differ = nb_warp_or(differ) | (before + length != 0);
    const uint64_t bytes = differ ? table + before + length + tail : 1;
    if (bytes >= d->limit) {
        if (lane == 0)
            nb_fail(d, E2BIG);
        return;
    }
    if (lane == 0) {
        nb_store1(dst, differ ? NB_ULP_SPAN_BLOCKS : NB_ULP_SPAN_EQUAL);
        nb_store8(&nb_control_of(d)->length, bytes);
    }
    if (differ && lane < tail)
        nb_store1(dst + table + before + length + lane, nb_load1(cur + n * way.width + lane));
}

#endif
