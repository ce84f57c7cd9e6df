/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the trainer's arithmetic: gradients against central differences of a plain double-precision
 * forward pass written for this test, the matrix product against three loops, AdamW against its definition,
 * and sampling.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adamw.h"
#include "model.h"
#include "rng.h"
#include "tests/suite.h"

static const char *const sets[] = {"avx512", "avx2", "generic"};
#define NSETS (int)(sizeof sets / sizeof *sets)

/* ---- the textbook's forward pass ---- */

static void ref_norm(const double *x, const double *gain, const double *shift, size_t c, double *y)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < c; i++)
        mean += x[i] / (double)c;
    for (size_t i = 0; i < c; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)c;
    for (size_t i = 0; i < c; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * gain[i] + shift[i];
}

static void ref_linear(const double *x, const double *w, size_t in, size_t out, double *y)
{
    for (size_t o = 0; o < out; o++) {
        y[o] = 0;
        for (size_t i = 0; i < in; i++)
            y[o] += x[i] * w[o * in + i];
    }
}

/* Return the mean loss of one sequence. */
static double ref_sequence(const struct nbt_layout *l, const double *w, const uint8_t *s)
{
    const size_t c = l->cfg.width, t = l->cfg.context, hd = c / l->cfg.heads;
    double *x = calloc(t * c, sizeof *x), *n = calloc(c, sizeof *n), *qkv = calloc(t * 3 * c, sizeof *qkv);
    double *mix = calloc(c, sizeof *mix), *p = calloc(t, sizeof *p), *h = calloc(4 * c, sizeof *h);
    double *y = calloc(c, sizeof *y), logits[NBT_VOCAB], loss = 0;
#define W(k) (w + l->tensor[k].offset)
    for (size_t i = 0; i < t * c; i++)
        x[i] = W(l->tok)[s[i / c] * c + i % c] + W(l->pos)[i];
    for (size_t k = 0; k < l->cfg.layers; k++) {
        const struct nbt_layer_at *a = &l->layer[k];
        for (size_t i = 0; i < t; i++) {
            ref_norm(x + i * c, W(a->ln1_gain), W(a->ln1_shift), c, n);
            ref_linear(n, W(a->qkv), c, 3 * c, qkv + i * 3 * c);
            for (size_t j = 0; j < c; j++) {
                qkv[i * 3 * c + j] += W(a->qv_bias)[j];
                qkv[i * 3 * c + 2 * c + j] += W(a->qv_bias)[c + j];
            }
        }
        for (size_t i = 0; i < t; i++) {
            memset(mix, 0, c * sizeof *mix);
            for (size_t head = 0; head < l->cfg.heads; head++) {
                double sum = 0;
                for (size_t j = 0; j <= i; j++) {
                    double dot = 0;
                    for (size_t d = head * hd; d < (head + 1) * hd; d++)
                        dot += qkv[i * 3 * c + d] * qkv[j * 3 * c + c + d];
                    sum += p[j] = exp(dot / sqrt((double)hd));
                }
                for (size_t j = 0; j <= i; j++)
                    for (size_t d = head * hd; d < (head + 1) * hd; d++)
                        mix[d] += p[j] / sum * qkv[j * 3 * c + 2 * c + d];
            }
            ref_linear(mix, W(a->proj), c, c, y);
            for (size_t j = 0; j < c; j++)
                x[i * c + j] += y[j] + W(a->proj_bias)[j];
        }
        for (size_t i = 0; i < t; i++) {
            ref_norm(x + i * c, W(a->ln2_gain), W(a->ln2_shift), c, n);
            ref_linear(n, W(a->fc1), c, 4 * c, h);
            for (size_t j = 0; j < 4 * c; j++) {
                const double v = h[j] + W(a->fc1_bias)[j];
                h[j] = 0.5 * v * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)));
            }
            ref_linear(h, W(a->fc2), 4 * c, c, y);
            for (size_t j = 0; j < c; j++)
                x[i * c + j] += y[j] + W(a->fc2_bias)[j];
        }
    }
    for (size_t i = 0; i < t; i++) {
        double sum = 0;
        ref_norm(x + i * c, W(l->lnf_gain), W(l->lnf_shift), c, n);
        ref_linear(n, W(l->head), c, NBT_VOCAB, logits);
        for (size_t j = 0; j < NBT_VOCAB; j++)
            sum += exp(logits[j]);
        loss += (log(sum) - logits[s[i + 1]]) / (double)t;
    }
