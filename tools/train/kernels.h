/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 building blocks of the model, with one table of functions for each instruction set.
 *
 * All matrices are row-major with a leading dimension, the distance between rows in floats. Every function
 * runs on the calling thread and adds in an order that depends on the shapes and the instruction set only, so
 * one machine gives the same bits in every run. Inputs and outputs must not overlap, except where a function
 * allows it.
 */
#ifndef NIBBLE_TRAIN_KERNELS_H
#define NIBBLE_TRAIN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

struct nbt_kernels {
    const char *name; /* "avx512", "avx2" or "generic" */

    /* Micro tile of gemm: rows, columns, and the function that multiplies a packed mr x kc panel of A by a
     * packed kc x nr panel of B. It adds the product to the full tile at c (accumulate), or stores it
     * there. */
    size_t mr, nr;
    void (*micro)(size_t kc, const float *a, const float *b, float *c, size_t ldc, int accumulate);

    /* Compute y[r] = (x[r] - mean) * rstd * gain + shift for each of `rows` rows of `cols`. Keep mean[rows]
     * and rstd[rows] for the backward pass. cols is a multiple of 16 here and below. */
    void (*layernorm)(size_t rows, size_t cols, const float *x, const float *gain, const float *shift,
                      float *y, float *mean, float *rstd);
    /* Compute dx += gradient through layernorm. Add to dgain and dshift. */
    void (*layernorm_back)(size_t rows, size_t cols, const float *x, const float *gain, const float *mean,
                           const float *rstd, const float *dy, float *dx, float *dgain, float *dshift);

    /* GELU (tanh form): y = gelu(x) for n values, and dx = dy * gelu'(x), where dx may equal dy. n is a
     * multiple of 16. */
    void (*gelu)(size_t n, const float *x, float *y);
    void (*gelu_back)(size_t n, const float *x, const float *dy, float *dx);

    /* Compute softmax(scale * s) in place over `rows` rows of s. Row r sees its first `seen + r` scores. The
     * rest of the `cols` columns become 0. */
    void (*softmax_causal)(size_t rows, size_t cols, size_t seen, float scale, float *s, size_t lds);
    /* Compute ds := scale * p * (dp - sum(dp * p)), with dp given in ds. */
    void (*softmax_back)(size_t rows, size_t cols, float scale, const float *p, size_t ldp, float *ds,
                         size_t ldds);

    /* Return the loss of `rows` rows of logits against target bytes, summed in double. When `scale` is not
     * zero, replace the logits by scale * (softmax - onehot). */
    double (*cross_entropy)(size_t rows, size_t cols, float *logits, const uint8_t *target, float scale);

    void (*add)(size_t n, const float *x, float *y); /* y += x */
    void (*add_row)(size_t rows, size_t cols, const float *row, float *y,
                    size_t ldy); /* every row of y += row */
    void (*sum_rows)(size_t rows, size_t cols, const float *x, size_t ldx,
                     float *row); /* row += sum of the rows */
};

/* Return the best table for this CPU, or the table of this name (tests). Return NULL when this CPU lacks
 * it. */
const struct nbt_kernels *nbt_kernels_get(const char *name);

/* Compute c[m x n] (+)= op(a)[m x k] * op(b)[k x n], op = transpose where ta / tb. `scratch` holds
 * nbt_gemm_scratch() floats. */
void nbt_gemm(const struct nbt_kernels *kern, int ta, int tb, size_t m, size_t n, size_t k, const float *a,
              size_t lda, const float *b, size_t ldb, float *c, size_t ldc, int accumulate, float *scratch);
size_t nbt_gemm_scratch(void);

#endif
