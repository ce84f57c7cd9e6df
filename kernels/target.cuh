/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's primitives for the kernels, for nvcc. The tests' emulation defines the same names for a CPU,
 * includes them before this header and marks them by NB_TARGET_EMULATED, so that the same statements run on
 * both. The sources stay within the common part of C11 and C++.
 *
 * The kernels read memory that changes while they run (NCCL's buffers, bytes from the network) past the first
 * cache (.cg, cp.async), since the GPU does not invalidate that cache between two windows at the same
 * address. They never use the non-coherent path. Flags are relaxed, with fences where order is needed.
 */
#ifndef NIBBLE_KERNELS_TARGET_CUH
#define NIBBLE_KERNELS_TARGET_CUH

#ifndef NB_TARGET_EMULATED
#ifndef __CUDACC__
#error "for nvcc, or behind an emulation of what follows"
#endif

#include <stdint.h>

#include "kernels.h"

#define NB_DEV static __device__ __forceinline__
#define NB_UNROLL _Pragma("unroll")
#define NB_ROLL _Pragma("unroll 1")
#define NB_TABLE static __constant__ const
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 100 * NB_GPU_NO_DIFFERENCES
#define NB_NO_ULP_ENCODE 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NB_NO_USUAL_ENCODE 1 /* would exceed the registers without arithmetic on pairs of integers */
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define NB_ESTIMATES 0 /* of energies: they would exceed the registers there */
#else
#define NB_ESTIMATES 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NB_READS_ANEW(type) 1 /* rather than to spill registers */
#else
#define NB_READS_ANEW(type) 0
#endif
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define NB_SCARCE 1 /* registers: values are computed again rather than kept */
#else
#define NB_SCARCE 0
#endif
#define NB_BRANCH asm volatile("") /* forces a branch: the compiler must not compute the conditional code
                                      and select */
#define NB_APART asm volatile("" ::: "memory") /* keeps the loads before and after apart */

typedef uint4 nb_quad; /* x, y, z, w */

NB_DEV unsigned nb_thread(void) { unsigned t; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t)); return t; }
NB_DEV unsigned nb_warp(void) { unsigned w; asm("{ .reg .b32 t; mov.u32 t, %%tid.x; shr.u32 %0, t, 5; }" : "=r"(w)); return w; }
/* The same, kept in a register where one is left. The compiler knows that all lanes have the same number. */
NB_DEV unsigned nb_warp_kept(void) { return NB_SCARCE ? 0 : __shfl_sync(0xffffffffu, nb_warp(), 0); }
/* The team's number among those of all blocks, their count, and the team's barrier. Each team has a barrier of
 * its own, because the teams of a block work on different tickets. */
NB_DEV unsigned nb_team(void) { return blockIdx.x * blockDim.y + threadIdx.y; }
NB_DEV unsigned nb_teams(void) { return gridDim.x * blockDim.y; }
NB_DEV void nb_barrier(void) /* reads the team's number anew: a register for it is not to be had */
{
    asm volatile("{ .reg .u32 team; mov.u32 team, %%tid.y; bar.sync team, %0; }" ::"n"(NB_GPU_THREADS) : "memory");
}

/* Return the address of shared memory, kept in a register. Since sm_90 it depends on the place in a cluster,
 * and the compiler would compute it again at each use. */
NB_DEV void *nb_kept(void *shared)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned kept = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(kept));
    return __cvta_shared_to_generic(kept);
#else
    return shared;
#endif
}

/* Whole warps only. */
NB_DEV void nb_warp_barrier(void) { __syncwarp(); }
NB_DEV uint32_t nb_ballot(int p) { return __ballot_sync(0xffffffffu, p); }
NB_DEV int nb_any(int p) { return __any_sync(0xffffffffu, p); }
NB_DEV uint32_t nb_shfl(uint32_t v, unsigned lane) { return __shfl_sync(0xffffffffu, v, lane); }
NB_DEV uint32_t nb_shfl_up(uint32_t v, unsigned by) { return __shfl_up_sync(0xffffffffu, v, by); }
NB_DEV uint32_t nb_shfl_xor(uint32_t v, unsigned with) { return __shfl_xor_sync(0xffffffffu, v, with); }
NB_DEV uint32_t nb_warp_max(uint32_t v) { return __reduce_max_sync(0xffffffffu, v); }
NB_DEV uint32_t nb_warp_min(uint32_t v) { return __reduce_min_sync(0xffffffffu, v); }
NB_DEV uint32_t nb_warp_sum(uint32_t v) { return __reduce_add_sync(0xffffffffu, v); }
NB_DEV uint32_t nb_warp_or(uint32_t v) { return __reduce_or_sync(0xffffffffu, v); }

