/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that gather more than the weights that their sums move: preconditioners, latents, teachers, quantized
 * weights. Jobs whose weights follow late, or whose trained layers change. Two models of equal layers.
 */
#include <math.h>
#include <string.h>

#include "lib/parallel.h"

static void release(struct job *job, struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(job), f->full[i]);
        f->full[i] = 0;
    }
}

/* ---- K-FAC: factors are summed, and the preconditioner that follows from them is gathered -------------- */

#define SIDE 16u
#define SAMPLES 16 /* of a batch and a block */
#define FACTORS 2

struct factor {
    float *average, *inverse, *batch[NODES];
    address send, recv, at;
};

/* Store the inverse of a block with damping, by Gauss and Jordan. The block is positive definite. */
static void invert(const float *a, float *out)
{
    float x[SIDE][2 * SIDE];

    for (unsigned i = 0; i < SIDE; i++)
        for (unsigned j = 0; j < SIDE; j++) {
            x[i][j] = a[i * SIDE + j] + (i == j ? 0.1f : 0.0f);
            x[i][SIDE + j] = i == j;
        }
    for (unsigned i = 0; i < SIDE; i++) {
        const float pivot = 1.0f / x[i][i];
        for (unsigned j = 0; j < 2 * SIDE; j++)
            x[i][j] *= pivot;
        for (unsigned k = 0; k < SIDE; k++) {
            const float part = x[k][i];
            if (k == i)
                continue;
            for (unsigned j = 0; j < 2 * SIDE; j++)
                x[k][j] -= part * x[i][j];
        }
    }
    for (unsigned i = 0; i < SIDE * SIDE; i++)
        out[i] = x[i / SIDE][SIDE + i % SIDE];
}

/* Make the products of a batch's inputs, which correlate within a block. */
static void make_batch(uint64_t *random, float *out)
{
    float a[SAMPLES][SIDE];

    memset(out, 0, SIDE * SIDE * sizeof(*out));
    for (int s = 0; s < SAMPLES; s++) {
        const float common = noise(random);
        for (unsigned i = 0; i < SIDE; i++)
            a[s][i] = noise(random) + (i % 3 ? 0.7f : -0.7f) * common;
        for (unsigned i = 0; i < SIDE; i++)
            for (unsigned j = 0; j < SIDE; j++)
                out[i * SIDE + j] += a[s][i] * a[s][j] / SAMPLES;
    }
}

/* Sum factors of the size of a layer every `every` steps, and gather the preconditioners that follow from
 * them. The model is sharded, too (`beside`: on the same communicator and of this size), or replicated. */
static void kfac(struct job *job, int every, int sharded)
{
    struct comm *world = comm_between(job, NULL), *of_factors = sharded ? world : comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 3});
    struct fsdp f = fsdp_open(job, world, m, 2);
    struct ddp d = {0};
    const size_t n = m->unit[0].n;
    struct factor factor[FACTORS];
    uint64_t random = (uint64_t)job_buffer(job);

    if (!sharded)
        d = ddp_open(job, world, m);
    for (struct factor *k = factor; k < factor + FACTORS; k++) {
        *k = (struct factor){values(job, n),
                             values(job, n),
                             {values(job, n), values(job, n)},
                             memory_take(job_memory(job), n * 4),
                             memory_take(job_memory(job), n * 4 / NODES),
                             memory_take(job_memory(job), n * 4)};
        for (size_t b = 0; b < n; b += SIDE * SIDE)
            make_batch(&random, k->average + b);
    }
    while (job_step(job)) {
        if (sharded)
            fsdp_forward(&f), fsdp_backward(&f);
        else
            ddp_backward(&d, 1);
        for (struct factor *k = factor; job_now(job) % every == 0 && k < factor + FACTORS; k++) {
            for (int r = 0; r < NODES; r++)
                for (size_t b = 0; b < n; b += SIDE * SIDE)
                    make_batch(&random, k->batch[r] + b);
            reduce_scatter(of_factors,
                           &(struct buffer){.type = ncclFloat32, .n = n, .send = k->send, .recv = k->recv},
                           k->batch[0], k->batch[1]);
            for (size_t i = 0; i < n; i++)
                k->average[i] += 0.05f * ((k->batch[0][i] + k->batch[1][i]) / 2 - k->average[i]);
            for (size_t b = 0; b < n; b += SIDE * SIDE)
                invert(k->average + b, k->inverse + b);
        }
        for (struct factor *k = factor; job_now(job) % every == 0 && k < factor + FACTORS; k++)
            all_gather(of_factors,
                       &(struct buffer){.type = ncclFloat32, .n = n, .send = k->at, .recv = k->at},
                       k->inverse);
        if (sharded)
            fsdp_update(&f);
        else
            model_update(m);
    }
}
JOB(kfac_gathered, kfac(job, 1, 0))
JOB(kfac_gathered_seldom, kfac(job, 5, 0))
JOB(kfac_gathered_sharded, kfac(job, 1, 1))

