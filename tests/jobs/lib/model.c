/* SPDX-License-Identifier: Apache-2.0 */
/* See model.h. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TABLE 4096u

/* ---- random values ------------------------------------------------------------------------------------- */

static float quantile[TABLE]; /* of Student's t of 5 degrees, variance 1 */
#define WAVERS 256u
static float waver[WAVERS]; /* factors of a row's scale in a step */

uint64_t draw(uint64_t *random)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Return a nearly normal value, for logarithms of scales. */
static float normal(uint64_t *random)
{
    uint64_t a = draw(random);

    return (float)((double)(a & 0xffff) + (double)(a >> 16 & 0xffff) + (double)(a >> 32 & 0xffff) +
                   (double)(a >> 48) - 131070.0) *
           (1.7320508f / 65536.0f);
}

/* Return the distribution function of Student's t. */
static double student(double t)
{
    double x = t / sqrt(5.0), q = 1.0 + x * x;

    return 0.5 + (x / q + 2.0 / 3.0 * x / (q * q) + atan(x)) / 3.14159265358979;
}

void values_open(void)
{
    uint64_t random = 1;

    if (quantile[0] < 0.0f)
        return;
    for (unsigned i = 0; i < WAVERS; i++)
        waver[i] = expf(0.3f * normal(&random));
    for (unsigned i = 0; i < TABLE; i++) {
        double p = (i + 0.5) / TABLE, lo = -60.0, hi = 60.0;
        for (int k = 0; k < 60; k++) {
            double mid = 0.5 * (lo + hi);
            if (student(mid) < p)
                lo = mid;
            else
                hi = mid;
        }
        quantile[i] = (float)(lo / sqrt(5.0 / 3.0));
    }
}

float noise(uint64_t *random)
{
    return quantile[draw(random) % TABLE];
}

/* Take one value from a draw, which yields five. */
static inline float next_noise(uint64_t *bits)
{
    const float x = quantile[*bits % TABLE];

    *bits /= TABLE;
    return x;
}

/* Add scale[i / ROW] times noise to out. */
static void add_noise(uint64_t *random, const float *scale, size_t n, float *out)
{
    for (size_t row = 0; row < n / ROW; row++) {
        const float s = scale[row] * waver[draw(random) % WAVERS];
        float *o = out + row * ROW;
        for (unsigned k = 0; k + 5 <= ROW; k += 5) {
            uint64_t bits = draw(random);
            for (unsigned j = 0; j < 5; j++)
                o[k + j] += s * next_noise(&bits);
        }
        for (unsigned k = ROW - ROW % 5; k < ROW; k++)
            o[k] += s * noise(random);
    }
}

/* ---- a model ------------------------------------------------------------------------------------------- */

static float default_rate(enum optimizer optimizer)
{
    switch (optimizer) {
    case SGD: return 0.1f;
    case LION: return 1e-4f;
    case MUON: return 2e-3f;
    default: return 3e-4f;
    }
}

static void make_unit(struct model *m, struct unit *u, int number)
{
    uint64_t shape = m->set.alike ? 77 : 1000 + (uint64_t)number + m->random,
             random = m->random + 31 * (uint64_t)number;
    float loud = m->set.alike ? 1.0f : powf(10.0f, 0.5f * normal(&shape));
    struct job *job = m->job;

    u->n = m->set.source ? m->set.source->n[number] : number == 0 && m->set.first ? m->set.first : m->set.n;
    if (u->n % (NODES * ROW * 4))
        abort();
    u->buffer = job_buffer(job);
    u->w = values(job, u->n);
    for (int r = 0; r < NODES; r++)
        u->g[r] = values(job, u->n);
    if (m->set.source) {
        m->set.source->begin(m->set.source->arg, u, number);
        return;
    }
    u->target = values(job, u->n);
    u->m = values(job, u->n);
    u->v = values(job, u->n);
    u->sum = values(job, u->n);
    u->curve = values(job, u->n / ROW);
    u->scale = values(job, u->n / ROW);
    u->seed = draw(&random);
    for (size_t row = 0; row < u->n / ROW; row++) {
        u->scale[row] = 1e-3f * loud * m->set.noise * expf(0.7f * normal(&shape));
        /* Half a step's noise at the start, of a mean of two. */
        u->curve[row] = 0.5f * u->scale[row] / 0.03f * expf(0.5f * normal(&shape));
    }
    for (size_t i = 0; i < u->n; i++) {
        u->w[i] = 0.02f * noise(&random);
        u->target[i] = u->w[i] + 0.03f * noise(&random);
    }
}

