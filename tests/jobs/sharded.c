/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that shard parameters, gradients or optimizer states: FSDP, HSDP, ZeRO, Megatron's distributed
 * optimizer. */
#include <math.h>

#include "lib/parallel.h"

static void train(struct job *job, struct fsdp *f)
{
    while (job_step(job))
        fsdp_step(f);
}

static struct fsdp usual(struct job *job, int version, enum optimizer optimizer)
{
    struct model *m = model_new(job, &(struct model_settings){.first = 36864, .optimizer = optimizer});

    return fsdp_open(job, comm_between(job, NULL), m, version);
}

#define PLAIN(name, version, optimizer) \
    static void name(struct job *job) \
    { \
        struct fsdp f = usual(job, version, optimizer); \
        train(job, &f); \
    }
PLAIN(fsdp1_adamw, 1, ADAMW)
PLAIN(fsdp1_sgd, 1, SGD)
PLAIN(fsdp2_adamw, 2, ADAMW)
PLAIN(fsdp2_sgd, 2, SGD)
PLAIN(fsdp2_lion, 2, LION)
PLAIN(fsdp2_muon, 2, MUON)
PLAIN(fsdp2_adafactor, 2, ADAFACTOR)

static void fsdp1_prefetch(struct job *job)
{
    struct fsdp f = usual(job, 1, ADAMW);

    f.prefetch = 1;
    train(job, &f);
}

static void fsdp2_keep(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);

    f.keep = 1;
    train(job, &f);
}

static void fsdp2_bf16(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);

    f.grad = ncclBfloat16;
    train(job, &f);
}

/* Use a low rate that rises from zero: most of the gathered values do not change in a step. */
static void fsdp2_low_rate(struct job *job)
{
    struct model *m = model_new(job, &(struct model_settings){.lr = 3e-5f, .warmup = 30});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, 2);

    train(job, &f);
}

/* All layers have the same profile. */
static void fsdp2_alike(struct job *job)
{
    struct model *m = model_new(job, &(struct model_settings){.alike = 1});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, 2);

    train(job, &f);
}

/* Run two micro-batches, and reduce each. */
static void fsdp2_accumulation(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);

    while (job_step(job)) {
        for (int k = 0; k < 2; k++) {
            fsdp_forward(&f);
            fsdp_backward(&f);
        }
        fsdp_update(&f);
    }
}

/* Leave out layers at random. */
static void fsdp2_layerdrop(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);
    uint64_t random = 9;

    while (job_step(job)) {
        f.skip = 0;
        for (int i = 1; i + 1 < f.model->units; i++)
            f.skip |= (unsigned)(draw(&random) % 10 == 0) << i;
        fsdp_forward(&f);
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}

/* Run a forward pass over held-out data in every fifth step, with counts at the end, and gather all weights
 * for a checkpoint. */
static void fsdp2_evaluation(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);
    const struct buffer b = {
        .type = ncclFloat32, .n = 24576, .send = memory_take(job_memory(job), 24576 * 4)};
    float *x = values(job, b.n);
    uint64_t random = 9;

    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        fsdp_update(&f);
        if (job_every(job, 5)) {
            fsdp_forward(&f);
            for (int i = 0; i < f.model->units; i++)
                memory_give(job_memory(job), f.full[i]), f.full[i] = 0;
            for (size_t i = 0; i < b.n; i++)
                x[i] = (float)(draw(&random) % 40);
            all_reduce(f.comm, &b, x, x);
        }
        if (job_every(job, 25)) /* a full state dictionary: all weights, and both moments */
            for (int i = 0; i < f.model->units; i++) {
                const struct unit *u = &f.model->unit[i];
                const struct buffer full = {
                    .type = ncclFloat32, .n = u->n, .send = f.shard[i], .recv = b.send};
                all_gather(f.comm, &full, u->w);
                all_gather(f.comm, &full, u->m);
                all_gather(f.comm, &full, u->v);
            }
    }
}

