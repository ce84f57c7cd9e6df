/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of the building blocks, written with the compiler's vector types. kernels.c includes this file once
 * for each instruction set. It defines VL, the floats of a vector, MR, the rows of a micro tile, FN(name),
 * which mangles names, and TARGET, the function attribute. This file therefore has no include guard.
 */
#define NR (2 * VL)

typedef float FN(vf) __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t FN(vi) __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define vf FN(vf)
#define vi FN(vi)
#define LOAD(p) (*(const vf *)(p))
#define STORE(p, v) (*(vf *)(p) = (v))
#define SPLAT(x) ((vf){0} + (x))
#define SELECT(mask, a, b) ((vf)(((vi)(a) & (mask)) | ((vi)(b) & ~(mask))))

TARGET static void FN(micro)(size_t kc, const float *a, const float *b, float *c, size_t ldc, int accumulate)
{
    vf acc[MR][2];
    for (int i = 0; i < MR; i++)
        acc[i][0] = acc[i][1] = (vf){0};
    for (size_t p = 0; p < kc; p++, a += MR, b += NR) {
        const vf b0 = LOAD(b), b1 = LOAD(b + VL);
        for (int i = 0; i < MR; i++) {
            acc[i][0] += b0 * a[i];
            acc[i][1] += b1 * a[i];
        }
    }
    for (int i = 0; i < MR; i++, c += ldc) {
        if (accumulate) {
            acc[i][0] += LOAD(c);
            acc[i][1] += LOAD(c + VL);
        }
        STORE(c, acc[i][0]);
        STORE(c + VL, acc[i][1]);
    }
}

TARGET static inline float FN(hsum)(const vf *v)
{
    float s = 0;
    for (int i = 0; i < VL; i++)
        s += (*v)[i];
    return s;
}

/* Compute exp for |x| < about 87, within 2 ulp: 2^n by exponent bits, the rest by a polynomial on [-ln2/2,
 * ln2/2]. */
TARGET static inline void FN(vexp)(vf *v)
{
    vf x = *v;
    x = SELECT(x > 87.0f, SPLAT(87.0f), x);
    x = SELECT(x < -87.0f, SPLAT(-87.0f), x);
    const vf shift = SPLAT(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    const vf shifted = x * 1.44269504f + shift;
    const vf n = shifted - shift;
    const vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const vi bits = (__builtin_convertvector(n, vi) + 127) << 23;
    *v = p * (vf)bits;
}

TARGET static void FN(layernorm)(size_t rows, size_t cols, const float *x, const float *gain,
                                 const float *shift, float *y, float *mean, float *rstd)
{
    for (size_t r = 0; r < rows; r++, x += cols, y += cols) {
        vf sum = {0}, sq = {0};
        for (size_t i = 0; i < cols; i += VL)
            sum += LOAD(x + i);
        const float mu = FN(hsum)(&sum) / (float)cols;
        for (size_t i = 0; i < cols; i += VL) {
            const vf d = LOAD(x + i) - mu;
            sq += d * d;
        }
        const float rs = 1.0f / sqrtf(FN(hsum)(&sq) / (float)cols + 1e-5f);
        for (size_t i = 0; i < cols; i += VL)
            STORE(y + i, (LOAD(x + i) - mu) * rs * LOAD(gain + i) + LOAD(shift + i));
        mean[r] = mu;
        rstd[r] = rs;
    }
}

TARGET static void FN(layernorm_back)(size_t rows, size_t cols, const float *x, const float *gain,
                                      const float *mean, const float *rstd, const float *dy, float *dx,
                                      float *dgain, float *dshift)
{
    for (size_t r = 0; r < rows; r++, x += cols, dy += cols, dx += cols) {
        const float mu = mean[r], rs = rstd[r];
        vf s1 = {0}, s2 = {0};
        for (size_t i = 0; i < cols; i += VL) {
            const vf d = LOAD(dy + i), h = (LOAD(x + i) - mu) * rs, dg = d * LOAD(gain + i);
            STORE(dshift + i, LOAD(dshift + i) + d);
            STORE(dgain + i, LOAD(dgain + i) + d * h);
            s1 += dg;
            s2 += dg * h;
        }
        const float m1 = FN(hsum)(&s1) / (float)cols, m2 = FN(hsum)(&s2) / (float)cols;
        for (size_t i = 0; i < cols; i += VL) {
            const vf h = (LOAD(x + i) - mu) * rs, dg = LOAD(dy + i) * LOAD(gain + i);
            STORE(dx + i, LOAD(dx + i) + (dg - m1 - h * m2) * rs);
        }
    }
}

/* Compute gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which equals the tanh form. */
TARGET static void FN(gelu)(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += VL) {
        const vf v = LOAD(x + i);
        vf e = v * (v * v * -0.0713548163f - 1.5957691216f);
        FN(vexp)(&e);
        STORE(y + i, v / (e + 1.0f));
    }
}