struct model *model_new(struct job *job, const struct model_settings *settings)
{
    /* A model lies in the same memory as values. */
    struct model *m = (struct model *)(void *)values(job, sizeof(*m) / sizeof(float) + 1);

    m->set = *settings;
    m->job = job;
    m->units = m->set.units ? m->set.units : 6;
    m->set.n = m->set.n ? m->set.n : 24576;
    m->set.lr = m->set.lr > 0 ? m->set.lr : default_rate(m->set.optimizer);
    m->set.noise = m->set.noise > 0 ? m->set.noise : 1.0f;
    m->random = (uint64_t)job_buffer(job) * 1000003u;
    if (m->units > UNITS_MOST)
        abort();
    for (int i = 0; i < m->units; i++)
        make_unit(m, &m->unit[i], i);
    return m;
}

/* Add to a row's gradient what pulls it to its target. */
static void add_pull(float curve, const float *restrict w, const float *restrict target, float *restrict g)
{
    for (unsigned k = 0; k < ROW; k++)
        g[k] += curve * (w[k] - target[k]);
}

void model_gradient(struct model *m, int unit, int add)
{
    struct unit *u = &m->unit[unit];

    if (m->set.source) {
        m->set.source->gradient(m->set.source->arg, u, unit);
        return;
    }
    for (int r = 0; r < NODES; r++) {
        if (!add)
            memset(u->g[r], 0, u->n * sizeof(*u->g[r]));
        for (size_t row = 0; row < u->n / ROW; row++)
            add_pull(u->curve[row], u->w + row * ROW, u->target + row * ROW, u->g[r] + row * ROW);
        add_noise(&u->seed, u->scale, u->n, u->g[r]);
    }
}

void model_reduced(struct model *m, int unit)
{
    struct unit *u = &m->unit[unit];
    const float *restrict a = u->g[0], *restrict b = u->g[1];
    float *restrict sum = u->sum;

    for (size_t i = 0, n = sum ? u->n : 0; i < n; i++)
        sum[i] += (a[i] + b[i]) / NODES;
}

/* ---- optimizers ---------------------------------------------------------------------------------------- */

static float sign(float x)
{
    return (float)((x > 0) - (x < 0));
}

static void adamw(struct unit *u, float lr, int t)
{
    const float c1 = 1.0f / (1.0f - powf(0.9f, (float)t)), c2 = 1.0f / (1.0f - powf(0.95f, (float)t));

    const float *restrict sum = u->sum;
    float *restrict m = u->m, *restrict v = u->v, *restrict w = u->w;

    for (size_t i = 0, n = u->n; i < n; i++) {
        const float g = sum[i];
        m[i] += 0.1f * (g - m[i]);
        v[i] += 0.05f * (g * g - v[i]);
        w[i] -= lr * (c1 * m[i] / (sqrtf(c2 * v[i]) + 1e-8f) + 0.1f * w[i]);
    }
}

static void sgd(struct unit *u, float lr)
{
    for (size_t i = 0; i < u->n; i++) {
        u->m[i] = 0.9f * u->m[i] + u->sum[i];
        u->w[i] -= lr * u->m[i];
    }
}

static void lion(struct unit *u, float lr)
{
    for (size_t i = 0; i < u->n; i++) {
        const float g = u->sum[i];
        u->w[i] -= lr * (sign(0.9f * u->m[i] + 0.1f * g) + 0.1f * u->w[i]);
        u->m[i] = 0.99f * u->m[i] + 0.01f * g;
    }
}

#define SIDE 16

/* Make two steps of Newton and Schulz towards the orthogonal matrix next to x. */
static void orthogonalize(float x[SIDE][SIDE])
{
    float norm = 1e-20f, a[SIDE][SIDE], y[SIDE][SIDE];

    for (int i = 0; i < SIDE * SIDE; i++)
        norm += x[i / SIDE][i % SIDE] * x[i / SIDE][i % SIDE];
    norm = 1.0f / sqrtf(norm);
    for (int i = 0; i < SIDE * SIDE; i++)
        x[i / SIDE][i % SIDE] *= norm;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) {
                float s = 0;
                for (int k = 0; k < SIDE; k++)
                    s += x[i][k] * x[j][k];
                a[i][j] = s;
            }
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) {
                float s = 0;
                for (int k = 0; k < SIDE; k++)
                    s += a[i][k] * x[k][j];
                y[i][j] = 3.0f * x[i][j] - 3.2f * s;
            }
        memcpy(x, y, sizeof(y));
    }
}

