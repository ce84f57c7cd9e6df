/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Usual blocks of deltas (docs/wire-format.md section 13): 1024 values of two bytes, 16-byte aligned, without
 * floors. A lane has a group, a warp a block, and a register two values. Only the place of a group's bits
 * depends on other lanes. A decoder finds the places first (nb_ulp_find_groups): the references give the
 * number of low bits of a group, and then each lane steps through the planes of one block.
 *
 * ulp.cuh and ulp_encode.cuh handle other blocks.
 */
#ifndef NIBBLE_KERNELS_ULP_USUAL_CUH
#define NIBBLE_KERNELS_ULP_USUAL_CUH

#include "codec/ulp.h"
#include "values.cuh"

#define NB_USUAL_BYTES (2 * NB_ULP_BLOCK)
#define NB_USUAL_HEAD (2 + NB_ULP_BLOCK / NB_ULP_RUN + NB_ULP_BLOCK / 128) /* bytes before the bit string */
#define NB_USUAL_BATCH 16u      /* blocks whose groups are found together. Their references are read twice,
                                   mostly from the second cache */
#define NB_USUAL_PLACES 2176u   /* byte of a decoding warp's room: 16-bit places of the batch's groups,
                                   behind the record */
#define NB_USUAL_K 0x000e000eu  /* the most low bits */
#define NB_BOTH(v) ((v) * 0x10001u)

/* The reading of two patterns in a register. */
struct nb_pairs {
    uint32_t shift, outside, flip; /* of both halves. outside: bits outside the exponent */
};

NB_DEV struct nb_pairs nb_pairs_of(uint32_t first)
{
    struct nb_pairs way;
    way.shift = first & NB_ULP_SHIFT_MASK;
    way.outside = ~NB_BOTH(0x7fffu >> way.shift);
    way.flip = first & NB_ULP_PLAIN ? 0 : 0x7fff7fffu;
    return way;
}

/* Return the numbers of low bits. c is one more than the run's, twice. */
NB_DEV uint32_t nb_pairs_low(const struct nb_pairs *way, uint32_t c, uint32_t r)
{
    return nb_pair_add_within(c, ~(r >> way->shift) | way->outside, NB_USUAL_K);
}

NB_DEV uint32_t nb_pairs_in_order(const struct nb_pairs *way, uint32_t x)
{
    return x ^ (nb_pair_signs(x) & way->flip);
}

/* Return 32 bits from bit `pos` of words in memory. `last` is the last word. */
NB_DEV uint32_t nb_peek_memory(const char *words, uint32_t pos, uint32_t last)
{
    const uint32_t at = pos / 32 < last ? pos / 32 : last, next = at < last ? at + 1 : last;
    return nb_funnel_right(nb_load4(words + 4 * at), nb_load4(words + 4 * next), pos);
}

NB_DEV uint32_t nb_peek_room(const uint32_t *words, uint32_t pos)
{
    const uint32_t *p = words + pos / 32;
    return nb_funnel_right(p[0], p[1], pos);
}

/* A lane's record, if it belongs to a usual block of a span at `span`: the 16-byte pieces that it touches
 * belong to the span. */
struct nb_usual {
    uint64_t base;  /* address, rounded down to 16 */
    uint32_t skew;  /* offset of the record behind the address */
    uint32_t bytes; /* 0: an unusual block, or one malformed in an unusual way */
    uint32_t first, exceptions;
};

NB_DEV struct nb_usual nb_usual_of(const char *span, const char *end, const char *coded, uint32_t bytes, uint32_t values)
{
    struct nb_usual its;
    const uint64_t at = (uint64_t)(uintptr_t)coded;
    its.base = at & ~15ull;
    its.skew = (uint32_t)(at & 15);
    its.bytes = its.first = its.exceptions = 0;
    if (values != NB_ULP_BLOCK || bytes <= NB_USUAL_HEAD || bytes > NB_USUAL_BYTES || its.base < (uint64_t)(uintptr_t)span ||
        ((at + bytes + 15) & ~15ull) > (uint64_t)(uintptr_t)end)
        return its;
    its.first = nb_load1(coded);
    its.exceptions = nb_load1(coded + 1);
    const uint32_t shift = its.first & NB_ULP_SHIFT_MASK;
    if (!(its.first & (NB_ULP_RAW | NB_ULP_FLOORS)) && shift >= 7 && shift <= 15 && 4 * its.exceptions + NB_USUAL_HEAD <= bytes)
        its.bytes = bytes;
    return its;
}