/* Arithmetic. Sums and products use operators, and the build forbids fusing them. */
NB_DEV uint32_t nb_bits(float f) { return __float_as_uint(f); }
NB_DEV float nb_real(uint32_t u) { return __uint_as_float(u); }
NB_DEV float nb_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/* Two FP32 numbers at once, where the GPU has that, each rounded as if alone. Results replace a[0], a[1]. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
NB_DEV void nb_two_cross(float *a0, float *a1, float *b0, float *b1) /* sums to a, differences to b */
{
    const float2 a = make_float2(*a0, *a1), b = make_float2(*b0, *b1);
    const float2 sum = __fadd2_rn(a, b), less = __ffma2_rn(b, make_float2(-1.0f, -1.0f), a);
    *a0 = sum.x;
    *a1 = sum.y;
    *b0 = less.x;
    *b1 = less.y;
}
NB_DEV void nb_two_times(float *a0, float *a1, float by)
{
    const float2 r = __fmul2_rn(make_float2(*a0, *a1), make_float2(by, by));
    *a0 = r.x;
    *a1 = r.y;
}
NB_DEV void nb_two_plus(float *a0, float *a1, float b0, float b1)
{
    const float2 r = __fadd2_rn(make_float2(*a0, *a1), make_float2(b0, b1));
    *a0 = r.x;
    *a1 = r.y;
}
NB_DEV void nb_two_round(float *a0, float *a1) /* to integers, of numbers below 2^22; of ties the even one */
{
    const float magic = 0x1.8p23f;
    nb_two_plus(a0, a1, magic, magic);
    nb_two_plus(a0, a1, -magic, -magic);
}
NB_DEV void nb_two_fma(float *a0, float *a1, float q0, float q1, float by0, float by1) /* a + q * by */
{
    const float2 r = __ffma2_rn(make_float2(q0, q1), make_float2(by0, by1), make_float2(*a0, *a1));
    *a0 = r.x;
    *a1 = r.y;
}
#else
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
    *a0 = rintf(*a0);
    *a1 = rintf(*a1);
}
NB_DEV void nb_two_fma(float *a0, float *a1, float q0, float q1, float by0, float by1)
{
    *a0 = nb_fma(q0, by0, *a0);
    *a1 = nb_fma(q1, by1, *a1);
}
#endif
NB_DEV float nb_abs(float x) { return fabsf(x); } /* free in an operand */
NB_DEV float nb_fmax(float a, float b) { return fmaxf(a, b); } /* ignores a NaN */
NB_DEV float nb_fmax_or_nan(float a, float b) /* a NaN, which exceeds all numbers as an integer, if one of both is */
{
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}
NB_DEV float nb_fmin(float a, float b) { return fminf(a, b); }
/* Return the maximum of three integers, one instruction since sm_90. Non-negative integers compare like the
 * bits of floats. */
NB_DEV uint32_t nb_max3(uint32_t a, uint32_t b, uint32_t c) { return __vimax3_u32(a, b, c); }
NB_DEV uint32_t nb_min3(uint32_t a, uint32_t b, uint32_t c) { return __vimin3_u32(a, b, c); }
NB_DEV int32_t nb_signed_max3(int32_t a, int32_t b, int32_t c) { return __vimax3_s32(a, b, c); }
NB_DEV uint32_t nb_min(uint32_t a, uint32_t b) { return min(a, b); }
NB_DEV uint32_t nb_add_max(uint32_t a, uint32_t b, uint32_t least) { return __viaddmax_u32(a, b, least); }
NB_DEV float nb_root(float f) { return __fsqrt_rn(f); }
NB_DEV float nb_quotient(float a, float b) { return __fdiv_rn(a, b); }

/* Return 1 / f for the codec's divisors: numbers of few bits, far from both ends of the range. An estimate
 * and a step of Newton's method should round it correctly. gpu_kernels on a GPU would show a wrong bit, since
 * it compares coded spans with the C codec's. The emulation divides and cannot show one. */