/* Gather contrastive features between forward and backward pass, as many values as a unit has parameters. */
static void contrastive(struct job *job, size_t n)
{
    struct fsdp f = usual(job, 2, ADAMW);
    float *features = values(job, n), *x = values(job, n), *y = values(job, n);
    uint64_t random = 21;

    while (job_step(job)) {
        const address at = memory_take(job_memory(job), n * 4), g = memory_take(job_memory(job), n * 4);
        fsdp_forward(&f);
        for (size_t i = 0; i < n; i++) {
            features[i] = noise(&random) / 16;
            x[i] = 1e-4f * noise(&random);
            y[i] = 1e-4f * noise(&random);
        }
        all_gather(f.comm, &(struct buffer){.type = ncclFloat32, .n = n, .send = at, .recv = at}, features);
        reduce_scatter(f.comm, &(struct buffer){.type = ncclFloat32, .n = n, .send = g, .recv = at}, x, y);
        fsdp_backward(&f);
        fsdp_update(&f);
        memory_give(job_memory(job), at);
        memory_give(job_memory(job), g);
    }
}

JOB(fsdp2_contrastive, contrastive(job, 16384))
JOB(fsdp2_contrastive_alike, contrastive(job, 24576))

/* Make units so small that their gathers are below the size that is compressed, and do not use CollNet. */
static void small_gathers(struct job *job)
{
    struct model *m = model_new(job, &(struct model_settings){.n = 8192});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, 2);

    train(job, &f);
}

/* Train two models of one shape in turn. */
static void fsdp2_gan(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp g = fsdp_open(job, world, model_new(job, &(struct model_settings){.units = 4}), 2),
                d = fsdp_open(job, world, model_new(job, &(struct model_settings){.units = 4}), 2);

    while (job_step(job)) {
        fsdp_forward(&d);
        fsdp_backward(&d);
        fsdp_update(&d);
        fsdp_forward(&g);
        fsdp_forward(&d);
        for (int i = 0; i < d.model->units; i++) /* the discriminator passes gradients on without using
                                                    them */
            memory_give(job_memory(job), d.full[i]), d.full[i] = 0;
        fsdp_backward(&g);
        fsdp_update(&g);
    }
}

/* Gather the unchanging weights of a frozen encoder before the trained part. */
static void fsdp2_frozen(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);

    f.frozen = 7;
    train(job, &f);
}

/* Sum the norm of gradients, as the sum of squares of each unit. */
static void fsdp2_clipping(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);
    const address norm = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        all_reduce_scalar(f.comm, norm, 1.0f + (float)job_now(job), 2.0f);
        fsdp_update(&f);
    }
}

/* Hybrid: shards inside the node, replicas between nodes. */
static void hybrid(struct job *job, int micro_batches)
{
    struct model *m = model_new(job, &(struct model_settings){0});
    struct fsdp f = fsdp_open(job, comm_inside(job, NULL, 8), m, 2);

    f.replicas = comm_between(job, NULL);
    while (job_step(job)) {
        for (int k = 0; k < micro_batches; k++) {
            fsdp_forward(&f);
            fsdp_backward(&f);
        }
        fsdp_update(&f);
    }
}

JOB(hsdp, hybrid(job, 1))
JOB(hsdp_accumulation, hybrid(job, 2))

/* ZeRO 1 and 2: buckets of two units, and the updated parameters as one vector. */
static void zero12(struct job *job, int micro_batches)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.first = 36864});
    const address flat = memory_take(job_memory(job), model_size(m, 0, m->units) * 2);
    truth buffers[UNITS_MOST];

    for (int i = 0; i < m->units; i++)
        buffers[i] = job_buffer(job);
    while (job_step(job)) {
        for (int k = 0; k < micro_batches; k++)
            zero12_reduce(world, m, 2, buffers);
        model_update(m);
        zero12_gather(world, m, flat);
    }
}

JOB(zero1, zero12(job, 1))
JOB(zero2, zero12(job, 2))

static void zero3(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.first = 36864});
    truth buffers[UNITS_MOST];

    for (int i = 0; i < m->units; i++)
        buffers[i] = job_buffer(job);
    while (job_step(job)) {
        zero3_gather(world, m, 2, 0);
        zero3_gather(world, m, 2, 1);
        zero3_reduce(world, m, 3, buffers);
        model_update(m);
    }
}

