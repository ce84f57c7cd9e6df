/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on plain bytes: copies, zeros, comparisons, hashes, samples. A ticket of a divisible operation
 * is a piece of NB_PIECE bytes, or NB_PARTS positions.
 */
#ifndef NIBBLE_KERNELS_BYTES_CUH
#define NIBBLE_KERNELS_BYTES_CUH

#include "values.cuh"

#define NB_PIECE 32768u
#define NB_PARTS 512u

/* Copy 16 bytes at a time. Eight loads are in flight before the first result is needed. */
NB_DEV void nb_copy(const struct nb_gpu_desc *d, uint32_t ticket)
{
    const uint64_t at = (uint64_t)ticket * NB_PIECE, left = d->n - at;
    const uint32_t bytes = left < NB_PIECE ? (uint32_t)left : NB_PIECE, t = nb_thread();
    const char *from = (const char *)(uintptr_t)d->src + at;
    char *to = (char *)(uintptr_t)d->dst + at;

    if (((uintptr_t)from | (uintptr_t)to) % 16) {
        NB_ROLL
        for (uint32_t i = t; i < bytes; i += NB_THREADS)
            nb_store1(to + i, nb_load1(from + i));
        return;
    }
    const uint32_t whole = bytes / 16;
    NB_ROLL
    for (uint32_t i = t; i < whole; i += 8 * NB_THREADS) {
        nb_quad q[8];
        NB_UNROLL
        for (unsigned u = 0; u < 8; u++)
            q[u] = nb_load16(from + 16 * (i + u * NB_THREADS < whole ? i + u * NB_THREADS : i));
        NB_UNROLL
        for (unsigned u = 0; u < 8; u++)
            if (i + u * NB_THREADS < whole)
                nb_store16(to + 16 * (i + u * NB_THREADS), q[u]);
    }
    if (16 * whole + t < bytes)
        nb_store1(to + 16 * whole + t, nb_load1(from + 16 * whole + t));
}

NB_DEV void nb_clear(const struct nb_gpu_desc *d, uint32_t ticket)
{
    const uint64_t at = (uint64_t)ticket * NB_PIECE, left = d->n - at;
    const uint32_t bytes = left < NB_PIECE ? (uint32_t)left : NB_PIECE, t = nb_thread();
    char *to = (char *)(uintptr_t)d->dst + at;
    const uint32_t lead = (uint32_t)(0u - (uint32_t)(uintptr_t)to) & 15, first = lead < bytes ? lead : bytes;
    const uint32_t whole = (bytes - first) / 16, last = bytes - first - 16 * whole;
    nb_quad zero;

    zero.x = zero.y = zero.z = zero.w = 0;
    if (t < first)
        nb_store1(to + t, 0);
    for (uint32_t i = t; i < whole; i += NB_THREADS)
        nb_store16(to + first + 16 * i, zero);
    if (t < last)
        nb_store1(to + first + 16 * whole + t, 0);
}

/* Compare bytes. The result's value stays 0 where all bytes are the same. */
NB_DEV void nb_compare(const struct nb_gpu_desc *d, uint32_t ticket)
{
    const uint64_t at = (uint64_t)ticket * NB_PIECE, left = d->n - at;
    const uint32_t bytes = left < NB_PIECE ? (uint32_t)left : NB_PIECE, t = nb_thread();
    const char *a = (const char *)(uintptr_t)d->src + at, *b = (const char *)(uintptr_t)d->ref + at;
    uint32_t differ = 0, whole = 0;

    if (((uintptr_t)a | (uintptr_t)b) % 16 == 0) {
        whole = bytes / 16;
        for (uint32_t i = t; i < whole; i += NB_THREADS) {
            const nb_quad x = nb_load16(a + 16 * i), y = nb_load16(b + 16 * i);
            differ |= (x.x ^ y.x) | (x.y ^ y.y) | (x.z ^ y.z) | (x.w ^ y.w);
        }
    }
    for (uint32_t i = 16 * whole + t; i < bytes; i += NB_THREADS)
        differ |= nb_load1(a + i) ^ nb_load1(b + i);
    differ = nb_warp_or(differ);
    if (differ && t % 32 == 0)
        nb_add64(&nb_control_of(d)->value, 1);
}

NB_DEV int32_t nb_ordered16(uint32_t x)
{
    return x & 0x8000 ? -(int32_t)(x & 0x7fff) : (int32_t)x;
}