/* ---- diffusion: predicted noise is summed, and latents are gathered ------------------------------------ */

/* Denoise latents in loops of `loop` steps, each with other noise and another picture. */
static void sampling(struct job *job, int loop, ncclDataType_t type, const char *name)
{
    enum { LATENTS = 2, N = 16384 };
    struct comm *tp = comm_between(job, name);
    float *x[LATENTS], *picture[LATENTS], *start[LATENTS], *part[NODES] = {values(job, N), values(job, N)};
    address sum[LATENTS], full[LATENTS];
    uint64_t random = (uint64_t)job_buffer(job) * 7919;

    for (int l = 0; l < LATENTS; l++) {
        x[l] = values(job, N), picture[l] = values(job, N), start[l] = values(job, N);
        sum[l] = memory_take(job_memory(job), N * 4);
        full[l] = memory_take(job_memory(job), N * 4);
    }
    while (job_step(job)) {
        const int t = job_now(job) % loop;
        /* the cosine schedule: shares of picture and noise now and after this step */
        const float a = cosf(1.55f * (float)(loop - t) / (float)loop),
                    b = sinf(1.55f * (float)(loop - t) / (float)loop),
                    c = cosf(1.55f * (float)(loop - t - 1) / (float)loop),
                    d = sinf(1.55f * (float)(loop - t - 1) / (float)loop);
        for (int l = 0; l < LATENTS; l++) {
            for (int i = 0; t == 0 && i < N; i++) {
                picture[l][i] = noise(&random);
                start[l][i] = x[l][i] = noise(&random);
            }
            all_gather(tp, &(struct buffer){.type = type, .n = N, .send = full[l], .recv = full[l]}, x[l]);
        }
        for (int l = 0; l < LATENTS; l++) {
            for (int i = 0; i < N; i++) { /* partial products of two ranks, whose sum is the noise */
                const float guess = (x[l][i] - a * picture[l][i]) / b + 0.2f * noise(&random);
                part[0][i] = 0.5f * guess + 0.3f * noise(&random);
                part[1][i] = guess - part[0][i];
                x[l][i] = c * (x[l][i] - b * guess) / fmaxf(a, 0.05f) + d * guess;
                x[l][i] = fminf(fmaxf(x[l][i], -6.0f), 6.0f);
            }
            reduce_scatter(tp, &(struct buffer){.type = type, .n = N, .send = sum[l], .recv = sum[l]},
                           part[0], part[1]);
        }
    }
}
JOB(sampling_20, sampling(job, 20, ncclFloat32, NULL))
JOB(sampling_50, sampling(job, 50, ncclBfloat16, NULL))
JOB(sampling_100, sampling(job, 100, ncclBfloat16, NULL))
JOB(sampling_1000, sampling(job, 1000, ncclFloat32, NULL))
JOB(sampling_named, sampling(job, 1000, ncclFloat32, "nibble:exact"))

