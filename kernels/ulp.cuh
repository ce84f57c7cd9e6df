/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode deltas, exact and bounded: docs/wire-format.md sections 13 and 14. A warp has a block at a time, a
 * lane a value of each group, so that planes are ballots. Bits are read from shared memory. A warp's share of
 * a ticket is 32 consecutive blocks, whose lengths the span's table gives. Warps publish their sums and look
 * back, as encoders do for their output.
 */
#ifndef NIBBLE_KERNELS_ULP_CUH
#define NIBBLE_KERNELS_ULP_CUH

#include "delta4.cuh"
#include "ulp_usual.cuh"

#define NB_ULP_SEGMENT 32u /* blocks of a warp */

/* Return 32 bits of `bits` from bit `pos` on. */
NB_DEV uint32_t nb_peek(const uint32_t *bits, uint32_t pos)
{
    return nb_funnel_right(bits[pos / 32], bits[pos / 32 + 1], pos);
}

NB_DEV uint32_t nb_pattern(uint32_t width, const void *p, uint64_t i)
{
    return width == 1 ? nb_load1((const char *)p + i) : width == 2 ? nb_load2((const char *)p + 2 * i)
                                                                   : nb_load4((const char *)p + 4 * i);
}

NB_DEV void nb_put_pattern(uint32_t width, void *p, uint64_t i, uint32_t x)
{
    if (width == 1)
        nb_store1((char *)p + i, x);
    else if (width == 2)
        nb_store2((char *)p + 2 * i, x);
    else
        nb_store4((char *)p + 4 * i, x);
}

/* Convert between a pattern and an integer that grows with the value (its own inverse). flip is the
 * magnitude's bits or 0. */
NB_DEV uint32_t nb_in_order(uint32_t width, uint32_t x, uint32_t flip)
{
    return x ^ ((0u - (x >> (8 * width - 1))) & flip);
}

/* Copy bytes to shared memory with one warp, with the same alignment to words. Return the offset of the first
 * byte in the first word. */
NB_DEV uint32_t nb_warp_fetch(uint32_t *to, const char *from, uint32_t bytes)
{
    const uint32_t lane = nb_thread() & 31, skew = (uint32_t)((uintptr_t)from & 3), end = skew + bytes;
    const char *p = from - skew;
    NB_ROLL
    for (uint32_t i = 4 * lane; i < end; i += 128) {
        if (i >= skew && i + 4 <= end) {
            to[i / 4] = nb_load4(p + i);
            continue;
        }
        uint32_t word = 0;
        for (uint32_t k = i < skew ? skew : i; k < i + 4 && k < end; k++)
            word |= nb_load1(p + k) << 8 * (k - i);
        to[i / 4] = word;
    }
    nb_warp_barrier();
    return skew;
}

/* Copy bytes of any alignment with one warp. */
NB_DEV void nb_warp_copy(char *to, const char *from, uint32_t bytes)
{
    const uint32_t lane = nb_thread() & 31, lead = (0u - (uint32_t)(uintptr_t)to) & 15, first = lead < bytes ? lead : bytes;
    const uint32_t skew = (uint32_t)((uintptr_t)(from + first) & 3), behind = skew + bytes - first;
    const char *base = from + first - skew;
    /* 16-byte pieces whose source words lie within the bytes. */
    const uint32_t quads = behind < 20 || first < skew ? 0 : (behind - 4) / 16, done = first + 16 * quads;

    if (lane < first)
        nb_store1(to + lane, nb_load1(from + lane));
    NB_ROLL
    for (uint32_t i = lane; i < quads; i += 32) {
        NB_TIMES(2);
        const char *p = base + 16 * i;
        uint32_t word[5];
        nb_quad q;
        NB_UNROLL
        for (unsigned k = 0; k < 5; k++)
            word[k] = nb_load4(p + 4 * k);
        q.x = nb_funnel_right(word[0], word[1], 8 * skew);
        q.y = nb_funnel_right(word[1], word[2], 8 * skew);
        q.z = nb_funnel_right(word[2], word[3], 8 * skew);
        q.w = nb_funnel_right(word[3], word[4], 8 * skew);
        nb_store16(to + first + 16 * i, q);
    }
    NB_ROLL
    for (uint32_t i = done + lane; i < bytes; i += 32) {
        NB_TIMES(2);
        nb_store1(to + i, nb_load1(from + i));
    }
}