/* Compute nb_host_similarity. One block. */
NB_DEV void nb_likeness(const struct nb_gpu_desc *d)
{
    const char *a = (const char *)(uintptr_t)d->src, *b = (const char *)(uintptr_t)d->ref;
    const uint64_t words = d->n / 4;
    const uint32_t samples = d->nsources < words ? d->nsources : (uint32_t)words;
    uint32_t near16 = 0, near8 = 0, far16 = 0;

    for (uint32_t i = nb_thread(); i < samples; i += NB_THREADS) {
        const uint64_t at = (uint64_t)((double)words / samples * i) * 4 + 2;
        const uint32_t x = nb_load1(a + at) | nb_load1(a + at + 1) << 8;
        const uint32_t y = nb_load1(b + at) | nb_load1(b + at + 1) << 8;
        const int32_t by = nb_ordered16(x) - nb_ordered16(y), by8 = (int8_t)(x - y);
        near16 += by <= 64 && by >= -64;
        far16 += by <= 256 && by >= -256 && (by > 64 || by < -64);
        near8 += by8 <= 8 && by8 >= -8;
    }
    near16 = nb_warp_sum(near16);
    near8 = nb_warp_sum(near8);
    far16 = nb_warp_sum(far16);
    if (nb_thread() % 32 == 0) {
        nb_add64(&nb_control_of(d)->value, (uint64_t)near16 << 32 | near8);
        nb_add64(&nb_control_of(d)->escapes, far16);
    }
}

/* Return v / by for v < 2^62 and by <= 65536, without the call that a 64-bit quotient takes. */
NB_DEV uint64_t nb_divide(uint64_t v, uint32_t by)
{
    uint64_t quotient = 0;
    uint32_t rest = 0;
    NB_UNROLL
    for (int shift = 48; shift >= 0; shift -= 16) {
        const uint64_t part = (uint64_t)rest << 16 | (v >> shift & 0xffff); /* less than 2^32 */
        quotient = quotient << 16 | (uint32_t)part / by;
        rest = (uint32_t)part % by;
    }
    return quotient;
}

/* Compute nb_host_sample. One block. */
NB_DEV void nb_sample(int type, const struct nb_gpu_desc *d)
{
    if (d->nsources == 0 || d->n < 2 * (uint64_t)d->nsources)
        return;
    NB_ROLL
    for (uint32_t i = nb_thread(); i < d->nsources; i += NB_THREADS) {
        const uint64_t at = nb_divide(d->n / 2 * i, d->nsources) * 2 + 1;
        const float v = nb_widen(type, nb_element(type, (const void *)(uintptr_t)d->src, at));
        nb_store4((float *)(uintptr_t)d->dst + i, nb_bits(v));
    }
    if (nb_thread() == 0)
        nb_store8(&nb_control_of(d)->length, d->nsources);
}

/* Return the position in part i of a block of n values with 2^shift positions, as plugin/codec/pick.c. */
NB_DEV uint64_t nb_position(uint64_t n, uint32_t shift, uint64_t i)
{
    const uint64_t whole = n >> shift, rest = n & (((uint64_t)1 << shift) - 1);
    const uint64_t begin = whole * i + (rest * i >> shift), end = whole * (i + 1) + (rest * (i + 1) >> shift);
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return begin + ((z >> 32) * (end - begin) >> 32);
}

/* Load picked values. Positions lie far apart, so each is a load of its own. Four loads of a thread are in
 * flight. */
NB_DEV void nb_pick_values(const struct nb_gpu_desc *d, uint32_t ticket)
{
    const uint32_t shift = 31 - nb_clz(d->picks), from = ticket * NB_PARTS + nb_thread();
    const char *src = (const char *)(uintptr_t)d->src;
    uint32_t v[NB_PARTS / NB_THREADS];

    NB_UNROLL
    for (uint32_t u = 0; u < NB_PARTS / NB_THREADS; u++) {
        const uint32_t i = from + u * NB_THREADS;
        v[u] = 0;
        if (i < d->nsources) {
            const char *p = src + (nb_position(d->limit, shift, (uint64_t)d->part + i) - d->first) * d->width;
            v[u] = d->width == 4 ? nb_load4(p) : d->width == 2 ? nb_load2(p) : nb_load1(p);
        }
    }
    NB_UNROLL
    for (uint32_t u = 0; u < NB_PARTS / NB_THREADS; u++)
        if (from + u * NB_THREADS < d->nsources)
            nb_store4((uint32_t *)(uintptr_t)d->dst + from + u * NB_THREADS, v[u]);
}

