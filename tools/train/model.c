/* SPDX-License-Identifier: Apache-2.0 */
/* Layout, initial values, and the forward and backward pass through the transformer. */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"

const char *nbt_class_name(enum nbt_class c)
{
    static const char *const name[NBT_CLASSES] = {"matrix", "embedding", "layernorm", "bias", "head"};
    return (unsigned)c < NBT_CLASSES ? name[c] : "?";
}

static int add_tensor(struct nbt_layout *l, enum nbt_class cls, size_t rows, size_t cols, float std,
                      float value, const char *name, size_t layer)
{
    struct nbt_tensor *t = &l->tensor[l->tensors];
    if (layer < NBT_MAX_LAYERS)
        snprintf(t->name, sizeof t->name, "h%zu.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->cls = cls;
    t->rows = rows;
    t->cols = cols;
    t->offset = l->params;
    t->init_std = std;
    t->init_value = value;
    t->by_token = 0;
    l->params += rows * cols;
    return l->tensors++;
}

int nbt_layout_make(const struct nbt_config *cfg, struct nbt_layout *l)
{
    const size_t c = cfg->width, top = NBT_MAX_LAYERS;
    if (cfg->layers < 1 || cfg->layers > NBT_MAX_LAYERS || cfg->heads < 1 || c % cfg->heads ||
        c / cfg->heads % 32 || c > 4096 || cfg->context < 32 || cfg->context % 32 || cfg->context > 4096 ||
        cfg->batch < 1)
        return -EINVAL;
    memset(l, 0, sizeof *l);
    l->cfg = *cfg;
    const float in = 1.0f / sqrtf((float)c), mid = 0.5f * in; /* the MLP is 4 x wider: 1 / sqrt(4 c) */
    l->tok = add_tensor(l, NBT_EMBED, NBT_VOCAB, c, in, 0, "token_embedding", top);
    l->tensor[l->tok].by_token = 1;
    l->pos = add_tensor(l, NBT_EMBED, cfg->context, c, in, 0, "position_embedding", top);
    for (size_t i = 0; i < cfg->layers; i++) {
        struct nbt_layer_at *a = &l->layer[i];
        a->ln1_gain = add_tensor(l, NBT_NORM, 1, c, 0, 1, "ln1.gain", i);
        a->ln1_shift = add_tensor(l, NBT_NORM, 1, c, 0, 0, "ln1.shift", i);
        a->qkv = add_tensor(l, NBT_MATRIX, 3 * c, c, in, 0, "attention.qkv", i);
        a->qv_bias = add_tensor(l, NBT_BIAS, 1, 2 * c, 0, 0, "attention.qv_bias", i);
        a->proj = add_tensor(l, NBT_MATRIX, c, c, in, 0, "attention.proj", i);
        a->proj_bias = add_tensor(l, NBT_BIAS, 1, c, 0, 0, "attention.proj_bias", i);
        a->ln2_gain = add_tensor(l, NBT_NORM, 1, c, 0, 1, "ln2.gain", i);
        a->ln2_shift = add_tensor(l, NBT_NORM, 1, c, 0, 0, "ln2.shift", i);
        a->fc1 = add_tensor(l, NBT_MATRIX, 4 * c, c, in, 0, "mlp.fc1", i);
        a->fc1_bias = add_tensor(l, NBT_BIAS, 1, 4 * c, 0, 0, "mlp.fc1_bias", i);
        a->fc2 = add_tensor(l, NBT_MATRIX, c, 4 * c, mid, 0, "mlp.fc2", i);
        a->fc2_bias = add_tensor(l, NBT_BIAS, 1, c, 0, 0, "mlp.fc2_bias", i);
    }
    l->lnf_gain = add_tensor(l, NBT_NORM, 1, c, 0, 1, "lnf.gain", top);
    l->lnf_shift = add_tensor(l, NBT_NORM, 1, c, 0, 0, "lnf.shift", top);
    l->head = add_tensor(l, NBT_HEAD, NBT_VOCAB, c, 0.5f * in, 0, "head", top);
    l->tensor[l->head].by_token = 1;
    return 0;
}

void nbt_init_params(const struct nbt_layout *l, uint64_t seed, float *params)
{
    for (int t = 0; t < l->tensors; t++) {
        const struct nbt_tensor *x = &l->tensor[t];
        struct nbt_rng rng = nbt_rng_seed(seed, 0x1417, (uint64_t)t);
        for (size_t i = 0; i < x->rows * x->cols; i++)
            params[x->offset + i] =
                x->init_std > 0 ? x->init_std * (float)nbt_rng_normal(&rng) : x->init_value;
    }
}

/* Buffers of one block for the backward pass. Sizes in units of R = batch * context rows. */
struct block {
    float *x;    /* R x C, input of the block */
    float *n1;   /* R x C, after the first LayerNorm */
    float *qkv;  /* R x 3C */
    float *prob; /* batch x heads x T x T, undefined to the right of a block row's last 32 columns */
    float *mix;  /* R x C, weighted values, all heads */
    float *mid;  /* R x C, after attention's residual */
    float *n2;   /* R x C */
    float *h;    /* R x 4C, before GELU */
    float *g;    /* R x 4C, after GELU */
    float *mean1, *rstd1, *mean2, *rstd2;
};

struct nbt_model {
    const struct nbt_layout *lay;
    const struct nbt_kernels *k;
    size_t rows;
    struct block block[NBT_MAX_LAYERS];
    float *out, *nf, *meanf, *rstdf; /* R x C, R x C, R, R */
    float *logits;                   /* R x V, becomes their gradient */
    float *dx, *dn, *dwide;          /* R x C, R x C, R x 4C */
    float *dp;                       /* 32 x T */
    float *pack;
    float *arena;
    uint8_t *target;
};

struct arena {
    float *base; /* NULL: measure only */
    size_t used; /* floats */
};

static float *take(struct arena *at, size_t n)
{
    float *p = at->base ? at->base + at->used : NULL;
    at->used += (n + 15) / 16 * 16;
    return p;
}

/* Hand out the arena's memory to all buffers. */
static void place(struct nbt_model *m, struct arena *at)
{
    const struct nbt_config *g = &m->lay->cfg;
    const size_t r = m->rows, c = g->width, t = g->context;
    for (size_t i = 0; i < g->layers; i++) {
        struct block *b = &m->block[i];
        b->x = take(at, r * c);
        b->n1 = take(at, r * c);
        b->qkv = take(at, r * 3 * c);
        b->prob = take(at, g->batch * g->heads * t * t);
        b->mix = take(at, r * c);
        b->mid = take(at, r * c);
        b->n2 = take(at, r * c);
        b->h = take(at, r * 4 * c);
        b->g = take(at, r * 4 * c);
        b->mean1 = take(at, r);
        b->rstd1 = take(at, r);
        b->mean2 = take(at, r);
        b->rstd2 = take(at, r);
    }
    m->out = take(at, r * c);
    m->nf = take(at, r * c);
    m->meanf = take(at, r);
    m->rstdf = take(at, r);
    m->logits = take(at, r * NBT_VOCAB);
    m->dx = take(at, r * c);
    m->dn = take(at, r * c);
    m->dwide = take(at, r * 4 * c);
    m->dp = take(at, 32 * t);
    m->pack = take(at, nbt_gemm_scratch());
}

struct nbt_model *nbt_model_new(const struct nbt_layout *lay, const struct nbt_kernels *kern)
{
    struct nbt_model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->lay = lay;
    m->k = kern;
    m->rows = lay->cfg.batch * lay->cfg.context;
    struct arena at = {0};
    place(m, &at);
    const size_t bytes = at.used * sizeof(float);
    m->arena = aligned_alloc(64, bytes);
    m->target = malloc(m->rows);
    if (!m->arena || !m->target) {
        nbt_model_free(m);
        return NULL;
    }
    memset(m->arena, 0, bytes);
    at = (struct arena){m->arena, 0};
    place(m, &at);
    return m;
}

void nbt_model_free(struct nbt_model *m)
{
    if (!m)
        return;
    free(m->arena);
    free(m->target);
    free(m);
}

static const float *at(const struct nbt_model *m, const float *flat, int tensor)
{
    return flat + m->lay->tensor[tensor].offset;
}

static float *at_rw(const struct nbt_model *m, float *flat, int tensor)
{
    return flat + m->lay->tensor[tensor].offset;
}

/* Compute y[R x out] = x[R x in] w^T. */
static void linear(struct nbt_model *m, const float *x, const float *w, size_t in, size_t out, float *y)
{
    nbt_gemm(m->k, 0, 1, m->rows, out, in, x, in, w, in, y, out, 0, m->pack);
}

/* Compute dw += dy^T x, and dx = dy w. */
static void linear_back(struct nbt_model *m, const float *x, const float *w, const float *dy, size_t in,
                        size_t out, float *dw, float *dx)
{
    nbt_gemm(m->k, 1, 0, out, in, m->rows, dy, out, x, in, dw, in, 1, m->pack);
    nbt_gemm(m->k, 0, 0, m->rows, in, out, dy, out, w, in, dx, in, 0, m->pack);
}

static void attention(struct nbt_model *m, struct block *b)
{
    const struct nbt_config *g = &m->lay->cfg;
    const size_t c = g->width, t = g->context, hd = c / g->heads, ld = 3 * c;
    const float scale = 1.0f / sqrtf((float)hd);
    for (size_t s = 0; s < g->batch; s++) {
        for (size_t h = 0; h < g->heads; h++) {
            const float *q = b->qkv + s * t * ld + h * hd, *key = q + c, *val = q + 2 * c;
            float *p = b->prob + (s * g->heads + h) * t * t, *y = b->mix + s * t * c + h * hd;
            for (size_t i = 0; i < t; i += 32) { /* 32 queries see at most i + 32 keys */
                nbt_gemm(m->k, 0, 1, 32, i + 32, hd, q + i * ld, ld, key, ld, p + i * t, t, 0, m->pack);
                m->k->softmax_causal(32, i + 32, i + 1, scale, p + i * t, t);
                nbt_gemm(m->k, 0, 0, 32, hd, i + 32, p + i * t, t, val, ld, y + i * c, c, 0, m->pack);
            }
        }
    }
}

/* Compute dqkv (overwritten) from dmix. */
static void attention_back(struct nbt_model *m, const struct block *b, const float *dmix, float *dqkv)
{
    const struct nbt_config *g = &m->lay->cfg;
    const size_t c = g->width, t = g->context, hd = c / g->heads, ld = 3 * c;
    const float scale = 1.0f / sqrtf((float)hd);
    memset(dqkv, 0, m->rows * ld * sizeof *dqkv);
    for (size_t s = 0; s < g->batch; s++) {
        for (size_t h = 0; h < g->heads; h++) {
            const size_t o = s * t * ld + h * hd;
            const float *q = b->qkv + o, *key = q + c, *val = q + 2 * c;
            float *dq = dqkv + o, *dkey = dq + c, *dval = dq + 2 * c;
            const float *p = b->prob + (s * g->heads + h) * t * t, *dy = dmix + s * t * c + h * hd;
            for (size_t i = 0; i < t; i += 32) {
                const size_t n = i + 32;
                nbt_gemm(m->k, 0, 1, 32, n, hd, dy + i * c, c, val, ld, m->dp, t, 0, m->pack);
                nbt_gemm(m->k, 1, 0, n, hd, 32, p + i * t, t, dy + i * c, c, dval, ld, 1, m->pack);
                m->k->softmax_back(32, n, scale, p + i * t, t, m->dp, t);
                nbt_gemm(m->k, 0, 0, 32, hd, n, m->dp, t, key, ld, dq + i * ld, ld, 0, m->pack);
                nbt_gemm(m->k, 1, 0, n, hd, 32, m->dp, t, q + i * ld, ld, dkey, ld, 1, m->pack);
            }
        }
    }
}

static void forward(struct nbt_model *m, const float *w, const uint8_t *tokens)
{
    const struct nbt_layout *l = m->lay;
    const size_t c = l->cfg.width, t = l->cfg.context, r = m->rows;
    const float *tok = at(m, w, l->tok), *pos = at(m, w, l->pos);
    for (size_t i = 0; i < r; i++) {
        const uint8_t *seq = tokens + i / t * (t + 1) + i % t;
        const float *e = tok + seq[0] * c, *p = pos + i % t * c;
        float *x = m->block[0].x + i * c;
        for (size_t j = 0; j < c; j++)
            x[j] = e[j] + p[j];
        m->target[i] = seq[1];
    }
    for (size_t i = 0; i < l->cfg.layers; i++) {
        const struct nbt_layer_at *a = &l->layer[i];
        struct block *b = &m->block[i];
        m->k->layernorm(r, c, b->x, at(m, w, a->ln1_gain), at(m, w, a->ln1_shift), b->n1, b->mean1, b->rstd1);
        linear(m, b->n1, at(m, w, a->qkv), c, 3 * c, b->qkv);
        m->k->add_row(r, c, at(m, w, a->qv_bias), b->qkv, 3 * c);
        m->k->add_row(r, c, at(m, w, a->qv_bias) + c, b->qkv + 2 * c, 3 * c);
        attention(m, b);
        linear(m, b->mix, at(m, w, a->proj), c, c, b->mid);
        m->k->add_row(r, c, at(m, w, a->proj_bias), b->mid, c);
        m->k->add(r * c, b->x, b->mid);
        m->k->layernorm(r, c, b->mid, at(m, w, a->ln2_gain), at(m, w, a->ln2_shift), b->n2, b->mean2,
                        b->rstd2);
        linear(m, b->n2, at(m, w, a->fc1), c, 4 * c, b->h);
        m->k->add_row(r, 4 * c, at(m, w, a->fc1_bias), b->h, 4 * c);
        m->k->gelu(r * 4 * c, b->h, b->g);
        float *next = i + 1 < l->cfg.layers ? m->block[i + 1].x : m->out;
        linear(m, b->g, at(m, w, a->fc2), 4 * c, c, next);
        m->k->add_row(r, c, at(m, w, a->fc2_bias), next, c);
        m->k->add(r * c, b->mid, next);
    }
    m->k->layernorm(r, c, m->out, at(m, w, l->lnf_gain), at(m, w, l->lnf_shift), m->nf, m->meanf, m->rstdf);
    linear(m, m->nf, at(m, w, l->head), c, NBT_VOCAB, m->logits);
}

/* Compute the gradients of all parameters from the gradient of the logits. */
static void backward(struct nbt_model *m, const float *w, const uint8_t *tokens, float *grad)
{
    const struct nbt_layout *l = m->lay;
    const size_t c = l->cfg.width, t = l->cfg.context, r = m->rows;
    float *dx = m->dx;
    memset(grad, 0, l->params * sizeof *grad);
    linear_back(m, m->nf, at(m, w, l->head), m->logits, c, NBT_VOCAB, at_rw(m, grad, l->head), m->dn);
    memset(dx, 0, r * c * sizeof *dx);
    m->k->layernorm_back(r, c, m->out, at(m, w, l->lnf_gain), m->meanf, m->rstdf, m->dn, dx,
                         at_rw(m, grad, l->lnf_gain), at_rw(m, grad, l->lnf_shift));
    for (size_t i = l->cfg.layers; i-- > 0;) {
        const struct nbt_layer_at *a = &l->layer[i];
        const struct block *b = &m->block[i];
        float *dqkv = m->dwide;
        m->k->sum_rows(r, c, dx, c, at_rw(m, grad, a->fc2_bias));
        linear_back(m, b->g, at(m, w, a->fc2), dx, 4 * c, c, at_rw(m, grad, a->fc2), m->dwide);
        m->k->gelu_back(r * 4 * c, b->h, m->dwide, m->dwide);
        m->k->sum_rows(r, 4 * c, m->dwide, 4 * c, at_rw(m, grad, a->fc1_bias));
        linear_back(m, b->n2, at(m, w, a->fc1), m->dwide, c, 4 * c, at_rw(m, grad, a->fc1), m->dn);
        m->k->layernorm_back(r, c, b->mid, at(m, w, a->ln2_gain), b->mean2, b->rstd2, m->dn, dx,
                             at_rw(m, grad, a->ln2_gain), at_rw(m, grad, a->ln2_shift));
        m->k->sum_rows(r, c, dx, c, at_rw(m, grad, a->proj_bias));
        linear_back(m, b->mix, at(m, w, a->proj), dx, c, c, at_rw(m, grad, a->proj), m->dn);
        attention_back(m, b, m->dn, dqkv);
        m->k->sum_rows(r, c, dqkv, 3 * c, at_rw(m, grad, a->qv_bias));
        m->k->sum_rows(r, c, dqkv + 2 * c, 3 * c, at_rw(m, grad, a->qv_bias) + c);
        linear_back(m, b->n1, at(m, w, a->qkv), dqkv, c, 3 * c, at_rw(m, grad, a->qkv), m->dn);
        m->k->layernorm_back(r, c, b->x, at(m, w, a->ln1_gain), b->mean1, b->rstd1, m->dn, dx,
                             at_rw(m, grad, a->ln1_gain), at_rw(m, grad, a->ln1_shift));
    }
    float *dtok = at_rw(m, grad, l->tok), *dpos = at_rw(m, grad, l->pos);
    for (size_t i = 0; i < r; i++) {
        m->k->add(c, dx + i * c, dtok + tokens[i / t * (t + 1) + i % t] * c);
        m->k->add(c, dx + i * c, dpos + i % t * c);
    }
}

double nbt_model_run(struct nbt_model *m, const float *params, const uint8_t *tokens, float *grad)
{
    forward(m, params, tokens);
    const double loss =
        m->k->cross_entropy(m->rows, NBT_VOCAB, m->logits, m->target, grad ? 1.0f / (float)m->rows : 0.0f);
    if (grad)
        backward(m, params, tokens, grad);
    return loss / (double)m->rows;
}
