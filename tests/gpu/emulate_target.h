/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels on a CPU: this file replaces kernels/target.cuh, which serves a GPU. Each thread of a block is
 * a fiber (emulate.c). It runs until it meets a barrier or a warp operation, or waits for another block. The
 * same statements therefore run on the same data, in another interleaving. Include it before
 * kernels/kernel.cuh, for which it is then the target.
 */
#ifndef NIBBLE_TESTS_GPU_EMULATE_TARGET_H
#define NIBBLE_TESTS_GPU_EMULATE_TARGET_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "tests/gpu/emulate.h"

#define NB_TARGET_EMULATED 1 /* tells kernels/target.cuh to define no target */

#define NB_DEV static inline __attribute__((unused))
#define NB_UNROLL
#define NB_ROLL
#define NB_TABLE static const
#define NB_APART ((void)0)
#define NB_BRANCH ((void)0)
#define NB_READS_ANEW(type) ((type) == NB_F16) /* both ways are tested */
#define NB_SCARCE (nb_emulated->block % 2)     /* both ways are tested */
#define NB_ESTIMATES 1

typedef struct {
    uint32_t x, y, z, w;
} __attribute__((aligned(16))) nb_quad;

NB_DEV unsigned nb_thread(void)
{
    return nb_emulated->thread;
}
NB_DEV unsigned nb_warp(void)
{
    return nb_emulated->thread / 32;
}
NB_DEV unsigned nb_team(void)
{
    return nb_emulated->block;
}
NB_DEV unsigned nb_teams(void)
{
    return nb_emulated->blocks;
}
NB_DEV void nb_barrier(void)
{
    nb_emulate_barrier();
}
NB_DEV void *nb_kept(void *shared)
{
    return shared;
}

NB_DEV void nb_warp_barrier(void)
{
    (void)nb_emulate_warp(0);
}
NB_DEV uint32_t nb_ballot(int p)
{
    const uint32_t *all = nb_emulate_warp(p != 0);
    uint32_t bits = 0;
    for (unsigned i = 0; i < 32; i++)
        bits |= all[i] << i;
    return bits;
}
NB_DEV unsigned nb_warp_kept(void)
{
    return nb_warp();
}
NB_DEV int nb_any(int p)
{
    return nb_ballot(p) != 0;
}
NB_DEV uint32_t nb_shfl(uint32_t v, unsigned lane)
{
    return nb_emulate_warp(v)[lane & 31];
}
NB_DEV uint32_t nb_shfl_up(uint32_t v, unsigned by)
{
    unsigned lane = nb_thread() & 31;
    return nb_emulate_warp(v)[lane < by ? lane : lane - by];
}
NB_DEV uint32_t nb_shfl_xor(uint32_t v, unsigned with)
{
    unsigned lane = nb_thread() & 31;
    return nb_emulate_warp(v)[(lane ^ with) & 31];
}
#define NB_WARP_OPERATION(name, step) \
    NB_DEV uint32_t name(uint32_t v) \
    { \
        const uint32_t *all = nb_emulate_warp(v); \
        uint32_t x = all[0]; \
        for (unsigned i = 1; i < 32; i++) \
            x = step; \
        return x; \
    }
NB_WARP_OPERATION(nb_warp_max, all[i] > x ? all[i] : x)
NB_WARP_OPERATION(nb_warp_min, all[i] < x ? all[i] : x)
NB_WARP_OPERATION(nb_warp_sum, x + all[i])
NB_WARP_OPERATION(nb_warp_or, x | all[i])