static void megatron_distopt(struct job *job)
{
    struct model *m = model_new(job, &(struct model_settings){.first = 36864});
    struct distopt d = distopt_open(job, comm_between(job, "DATA_PARALLEL_GROUP_WITH_CP"), m);

    while (job_step(job)) {
        distopt_gather(&d);
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < m->units; i++)
                model_gradient(m, i, k);
        distopt_reduce(&d);
        model_update(m);
    }
}

/* Make sums of a unit's type and size behind the backward pass that are not gradients: activations, as they
 * come to a layer in the middle, and squares of the last unit's gradients, which have its profile, twice as
 * steep. */
static void beside(struct job *job, int alike)
{
    struct model *m = model_new(job, &(struct model_settings){.alike = alike});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, 2);
    struct memory *memory = job_memory(job);
    const struct unit *last = &m->unit[m->units - 1];
    const size_t n = last->n;
    float *x[NODES] = {values(job, n), values(job, n)}, *stream = values(job, n);
    uint64_t random = 17;

    for (size_t i = 0; i < n; i++)
        stream[i] = noise(&random);
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (int squares = 0; squares < 2; squares++) {
            struct buffer b = {.type = f.grad, .n = n, .send = memory_take(memory, n * 4), .what = EXACT};
            b.recv = memory_take(memory, n * 4 / NODES);
            for (int r = 0; r < NODES; r++)
                for (size_t i = 0; i < n; i++)
                    x[r][i] = squares ? last->g[r][i] * last->g[r][i] : stream[i] + noise(&random);
            reduce_scatter(f.comm, &b, x[0], x[1]);
            memory_give(memory, b.send);
            memory_give(memory, b.recv);
        }
        fsdp_update(&f);
    }
}

JOB(fsdp2_beside, beside(job, 0))
JOB(fsdp2_beside_alike, beside(job, 1))

/* Local SGD by shards: average parameters by a reduce-scatter and a gather. */
static void averaged_parameters(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){0});
    struct distopt d = distopt_open(job, world, m);
    uint64_t random = 4;

    while (job_step(job)) {
        for (int i = 0; i < m->units; i++) {
            struct unit *u = &m->unit[i];
            const struct buffer b = {.type = ncclFloat32, .n = u->n, .send = d.grad[i], .recv = d.grad[i]};
            for (int r = 0; r < NODES; r++) /* each node has gone its own way for some steps */
                for (size_t k = 0; k < u->n; k++)
                    u->g[r][k] = u->w[k] + 1e-3f * noise(&random);
            reduce_scatter(world, &b, u->g[0], u->g[1]);
            for (size_t k = 0; k < u->n; k++)
                u->w[k] = 0.5f * (u->g[0][k] + u->g[1][k]);
        }
        distopt_gather(&d);
    }
}

/* Sum a statistic in FP32 where a reduce-scatter of another type has just put its result. */
static void statistics_after(struct job *job)
{
    struct fsdp f = usual(job, 2, ADAMW);
    const size_t n = 24576 / 4;
    float *x = values(job, n), *y = values(job, n);
    uint64_t random = 6;

    f.grad = ncclBfloat16;
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (size_t i = 0; i < n; i++) {
            x[i] = noise(&random);
            y[i] = noise(&random);
        }
        all_reduce(f.comm,
                   &(struct buffer){.type = ncclFloat32, .n = n, .send = f.grads[0], .recv = f.grads[0]}, x,
                   y);
        fsdp_update(&f);
    }
}

/* Gather a momentum of the weights' size for each layer in every step, as distributed Muon does before it
 * orthogonalizes. Its content matches no earlier block. */
static void gathered_momentum(struct job *job)
{
    struct fsdp f = usual(job, 2, MUON);
    const size_t bytes = f.model->unit[0].n * 2;
    const address at = memory_take(job_memory(job), bytes);
    uint64_t random = 9;
    float *x = values(job, f.model->unit[0].n);

    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (int i = 1; i < f.model->units; i++) {
            const struct unit *u = &f.model->unit[i];
            const struct buffer b = {.type = f.param, .n = u->n, .send = at, .recv = at};
            for (size_t k = 0; k < u->n; k++) /* beta is small: little of the momentum before is left */
                x[k] = u->g[0][k] + u->g[1][k] + 1e-4f * noise(&random);
            all_gather(f.comm, &b, x);
        }
        fsdp_update(&f);
    }
}

/* ---- rare sums of the gradients' type, size and communicator ---- */