#undef W
    free(x), free(n), free(qkv), free(mix), free(p), free(h), free(y);
    return loss;
}

static double ref_loss(const struct nbt_layout *l, const double *w, const uint8_t *tokens)
{
    double loss = 0;
    for (size_t b = 0; b < l->cfg.batch; b++)
        loss += ref_sequence(l, w, tokens + b * (l->cfg.context + 1)) / (double)l->cfg.batch;
    return loss;
}

struct small {
    struct nbt_layout lay;
    float *w, *grad;
    double *wd;
    uint8_t tokens[2 * 65];
};

/* Make a small model away from its initial symmetries: gains, shifts and biases are random too. */
static void small_make(struct small *s)
{
    const struct nbt_config cfg = {.layers = 2, .width = 64, .heads = 2, .context = 64, .batch = 2};
    struct nbt_rng rng = nbt_rng_seed(5, 1, 2);
    ck_assert_int_eq(nbt_layout_make(&cfg, &s->lay), 0);
    s->w = malloc(s->lay.params * sizeof *s->w);
    s->grad = malloc(s->lay.params * sizeof *s->grad);
    s->wd = malloc(s->lay.params * sizeof *s->wd);
    nbt_init_params(&s->lay, 7, s->w);
    for (size_t i = 0; i < s->lay.params; i++) {
        s->w[i] += 0.1f * (float)nbt_rng_normal(&rng);
        s->wd[i] = (double)s->w[i];
    }
    for (size_t i = 0; i < sizeof s->tokens; i++)
        s->tokens[i] = (uint8_t)(nbt_rng_next(&rng) % 40 + 60);
}

static void small_free(struct small *s)
{
    free(s->w), free(s->grad), free(s->wd);
}

START_TEST(gradients)
{
    const struct nbt_kernels *k = nbt_kernels_get(sets[_i]);
    const int probes = _i == 0 && !getenv("NB_TEST_QUICK") ? 3 : 1;
    struct small s;
    if (!k)
        return;
    small_make(&s);
    struct nbt_model *m = nbt_model_new(&s.lay, k);
    const double loss = nbt_model_run(m, s.w, s.tokens, s.grad), want = ref_loss(&s.lay, s.wd, s.tokens);
    ck_assert_double_eq_tol(loss, want, 1e-5 * want);
    ck_assert_double_eq(nbt_model_run(m, s.w, s.tokens, NULL), loss);

    struct nbt_rng rng = nbt_rng_seed(9, 0, 0);
    for (int t = 0; t < s.lay.tensors; t++) {
        const struct nbt_tensor *x = &s.lay.tensor[t];
        const size_t n = x->rows * x->cols;
        double rms = 0;
        for (size_t i = 0; i < n; i++)
            rms += (double)s.grad[x->offset + i] * (double)s.grad[x->offset + i] / (double)n;
        rms = sqrt(rms);
        ck_assert_msg(rms > 1e-7, "%s: no gradient", x->name);
        for (int probe = 0; probe < probes; probe++) {
            size_t at = x->offset + nbt_rng_below(&rng, n);
            if (x->by_token) /* a row that occurs */
                at = x->offset + s.tokens[nbt_rng_below(&rng, 64)] * x->cols + nbt_rng_below(&rng, x->cols);
            const double keep = s.wd[at], eps = 1e-4;
            s.wd[at] = keep + eps;
            const double up = ref_loss(&s.lay, s.wd, s.tokens);
            s.wd[at] = keep - eps;
            const double down = ref_loss(&s.lay, s.wd, s.tokens);
            s.wd[at] = keep;
            const double diff = (up - down) / (2 * eps);
            ck_assert_msg(fabs(diff - (double)s.grad[at]) < 2e-4 * (rms + fabs(diff)),
                          "%s[%zu]: %.9g, difference %.9g", x->name, at - x->offset, (double)s.grad[at],
                          diff);
        }
    }
    nbt_model_free(m);
    small_free(&s);
}
END_TEST