NB_DEV float nb_reciprocal(float f)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
    return __fmaf_rn(r, __fmaf_rn(-f, r, 1.0f), r);
}
NB_DEV float nb_from_int(int32_t i) { return __int2float_rn(i); }
NB_DEV uint32_t nb_bytes(uint32_t a, uint32_t b, uint32_t order) { return __byte_perm(a, b, order); }
NB_DEV int32_t nb_dot4(uint32_t a, uint32_t b, int32_t c) { return __dp4a((int)a, (int)b, c); }
/* Pack two integers of 0 to 15 as 4-bit numbers into the low byte, below `above` shifted up by 8 bits. */
NB_DEV uint32_t nb_pack_nibbles(uint32_t low, uint32_t high, uint32_t above)
{
    uint32_t d;
    asm("cvt.pack.sat.u4.s32.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(high), "r"(low), "r"(above));
    return d;
}

/* Round four floats to signed bytes, to nearest even. On a GPU two of them take one instruction. */
NB_DEV uint32_t nb_round_bytes(float b0, float b1, float b2, float b3)
{
    uint32_t d;
    asm("{ .reg .s32 i, j, k, l; .reg .b32 upper; cvt.rni.s32.f32 i, %1; cvt.rni.s32.f32 j, %2; cvt.rni.s32.f32 k, %3;\n"
        "cvt.rni.s32.f32 l, %4; cvt.pack.sat.s8.s32.b32 upper, l, k, 0; cvt.pack.sat.s8.s32.b32 %0, j, i, upper; }"
        : "=r"(d)
        : "f"(b0), "f"(b1), "f"(b2), "f"(b3));
    return d;
}

/* Return byte i of a word as a signed number. One instruction where i is a constant. */
NB_DEV float nb_from_byte(uint32_t word, unsigned i)
{
    float f;
    asm("{ .reg .s32 byte; bfe.s32 byte, %1, %2, 8; cvt.rn.f32.s32 %0, byte; }" : "=f"(f) : "r"(word), "r"(8 * i));
    return f;
}

NB_DEV uint32_t nb_funnel_right(uint32_t low, uint32_t high, uint32_t by) { return __funnelshift_r(low, high, by); } /* by % 32 */
NB_DEV uint32_t nb_funnel_left(uint32_t low, uint32_t high, uint32_t by) { return __funnelshift_l(low, high, by); }

/* Return a word with the lowest `bits` bits set, 0 to 32. */
NB_DEV uint32_t nb_ones(uint32_t bits)
{
    uint32_t d;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(d) : "r"(bits));
    return d;
}

/* Two 16-bit integers in a register: a + b. Then (a + b, at most c) or 0 where that is negative. Then ones in
 * each half whose highest bit is set. */
NB_DEV uint32_t nb_pair_add(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t d;
    asm("add.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return __vadd2(a, b);
#endif
}
NB_DEV uint32_t nb_pair_add_within(uint32_t a, uint32_t b, uint32_t c) { return __viaddmin_s16x2_relu(a, b, c); }
NB_DEV uint32_t nb_add_within(uint32_t a, uint32_t b, uint32_t c) { return (uint32_t)__viaddmin_s32_relu((int)a, (int)b, (int)c); }
NB_DEV uint32_t nb_pair_signs(uint32_t a)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(d) : "r"(a));
    return d;
}
NB_DEV unsigned nb_popc(uint32_t v) { return (unsigned)__popc(v); }
NB_DEV unsigned nb_clz(uint32_t v) { return (unsigned)__clz((int)v); }
NB_DEV unsigned nb_ffs(uint32_t v) { return (unsigned)__ffs((int)v); }
NB_DEV uint64_t nb_mul_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

/* Round two floats to BF16, to nearest even. The result of a NaN is unspecified. */
NB_DEV uint32_t nb_round_bf16(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

NB_DEV uint32_t nb_round_f16(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* Exact. A NaN gives some NaN. */
NB_DEV float nb_from_f16(uint32_t v)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)v));
    return f;
}

/* Two FP16 in a register, for small integers, which are exact: a * b + c, a + b, a - b. Then the sum of both
 * halves and their difference (low less high). */
NB_DEV uint32_t nb_half_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

NB_DEV uint32_t nb_half_add(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

NB_DEV uint32_t nb_half_sub(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

NB_DEV uint32_t nb_half_cross(uint32_t a)
{
    uint32_t d;
    asm("{ .reg .b16 l, h; .reg .b32 ll, hh, one; mov.b32 {l, h}, %1; mov.b32 ll, {l, l}; mov.b32 hh, {h, h};\n"
        "mov.b32 one, 0xbc003c00; fma.rn.f16x2 %0, hh, one, ll; }"
        : "=r"(d)
        : "r"(a));
    return d;
}

/* Two BF16 in a register: a * b + c, rounded once. Then the bits (a & mask) ^ flip. */
NB_DEV uint32_t nb_brain_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Return the smaller magnitude of two numbers in each half, with some sign, since sm_90 without. The
 * magnitudes of 16-bit floats are in the order of their bits, so this serves FP16 as well. Then the same of
 * three results, which takes one instruction since sm_90. */
NB_DEV uint32_t nb_pair_least(uint32_t a, uint32_t b)
{
    uint32_t d;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("{ .reg .b32 m, n; abs.f16x2 m, %1; abs.f16x2 n, %2; min.f16x2 %0, m, n; }"
        : "=r"(d)
        : "r"(a), "r"(b));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    asm("{ .reg .b32 m; abs.bf16x2 m, %2; min.bf16x2 %0, %1, m; }" : "=r"(d) : "r"(a), "r"(b));
#endif
    return d;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NB_PAIR_MAGNITUDES 0xffffffffu /* the bits of its result that count */
#else
#define NB_PAIR_MAGNITUDES 0x7fff7fffu
#endif

NB_DEV uint32_t nb_pair_least3(uint32_t a, uint32_t b, uint32_t c)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return __vimin3_u16x2(a, b, c);
#else
    return nb_pair_least(nb_pair_least(a, b), c);
#endif
}

NB_DEV uint32_t nb_mask_flip(uint32_t a, uint32_t mask, uint32_t flip)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(flip));
    return d;
}