/* Step through the groups of a lane's block. `places` holds their numbers of low bits, and gets the bit of
 * the record's pieces at which each group begins. Return 1 when malformed. */
NB_DEV int nb_usual_step(const struct nb_usual *its, uint16_t *places)
{
    const char *words = (const char *)(uintptr_t)its->base;
    const uint32_t begin = 8 * its->skew, last = (its->skew + its->bytes - 1) / 4;
    const uint32_t end = its->skew + its->bytes - 4 * its->exceptions;
    const uint32_t modes[2] = {nb_peek_memory(words, begin + 48, last), nb_peek_memory(words, begin + 80, last)};
    uint32_t pos = begin + 8 * NB_USUAL_HEAD, bad = 0;

    NB_ROLL
    for (uint32_t g = 0; g < 32; g++) {
        NB_TIMES(32);
        const uint32_t mode = (g < 16 ? modes[0] : modes[1]) >> 2 * (g % 16) & 3, low = places[g];
        places[g] = (uint16_t)pos;
        bad |= mode == 3;
        if (!mode)
            continue;
        uint32_t plane = nb_peek_memory(words, pos, last);
        pos += 32;
        if (mode == NB_ULP_MODE_SPARSE) {
            const uint32_t bits = 4 * nb_popc(plane & 0xff);
            pos -= 24;
            plane = nb_peek_memory(words, pos, last) & nb_ones(bits);
            pos += bits;
        }
        NB_UNROLL
        for (unsigned j = 1; j < NB_ULP_PLANES; j++) {
            const uint32_t bits = nb_popc(plane);
            if (j + 1 < NB_ULP_PLANES)
                plane = nb_peek_memory(words, pos, last) & nb_ones(bits);
            pos += bits;
        }
        pos += low;
    }
    return bad || (pos + 7) / 8 != end;
}

/* Find the groups of the batch's blocks, of which `usual` are usual. Lane b has block b of the segment, and
 * the batch begins with block `from`. The references begin at `ref`. Return 1 when malformed. */
NB_DEV int nb_usual_find(const struct nb_usual *its, uint32_t usual, uint32_t from, const char *ref, uint16_t *places)
{
    const uint32_t lane = nb_thread() & 31;
    int bad = 0;

    nb_warp_barrier();
    NB_ROLL
    for (uint32_t b = 0; b < NB_USUAL_BATCH; b++) {
        NB_TIMES(16);
        const uint32_t block = from + b;
        const uint32_t low = nb_shfl((uint32_t)its->base, block), high = nb_shfl((uint32_t)(its->base >> 32), block);
        const uint32_t skew = nb_shfl(its->skew, block), first = nb_shfl(its->first, block);
        if (!(usual >> block & 1))
            continue;
        const struct nb_pairs way = nb_pairs_of(first);
        const char *coded = (const char *)(uintptr_t)((uint64_t)high << 32 | low) + skew;
        const char *from16 = ref + (uint64_t)block * NB_USUAL_BYTES + 64 * lane;
        nb_quad q[4];
        uint32_t sum = 0;
        NB_UNROLL
        for (unsigned i = 0; i < 4; i++)
            q[i] = nb_load16(from16 + 16 * i);
        const uint32_t c = NB_BOTH(nb_load1(coded + 2 + lane / 8) + 1);
        NB_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            sum += nb_pairs_low(&way, c, q[i].x) + nb_pairs_low(&way, c, q[i].y);
            sum += nb_pairs_low(&way, c, q[i].z) + nb_pairs_low(&way, c, q[i].w);
        }
        places[32 * b + lane] = (uint16_t)(sum + (sum >> 16));
    }
    nb_warp_barrier();
    if (lane - from < NB_USUAL_BATCH && (usual >> lane & 1))
        bad = nb_usual_step(its, places + 32 * (lane - from));
    nb_warp_barrier();
    return nb_ballot(bad) != 0;
}

/* The rest of the planes of a lane's group: the first plane, and the bits of the following ones. */
struct nb_planes {
    uint32_t first, plane[NB_ULP_PLANES - 1];
};

