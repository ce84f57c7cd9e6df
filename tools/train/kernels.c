/* SPDX-License-Identifier: Apache-2.0 */
/* Select the instruction set, and compute the blocked matrix product around the micro tiles. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#define VL 16
#define MR 12
#define FN(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx2,fma")))
#define KERNELS_NAME "avx512"
#include "kernels_impl.h"

#define VL 8
#define MR 6
#define FN(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define KERNELS_NAME "avx2"
#include "kernels_impl.h"
#endif

#define VL 4
#define MR 4
#define FN(x) x##_generic
#define TARGET
#define KERNELS_NAME "generic"
#include "kernels_impl.h"

const struct nbt_kernels *nbt_kernels_get(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        (!name || strcmp(name, "avx512") == 0))
        return &table_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        (!name || strcmp(name, "avx2") == 0))
        return &table_avx2;
#endif
    return !name || strcmp(name, "generic") == 0 ? &table_generic : NULL;
}

/* Blocks of the product: a KC x NC block of B lies packed in the L2 cache beside an MC x KC block of A. */
#define KC 256
#define NC 512
#define MC 96
#define MAX_MR 12
#define MAX_NR 32

size_t nbt_gemm_scratch(void)
{
    return (size_t)KC * (NC + MAX_NR) + (size_t)KC * (MC + MAX_MR) + 64;
}

/* Pack `width` consecutive rows (or columns) of an operand into panels. Element (i, p) at src[i * si + p *
 * sp] goes to panel i / width, place p * width + i % width. Missing rows of the last panel are zero. */
static void pack_panels(size_t count, size_t kc, size_t width, const float *src, size_t si, size_t sp,
                        float *dst)
{
    for (size_t i0 = 0; i0 < count; i0 += width, dst += width * kc) {
        const size_t w = count - i0 < width ? count - i0 : width;
        const float *s = src + i0 * si;
        if (si == 1 && w == width) {
            for (size_t p = 0; p < kc; p++)
                memcpy(dst + p * width, s + p * sp, width * sizeof *dst);
            continue;
        }
        if (w < width)
            memset(dst, 0, width * kc * sizeof *dst);
        for (size_t p0 = 0; p0 < kc; p0 += 16) { /* 16 at a time: one cache line of each row */
            const size_t p1 = p0 + 16 < kc ? p0 + 16 : kc;
            for (size_t i = 0; i < w; i++)
                for (size_t p = p0; p < p1; p++)
                    dst[p * width + i] = s[i * si + p * sp];
        }
    }
}

void nbt_gemm(const struct nbt_kernels *kern, int ta, int tb, size_t m, size_t n, size_t k, const float *a,
              size_t lda, const float *b, size_t ldb, float *c, size_t ldc, int accumulate, float *scratch)
{
    const size_t mr = kern->mr, nr = kern->nr;
    const size_t ai = ta ? 1 : lda, ap = ta ? lda : 1, bj = tb ? ldb : 1, bp = tb ? 1 : ldb;
    float *pb = scratch, *pa = scratch + (size_t)KC * (NC + MAX_NR);
    float edge[MAX_MR * MAX_NR];

    for (size_t j0 = 0; j0 < n; j0 += NC) {
        const size_t nc = n - j0 < NC ? n - j0 : NC;
        for (size_t p0 = 0; p0 < k; p0 += KC) {
            const size_t kc = k - p0 < KC ? k - p0 : KC;
            const int add = accumulate || p0 > 0;
            pack_panels(nc, kc, nr, b + j0 * bj + p0 * bp, bj, bp, pb);
            for (size_t i0 = 0; i0 < m; i0 += MC) {
                const size_t mc = m - i0 < MC ? m - i0 : MC;
                pack_panels(mc, kc, mr, a + i0 * ai + p0 * ap, ai, ap, pa);
                for (size_t j = 0; j < nc; j += nr) {
                    for (size_t i = 0; i < mc; i += mr) {
                        const size_t rows = mc - i < mr ? mc - i : mr, cols = nc - j < nr ? nc - j : nr;
                        float *tile = c + (i0 + i) * ldc + j0 + j;
                        if (rows == mr && cols == nr) {
                            kern->micro(kc, pa + i * kc, pb + j * kc, tile, ldc, add);
                            continue;
                        }
                        kern->micro(kc, pa + i * kc, pb + j * kc, edge, nr, 0);
                        for (size_t r = 0; r < rows; r++)
                            for (size_t q = 0; q < cols; q++)
                                tile[r * ldc + q] = edge[r * nr + q] + (add ? tile[r * ldc + q] : 0.0f);
                    }
                }
            }
        }
    }
}
