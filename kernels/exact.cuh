/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of plain values, in the order of plugin/device/host/exact.c: source after source, then the own value.
 * A ticket is NB_PIECE bytes of the result. A thread has 16 bytes of it at a time, and their accumulators in
 * registers: the values' words, or eight FP32 numbers for 16-bit floats. Types of 8 and 64 bits are rare and
 * go value by value.
 */
#ifndef NIBBLE_KERNELS_EXACT_CUH
#define NIBBLE_KERNELS_EXACT_CUH

#include "bytes.cuh"
#include "nibble/nccl_types.h"

#define NB_EXACT_LISTED 2048u /* addresses that fit into a stage. Further addresses are read each time */
#define NB_EXACT_CODEC 64u   /* nb_reduce computes sums of 16-bit floats of up to so many sources */

NB_DEV uint32_t nb_exact_type_bytes(uint32_t type)
{
    return type <= ncclUint8 ? 1 : type == ncclFloat16 || type == ncclBfloat16 ? 2
                               : type == ncclInt64 || type == ncclUint64 || type == ncclFloat64 ? 8 : 4;
}

NB_DEV int nb_is_half(uint32_t type)
{
    return type == ncclFloat16 || type == ncclBfloat16;
}

/* Minimum and maximum: a NaN loses to a number. Of two equal values the second wins. */
NB_DEV float nb_combine_float(uint32_t op, float a, float b)
{
    switch (op) {
    case ncclSum: return a + b;
    case ncclProd: return a * b;
    case ncclMax: return a > b || b != b ? a : b;
    default: return a < b || b != b ? a : b;
    }
}

NB_DEV uint32_t nb_combine_int(uint32_t op, int is_signed, uint32_t a, uint32_t b)
{
    const uint32_t flip = is_signed ? 0x80000000u : 0;
    switch (op) {
    case ncclSum: return a + b;
    case ncclProd: return a * b;
    case ncclMax: return (a ^ flip) > (b ^ flip) ? a : b;
    default: return (a ^ flip) < (b ^ flip) ? a : b;
    }
}

NB_DEV uint64_t nb_combine_long(uint32_t op, uint32_t type, uint64_t a, uint64_t b)
{
    if (type == ncclFloat64) {
        union {
            uint64_t u;
            double f;
        } x, y;
        x.u = a;
        y.u = b;
        switch (op) {
        case ncclSum: x.f = x.f + y.f; break;
        case ncclProd: x.f = x.f * y.f; break;
        case ncclMax: x.f = x.f > y.f || y.f != y.f ? x.f : y.f; break;
        default: x.f = x.f < y.f || y.f != y.f ? x.f : y.f; break;
        }
        return x.u;
    }
    const uint64_t flip = type == ncclInt64 ? 1ull << 63 : 0;
    switch (op) {
    case ncclSum: return a + b;
    case ncclProd: return a * b;
    case ncclMax: return (a ^ flip) > (b ^ flip) ? a : b;
    default: return (a ^ flip) < (b ^ flip) ? a : b;
    }
}

/* Combine values of any type. 16-bit floats are FP32 here. */
NB_DEV uint64_t nb_combine(uint32_t op, uint32_t type, uint64_t a, uint64_t b)
{
    const uint32_t size = nb_exact_type_bytes(type), up = size == 1 ? 24 : 0;
    if (size == 8)
        return nb_combine_long(op, type, a, b);
    if (type == ncclFloat32 || nb_is_half(type))
        return nb_bits(nb_combine_float(op, nb_real((uint32_t)a), nb_real((uint32_t)b)));
    /* A byte in the highest place compares as a word does. A product or a sum of bytes is computed as
     * words. */
    if (op == ncclSum || op == ncclProd)
        return nb_combine_int(op, 0, (uint32_t)a, (uint32_t)b);
    return nb_combine_int(op, type == ncclInt8 || type == ncclInt32, (uint32_t)a << up, (uint32_t)b << up) >> up;
}

/* ---- Pieces of 16 bytes: types of 16 and 32 bits ------------------------------------------------------- */

NB_DEV void nb_exact_values(uint32_t type, nb_quad q, uint32_t *v)
{
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
    NB_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t half = w[i / 2] >> 16 * (i % 2) & 0xffff;
        v[i] = type == ncclFloat16 ? nb_bits(nb_from_f16(half)) : type == ncclBfloat16 ? half << 16 : i < 4 ? w[i] : 0;
    }
}

NB_DEV void nb_exact_add(uint32_t type, uint32_t op, const uint32_t *v, uint32_t *a)
{
    if (type == ncclInt32 || type == ncclUint32) {
        NB_UNROLL
        for (unsigned i = 0; i < 4; i++)
            a[i] = nb_combine_int(op, type == ncclInt32, a[i], v[i]);
    } else {
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++)
            a[i] = nb_bits(nb_combine_float(op, nb_real(a[i]), nb_real(v[i])));
    }
}

/* Replace a NaN of a 16-bit type by the NaN that sums give. */
NB_DEV nb_quad nb_exact_end(uint32_t type, const uint32_t *a)
{
    uint32_t w[4];
    nb_quad q;
    NB_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const float low = nb_real(a[2 * i]), high = nb_real(a[2 * i + 1]);
        w[i] = a[i];
        if (nb_is_half(type)) {
            const uint32_t nan = type == ncclFloat16 ? 0x7e00u : 0x7fc0u;
            w[i] = type == ncclFloat16 ? nb_round_f16(low, high) : nb_round_bf16(low, high);
            w[i] = low != low ? (w[i] & 0xffff0000u) | nan : w[i];
            w[i] = high != high ? (w[i] & 0xffffu) | nan << 16 : w[i];
        }
    }
    q.x = w[0];
    q.y = w[1];
    q.z = w[2];
    q.w = w[3];
    return q;
}