/* ---- teachers: averages of the weights are gathered beside them ---------------------------------------- */

/* Gather the teacher's units in each step. It starts as the student and follows by 1 - `keep` of the way. */
static void teacher(struct job *job, int version, float keep, int first, int own_comm)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.first = 36864}),
                 *t = model_new(job, &(struct model_settings){.first = 36864});
    struct fsdp f = fsdp_open(job, world, m, version),
                e = fsdp_open(job, own_comm ? comm_between(job, NULL) : world, t, version);

    for (int i = 0; i < m->units; i++)
        memcpy(t->unit[i].w, m->unit[i].w, m->unit[i].n * sizeof(float));
    while (job_step(job)) {
        if (first)
            fsdp_forward(&e), release(job, &e);
        fsdp_forward(&f);
        if (!first)
            fsdp_forward(&e), release(job, &e);
        fsdp_backward(&f);
        fsdp_update(&f);
        for (int i = 0; i < m->units; i++)
            for (size_t k = 0; k < m->unit[i].n; k++)
                t->unit[i].w[k] += (1.0f - keep) * (m->unit[i].w[k] - t->unit[i].w[k]);
    }
}
JOB(teacher_byol, teacher(job, 2, 0.99f, 0, 0))
JOB(teacher_dino, teacher(job, 1, 0.996f, 1, 0))
JOB(teacher_slow, teacher(job, 2, 0.9995f, 1, 0))
JOB(teacher_own_comm, teacher(job, 2, 0.99f, 1, 1))

/* ---- updates that come a step late --------------------------------------------------------------------- */

/* An optimizer on the host applies the gradients of the step before, while the next step runs. */
static void late(struct job *job, int version, enum optimizer optimizer, ncclDataType_t grad)
{
    struct model *m = model_new(job, &(struct model_settings){.first = 36864, .optimizer = optimizer});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, version);
    float *before[UNITS_MOST];

    f.grad = grad;
    for (int i = 0; i < m->units; i++)
        before[i] = values(job, m->unit[i].n);
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (int i = 0; i < m->units; i++)
            for (size_t k = 0; k < m->unit[i].n; k++) {
                const float now = m->unit[i].sum[k];
                m->unit[i].sum[k] = before[i][k];
                before[i][k] = now;
            }
        fsdp_update(&f);
    }
}
JOB(late_update, late(job, 2, ADAMW, ncclFloat32))
JOB(late_update_fsdp1, late(job, 1, ADAMW, ncclBfloat16))
JOB(late_update_sgd, late(job, 2, SGD, ncclFloat32))

/* ---- ZeRO++: weights travel as eight bits with scales -------------------------------------------------- */

#define RUN 256u

/* Write a rank's part of the weights as codes, and behind them a scale of two bytes for each RUN of them. */
static void quantize(const float *w, size_t n, float *bytes)
{
    for (size_t run = 0; run < n / RUN; run++) {
        float most = 1e-12f;
        unsigned scale;
        for (size_t i = 0; i < RUN; i++)
            most = fmaxf(most, fabsf(w[run * RUN + i]));
        scale = (unsigned)lrintf(most * 65536.0f);
        for (size_t i = 0; i < RUN; i++) {
            const long code = lrintf(w[run * RUN + i] / most * 127.0f);
            bytes[run * RUN + i] = (float)(code < 0 ? code + 256 : code);
        }
        bytes[n + 2 * run] = (float)(scale & 255);
        bytes[n + 2 * run + 1] = (float)(scale >> 8 & 255);
    }
}

static void gather_quantized(struct comm *comm, struct model *m, int i, address at)
{
    const size_t each = m->unit[i].n / NODES, bytes = each + 2 * (each / RUN);
    static float x[NODES * 65536];

    for (size_t r = 0; r < NODES; r++)
        quantize(m->unit[i].w + r * each, each, x + r * bytes);
    all_gather(comm, &(struct buffer){.type = ncclUint8, .n = NODES * bytes, .send = at, .recv = at}, x);
}