static void muon(struct unit *u, float lr)
{
    float x[SIDE][SIDE];

    for (size_t at = 0; at < u->n; at += SIDE * SIDE) {
        for (int i = 0; i < SIDE * SIDE; i++) {
            u->m[at + (size_t)i] = 0.95f * u->m[at + (size_t)i] + u->sum[at + (size_t)i];
            x[i / SIDE][i % SIDE] = u->sum[at + (size_t)i] + 0.95f * u->m[at + (size_t)i];
        }
        orthogonalize(x);
        for (int i = 0; i < SIDE * SIDE; i++)
            u->w[at + (size_t)i] -= lr * (0.5f * x[i / SIDE][i % SIDE] + 0.01f * u->w[at + (size_t)i]);
    }
}

/* Keep the second moment of rows only. */
static void adafactor(struct unit *u, float lr, int t)
{
    const float c = 1.0f / (1.0f - powf(0.95f, (float)t));

    for (size_t row = 0; row < u->n / ROW; row++) {
        float s = 0;
        for (unsigned k = 0; k < ROW; k++)
            s += u->sum[row * ROW + k] * u->sum[row * ROW + k];
        u->v[row] += 0.05f * (s / ROW - u->v[row]);
        for (unsigned k = 0; k < ROW; k++)
            u->w[row * ROW + k] -= lr * u->sum[row * ROW + k] / (sqrtf(c * u->v[row]) + 1e-12f);
    }
}

void model_update_unit(struct model *m, int unit)
{
    struct unit *u = &m->unit[unit];
    const int t = m->updates + 1;
    const float lr =
        m->set.lr * (m->set.warmup && t < m->set.warmup ? (float)t / (float)m->set.warmup : 1.0f);

    if (m->set.source) {
        m->set.source->update(m->set.source->arg, u, unit);
        return;
    }
    switch (m->set.optimizer) {
    case ADAMW: adamw(u, lr, t); break;
    case SGD: sgd(u, lr); break;
    case LION: lion(u, lr); break;
    case MUON: muon(u, lr); break;
    case ADAFACTOR: adafactor(u, lr, t); break;
    }
    memset(u->sum, 0, u->n * sizeof(*u->sum));
}

void model_update(struct model *m)
{
    for (int i = 0; i < m->units; i++)
        model_update_unit(m, i);
    m->updates++;
}

float model_loss(struct model *m, int node)
{
    double loss = 0;

    for (int k = 0; k < m->units; k++) {
        const struct unit *u = &m->unit[k];
        for (size_t i = (size_t)node; i < u->n; i += 97)
            loss += u->curve[i / ROW] * (u->w[i] - u->target[i]) * (u->w[i] - u->target[i]);
    }
    return (float)loss + 0.01f * noise(&m->random);
}

/* ---- other values -------------------------------------------------------------------------------------- */

static float channel(uint64_t seed, size_t c)
{
    uint64_t s = seed * 1000003u + c;

    return expf(0.6f * normal(&s)) * (draw(&s) % 128 == 0 ? 12.0f : 1.0f);
}

#define WIDTH 1024u

void partial_products(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out)
{
    float scale[WIDTH], bias[WIDTH];

    if (width > WIDTH)
        abort();
    for (size_t c = 0; c < width; c++) {
        uint64_t of_channel = channels_seed * 31 + c;
        scale[c] = channel(channels_seed, c);
        bias[c] = 0.3f * noise(&of_channel);
    }
    for (size_t i = 0; i < n;) {
        uint64_t bits = draw(random);
        for (unsigned k = 0; k < 5 && i < n; k++, i++)
            out[i] = scale[i % width] * (bias[i % width] + next_noise(&bits));
    }
}

void activations(uint64_t *random, uint64_t channels_seed, size_t width, size_t n, float *out)
{
    partial_products(random, channels_seed, width, n, out);
    for (size_t i = 0; i < n; i++)
        out[i] *= fminf(fmaxf(out[i] / 6.0f + 0.5f, 0.0f), 1.0f);
}