/* ---- Value by value: other types, unaligned values, remainders -------------------------------------- */

NB_DEV uint64_t nb_exact_load(uint32_t type, uint64_t address)
{
    const uint32_t size = nb_exact_type_bytes(type);
    const char *p = (const char *)(uintptr_t)address;
    uint64_t v = 0;
    if (size == 8 && address % 8 == 0)
        return nb_load8(p);
    NB_ROLL
    for (uint32_t i = 0; i < size; i++)
        v |= (uint64_t)nb_load1(p + i) << 8 * i;
    return nb_is_half(type) ? nb_bits(nb_widen(type == ncclFloat16 ? NB_F16 : NB_BF16, (uint32_t)v)) : v;
}

NB_DEV uint64_t nb_exact_source(const struct nb_gpu_desc *d, const uint64_t *list, uint32_t i)
{
    const struct nb_gpu_source *sources = (const struct nb_gpu_source *)(uintptr_t)d->sources;
    return i == d->nsources ? d->own : i < NB_EXACT_LISTED ? list[i] : nb_load8(&sources[i].coded);
}

/* Reduce bytes [from, upto) of the result. */
NB_DEV void nb_exact_slowly(const struct nb_gpu_desc *d, const uint64_t *list, int zero, uint64_t from, uint64_t upto)
{
    const uint32_t type = d->type, size = nb_exact_type_bytes(type), total = d->nsources + (d->own != 0);
    NB_ROLL
    for (uint64_t at = from + nb_thread() * size; at < upto; at += NB_THREADS * size) {
        char *to = (char *)(uintptr_t)d->dst + at;
        uint64_t a = 0; /* +0 in every type */
        NB_ROLL
        for (uint32_t i = 0; i < total; i++) {
            const uint64_t v = nb_exact_load(type, nb_exact_source(d, list, i) + at);
            a = i || zero ? nb_combine(d->mode, type, a, v) : v;
        }
        if (nb_is_half(type)) {
            const float f = nb_real((uint32_t)a);
            a = nb_narrow(type == ncclFloat16 ? NB_F16 : NB_BF16, f != f ? nb_real(NB_F32_NAN) : f);
        }
        if (size == 8) {
            nb_store8(to, a);
        } else if (size == 4) {
            nb_store4(to, (uint32_t)a);
        } else if (size == 2) {
            nb_store2(to, (uint32_t)a);
        } else {
            nb_store1(to, (uint32_t)a & 0xff);
        }
    }
}

NB_DEV void nb_exact(const struct nb_gpu_desc *d, uint32_t ticket, struct nb_shared *sh, uint32_t s)
{
    const uint32_t t = nb_thread(), type = d->type, total = d->nsources + (d->own != 0);
    const uint64_t at = (uint64_t)ticket * NB_PIECE, left = d->n * nb_exact_type_bytes(type) - at;
    const uint32_t bytes = left < NB_PIECE ? (uint32_t)left : NB_PIECE;
    /* Sums of 16-bit floats begin at +0 where nb_reduce defines them. */
    const int zero = nb_is_half(type) && d->mode == ncclSum && d->nsources <= NB_EXACT_CODEC;
    const struct nb_gpu_source *sources = (const struct nb_gpu_source *)(uintptr_t)d->sources;
    uint64_t *list = (uint64_t *)sh->stage[s];
    uint64_t addresses = t ? 0 : d->own | d->dst;

    NB_ROLL
    for (uint32_t i = t; i < d->nsources; i += NB_THREADS) {
        const uint64_t p = nb_load8(&sources[i].coded);
        addresses |= p;
        if (i < NB_EXACT_LISTED)
            list[i] = p;
    }
    const uint32_t skewed = nb_ballot((addresses & 15) != 0);
    if (t % 32 == 0)
        sh->part[0][t / 32] = skewed;
    nb_barrier();
    uint32_t whole = sh->part[0][0] | sh->part[0][1] | sh->part[0][2] | sh->part[0][3] ? 0 : bytes & ~15u;
    if (nb_exact_type_bytes(type) == 8 || type <= ncclUint8)
        whole = 0;
    NB_ROLL
    for (uint32_t from = 16 * t; from < whole; from += 16 * NB_THREADS) {
        nb_quad next = nb_load16((const char *)(uintptr_t)nb_exact_source(d, list, 0) + at + from);
        uint32_t a[8], v[8];
        NB_UNROLL
        for (unsigned i = 0; i < 8; i++)
            a[i] = 0;
        NB_ROLL
        for (uint32_t i = 0; i < total; i++) {
            nb_exact_values(type, next, v);
            /* The next source is in flight while this one is added. */
            if (i + 1 < total)
                next = nb_load16((const char *)(uintptr_t)nb_exact_source(d, list, i + 1) + at + from);
            if (i || zero) {
                nb_exact_add(type, d->mode, v, a);
            } else {
                NB_UNROLL
                for (unsigned k = 0; k < 8; k++)
                    a[k] = v[k];
            }
        }
        nb_store16((char *)(uintptr_t)d->dst + at + from, nb_exact_end(type, a));
    }
    nb_exact_slowly(d, list, zero, at + whole, at + bytes);
}

#endif