NB_DEV uint32_t nb_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
NB_DEV float nb_real(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
NB_DEV float nb_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
NB_DEV void nb_two_cross(float *a0, float *a1, float *b0, float *b1)
{
    const float s0 = *a0 + *b0, s1 = *a1 + *b1;
    *b0 = *a0 - *b0;
    *b1 = *a1 - *b1;
    *a0 = s0;
    *a1 = s1;
}
NB_DEV void nb_two_times(float *a0, float *a1, float by)
{
    *a0 = *a0 * by;
    *a1 = *a1 * by;
}
NB_DEV void nb_two_plus(float *a0, float *a1, float b0, float b1)
{
    *a0 = *a0 + b0;
    *a1 = *a1 + b1;
}
NB_DEV void nb_two_round(float *a0, float *a1)
{
    *a0 = __builtin_rintf(*a0);
    *a1 = __builtin_rintf(*a1);
}
NB_DEV void nb_two_fma(float *a0, float *a1, float q0, float q1, float by0, float by1)
{
    *a0 = nb_fma(q0, by0, *a0);
    *a1 = nb_fma(q1, by1, *a1);
}
NB_DEV float nb_abs(float x)
{
    return __builtin_fabsf(x);
}
NB_DEV float nb_fmax(float a, float b)
{
    return __builtin_fmaxf(a, b);
}
NB_DEV float nb_fmax_or_nan(float a, float b)
{
    return a != a || b != b ? nb_real(0x7fffffffu) : __builtin_fmaxf(a, b);
}
NB_DEV float nb_fmin(float a, float b)
{
    return __builtin_fminf(a, b);
}
NB_DEV float nb_root(float f)
{
    return __builtin_sqrtf(f);
}
NB_DEV float nb_quotient(float a, float b)
{
    return a / b;
}
NB_DEV uint32_t nb_max3(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t most = a > b ? a : b;
    return most > c ? most : c;
}
NB_DEV uint32_t nb_min3(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t least = a < b ? a : b;
    return least < c ? least : c;
}
NB_DEV uint32_t nb_low(uint64_t v)
{
    return (uint32_t)v;
}
NB_DEV uint32_t nb_add_max(uint32_t a, uint32_t b, uint32_t least)
{
    return a + b > least ? a + b : least;
}
NB_DEV uint32_t nb_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
NB_DEV int32_t nb_signed_max3(int32_t a, int32_t b, int32_t c)
{
    const int32_t most = a > b ? a : b;
    return most > c ? most : c;
}
NB_DEV float nb_reciprocal(float f)
{
    return 1.0f / f;
}
NB_DEV float nb_from_int(int32_t i)
{
    return (float)i;
}
NB_DEV uint32_t nb_bytes(uint32_t a, uint32_t b, uint32_t order)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (unsigned i = 0; i < 4; i++)
        r |= (uint32_t)(all >> 8 * (order >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
NB_DEV int32_t nb_dot4(uint32_t a, uint32_t b, int32_t c)
{
    for (unsigned i = 0; i < 32; i += 8)
        c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
NB_DEV uint32_t nb_pack_nibbles(uint32_t low, uint32_t high, uint32_t above)
{
    const int32_t l = (int32_t)low, h = (int32_t)high;
    return above << 8 |
           (uint32_t)(h < 0    ? 0
                      : h > 15 ? 15
                               : h)
               << 4 |
           (uint32_t)(l < 0    ? 0
                      : l > 15 ? 15
                               : l);
}
NB_DEV uint32_t nb_emulate_byte(float f)
{
    const float r = __builtin_rintf(f);
    return (uint32_t)(uint8_t)(int8_t)(r > 127 ? 127 : r < -128 ? -128 : r == r ? r : 0);
}
NB_DEV uint32_t nb_round_bytes(float b0, float b1, float b2, float b3)
{
    return nb_emulate_byte(b0) | nb_emulate_byte(b1) << 8 | nb_emulate_byte(b2) << 16 |
           nb_emulate_byte(b3) << 24;
}
NB_DEV float nb_from_byte(uint32_t word, unsigned i)
{
    return (int8_t)(word >> 8 * i);
}
NB_DEV uint32_t nb_funnel_right(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> by % 32);
}
NB_DEV uint32_t nb_funnel_left(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) << by % 32 >> 32);
}
NB_DEV uint32_t nb_ones(uint32_t bits)
{
    return bits < 32 ? (1u << bits) - 1 : 0xffffffffu;
}
NB_DEV uint32_t nb_pair_add(uint32_t a, uint32_t b)
{
    return ((a + b) & 0xffff) | ((a >> 16) + (b >> 16)) << 16;
}
NB_DEV uint32_t nb_add_within(uint32_t a, uint32_t b, uint32_t c)
{
    const int32_t sum = (int32_t)(a + b);
    return sum < 0 ? 0 : sum < (int32_t)c ? (uint32_t)sum : c;
}
NB_DEV uint32_t nb_pair_add_within(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t sum = nb_pair_add(a, b);
    return nb_add_within((uint32_t)(int16_t)sum, 0, c & 0xffff) |
           nb_add_within((uint32_t)(int16_t)(sum >> 16), 0, c >> 16) << 16;
}
NB_DEV uint32_t nb_pair_signs(uint32_t a)
{
    return (a & 0x8000 ? 0xffffu : 0) | (a >> 31 ? 0xffff0000u : 0);
}
NB_DEV unsigned nb_popc(uint32_t v)
{
    return (unsigned)__builtin_popcount(v);
}
NB_DEV unsigned nb_clz(uint32_t v)
{
    return v ? (unsigned)__builtin_clz(v) : 32;
}
NB_DEV unsigned nb_ffs(uint32_t v)
{
    return (unsigned)__builtin_ffs((int)v);
}
NB_DEV uint64_t nb_mul_high(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

uint32_t nb_emulate_round(int f16, float f); /* rounds as the hardware does, NaN included */
NB_DEV uint32_t nb_round_bf16(float low, float high)
{
    return nb_emulate_round(0, low) | nb_emulate_round(0, high) << 16;
}
NB_DEV uint32_t nb_round_f16(float low, float high)
{
    return nb_emulate_round(1, low) | nb_emulate_round(1, high) << 16;
}
float nb_emulate_from_f16(uint32_t v);
NB_DEV float nb_from_f16(uint32_t v)
{
    return nb_emulate_from_f16(v & 0xffff);
}

/* Two FP16 values in a register. */
NB_DEV uint32_t nb_half_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return nb_round_f16(nb_from_f16(a) * nb_from_f16(b) + nb_from_f16(c),
                        nb_from_f16(a >> 16) * nb_from_f16(b >> 16) + nb_from_f16(c >> 16));
}
NB_DEV uint32_t nb_half_add(uint32_t a, uint32_t b)
{
    return nb_half_fma(a, 0x3c003c00u, b);
}
NB_DEV uint32_t nb_half_sub(uint32_t a, uint32_t b)
{
    return nb_half_fma(b, 0xbc00bc00u, a);
}
NB_DEV uint32_t nb_half_cross(uint32_t a)
{
    return nb_half_fma(a >> 16 | (a & 0xffff0000u), 0xbc003c00u, (a & 0xffff) | a << 16);
}

/* Two BF16 values in a register. A product is exact before it is rounded. A sum that is rounded twice here
 * may differ from a GPU's in the last place. Results of such sums are estimates. */
NB_DEV uint32_t nb_brain_fma(uint32_t a, uint32_t b, uint32_t c)
{
    const float low = nb_real(a << 16) * nb_real(b << 16),
                high = nb_real(a & 0xffff0000u) * nb_real(b & 0xffff0000u);
    return nb_round_bf16(low + nb_real(c << 16), high + nb_real(c & 0xffff0000u));
}
NB_DEV uint32_t nb_pair_least(uint32_t a, uint32_t b)
{
    a &= 0x7fff7fffu;
    b &= 0x7fff7fffu;
    return nb_min(a & 0xffff, b & 0xffff) | nb_min(a & 0xffff0000u, b & 0xffff0000u);
}
#define NB_PAIR_MAGNITUDES 0xffffffffu
NB_DEV uint32_t nb_pair_least3(uint32_t a, uint32_t b, uint32_t c)
{
    return nb_pair_least(nb_pair_least(a, b), c);
}
NB_DEV uint32_t nb_mask_flip(uint32_t a, uint32_t mask, uint32_t flip)
{
    return (a & mask) ^ flip;
}
NB_DEV uint32_t nb_choose(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}

/* An unaligned access would be an error on a GPU. */
#define NB_ALIGNED(p, n) ((uintptr_t)(p) % (n) ? nb_emulate_fail("address is not aligned") : (void)0)
#define NB_ACCESS(bytes, type) \
    NB_DEV type nb_load##bytes(const void *p) \
    { \
        NB_ALIGNED(p, bytes); \
        return *(const type *)p; \
    } \
    NB_DEV void nb_store##bytes(void *p, type v) \
    { \
        NB_ALIGNED(p, bytes); \
        *(type *)p = v; \
    }
NB_ACCESS(16, nb_quad)
NB_ACCESS(8, uint64_t)
NB_ACCESS(4, uint32_t)
#define NB_ACCESS_SMALL(bytes, type) \
    NB_DEV uint32_t nb_load##bytes(const void *p) \
    { \
        NB_ALIGNED(p, bytes); \
        return *(const type *)p; \
    } \
    NB_DEV void nb_store##bytes(void *p, uint32_t v) \
    { \
        NB_ALIGNED(p, bytes); \
        *(type *)p = (type)v; \
    }
NB_ACCESS_SMALL(2, uint16_t)
NB_ACCESS_SMALL(1, uint8_t)

/* Do background copies as late as possible: when the thread waits for them. */
NB_DEV void nb_async16(void *shared, const void *from)
{
    NB_ALIGNED(shared, 16);
    NB_ALIGNED(from, 16);
    nb_emulate_async(shared, from, 16);
}
NB_DEV void nb_async4(void *shared, const void *from)
{
    *(uint32_t *)shared = nb_load4(from);
}
NB_DEV void nb_async_end(void)
{
    nb_emulate_async_end();
}
NB_DEV void nb_async_wait_all(void)
{
    nb_emulate_async_wait(0);
}
NB_DEV void nb_async_wait_but1(void)
{
    nb_emulate_async_wait(1);
}

#ifdef NB_TSAN
NB_DEV uint64_t nb_get64_gpu(const uint64_t *p)
{
    return nb_emulate_get(p, 8, 0);
}
NB_DEV uint64_t nb_acquire64(const uint64_t *p)
{
    const uint64_t v = nb_emulate_get(p, 8, 0);
    nb_emulate_fence(0);
    return v;
}
NB_DEV uint32_t nb_get32_shared_by_blocks(const uint32_t *p)
{
    return (uint32_t)nb_emulate_get(p, 4, 0);
}
NB_DEV void nb_put64_gpu(uint64_t *p, uint64_t v)
{
    nb_emulate_put(p, 8, v, 0);
}
NB_DEV void nb_put32_shared_by_blocks(uint32_t *p, uint32_t v)
{
    nb_emulate_put(p, 4, v, 0);
}
NB_DEV uint64_t nb_get64_sys(const uint64_t *p)
{
    return nb_emulate_get(p, 8, 1);
}
NB_DEV void nb_put64_sys(uint64_t *p, uint64_t v)
{
    nb_emulate_put(p, 8, v, 1);
}
NB_DEV void nb_put32_sys(uint32_t *p, uint32_t v)
{
    nb_emulate_put(p, 4, v, 1);
}
NB_DEV uint64_t nb_add64(uint64_t *p, uint64_t v)
{
    return nb_emulate_change(p, 8, v, 0);
}
NB_DEV uint32_t nb_add32(uint32_t *p, uint32_t v)
{
    return (uint32_t)nb_emulate_change(p, 4, v, 0);
}
NB_DEV uint32_t nb_add32_release(uint32_t *p, uint32_t v)
{
    nb_emulate_fence(0);
    return nb_add32(p, v);
}
NB_DEV uint32_t nb_or32(uint32_t *p, uint32_t v)
{
    return (uint32_t)nb_emulate_change(p, 4, v, 1);
}
NB_DEV void nb_fence(void)
{
    nb_emulate_fence(0);
}
NB_DEV void nb_fence_sys(void)
{
    nb_emulate_fence(1);
}
#else
NB_DEV uint64_t nb_get64_gpu(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
NB_DEV uint64_t nb_acquire64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
NB_DEV uint32_t nb_get32_shared_by_blocks(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
NB_DEV void nb_put64_gpu(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
NB_DEV void nb_put32_shared_by_blocks(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
NB_DEV uint64_t nb_get64_sys(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
NB_DEV void nb_put64_sys(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
NB_DEV void nb_put32_sys(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
NB_DEV uint64_t nb_add64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
NB_DEV uint32_t nb_add32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
NB_DEV uint32_t nb_add32_release(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
NB_DEV uint32_t nb_or32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
NB_DEV void nb_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
NB_DEV void nb_fence_sys(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif
NB_DEV void nb_or32_shared(uint32_t *shared, uint32_t v)
{
    (void)nb_or32(shared, v);
}
NB_DEV void nb_max32_shared(uint32_t *shared, uint32_t v)
{
    *shared = v > *shared ? v : *shared;
}
NB_DEV void nb_min32_shared(uint32_t *shared, uint32_t v)
{
    *shared = v < *shared ? v : *shared;
}
NB_DEV void nb_pause(void)
{
    nb_emulate_pause();
}

#endif