enum rare_content { RARE_WEIGHTS, RARE_INTEGERS, RARE_ACTIVATIONS };
enum rare_place { BEFORE_FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD };

/* Sum something else by a reduce-scatter that looks like a layer's gradient, from memory of its own. */
static void rare_sum(struct fsdp *f, enum rare_content content, int unit, address send, address recv,
                     float *x, uint64_t *random)
{
    const struct unit *u = &f->model->unit[unit];
    const struct buffer b = {.type = f->grad, .n = u->n, .send = send, .recv = recv};
    if (content == RARE_ACTIVATIONS)
        activations(random, 5, 64, u->n, x);
    for (size_t i = 0; i < u->n && content != RARE_ACTIVATIONS; i++)
        x[i] = content == RARE_WEIGHTS ? u->w[i] : (float)(draw(random) % 40);
    reduce_scatter(f->comm, &b, x, x);
}

/* `count` such sums every `every` steps from step 60 on, in memory that stays or that the allocator gives. */
static void rare(struct job *job, int version, enum rare_content content, enum rare_place place, int every,
                 int count, int fixed)
{
    struct fsdp f = usual(job, version, ADAMW);
    const size_t bytes = f.model->unit[2].n * 4;
    float *x = values(job, f.model->unit[2].n);
    uint64_t random = 77;
    address at[3] = {0}, to = fixed ? memory_take(job_memory(job), bytes) : 0;

    for (int i = 0; i < count && fixed; i++)
        at[i] = memory_take(job_memory(job), bytes);
    while (job_step(job))
        for (int now = BEFORE_FORWARD; now <= AFTER_BACKWARD + 1; now++) {
            if ((int)place == now && job_now(job) >= 60 && job_now(job) % every == 0)
                for (int i = 0; i < count; i++) {
                    const address send = fixed ? at[i] : memory_take(job_memory(job), bytes);
                    const address recv = fixed ? to : memory_take(job_memory(job), bytes / NODES);
                    rare_sum(&f, content, 2 + i, send, recv, x, &random);
                    if (!fixed)
                        memory_give(job_memory(job), send), memory_give(job_memory(job), recv);
                }
            if (now == BEFORE_FORWARD)
                fsdp_forward(&f);
            else if (now == BEFORE_BACKWARD)
                fsdp_backward(&f);
            else if (now == AFTER_BACKWARD)
                fsdp_update(&f);
        }
}
JOB(rare_weights, rare(job, 2, RARE_WEIGHTS, BEFORE_FORWARD, 10, 1, 1))
JOB(rare_weights_allocated, rare(job, 2, RARE_WEIGHTS, BEFORE_FORWARD, 10, 1, 0))
JOB(rare_weights_inside, rare(job, 2, RARE_WEIGHTS, BEFORE_BACKWARD, 10, 1, 1))
JOB(rare_weights_after, rare(job, 2, RARE_WEIGHTS, AFTER_BACKWARD, 10, 1, 1))
JOB(rare_weights_fsdp1, rare(job, 1, RARE_WEIGHTS, BEFORE_FORWARD, 10, 1, 1))
JOB(rare_weights_inside_allocated, rare(job, 2, RARE_WEIGHTS, BEFORE_BACKWARD, 10, 1, 0))
JOB(rare_averages_inside, rare(job, 2, RARE_WEIGHTS, BEFORE_BACKWARD, 20, 3, 0))
JOB(rare_long_sequences, rare(job, 2, RARE_ACTIVATIONS, BEFORE_BACKWARD, 8, 3, 0))
JOB(rare_activations_fsdp1, rare(job, 1, RARE_ACTIVATIONS, BEFORE_BACKWARD, 10, 1, 0))
JOB(rare_weights_every_step, rare(job, 2, RARE_WEIGHTS, BEFORE_BACKWARD, 1, 1, 1))
JOB(rare_integers, rare(job, 2, RARE_INTEGERS, BEFORE_FORWARD, 10, 1, 1))
JOB(rare_integers_inside, rare(job, 2, RARE_INTEGERS, BEFORE_BACKWARD, 10, 1, 0))
JOB(rare_activations, rare(job, 2, RARE_ACTIVATIONS, BEFORE_FORWARD, 10, 1, 1))
JOB(rare_activations_inside, rare(job, 2, RARE_ACTIVATIONS, BEFORE_BACKWARD, 10, 1, 1))
JOB(rare_averages, rare(job, 2, RARE_WEIGHTS, BEFORE_FORWARD, 20, 3, 1))
JOB(rare_averages_allocated, rare(job, 2, RARE_WEIGHTS, BEFORE_FORWARD, 20, 3, 0))

