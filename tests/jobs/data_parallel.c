/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose replicas sum their gradients by all-reduces (DDP), with their other sums. */
#include <math.h>

#include "lib/parallel.h"

/* Buckets are small beside DDP's 25 MB, but as large as a first bucket. */
#define BUCKET 65536u

static struct model *model_of(struct job *job, enum optimizer optimizer)
{
    return model_new(job, &(struct model_settings){.units = 3, .n = BUCKET, .optimizer = optimizer});
}

static void train(struct job *job, enum optimizer optimizer, int micro_batches)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, optimizer);
    struct ddp d = ddp_open(job, world, m);
    const address loss = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        ddp_backward(&d, micro_batches);
        all_reduce_scalar(world, loss, model_loss(m, 0), model_loss(m, 1));
        model_update(m);
    }
}

JOB(adamw, train(job, ADAMW, 1))
JOB(sgd, train(job, SGD, 1))
JOB(lion, train(job, LION, 1))
JOB(accumulation, train(job, ADAMW, 4))

/* A job whose whole model is one bucket, its only sum. */
static void one_bucket(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 1, .n = BUCKET});
    struct ddp d = ddp_open(job, world, m);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
    }
}

/* Sum loss and gradient norm from one address, as a framework's metrics do. */
static void two_scalars(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const address metric = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        all_reduce_scalar(world, metric, model_loss(m, 0), model_loss(m, 1));
        all_reduce_scalar(world, metric, fabsf(m->unit[0].g[0][0]), fabsf(m->unit[0].g[1][0]));
        model_update(m);
    }
}

/* Run an evaluation every 5 steps, and sum its losses and the counts of a confusion matrix. */
static void evaluation(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const size_t n = 128 * 128;
    const struct buffer confusion = {
        .type = ncclFloat32, .n = n, .send = memory_take(job_memory(job), n * 4)};
    float *count[NODES] = {values(job, n), values(job, n)};
    uint64_t random = 5;

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        if (!job_every(job, 5))
            continue;
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < n; i++)
                count[r][i] = (float)(draw(&random) % (i % 129 ? 4 : 900));
        all_reduce(world, &confusion, count[0], count[1]);
        all_reduce_scalar(world, confusion.send + n * 4, model_loss(m, 0), model_loss(m, 1));
    }
}

/* Sum a single scalar, in every fifth step. */
static void evaluation_scalar(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const address loss = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        if (job_every(job, 5))
            all_reduce_scalar(world, loss, model_loss(m, 0), model_loss(m, 1));
    }
}

/* Sum 8 KiB of statistics every 50 steps. */
static void rare_statistics(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const struct buffer b = {.type = ncclFloat32, .n = 2048, .send = memory_take(job_memory(job), 8192)};
    float *x = values(job, b.n), *y = values(job, b.n);
    uint64_t random = 3;

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        if (!job_every(job, 50))
            continue;
        for (size_t i = 0; i < b.n; i++) {
            x[i] = fabsf(noise(&random));
            y[i] = fabsf(noise(&random));
        }
        all_reduce(world, &b, x, y);
    }
}

/* Train two models of one shape in turn. */
static void gan(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *generator = model_of(job, ADAMW), *discriminator = model_of(job, ADAMW);
    struct ddp g = ddp_open(job, world, generator), d = ddp_open(job, world, discriminator);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(discriminator);
        ddp_backward(&g, 1);
        model_update(generator);
    }
}

/* Do the same through buffers that both models use: a script's own hooks copy gradients into flat buffers. */
static void flat(struct job *job, int vouched)
{
    struct comm *world = comm_between(job, NULL);
    struct model *generator = model_of(job, ADAMW), *discriminator = model_of(job, ADAMW);
    struct ddp g = ddp_open(job, world, generator), d = ddp_open(job, world, discriminator);

    d.caller = g.caller = NB_CALLER_UNKNOWN;
    d.unproved = g.unproved = !vouched;
    for (int i = 0; i < discriminator->units; i++)
        d.bucket[i] = g.bucket[i];
    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(discriminator);
        ddp_backward(&g, 1);
        model_update(generator);
    }
}