/* Return the high part of value i. Call in order of values. */
NB_DEV uint32_t nb_planes_next(struct nb_planes *of, unsigned i)
{
    uint32_t more = of->first >> i & 1, high = more;
    NB_UNROLL
    for (unsigned j = 0; j < NB_ULP_PLANES - 1; j++) {
        const uint32_t next = of->plane[j] & more;
        of->plane[j] >>= more;
        high += next;
        more = next;
    }
    return high;
}

/* Read the planes from bit *pos of the room on. */
NB_DEV struct nb_planes nb_planes_read(const uint32_t *room, uint32_t mode, uint32_t *pos)
{
    struct nb_planes of;
    of.first = nb_peek_room(room, *pos);
    *pos += 32;
    if (mode == NB_ULP_MODE_SPARSE) {
        const uint32_t cells = of.first & 0xff;
        *pos -= 24;
        uint32_t bits = nb_peek_room(room, *pos);
        *pos += 4 * nb_popc(cells);
        of.first = 0;
        NB_UNROLL
        for (unsigned cell = 0; cell < 8; cell++) {
            const uint32_t there = 4 * (cells >> cell & 1);
            of.first |= (bits & nb_ones(there)) << 4 * cell;
            bits >>= there;
        }
    }
    uint32_t bits = nb_popc(of.first);
    NB_UNROLL
    for (unsigned j = 0; j < NB_ULP_PLANES - 1; j++) {
        of.plane[j] = nb_peek_room(room, *pos) & nb_ones(bits);
        *pos += bits;
        bits = nb_popc(of.plane[j]);
    }
    return of;
}

/* Decode two values from their reference and bits. */
NB_DEV uint32_t nb_pairs_decode(const struct nb_pairs *way, uint32_t c, uint32_t r, const uint32_t *room, uint32_t *pos,
                                struct nb_planes *of, unsigned i)
{
    const uint32_t k = nb_pairs_low(way, c, r), k0 = k & 0xffff, k1 = k >> 16;
    const uint32_t bits = nb_peek_room(room, *pos);
    *pos += k0 + k1;
    const uint32_t low = (bits & nb_ones(k0)) | nb_planes_next(of, i) << k0;
    const uint32_t high = (bits >> k0 & nb_ones(k1)) | nb_planes_next(of, i + 1) << k1;
    const uint32_t z = nb_bytes(low, high, 0x5410);
    const uint32_t d = (z >> 1 & 0x7fff7fffu) ^ nb_pair_signs(z << 15);
    return nb_pairs_in_order(way, nb_pair_add(nb_pairs_in_order(way, r), d));
}

/* Decode a block whose groups are found, without its exceptions, and copy its record to the room. */
NB_DEV void nb_usual_decode(const char *base, uint32_t skew, uint32_t bytes, uint32_t first, const char *ref, char *dst,
                            const uint16_t *places, uint32_t *room)
{
    const uint32_t lane = nb_thread() & 31, quads = (skew + bytes + 15) / 16;
    const struct nb_pairs way = nb_pairs_of(first);
    nb_quad q[4];

    NB_UNROLL
    for (unsigned i = 0; i < 4; i++)
        q[i] = nb_load16(ref + 64 * lane + 16 * i);
    nb_warp_barrier();
    NB_ROLL
    for (uint32_t i = lane; i < quads; i += 32) {
        NB_TIMES(2);
        ((nb_quad *)room)[i] = nb_load16(base + 16 * i);
    }
    nb_warp_barrier();
    const uint8_t *record = (const uint8_t *)room + skew;
    const uint32_t mode = record[6 + lane / 4] >> 2 * (lane % 4) & 3;
    uint32_t c = NB_BOTH(record[2 + lane / 8] + 1u), pos = places[lane];
    struct nb_planes of = nb_planes_read(room, mode, &pos);
    if (!mode) {
        of.first = 0;
        c = 0; /* without low bits */
    }
    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        q[i].x = nb_pairs_decode(&way, c, q[i].x, room, &pos, &of, 8 * i);
        q[i].y = nb_pairs_decode(&way, c, q[i].y, room, &pos, &of, 8 * i + 2);
        q[i].z = nb_pairs_decode(&way, c, q[i].z, room, &pos, &of, 8 * i + 4);
        q[i].w = nb_pairs_decode(&way, c, q[i].w, room, &pos, &of, 8 * i + 6);
        nb_store16(dst + 64 * lane + 16 * i, q[i]);
    }
}

#endif