/* Compute sums of squares of sampled groups, a group for each thread. */
NB_DEV void nb_profile(int type, const struct nb_gpu_desc *d)
{
    const int spread = (d->flags & NB_GPU_SPREAD) != 0; /* as nb_host_sums */
    if (spread && d->n / NB_GROUP < d->nsources)
        return;
    NB_ROLL
    for (uint32_t i = nb_thread(); i < d->nsources; i += NB_THREADS) {
        const uint64_t at = spread ? nb_divide(d->n / NB_GROUP * i, d->nsources) * NB_GROUP : i * d->first;
        float s[NB_GROUP], sum = 0;
        NB_UNROLL
        for (unsigned k = 0; k < NB_GROUP; k++) {
            const float g = nb_widen(type, nb_element(type, (const void *)(uintptr_t)d->src, at + k));
            s[k] = g * g;
            sum = sum + s[k];
        }
        nb_store4((float *)(uintptr_t)d->dst + i, nb_bits(spread ? sum : nb_sum32(s)));
    }
    if (spread && nb_thread() == 0)
        nb_store8(&nb_control_of(d)->length, d->nsources);
}

/* ---- The hash of docs/wire-format.md section 14 --------------------------------------------------------- */

#define NB_K_INIT 0x6a09e667f3bcc909ull
#define NB_K_SEED 0xbb67ae8584caa73bull
#define NB_K_LEN 0x3c6ef372fe94f82bull
#define NB_K_FOLD 0xa54ff53a5f1d36f1ull
#define NB_K_END 0x510e527fade682d1ull

NB_DEV uint64_t nb_fold(uint64_t a, uint64_t b)
{
    return a * b ^ nb_mul_high(a, b);
}

NB_DEV uint64_t nb_hash_step(uint64_t a, uint64_t word)
{
    const uint64_t t = a ^ word, high = (t >> 32) * 0x85ebca77u;
    return (t & 0xffffffffu) * 0x9e3779b1u + (high << 32 | high >> 32);
}

/* Return word i of a string of n bytes, padded with zeros. */
NB_DEV uint64_t nb_hash_word(const char *p, uint64_t n, uint64_t i)
{
    if (8 * i + 8 <= n && (uintptr_t)p % 8 == 0)
        return nb_load8(p + 8 * i);
    uint64_t v = 0;
    for (unsigned k = 0; k < 8; k++)
        if (8 * i + k < n)
            v |= (uint64_t)nb_load1(p + 8 * i + k) << 8 * k;
    return v;
}

/* Hash a string with one warp. The GPU's lanes are the hash's lanes, each a chain over the whole string. The
 * format has no more parallelism within a string, so strings are hashed beside each other. */
NB_DEV void nb_hash(const struct nb_gpu_desc *d)
{
    const uint32_t lane = nb_thread() & 31;
    const char *p = (const char *)(uintptr_t)d->src;
    const uint64_t n = d->n, stripes = (n + 255) / 256;
    uint64_t a = d->first + (lane + 1) * NB_K_INIT, next[8];

    if (nb_thread() >= 32)
        return;
    NB_UNROLL
    for (unsigned u = 0; u < 8; u++)
        next[u] = u < stripes ? nb_hash_word(p, n, 32 * (uint64_t)u + lane) : 0;
    NB_ROLL
    for (uint64_t s = 0; s < stripes; s += 8) {
        NB_UNROLL
        for (unsigned u = 0; u < 8; u++)
            if (s + u < stripes) {
                a = nb_hash_step(a, next[u]);
                if (s + u + 8 < stripes)
                    next[u] = nb_hash_word(p, n, 32 * (s + u + 8) + lane);
            }
    }
    a ^= NB_K_FOLD + lane * NB_K_INIT;
    const uint32_t low = nb_shfl_xor((uint32_t)a, 1), high = nb_shfl_xor((uint32_t)(a >> 32), 1);
    uint64_t h = lane % 2 ? 0 : nb_fold(a, (uint64_t)high << 32 | low);
    for (unsigned by = 2; by < 32; by *= 2) {
        const uint32_t l = nb_shfl_xor((uint32_t)h, by), u = nb_shfl_xor((uint32_t)(h >> 32), by);
        h += (uint64_t)u << 32 | l;
    }
    if (lane)
        return;
    h += nb_fold(d->first ^ NB_K_SEED, n + NB_K_LEN);
    h ^= h >> 32;
    h *= NB_K_END;
    h ^= h >> 29;
    h *= NB_K_FOLD;
    nb_store8(&nb_control_of(d)->value, h ^ h >> 32);
}

#endif