START_TEST(absent_bytes_have_no_gradient)
{
    const struct nbt_kernels *k = nbt_kernels_get(NULL);
    struct small s;
    small_make(&s);
    struct nbt_model *m = nbt_model_new(&s.lay, k);
    (void)nbt_model_run(m, s.w, s.tokens, s.grad);
    const float *row = s.grad + s.lay.tensor[s.lay.tok].offset + 200 * s.lay.cfg.width;
    for (size_t i = 0; i < s.lay.cfg.width; i++)
        ck_assert(row[i] == 0);
    nbt_model_free(m);
    small_free(&s);
}
END_TEST

START_TEST(matrix_product)
{
    const struct nbt_kernels *k = nbt_kernels_get(sets[_i]);
    static const size_t shape[][3] = {{1, 1, 1},      {12, 32, 7},   {13, 33, 257},
                                      {100, 70, 300}, {97, 515, 64}, {6, 16, 512}};
    if (!k)
        return;
    float *pack = malloc(nbt_gemm_scratch() * sizeof *pack);
    struct nbt_rng rng = nbt_rng_seed(3, 3, 3);
    for (size_t z = 0; z < sizeof shape / sizeof *shape; z++) {
        const size_t m = shape[z][0], n = shape[z][1], kk = shape[z][2], ldc = n + 3;
        float *a = malloc(m * kk * sizeof *a), *b = malloc(n * kk * sizeof *b),
              *c = malloc(m * ldc * sizeof *c);
        for (size_t i = 0; i < m * kk; i++)
            a[i] = (float)nbt_rng_normal(&rng);
        for (size_t i = 0; i < n * kk; i++)
            b[i] = (float)nbt_rng_normal(&rng);
        for (int mode = 0; mode < 8; mode++) {
            const int ta = mode & 1, tb = mode >> 1 & 1, add = mode >> 2;
            for (size_t i = 0; i < m * ldc; i++)
                c[i] = 0.5f;
            nbt_gemm(k, ta, tb, m, n, kk, a, ta ? m : kk, b, tb ? kk : n, c, ldc, add, pack);
            for (size_t i = 0; i < m; i++) {
                for (size_t j = 0; j < n; j++) {
                    double want = add ? 0.5 : 0, size = 1;
                    for (size_t p = 0; p < kk; p++) {
                        const double t =
                            (double)a[ta ? p * m + i : i * kk + p] * (double)b[tb ? j * kk + p : p * n + j];
                        want += t;
                        size += fabs(t);
                    }
                    ck_assert_msg(fabs((double)c[i * ldc + j] - want) < 1e-6 * size,
                                  "%zu %zu %zu mode %d at %zu,%zu", m, n, kk, mode, i, j);
                }
                for (size_t j = n; j < ldc; j++)
                    ck_assert(c[i * ldc + j] == 0.5f);
            }
        }
        free(a), free(b), free(c);
    }
    free(pack);
}
END_TEST

