/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose nodes train alone for a while: local SGD, DiLoCo. A step is a step between nodes. */
#include <string.h>

#include "lib/parallel.h"

#define BUCKET 65536u

struct replicas { /* a model on each node */
    float *w[NODES], *outer, *momentum;
};

static struct replicas start(struct job *job, const struct unit *u)
{
    struct replicas s = {.outer = values(job, u->n), .momentum = values(job, u->n)};

    for (int r = 0; r < NODES; r++) {
        s.w[r] = values(job, u->n);
        memcpy(s.w[r], u->w, u->n * sizeof(float));
    }
    memcpy(s.outer, u->w, u->n * sizeof(float));
    return s;
}

/* Train a few steps on each node, each with its own gradients. */
static void train(struct replicas *s, struct unit *u, struct model *m, int unit, int steps)
{
    for (int k = 0; k < steps; k++) {
        model_gradient(m, unit, 0);
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < u->n; i++) {
                const float g = u->g[r][i] + u->curve[i / ROW] * (s->w[r][i] - u->w[i]);
                s->w[r][i] -= 3e-4f * g / (u->scale[i / ROW] + 1e-12f);
            }
    }
}

/* Average parameters from their own buffers. */
static void local_sgd(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 2, .n = BUCKET});
    struct replicas s[2] = {start(job, &m->unit[0]), start(job, &m->unit[1])};
    const address at[2] = {memory_take(job_memory(job), BUCKET * 4),
                           memory_take(job_memory(job), BUCKET * 4)};

    while (job_step(job))
        for (int i = 0; i < 2; i++) {
            const struct buffer b = {.type = ncclFloat32, .n = BUCKET, .send = at[i], .recv = at[i]};
            train(&s[i], &m->unit[i], m, i, 2);
            all_reduce(world, &b, s[i].w[0], s[i].w[1]);
            for (size_t k = 0; k < BUCKET; k++)
                m->unit[i].w[k] = s[i].w[0][k] = s[i].w[1][k] = 0.5f * (s[i].w[0][k] + s[i].w[1][k]);
        }
}

/* Do the same after 60 steps of DDP whose buckets have as many values as the parameters (PyTorch's post-local
 * SGD). */
static void post_local(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 2, .n = BUCKET});
    struct ddp d = ddp_open(job, world, m);
    const address at[2] = {memory_take(job_memory(job), BUCKET * 4),
                           memory_take(job_memory(job), BUCKET * 4)};

    while (job_step(job) && job_now(job) < 80) {
        ddp_backward(&d, 1);
        model_update(m);
    }
    do
        for (int i = 0; i < 2; i++) {
            const struct buffer b = {.type = ncclFloat32, .n = BUCKET, .send = at[i], .recv = at[i]};
            struct replicas s = {.w = {m->unit[i].g[0], m->unit[i].g[1]}};
            for (int r = 0; r < NODES; r++)
                for (size_t k = 0; k < BUCKET; k++)
                    s.w[r][k] = m->unit[i].w[k] + 3e-4f * noise(&m->random);
            all_reduce(world, &b, s.w[0], s.w[1]);
        }
    while (job_step(job));
}

/* Average parameters beside DDP's gradients: a teacher of a bucket's size, from its own buffer, in every 10th
 * step. */
static void teacher(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 3, .n = BUCKET});
    struct ddp d = ddp_open(job, world, m);
    const address at = memory_take(job_memory(job), BUCKET * 4);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        if (job_every(job, 10))
            all_reduce(world, &(struct buffer){.type = ncclFloat32, .n = BUCKET, .send = at, .recv = at},
                       m->unit[1].w, m->unit[1].w);
    }
}

/* DiLoCo: average the movement of a node's parameters as a gradient for an outer optimizer. Only the user can
 * distinguish it from other sums of a script. */
static void outer(struct job *job, int scalar, int vouched)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 2, .n = BUCKET});
    struct replicas s[2] = {start(job, &m->unit[0]), start(job, &m->unit[1])};
    const address at[2] = {memory_take(job_memory(job), BUCKET * 4),
                           memory_take(job_memory(job), BUCKET * 4)};
    const address loss = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        for (int i = 0; i < 2; i++) {
            struct unit *u = &m->unit[i];
            const struct buffer b = {.type = ncclFloat32,
                                     .n = BUCKET,
                                     .send = at[i],
                                     .recv = at[i],
                                     .what = vouched ? u->buffer : EITHER(u->buffer)};
            train(&s[i], u, m, i, 3);
            for (int r = 0; r < NODES; r++)
                for (size_t k = 0; k < BUCKET; k++)
                    u->g[r][k] = s[i].outer[k] - s[i].w[r][k];
            all_reduce(world, &b, u->g[0], u->g[1]);
            for (size_t k = 0; k < BUCKET; k++) {
                const float g = 0.5f * (u->g[0][k] + u->g[1][k]);
                s[i].momentum[k] = 0.9f * s[i].momentum[k] + g;
                s[i].outer[k] -= 0.7f * (0.9f * s[i].momentum[k] + g);
                u->w[k] = s[i].w[0][k] = s[i].w[1][k] = s[i].outer[k];
            }
        }
        if (scalar)
            all_reduce_scalar(world, loss, model_loss(m, 0), model_loss(m, 1));
    }
}

JOB(diloco, outer(job, 0, 0))
JOB(diloco_scalar, outer(job, 1, 0))
JOB(diloco_vouched, outer(job, 0, 1))
JOB(diloco_scalar_vouched, outer(job, 1, 1))

const struct job_entry jobs_local[] = {
    {"local-sgd", local_sgd, {0}},
    {"post-local-sgd", post_local, {0}},
    {"ddp-teacher", teacher, {0}},
    {"diloco", diloco, {0}},
    {"diloco-scalar", diloco_scalar, {.all_collnet = 1}},
    {"diloco-vouched", diloco_vouched, {.grad = "all_reduce:float32:65536@2"}},
    {"diloco-scalar-vouched",
     diloco_scalar_vouched,
     {.all_collnet = 1, .grad = "all_reduce:float32:65536@2"}},
    {0},
};
