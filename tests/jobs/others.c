/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs with a sum that looks like gradients but is not, from its own buffer, once a step: alone, or beside
 * DDP on its communicator. It must stay exact.
 */
#include <math.h>

#include "lib/parallel.h"

#define N 65536u

/* Writes a node's contribution of a step. */
typedef void (*fill_fn)(uint64_t *random, int step, int node, const struct model *m, float *out);

/* Play a job. gradients: beside DDP. every: steps between two sums. */
static void play(struct job *job, fill_fn fill, int gradients, int every)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 2, .n = N});
    struct ddp d = ddp_open(job, world, m);
    const address at = memory_take(job_memory(job), N * 4);
    float *x[NODES] = {values(job, N), values(job, N)};
    uint64_t random = 17;

    while (job_step(job)) {
        if (gradients)
            ddp_backward(&d, 1);
        else
            for (int i = 0; i < m->units; i++) { /* trained inside the node */
                model_gradient(m, i, 0);
                model_reduced(m, i);
            }
        if (job_every(job, every)) {
            for (int r = 0; r < NODES; r++)
                fill(&random, job_now(job), r, m, x[r]);
            all_reduce(world, &(struct buffer){.type = ncclFloat32, .n = N, .send = at, .recv = at}, x[0],
                       x[1]);
        }
        model_update(m);
    }
}

/* Make squares of gradients (a second moment, a Fisher matrix). */
static void squares(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)random, (void)step;
    for (size_t i = 0; i < N; i++)
        out[i] = m->unit[0].g[node][i] * m->unit[0].g[node][i];
}

/* Make a histogram of activations: counts. */
static void histogram(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)node, (void)m;
    for (size_t i = 0; i < N; i++)
        out[i] = (float)(draw(random) % (1 + (i * 7 + (size_t)step) % 200));
}

/* VQ-VAE: make sums of the vectors that fell to each code. A code without vectors is zero. */
static void codebook(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node, (void)m;
    for (size_t code = 0; code < N / 64; code++) {
        const int vectors = (int)(draw(random) % 6);
        uint64_t centre = code + 1;
        for (int k = 0; k < 64; k++) {
            const float c = noise(&centre);
            out[code * 64 + (size_t)k] = vectors ? (float)vectors * c + 0.2f * noise(random) : 0;
        }
    }
}

/* K-FAC: make products of inputs, symmetric, with both signs. */
static void factor(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    float a[8][256] = {{0}};

    (void)step, (void)node, (void)m;
    for (int s = 0; s < 8; s++)
        for (int i = 0; i < 256; i++)
            a[s][i] = noise(random) * (1.0f + (float)(i % 7));
    for (int i = 0; i < 256; i++)
        for (int j = 0; j < 256; j++) {
            float sum = 0;
            for (int s = 0; s < 8; s++)
                sum += a[s][i] * a[s][j];
            out[i * 256 + j] = sum;
        }
}

/* Make Sophia's estimate of the curvature: a gradient times the response to random signs. */
static void curvature(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node;
    for (size_t i = 0; i < N; i++)
        out[i] = m->unit[0].curve[i / ROW] * (1.0f + 0.5f * noise(random));
}

/* Make the optimizer's momentum, averaged. */
static void momentum(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node;
    for (size_t i = 0; i < N; i++)
        out[i] = m->unit[1].m[i] + 1e-5f * noise(random);
}

/* Make means of a batch's activations, which move: running statistics. */
static void statistics(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)node, (void)m;
    for (size_t i = 0; i < N; i++) {
        uint64_t of = i;
        out[i] = noise(&of) + 0.05f * (float)(step % 7) + 0.3f * noise(random);
    }
}

/* Make weights with noise on them, as in evolution strategies: they differ much from step to step. */
static void noisy_weights(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node;
    for (size_t i = 0; i < N; i++)
        out[i] = m->unit[1].w[i] + 0.02f * noise(random);
}

/* Make a policy's advantages and values, which are independent of the parameters. */
static void advantages(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node, (void)m;
    for (size_t i = 0; i < N; i++)
        out[i] = noise(random);
}

/* Make activations, always in one place. */
static void features(uint64_t *random, int step, int node, const struct model *m, float *out)
{
    (void)step, (void)node, (void)m;
    activations(random, 3, 256, N, out);
}

#define BESIDE(name, fill, gradients, every) \
    static void name(struct job *job) \
    { \
        play(job, fill, gradients, every); \
    }
BESIDE(squares_beside, squares, 1, 1)
BESIDE(squares_alone, squares, 0, 1)
BESIDE(histogram_beside, histogram, 1, 1)
BESIDE(codebook_beside, codebook, 1, 1)
BESIDE(codebook_alone, codebook, 0, 1)
BESIDE(factor_beside, factor, 1, 10)
BESIDE(factor_every_step, factor, 1, 1)
BESIDE(curvature_beside, curvature, 1, 10)
BESIDE(momentum_beside, momentum, 1, 1)
BESIDE(statistics_beside, statistics, 1, 1)
BESIDE(noisy_beside, noisy_weights, 1, 1)
BESIDE(advantages_alone, advantages, 0, 1)
BESIDE(advantages_beside, advantages, 1, 1)
BESIDE(features_beside, features, 1, 1)

/* Sum only counts of an evaluation loop, and a progress bar's scalars. */
static void evaluation_only(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    const struct buffer b = {.type = ncclFloat32, .n = N, .send = memory_take(job_memory(job), N * 4)};
    float *x = values(job, N);
    uint64_t random = 2;

    while (job_step(job)) {
        histogram(&random, job_now(job), 0, NULL, x);
        all_reduce(world, &b, x, x);
        all_reduce_scalar(world, b.send + N * 4, 1, 1);
    }
}

const struct job_entry jobs_others[] = {
    {"squares", squares_beside, {0}},       {"squares-alone", squares_alone, {0}},
    {"histogram", histogram_beside, {0}},   {"evaluation-only", evaluation_only, {0}},
    {"codebook", codebook_beside, {0}},     {"codebook-alone", codebook_alone, {0}},
    {"kfac-factor", factor_beside, {0}},    {"kfac-factor-every-step", factor_every_step, {0}},
    {"curvature", curvature_beside, {0}},   {"momentum", momentum_beside, {0}},
    {"statistics", statistics_beside, {0}}, {"noisy-weights", noisy_beside, {0}},
    {"advantages", advantages_beside, {0}}, {"advantages-alone", advantages_alone, {0}},
    {"features", features_beside, {0}},     {0},
};