JOB(gan_flat, flat(job, 0))
JOB(gan_flat_vouched, flat(job, 1))

/* find_unused_parameters: sum a bitmap of the used parameters. Some are unused. */
static void unused_parameters(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const struct buffer map = {.type = ncclInt32, .n = 4096, .send = memory_take(job_memory(job), 16384)};
    float *used = values(job, map.n);

    while (job_step(job)) {
        for (size_t i = 0; i < map.n; i++)
            used[i] = (float)((i + (size_t)job_now(job)) % 7 != 0);
        ddp_backward(&d, 1);
        all_reduce(world, &map, used, used);
        model_update(m);
    }
}

/* Half precision: gradients are multiplied by a scale, which is found by trial. */
static void loss_scaling(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    float scale = 65536.0f;

    while (job_step(job)) {
        const int overflows = job_now(job) == 2 || job_now(job) == 90;
        for (int i = m->units - 1; i >= 0; i--) {
            struct unit *u = &m->unit[i];
            const struct buffer b = {.type = ncclFloat16,
                                     .n = u->n,
                                     .send = d.bucket[i],
                                     .recv = d.bucket[i],
                                     .what = u->buffer,
                                     .caller = d.caller};
            model_gradient(m, i, 0);
            for (int r = 0; r < NODES; r++)
                for (size_t k = 0; k < u->n; k++)
                    u->g[r][k] *= scale / 256;
            if (overflows)
                u->g[0][7] = INFINITY;
            all_reduce(world, &b, u->g[0], u->g[1]);
            for (int r = 0; r < NODES; r++)
                for (size_t k = 0; k < u->n; k++)
                    u->g[r][k] = overflows ? 0 : u->g[r][k] * 256 / scale;
            model_reduced(m, i);
        }
        if (overflows)
            scale /= 2;
        model_update(m);
    }
}

/* SyncBatchNorm: statistics are gathered forwards, and two sums for each channel are reduced backwards. */
static void batch_norm(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, SGD);
    struct ddp d = ddp_open(job, world, m);
    const size_t n = 4096;
    float *x[NODES] = {values(job, n), values(job, n)}, *all = values(job, 2 * n);
    uint64_t random = 11;

    while (job_step(job)) {
        for (int layer = 0; layer < 3; layer++) {
            const address at = memory_take(job_memory(job), 2 * n * 4);
            activations(&random, (uint64_t)layer, 256, 2 * n, all);
            all_gather(world, &(struct buffer){.type = ncclFloat32, .n = 2 * n, .send = at, .recv = at}, all);
            memory_give(job_memory(job), at);
        }
        for (int layer = 2; layer >= 0; layer--) {
            const address at = memory_take(job_memory(job), n * 4);
            for (int r = 0; r < NODES; r++)
                for (size_t i = 0; i < n; i++)
                    x[r][i] = 1e-3f * noise(&random);
            all_reduce(world, &(struct buffer){.type = ncclFloat32, .n = n, .send = at, .recv = at}, x[0],
                       x[1]);
            memory_give(job_memory(job), at);
        }
        ddp_backward(&d, 1);
        model_update(m);
    }
}

/* Average a moving average of the weights (EMA) over nodes now and then, in a buffer of a bucket's size. */
static void average_of_weights(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const struct buffer b = {
        .type = ncclFloat32, .n = BUCKET, .send = memory_take(job_memory(job), BUCKET * 4)};
    float *x = values(job, BUCKET), *y = values(job, BUCKET);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        for (size_t i = 0; i < BUCKET; i++) {
            x[i] += 0.05f * (m->unit[0].w[i] - x[i]);
            y[i] += 0.05f * (m->unit[0].w[i] - y[i]);
        }
        all_reduce(world, &b, x, y);
    }
}

/* Stochastic weight averaging: combine the sum over epochs every tenth step, from each unit's own buffer. */
static void stochastic_average(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, SGD);
    struct ddp d = ddp_open(job, world, m);
    address at[3];

    for (int i = 0; i < 3; i++)
        at[i] = memory_take(job_memory(job), BUCKET * 4);
    while (job_step(job)) {
        ddp_backward(&d, 1);
        model_update(m);
        for (int i = 0; i < 3 && job_every(job, 10); i++)
            all_reduce(world,
                       &(struct buffer){.type = ncclFloat32, .n = BUCKET, .send = at[i], .recv = at[i]},
                       m->unit[i].w, m->unit[i].w);
    }
}