#define NB_BYTE(words, i) (((const uint8_t *)(words))[i])

/* Store a block's exceptions over the values of other lanes, with one warp after the block's other values.
 * Return 1 when malformed. */
NB_DEV int nb_ulp_decode_exceptions(uint32_t width, const uint8_t *e, uint32_t exceptions, uint32_t n, void *dst)
{
    uint32_t bad = 0;

    nb_warp_barrier();
    NB_ROLL
    for (uint32_t k = nb_thread() & 31; k < exceptions; k += 32) {
        const uint8_t *q = e + k * (2 + width);
        const uint32_t at = q[0] | (uint32_t)q[1] << 8;
        const uint32_t last = k ? *(q - 2 - width) | (uint32_t)*(q - 1 - width) << 8 : 0;
        if (at >= n || (k && at <= last)) {
            bad = 1;
            continue;
        }
        uint32_t x = 0;
        for (uint32_t b = 0; b < width; b++)
            x |= (uint32_t)q[2 + b] << 8 * b;
        nb_put_pattern(width, dst, at, x);
    }
    return nb_ballot((int)bad) != 0;
}

/* Decode a block of n values, `bytes` long, at `coded`, with one warp. Return 1 when malformed. `lossy`: it
 * may have floors. */
NB_DEV int nb_ulp_decode_block(uint32_t width, int lossy, const char *coded, uint32_t bytes, const void *ref, uint32_t n, void *dst,
                               uint32_t *room)
{
    const uint32_t lane = nb_thread() & 31, top = 8 * width - 1, all = NB_ALL >> (31 - top), magnitude = all >> 1;
    const uint32_t runs = (n + NB_ULP_RUN - 1) / NB_ULP_RUN, groups = (n + 31) / 32;
    const uint32_t head = 2 + runs + (groups + 3) / 4, below = (1u << lane) - 1;

    nb_warp_barrier();
    if (nb_load1(coded) == NB_ULP_RAW && bytes == 1 + n * width) {
        NB_ROLL
        for (uint32_t i = lane; i < n; i += 32) {
            uint32_t x = 0;
            for (uint32_t k = 0; k < width; k++)
                x |= nb_load1(coded + 1 + i * width + k) << 8 * k;
            nb_put_pattern(width, dst, i, x);
        }
        return 0;
    }
    const uint32_t skew = nb_warp_fetch(room, coded, bytes);
    const uint8_t *p = (const uint8_t *)room + skew;
    const uint32_t first = p[0], shift = first & NB_ULP_SHIFT_MASK, flip = first & NB_ULP_PLAIN ? 0 : magnitude;
    if ((first & (lossy ? NB_ULP_RAW : NB_ULP_RAW | NB_ULP_FLOORS)) || shift > top || shift + 8 < top || bytes < head)
        return 1;
    const struct nb_floors format = nb_floors_of(width, shift);
    uint32_t floors = 0; /* of the runs, a byte each */
    if (first & NB_ULP_FLOORS) {
        uint32_t bad = !format.shift || (first & NB_ULP_PLAIN) || bytes - head < runs;
        bytes -= bad ? 0 : runs;
        NB_ROLL
        for (uint32_t i = 0; i < runs && !bad; i++) {
            const uint32_t floor = p[bytes + i];
            bad = floor && (floor < format.low || floor > format.high);
            floors |= floor << 8 * i;
        }
        if (bad)
            return 1;
    }
    const uint32_t exceptions = p[1];
    if (exceptions * (2 + width) > bytes - head)
        return 1;
    const uint32_t begin = 8 * (skew + head), end = begin + 8 * (bytes - head - exceptions * (2 + width));
    uint32_t pos = begin;
    NB_ROLL
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t mode = p[2 + runs + g / 4] >> 2 * (g % 4) & 3, i = 32 * g + lane;
        const uint32_t r = i < n ? nb_pattern(width, ref, i) : magnitude;
        if (mode == 3 || (mode && pos > end))
            return 1;
        if (mode == NB_ULP_MODE_EQUAL) {
            if (i < n)
                nb_put_pattern(width, dst, i, r);
            continue;
        }
        uint32_t m0 = nb_peek(room, pos);
        if (mode == NB_ULP_MODE_SPARSE) {
            const uint32_t cells = m0 & 0xff, cell = lane / 4;
            const uint32_t at = pos + 8 + 4 * nb_popc(cells & ((1u << cell) - 1)) + lane % 4;
            m0 = nb_ballot((int)((cells >> cell & 1) & (nb_peek(room, at) & 1)));
            pos += 8 + 4 * nb_popc(cells);
        } else {
            pos += 32;
        }
        uint32_t high = m0 >> lane & 1;
        NB_UNROLL
        for (unsigned j = 1; j < NB_ULP_PLANES; j++) {
            /* One bit for each value that has not ended. */
            const uint32_t m1 = nb_ballot((int)((m0 >> lane & 1) & (nb_peek(room, pos + nb_popc(m0 & below)) & 1)));
            pos += nb_popc(m0);
            high += m1 >> lane & 1;
            m0 = m1;
        }
        const uint32_t exponent = (r & magnitude) >> shift, floor = floors >> 8 * (g / 8) & 0xff;
        const uint32_t k = nb_low_bits(width, p[2 + g / 8], exponent < floor ? floor : exponent);
        uint32_t upto = k;
        NB_UNROLL
        for (unsigned by = 1; by < 32; by *= 2) {
            const uint32_t other = nb_shfl_up(upto, by);
            upto += lane >= by ? other : 0;
        }
        const uint32_t low = nb_peek(room, pos + upto - k) & ((1u << k) - 1);
        pos += nb_shfl(upto, 31);
        const uint32_t z = (low | high << k) & all, d = z >> 1 ^ (0u - (z & 1));
        uint32_t x = nb_in_order(width, (nb_in_order(width, r, flip) + d) & all, flip);
        if (exponent < floor && z)
            x = nb_from_steps(&format, floor, z, r);
        if (i < n)
            nb_put_pattern(width, dst, i, x);
    }
    if ((pos + 7) / 8 != end / 8)
        return 1;
    return nb_ulp_decode_exceptions(width, (const uint8_t *)room + end / 8, exceptions, n, dst);
}