TARGET static void FN(gelu_back)(size_t n, const float *x, const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i += VL) {
        const vf v = LOAD(x + i), v2 = v * v;
        vf e = v * (v2 * -0.0713548163f - 1.5957691216f);
        FN(vexp)(&e);
        const vf s = 1.0f / (e + 1.0f);
        const vf du = v2 * 0.2140644488f + 1.5957691216f; /* derivative of 2u */
        STORE(dx + i, LOAD(dy + i) * (s + v * s * (1.0f - s) * du));
    }
}

TARGET static void FN(softmax_causal)(size_t rows, size_t cols, size_t seen, float scale, float *s,
                                      size_t lds)
{
    for (size_t r = 0; r < rows; r++, s += lds, seen++) {
        float top = s[0];
        for (size_t i = 1; i < seen; i++)
            top = s[i] > top ? s[i] : top;
        for (size_t i = seen; i < cols; i++)
            s[i] = -INFINITY;
        vf sum = {0};
        for (size_t i = 0; i < cols; i += VL) {
            vf e = (LOAD(s + i) - top) * scale;
            const vi hidden = e < -80.0f; /* masked, or negligible beside the largest */
            FN(vexp)(&e);
            e = (vf)((vi)e & ~hidden);
            sum += e;
            STORE(s + i, e);
        }
        const float inv = 1.0f / FN(hsum)(&sum);
        for (size_t i = 0; i < cols; i += VL)
            STORE(s + i, LOAD(s + i) * inv);
    }
}

TARGET static void FN(softmax_back)(size_t rows, size_t cols, float scale, const float *p, size_t ldp,
                                    float *ds, size_t ldds)
{
    for (size_t r = 0; r < rows; r++, p += ldp, ds += ldds) {
        vf dot = {0};
        for (size_t i = 0; i < cols; i += VL)
            dot += LOAD(p + i) * LOAD(ds + i);
        const float d = FN(hsum)(&dot);
        for (size_t i = 0; i < cols; i += VL)
            STORE(ds + i, LOAD(p + i) * (LOAD(ds + i) - d) * scale);
    }
}

TARGET static double FN(cross_entropy)(size_t rows, size_t cols, float *logits, const uint8_t *target,
                                       float scale)
{
    double loss = 0;
    for (size_t r = 0; r < rows; r++, logits += cols) {
        const float hit = logits[target[r]];
        float top = logits[0];
        for (size_t i = 1; i < cols; i++)
            top = logits[i] > top ? logits[i] : top;
        vf sum = {0};
        for (size_t i = 0; i < cols; i += VL) {
            vf e = LOAD(logits + i) - top;
            FN(vexp)(&e);
            sum += e;
            if (scale != 0)
                STORE(logits + i, e);
        }
        const float total = FN(hsum)(&sum);
        loss += log((double)total) - ((double)hit - (double)top);
        if (scale != 0) {
            const float k = scale / total;
            for (size_t i = 0; i < cols; i += VL)
                STORE(logits + i, LOAD(logits + i) * k);
            logits[target[r]] -= scale;
        }
    }
    return loss;
}

TARGET static void FN(add)(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += VL)
        STORE(y + i, LOAD(y + i) + LOAD(x + i));
}

TARGET static void FN(add_row)(size_t rows, size_t cols, const float *row, float *y, size_t ldy)
{
    for (size_t r = 0; r < rows; r++, y += ldy)
        for (size_t i = 0; i < cols; i += VL)
            STORE(y + i, LOAD(y + i) + LOAD(row + i));
}

TARGET static void FN(sum_rows)(size_t rows, size_t cols, const float *x, size_t ldx, float *row)
{
    for (size_t r = 0; r < rows; r++, x += ldx)
        for (size_t i = 0; i < cols; i += VL)
            STORE(row + i, LOAD(row + i) + LOAD(x + i));
}

static const struct nbt_kernels FN(table) = {
    .name = KERNELS_NAME,
    .mr = MR,
    .nr = NR,
    .micro = FN(micro),
    .layernorm = FN(layernorm),
    .layernorm_back = FN(layernorm_back),
    .gelu = FN(gelu),
    .gelu_back = FN(gelu_back),
    .softmax_causal = FN(softmax_causal),
    .softmax_back = FN(softmax_back),
    .cross_entropy = FN(cross_entropy),
    .add = FN(add),
    .add_row = FN(add_row),
    .sum_rows = FN(sum_rows),
};

#undef vf
#undef vi
#undef LOAD
#undef STORE
#undef SPLAT
#undef SELECT
#undef NR
#undef VL
#undef MR
#undef FN
#undef TARGET
#undef KERNELS_NAME