START_TEST(adamw)
{
    const struct nbt_config cfg = {.layers = 1, .width = 32, .heads = 1, .context = 32, .batch = 1};
    const struct nbt_adamw opt = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f};
    struct nbt_layout lay;
    ck_assert_int_eq(nbt_layout_make(&cfg, &lay), 0);
    /* A shard that begins inside the position embedding and ends inside the block. */
    const size_t first = lay.tensor[lay.pos].offset + 37, n = 3000;
    float *w = malloc(n * sizeof *w), *g = malloc(n * sizeof *g), *u = malloc(n * sizeof *u);
    float *mv = calloc(2 * n, sizeof *mv);
    double *rw = malloc(n * sizeof *rw), *rm = calloc(n, sizeof *rm), *rv = calloc(n, sizeof *rv);
    struct nbt_rng rng = nbt_rng_seed(4, 4, 4);
    for (size_t i = 0; i < n; i++)
        rw[i] = (double)(w[i] = (float)nbt_rng_normal(&rng));
    for (size_t step = 0; step < 20; step++) {
        for (size_t i = 0; i < n; i++)
            g[i] = (float)(nbt_rng_normal(&rng) + 0.3) * 1e-3f;
        nbt_adamw_direction(&opt, step, n, g, 0.25f, (struct nbt_moments){mv, mv + n}, u);
        nbt_adamw_apply(&opt, &lay, first, n, 0.01f, u, w);
        for (size_t i = 0; i < n; i++) {
            const double x = 0.25 * (double)g[i];
            int decays = 0;
            for (int t = 0; t < lay.tensors; t++) {
                const struct nbt_tensor *q = &lay.tensor[t];
                if (first + i >= q->offset && first + i < q->offset + q->rows * q->cols)
                    decays = q->cls != NBT_NORM && q->cls != NBT_BIAS;
            }
            rm[i] = 0.9 * rm[i] + 0.1 * x;
            rv[i] = 0.95 * rv[i] + 0.05 * x * x;
            const double mh = rm[i] / (1 - pow(0.9, (double)step + 1)),
                         vh = rv[i] / (1 - pow(0.95, (double)step + 1));
            rw[i] -= 0.01 * (mh / (sqrt(vh) + 1e-8) + (decays ? 0.1 * rw[i] : 0));
            ck_assert_double_eq_tol((double)w[i], rw[i], 3e-6 * (1 + fabs(rw[i])));
        }
    }
    free(w), free(g), free(u), free(mv), free(rw), free(rm), free(rv);
}
END_TEST

START_TEST(schedule)
{
    ck_assert_float_eq_tol(nbt_learning_rate(0, 100, 10, 1.0f), 0.1f, 1e-6f);
    ck_assert_float_eq_tol(nbt_learning_rate(9, 100, 10, 1.0f), 1.0f, 1e-6f);
    ck_assert_float_eq_tol(nbt_learning_rate(55, 100, 10, 1.0f), 0.55f, 1e-5f);
    ck_assert_float_eq_tol(nbt_learning_rate(100, 100, 10, 1.0f), 0.1f, 1e-5f);
    ck_assert_float_eq(nbt_clip_factor(0.25), 1.0f);
    ck_assert_float_eq_tol(nbt_clip_factor(16.0), 0.25f, 1e-6f);
}
END_TEST

START_TEST(layout)
{
    struct nbt_layout lay;
    const struct nbt_config good = {.layers = 3, .width = 96, .heads = 3, .context = 96, .batch = 2};
    ck_assert_int_eq(nbt_layout_make(&good, &lay), 0);
    size_t at = 0;
    for (int t = 0; t < lay.tensors; t++) {
        ck_assert_uint_eq(lay.tensor[t].offset, at);
        ck_assert_uint_eq(at % 32, 0);
        at += lay.tensor[t].rows * lay.tensor[t].cols;
    }
    ck_assert_uint_eq(at, lay.params);
    struct nbt_config bad = good;
    bad.heads = 5;
    ck_assert_int_lt(nbt_layout_make(&bad, &lay), 0);
    bad = good;
    bad.context = 40;
    ck_assert_int_lt(nbt_layout_make(&bad, &lay), 0);
    bad = good;
    bad.layers = NBT_MAX_LAYERS + 1;
    ck_assert_int_lt(nbt_layout_make(&bad, &lay), 0);
}
END_TEST

SUITE_MAIN("train-model", LOOP(matrix_product, 0, NSETS), LOOP(gradients, 0, NSETS),
           TEST(absent_bytes_have_no_gradient), TEST(adamw), TEST(schedule), TEST(layout))