static void zeropp(struct job *job, ncclDataType_t grad, float lr)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.n = 49152, .units = 4, .lr = lr});
    const address at = memory_take(job_memory(job), m->unit[0].n * 2),
                  in = memory_take(job_memory(job), m->unit[0].n * 4),
                  out = memory_take(job_memory(job), m->unit[0].n * 4 / NODES);

    while (job_step(job)) {
        for (int i = 0; i < m->units; i++)
            gather_quantized(world, m, i, at);
        for (int i = m->units - 1; i >= 0; i--) {
            const struct buffer b = {
                .type = grad, .n = m->unit[i].n, .send = in, .recv = out, .what = m->unit[i].buffer};
            gather_quantized(world, m, i, at);
            model_gradient(m, i, 0);
            reduce_scatter(world, &b, m->unit[i].g[0], m->unit[i].g[1]);
            model_reduced(m, i);
        }
        model_update(m);
    }
}
JOB(zeropp_fp32, zeropp(job, ncclFloat32, 0))
JOB(zeropp_bf16, zeropp(job, ncclBfloat16, 1e-3f))

/* ---- a second training follows ------------------------------------------------------------------------- */

/* Set all weights back after 45 steps, and train again from there. */
static void second_training(struct job *job)
{
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), model_new(job, &(struct model_settings){0}), 2);
    uint64_t random = 3;

    while (job_step(job)) {
        for (int i = 0; job_now(job) == 45 && i < f.model->units; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++)
                f.model->unit[i].w[k] = 0.02f * noise(&random);
        fsdp_forward(&f);
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}

/* ---- trained layers change ----------------------------------------------------------------------------- */

/* Train the last layers first, and one more from every `every`-th step on. */
static void unfreeze(struct job *job, int version, int every)
{
    struct fsdp f =
        fsdp_open(job, comm_between(job, NULL), model_new(job, &(struct model_settings){0}), version);

    while (job_step(job)) {
        const int frozen = f.model->units - 2 - job_now(job) / every;
        f.frozen = frozen > 0 ? (1u << frozen) - 1 : 0;
        fsdp_forward(&f);
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}
JOB(unfreezing, unfreeze(job, 2, 20))
JOB(unfreezing_late, unfreeze(job, 1, 45))

/* Each layer is a frozen base of packed 4-bit codes, in the type of the compute, and an adapter. The first
 * layer's base needs no backward gather, since nothing below it trains. kept: adapters stay gathered. */
static void qlora(struct job *job, int version, int kept)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 5, .n = 16384, .lr = 1e-3f});
    struct fsdp f = fsdp_open(job, world, m, version);
    enum { BASE = 49152 };
    float *base[UNITS_MOST];
    uint64_t random = (uint64_t)job_buffer(job);
    const address at = memory_take(job_memory(job), BASE * 2);

    for (int i = 0; i < m->units; i++) {
        base[i] = values(job, BASE);
        for (int k = 0; k < BASE; k++) /* any bits */
            base[i][k] = (float)(draw(&random) % 256);
    }
    while (job_step(job)) {
        struct model one = *m;
        struct fsdp layer = f;
        layer.model = &one;
        one.units = 1;
        for (int pass = 0; pass < 2; pass++)
            for (int k = 0; k < m->units; k++) {
                const int i = pass ? m->units - 1 - k : k;
                const struct buffer b = {.type = ncclUint8, .n = BASE, .send = at, .recv = at};
                if (!pass || i)
                    all_gather(world, &b, base[i]);
                one.unit[0] = m->unit[i];
                layer.full[0] = f.full[i];
                layer.grads[0] = f.grads[i];
                if (pass)
                    fsdp_backward(&layer);
                else
                    fsdp_forward(&layer);
                if (!pass && !kept && i + 1 < m->units)
                    memory_give(job_memory(job), layer.full[0]), layer.full[0] = 0;
                f.full[i] = layer.full[0];
                f.grads[i] = layer.grads[0];
                m->unit[i] = one.unit[0];
            }
        fsdp_update(&f);
    }
}
JOB(qlora_1, qlora(job, 1, 0))
JOB(qlora_2, qlora(job, 2, 0))
JOB(qlora_kept, qlora(job, 2, 1))