const struct job_entry jobs_sharded[] = {
    {"fsdp1-adamw", fsdp1_adamw, {0}},
    {"fsdp1-sgd", fsdp1_sgd, {0}},
    {"fsdp1-prefetch", fsdp1_prefetch, {0}},
    {"fsdp2-adamw", fsdp2_adamw, {0}},
    {"fsdp2-adamw-without-records", fsdp2_adamw, {.silent = 1}},
    {"fsdp2-sgd", fsdp2_sgd, {0}},
    {"fsdp2-lion", fsdp2_lion, {0}},
    {"fsdp2-muon", fsdp2_muon, {0}},
    {"fsdp2-adafactor", fsdp2_adafactor, {0}},
    {"fsdp2-keep", fsdp2_keep, {0}},
    {"fsdp2-bf16", fsdp2_bf16, {0}},
    {"fsdp2-low-rate", fsdp2_low_rate, {.fed = 95}},
    {"fsdp2-low-rate-late-proof", fsdp2_low_rate, {.fed = 95, .seed = 6}},
    {"fsdp2-alike", fsdp2_alike, {.fed = 95}},
    {"fsdp2-accumulation", fsdp2_accumulation, {0}},
    {"fsdp2-layerdrop", fsdp2_layerdrop, {.fed = 95}},
    {"fsdp2-evaluation", fsdp2_evaluation, {.fed = 95}},
    {"fsdp2-contrastive", fsdp2_contrastive, {0}},
    {"fsdp2-contrastive-alike", fsdp2_contrastive_alike, {.fed = 80}},
    {"fsdp2-beside", fsdp2_beside, {.fed = 95}},
    {"fsdp2-beside-alike", fsdp2_beside_alike, {.fed = 95}},
    {"fsdp2-small-gathers", small_gathers, {.all_collnet = 1}},
    {"fsdp2-gan", fsdp2_gan, {0}},
    {"fsdp2-frozen", fsdp2_frozen, {0}},
    {"fsdp2-clipping", fsdp2_clipping, {0}},
    {"fsdp2-statistics-after", statistics_after, {0}},
    {"rare-weights", rare_weights, {.steps = 110}},
    {"rare-weights-allocated", rare_weights_allocated, {.steps = 110}},
    {"rare-weights-inside", rare_weights_inside, {.steps = 110}},
    {"rare-weights-after", rare_weights_after, {.steps = 110}},
    {"rare-weights-fsdp1", rare_weights_fsdp1, {.steps = 110}},
    {"rare-weights-inside-allocated", rare_weights_inside_allocated, {.steps = 110}},
    {"rare-averages-inside", rare_averages_inside, {.steps = 110}},
    {"rare-long-sequences", rare_long_sequences, {.steps = 110}},
    {"rare-activations-fsdp1", rare_activations_fsdp1, {.steps = 110}},
    {"rare-weights-every-step", rare_weights_every_step, {.steps = 110}},
    {"rare-integers", rare_integers, {.steps = 110}},
    {"rare-integers-inside", rare_integers_inside, {.steps = 110}},
    {"rare-activations", rare_activations, {.steps = 110}},
    {"rare-activations-inside", rare_activations_inside, {.steps = 110}},
    {"rare-averages", rare_averages, {.steps = 110}},
    {"rare-averages-allocated", rare_averages_allocated, {.steps = 110}},
    {"fsdp2-gathered-momentum", gathered_momentum, {.fed = 80}},
    {"hsdp", hsdp, {0}},
    {"hsdp-accumulation", hsdp_accumulation, {0}},
    {"zero1", zero1, {0}},
    {"zero2", zero2, {0}},
    {"zero3", zero3, {0}},
    {"megatron-distopt", megatron_distopt, {0}},
    {"averaged-by-shards", averaged_parameters, {0}},
    {0},
};