/* Run the ticket's 128 blocks, 32 a warp. */
NB_DEV void nb_ulp_decode_ticket(const struct nb_gpu_desc *d, uint32_t ticket, struct nb_shared *sh, uint32_t s)
{
    const int lossy = NB_OP(d) == NB_GPU_DELTA4_DECODE;
    const uint32_t lane = nb_thread() & 31, warp = nb_thread() / 32, width = lossy ? nb_type_bytes(NB_TYPE(d)) : d->width;
    const struct nb_gpu_source *source = (const struct nb_gpu_source *)(uintptr_t)d->sources;
    const char *coded = (const char *)(uintptr_t)nb_load8(&source->coded);
    const uint64_t bytes = nb_load8(&source->bytes), n = d->n >> width / 2, blocks = (n + NB_ULP_BLOCK - 1) / NB_ULP_BLOCK;
    const uint64_t tail = d->n & (width - 1), table = 1 + 2 * blocks;
    const uint64_t segment = (uint64_t)ticket * NB_WARPS + warp, block = segment * NB_ULP_SEGMENT + lane;
    const char *ref = (const char *)(uintptr_t)d->ref;
    char *dst = (char *)(uintptr_t)d->dst;
    uint32_t *room = (uint32_t *)(sh->stage[s] + warp * (NB_STAGE_QUADS / NB_WARPS));
    const uint32_t kind = bytes ? nb_load1(coded) : NB_ALL;
    int bad = kind == NB_ULP_SPAN_EQUAL ? bytes != 1 : kind != NB_ULP_SPAN_BLOCKS || bytes < table + tail;

    if (bad) {
        if (nb_thread() == 0)
            nb_fail(d, EBADMSG);
        return; /* all tickets return here */
    }
    if (kind == NB_ULP_SPAN_EQUAL) {
        const uint64_t from = (uint64_t)ticket * NB_WARPS * NB_ULP_SEGMENT * NB_ULP_BLOCK * width;
        const uint64_t upto = ticket + 1 == d->tickets
                                  ? d->n
                                  : from + (uint64_t)NB_WARPS * NB_ULP_SEGMENT * NB_ULP_BLOCK * width;
        if (d->ref != d->dst)
            NB_ROLL
            for (uint64_t i = from + nb_thread(); i < upto; i += NB_THREADS)
                nb_store1(dst + i, nb_load1(ref + i));
        return;
    }
    const uint32_t count =
        block >= blocks ? 0 : n - block * NB_ULP_BLOCK < NB_ULP_BLOCK ? (uint32_t)(n - block * NB_ULP_BLOCK) : NB_ULP_BLOCK;
    uint32_t size = 0;
    if (count)
        size = nb_load1(coded + 1 + 2 * block) | nb_load1(coded + 2 + 2 * block) << 8;
    bad = size > 1 + count * width;
    uint32_t upto = size;
    NB_UNROLL
    for (unsigned by = 1; by < 32; by *= 2) {
        const uint32_t other = nb_shfl_up(upto, by);
        upto += lane >= by ? other : 0;
    }
    const uint32_t length = nb_shfl(upto, 31);
    if (lane == 0)
        nb_put64_gpu(&nb_states(d)[segment], (uint64_t)length << 2 | 1);
    nb_warp_barrier();
    const uint64_t before = table + nb_look_back(nb_states(d), (uint32_t)segment, length);
    bad |= before + upto > bytes - tail;
    if (segment + 1 == (uint64_t)d->tickets * NB_WARPS)
        bad |= before + length != bytes - tail;
    bad = nb_ballot(bad) != 0;
    uint16_t *places = (uint16_t *)((char *)room + NB_USUAL_PLACES);
    const struct nb_usual its = nb_usual_of(coded, coded + bytes, coded + before + upto - size, bad ? 0 : size,
                                            width == 2 && !(((uintptr_t)ref | (uintptr_t)dst) & 15) ? count : 0);
    const uint32_t usual = nb_ballot(its.bytes != 0);
    NB_ROLL
    for (uint32_t from = 0; from < NB_ULP_SEGMENT && !bad; from += NB_USUAL_BATCH) {
        NB_TIMES(2);
        if (usual >> from)
            bad = nb_usual_find(&its, usual, from, ref + segment * NB_ULP_SEGMENT * NB_ULP_BLOCK * width, places);
        NB_ROLL
        for (uint32_t b = from; b < from + NB_USUAL_BATCH && !bad; b++) {
            NB_TIMES(16);
            const uint32_t values = nb_shfl(count, b), taken = nb_shfl(size, b), behind = nb_shfl(upto, b);
            const uint64_t at = (segment * NB_ULP_SEGMENT + b) * NB_ULP_BLOCK * width;
            const char *record = coded + before + behind - taken;
            if (!values)
                break;
            if (usual >> b & 1) {
                const uint32_t skew = (uint32_t)((uintptr_t)record & 15), exceptions = nb_shfl(its.exceptions, b);
                nb_usual_decode(record - skew, skew, taken, nb_shfl(its.first, b), ref + at, dst + at, places + 32 * (b - from),
                                room);
                bad = nb_ulp_decode_exceptions(2, (const uint8_t *)room + skew + taken - 4 * exceptions, exceptions,
                                               NB_ULP_BLOCK, dst + at);
            } else if (taken) {
                NB_RARE;
                bad = nb_ulp_decode_block(width, lossy, record, taken, ref + at, values, dst + at, room);
            } else if (d->ref != d->dst) {
                NB_RARE;
                NB_ROLL
                for (uint32_t i = lane; i < values; i += 32)
                    nb_put_pattern(width, dst + at, i, nb_pattern(width, ref + at, i));
            }
        }
    }
    if (bad && lane == 0)
        nb_fail(d, EBADMSG);
    if (ticket == 0 && nb_thread() < tail)
        nb_store1(dst + n * width + nb_thread(), nb_load1(coded + bytes - tail + nb_thread()));
}

#endif