/* Contrastive learning: features of all nodes are gathered, and their gradients summed and scattered back. */
static void contrastive(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);
    const size_t n = 2 * 64 * 256;
    float *features = values(job, n), *x = values(job, n), *y = values(job, n);
    uint64_t random = 21;

    while (job_step(job)) {
        const address f = memory_take(job_memory(job), n * 4), g = memory_take(job_memory(job), n * 4);
        for (size_t i = 0; i < n; i++) {
            features[i] = noise(&random) / 16;
            x[i] = 1e-4f * noise(&random);
            y[i] = 1e-4f * noise(&random);
        }
        all_gather(world, &(struct buffer){.type = ncclFloat32, .n = n, .send = f, .recv = f}, features);
        reduce_scatter(world, &(struct buffer){.type = ncclFloat32, .n = n, .send = g, .recv = f}, x, y);
        ddp_backward(&d, 1);
        memory_give(job_memory(job), f);
        memory_give(job_memory(job), g);
        model_update(m);
    }
}

/* Replace the communicator in the middle of the job (an elastic job). */
static void remade_communicator(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW);
    struct ddp d = ddp_open(job, world, m);

    while (job_step(job)) {
        if (job_now(job) == 80) {
            comm_close(world);
            d.comm = world = comm_between(job, NULL);
        }
        ddp_backward(&d, 1);
        model_update(m);
    }
}

/* DDP's first step has other buckets. DDP then builds them again in the order in which gradients came. */
static void rebuilt_buckets(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_of(job, ADAMW), *before = model_of(job, ADAMW);
    struct ddp first = ddp_open(job, world, before), d = ddp_open(job, world, m);
    const address swap = d.bucket[0];

    d.bucket[0] = first.bucket[1]; /* the place of a bucket of the first step */
    first.bucket[2] = swap;
    while (job_step(job)) {
        ddp_backward(job_now(job) ? &d : &first, 1);
        model_update(m);
    }
}

/* LoRA: only the adapters have gradients. */
static void lora(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = 3, .n = 16384, .lr = 1e-3f});
    struct ddp d = ddp_open(job, world, m);
    const address loss = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        ddp_backward(&d, 1);
        all_reduce_scalar(world, loss, model_loss(m, 0), model_loss(m, 1));
        model_update(m);
    }
}

const struct job_entry jobs_data_parallel[] = {
    {"ddp-adamw", adamw, {0}},
    {"ddp-adamw-without-records", adamw, {.silent = 1}},
    {"ddp-sgd", sgd, {0}},
    {"ddp-lion", lion, {0}},
    {"ddp-accumulation", accumulation, {0}},
    {"ddp-one-bucket", one_bucket, {0}},
    {"ddp-two-scalars", two_scalars, {.all_collnet = 1}},
    {"ddp-evaluation", evaluation, {.fed = 95}},
    {"ddp-evaluation-scalar", evaluation_scalar, {.all_collnet = 1}},
    {"ddp-rare-statistics", rare_statistics, {0}},
    {"ddp-gan", gan, {.fed = 95}},
    {"ddp-gan-shared-buffers", gan_flat, {0}},
    {"ddp-gan-shared-buffers-vouched", gan_flat_vouched, {.grad = "all_reduce:float32:65536"}},
    {"ddp-unused-parameters", unused_parameters, {0}},
    {"ddp-loss-scaling", loss_scaling, {0}},
    {"ddp-batch-norm", batch_norm, {0}},
    {"ddp-average-of-weights", average_of_weights, {0}},
    {"ddp-stochastic-average", stochastic_average, {0}},
    {"ddp-contrastive", contrastive, {0}},
    {"ddp-remade-communicator", remade_communicator, {.steps = 160, .fed = 95}},
    {"ddp-rebuilt-buckets", rebuilt_buckets, {0}},
    {"ddp-lora", lora, {0}},
    {0},
};