/* Return the bits of a where the mask is set, of b elsewhere. */
NB_DEV uint32_t nb_choose(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

/* ---- Memory */

NB_DEV nb_quad nb_load16(const void *p) { return __ldcg((const uint4 *)p); }
NB_DEV uint64_t nb_load8(const void *p) { return __ldcg((const unsigned long long *)p); }
NB_DEV uint32_t nb_load4(const void *p) { return __ldcg((const unsigned *)p); }
NB_DEV uint32_t nb_load2(const void *p) { return __ldcg((const unsigned short *)p); }
NB_DEV uint32_t nb_load1(const void *p) { return __ldcg((const unsigned char *)p); }
NB_DEV void nb_store16(void *p, nb_quad v) { *(uint4 *)p = v; }
NB_DEV void nb_store8(void *p, uint64_t v) { *(unsigned long long *)p = v; }
NB_DEV void nb_store4(void *p, uint32_t v) { *(unsigned *)p = v; }
NB_DEV void nb_store2(void *p, uint32_t v) { *(unsigned short *)p = (unsigned short)v; }
NB_DEV void nb_store1(void *p, uint32_t v) { *(unsigned char *)p = (unsigned char)v; }

/* Copy into shared memory in the background, in groups that end in order. */
NB_DEV void nb_async16(void *shared, const void *from)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

/* .cg needs 16 bytes. Smaller copies load past the first cache and wait. */
NB_DEV void nb_async4(void *shared, const void *from) { *(volatile unsigned *)shared = nb_load4(from); }
NB_DEV void nb_async_end(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
NB_DEV void nb_async_wait_all(void) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
NB_DEV void nb_async_wait_but1(void) { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

/* ---- Between threads of different blocks, and with the host */

/* Return the lower half. The compiler tests it as 32 bits, not as a part of 64. */
NB_DEV uint32_t nb_low(uint64_t v)
{
    uint32_t low;
    asm("{ .reg .b32 high; mov.b64 {%0, high}, %1; }" : "=r"(low) : "l"(v));
    return low;
}

NB_DEV uint64_t nb_get64_gpu(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
}

NB_DEV uint64_t nb_acquire64(const uint64_t *p) /* later loads come after it */
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
}

NB_DEV uint32_t nb_get32_shared_by_blocks(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
}

NB_DEV void nb_put64_gpu(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
}

NB_DEV void nb_put32_shared_by_blocks(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
}

NB_DEV uint64_t nb_get64_sys(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
}

NB_DEV void nb_put64_sys(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
}

NB_DEV void nb_put32_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
}

/* In global memory. */
NB_DEV uint64_t nb_add64(uint64_t *p, uint64_t v)
{
    uint64_t was;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(was) : "l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
    return was;
}

NB_DEV uint32_t nb_add32(uint32_t *p, uint32_t v)
{
    uint32_t was;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
    return was;
}

NB_DEV uint32_t nb_add32_release(uint32_t *p, uint32_t v) /* after all that came before it */
{
    uint32_t was;
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(was)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return was;
}

NB_DEV uint32_t nb_or32(uint32_t *p, uint32_t v) { return atomicOr(p, v); } /* shared memory too */
NB_DEV void nb_or32_shared(uint32_t *shared, uint32_t v)
{
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "r"(v) : "memory");
}
/* Of all lanes of a warp at one address. The compiler reduces the values first. */
NB_DEV void nb_max32_shared(uint32_t *shared, uint32_t v)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
NB_DEV void nb_min32_shared(uint32_t *shared, uint32_t v)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("red.shared.min.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
NB_DEV void nb_fence(void) { __threadfence(); }
NB_DEV void nb_fence_sys(void) { __threadfence_system(); }
NB_DEV void nb_pause(void) { __nanosleep(100); }

#endif
#endif