/* ---- two models of equal layers ------------------------------------------------------------------------ */

/* Train both in each step, or in turn, with `critic` steps of the second to one of the first. own_comms: each
 * has a communicator. */
static void gan(struct job *job, int version, int alike, int critic, int keep, int own_comms)
{
    struct comm *world = comm_between(job, NULL);
    const struct model_settings s = {.units = 4, .alike = alike};
    struct fsdp g = fsdp_open(job, world, model_new(job, &s), version),
                d = fsdp_open(job, own_comms ? comm_between(job, NULL) : world, model_new(job, &s), version);

    g.keep = d.keep = keep;
    while (job_step(job)) {
        const int turn = critic > 1 ? job_now(job) % (critic + 1) : -1;
        if (turn) {
            fsdp_forward(&g);
            release(job, &g);
            fsdp_forward(&d);
            fsdp_backward(&d);
            fsdp_update(&d);
        }
        if (turn <= 0) {
            fsdp_forward(&g);
            fsdp_forward(&d);
            release(job, &d);
            fsdp_backward(&g);
            fsdp_update(&g);
        }
    }
}
JOB(gan_alike, gan(job, 2, 1, 1, 0, 0))
JOB(gan_fsdp1, gan(job, 1, 0, 1, 0, 0))
JOB(gan_critic, gan(job, 2, 0, 3, 0, 0))
JOB(gan_own_comms, gan(job, 2, 0, 1, 1, 1))
JOB(gan_kept, gan(job, 2, 0, 1, 1, 0))

const struct job_entry jobs_consequences[] = {
    {"kfac-gathered", kfac_gathered, {0}},
    {"kfac-gathered-seldom", kfac_gathered_seldom, {.steps = 300}},
    {"kfac-gathered-sharded", kfac_gathered_sharded, {.steps = 300}},
    {"sampling-20", sampling_20, {.steps = 200}},
    {"sampling-50", sampling_50, {.steps = 200}},
    {"sampling-100", sampling_100, {.steps = 400}},
    {"sampling-1000", sampling_1000, {.steps = 400}},
    {"sampling-named", sampling_named, {.steps = 100}},
    {"teacher-byol", teacher_byol, {.fed = 95}},
    {"teacher-dino", teacher_dino, {.fed = 95}},
    {"teacher-slow", teacher_slow, {.fed = 95}},
    {"teacher-own-comm", teacher_own_comm, {.fed = 95}},
    {"late-update", late_update, {.fed = 95}},
    {"late-update-fsdp1", late_update_fsdp1, {.fed = 95}},
    {"late-update-sgd", late_update_sgd, {.fed = 95}},
    {"zeropp", zeropp_fp32, {.fed = 95}},
    {"zeropp-vouched", zeropp_bf16, {.fed = 95, .grad = "reduce_scatter:bfloat16:49152@2"}},
    {"second-training", second_training, {0}},
    {"second-training-vouched", second_training, {.fed = 60, .grad = "reduce_scatter:float32:24576@2"}},
    {"unfreezing", unfreezing, {.steps = 120}},
    {"unfreezing-late", unfreezing_late, {.steps = 120}},
    {"qlora-fsdp1", qlora_1, {.fed = 95}},
    {"qlora-fsdp2", qlora_2, {.fed = 95}},
    {"qlora-kept", qlora_kept, {.fed = 95}},
    {"gan-alike", gan_alike, {0}},
    {"gan-fsdp1", gan_fsdp1, {0}},
    {"gan-critic", gan_critic, {.steps = 160}},
    {"gan-own-comms", gan_own_comms, {.fed = 95}},
    {"gan-kept", gan_kept, {0}},
    {0},
};
