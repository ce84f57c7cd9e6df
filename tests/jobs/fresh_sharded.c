/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of sharded training by an author who has not read the plugin's rules: layers that begin as copies,
 * optimizers with unusual weights, and passes that sum something else in the gradients' places.
 */
#include <math.h>
#include <string.h>

#include "lib/parallel.h"

/* ---- parts of a step ----------------------------------------------------------------------------------- */

static struct fsdp sharded(struct job *job, int units)
{
    return fsdp_open(job, comm_between(job, NULL), model_new(job, &(struct model_settings){.units = units}),
                     2);
}

/* Free the weights after a forward pass without a backward pass. */
static void release(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->full[i]);
        f->full[i] = 0;
    }
}

static void forward_only(struct fsdp *f)
{
    fsdp_forward(f);
    release(f);
}

/* Free the gradients, clear their sums, and count an update that the job has made by itself. */
static void updated(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->grads[i]);
        f->grads[i] = 0;
        memset(f->model->unit[i].sum, 0, f->model->unit[i].n * sizeof(float));
    }
    f->model->updates++;
}

static void passes(struct fsdp *f)
{
    fsdp_forward(f);
    fsdp_backward(f);
}

static void train(struct fsdp *f)
{
    passes(f);
    fsdp_update(f);
}

/* Run one unit forwards, or backwards with its reduce-scatter. */
static void run_unit(struct fsdp *f, int i, int backwards)
{
    struct model one = *f->model;
    struct fsdp layer = *f;

    one.units = 1;
    one.unit[0] = f->model->unit[i];
    layer.model = &one;
    layer.shard[0] = f->shard[i];
    layer.full[0] = f->full[i];
    layer.grads[0] = f->grads[i];
    if (backwards)
        fsdp_backward(&layer);
    else
        forward_only(&layer);
    f->full[i] = layer.full[0];
    f->grads[i] = layer.grads[0];
    f->model->unit[i] = one.unit[0];
}

/* Fill u->g, the contributions of both nodes. In most jobs `arg` is a random state. */
typedef void (*filler)(void *arg, struct unit *u, int number);

/* Make the gradient of a micro-batch with noise of the job's own. */
static void gradient(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->curve[i / ROW] * (u->w[i] - u->target[i]) + u->scale[i / ROW] * noise(random);
}

/* Run a backward pass whose contributions `fill` makes. gradients: they count as such, else they have to stay
 * exact. */
static void backward_by(struct fsdp *f, filler fill, void *arg, int gradients)
{
    struct model *m = f->model, view = *m;
    const struct model_source source = {.gradient = fill, .arg = arg};

    view.set.source = &source;
    for (int i = 0; i < m->units && !gradients; i++) {
        view.unit[i].sum = NULL;
        view.unit[i].buffer = EXACT;
    }
    f->model = &view;
    fsdp_backward(f);
    f->model = m;
}

static void copy_weights(struct model *to, const struct model *from)
{
    for (int i = 0; i < to->units; i++)
        memcpy(to->unit[i].w, from->unit[i].w, from->unit[i].n * sizeof(float));
}

/* Let `to` learn the task of `from`. */
static void same_task(struct model *to, const struct model *from)
{
    for (int i = 0; i < to->units; i++) {
        const struct unit *u = &from->unit[i];
        memcpy(to->unit[i].target, u->target, u->n * sizeof(float));
        memcpy(to->unit[i].curve, u->curve, u->n / ROW * sizeof(float));
        memcpy(to->unit[i].scale, u->scale, u->n / ROW * sizeof(float));
    }
}

/* ---- layers that begin as copies of others ------------------------------------------------------------- */

static void copy_layer(struct unit *to, const struct unit *from)
{
    for (size_t k = 0; k < to->n; k++) {
        to->target[k] += from->w[k] - to->w[k];
        to->w[k] = from->w[k];
    }
}

/* Sparse upcycling: six experts begin as copies of a dense model's layer. Each sees tokens of its own. */
static void upcycled_experts(struct job *job)
{
    struct fsdp f = sharded(job, 8);

    for (int i = 2; i < 7; i++)
        copy_layer(&f.model->unit[i], &f.model->unit[1]);
    while (job_step(job))
        train(&f);
}

/* Gradual stacking: train three layers, then put copies of them on top. */
static void stacked_depth(struct job *job)
{
    struct fsdp f = sharded(job, 6);

    f.skip = 7u << 3;
    while (job_step(job)) {
        for (int i = 0; job_now(job) == 40 && i < 3; i++) {
            copy_layer(&f.model->unit[3 + i], &f.model->unit[i]);
            f.skip = 0;
        }
        train(&f);
    }
}

/* Population based training: two members of one task. Now and then one takes over the other's weights and
 * moments, with another rate. */
static void population(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    const struct model_settings s = {.units = 4};
    struct fsdp a = fsdp_open(job, world, model_new(job, &s), 2),
                b = fsdp_open(job, world, model_new(job, &s), 2);

    same_task(b.model, a.model);
    while (job_step(job)) {
        train(&a);
        train(&b);
        if (job_every(job, 20)) {
            copy_weights(b.model, a.model);
            for (int i = 0; i < 4; i++) {
                memcpy(b.model->unit[i].m, a.model->unit[i].m, a.model->unit[i].n * sizeof(float));
                memcpy(b.model->unit[i].v, a.model->unit[i].v, a.model->unit[i].n * sizeof(float));
            }
            b.model->set.lr = a.model->set.lr * (job_every(job, 40) ? 1.2f : 0.8f);
        }
    }
}

/* ---- orders and numbers of passes ---------------------------------------------------------------------- */

/* ALBERT: two layers run three times each, and each use reduces a gradient. */
static void shared_layers(struct job *job)
{
    static const int order[] = {0, 1, 2, 1, 2, 1, 2, 3};
    struct fsdp f = sharded(job, 4);

    while (job_step(job)) {
        for (int k = 0; k < 8; k++)
            run_unit(&f, order[k], 0);
        for (int k = 7; k >= 0; k--)
            run_unit(&f, order[k], 1);
        fsdp_update(&f);
    }
}

/* Run the layers in the middle in another order in each step. */
static void shuffled_layers(struct job *job)
{
    struct fsdp f = sharded(job, 6);
    uint64_t random = (uint64_t)job_buffer(job);
    int order[6] = {0, 1, 2, 3, 4, 5};

    while (job_step(job)) {
        for (int k = 4; k > 1; k--) {
            const int with = 1 + (int)(draw(&random) % (uint64_t)k), was = order[k];
            order[k] = order[with];
            order[with] = was;
        }
        for (int k = 0; k < 6; k++)
            run_unit(&f, order[k], 0);
        for (int k = 5; k >= 0; k--)
            run_unit(&f, order[k], 1);
        fsdp_update(&f);
    }
}

/* Pack sequences into one to four micro-batches a step, and reduce each. */
static void ragged_micro_batches(struct job *job)
{
    struct fsdp f = sharded(job, 5);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int k = (int)(draw(&random) % 4); k >= 0; k--)
            passes(&f);
        fsdp_update(&f);
    }
}

/* Three layers under four heads. Each step trains the head of one task, which is drawn. */
static void task_heads(struct job *job)
{
    struct fsdp f = sharded(job, 7);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        f.skip = 0xfu << 3 & ~(1u << (3 + draw(&random) % 4));
        train(&f);
    }
}

/* Each node draws a task of its own, so a head has gradients of one node, of both, or of none. */
static void one_sided(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        if (number >= 3 && draw(random) % 2)
            memset(u->g[r], 0, u->n * sizeof(float));
}

static void one_sided_tasks(struct job *job)
{
    struct fsdp f = sharded(job, 7);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        fsdp_forward(&f);
        backward_by(&f, one_sided, &random, 1);
        fsdp_update(&f);
    }
}

/* The data of a node end before those of the other, and its last batches hold padding only. */
struct padded {
    uint64_t random;
    int empty; /* node */
};

static void with_padding(void *arg, struct unit *u, int number)
{
    struct padded *p = arg;

    gradient(&p->random, u, number);
    if (p->empty < NODES)
        memset(u->g[p->empty], 0, u->n * sizeof(float));
}

static void padded_batches(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    struct padded p = {.random = (uint64_t)job_buffer(job)};

    while (job_step(job)) {
        p.empty = (int)(draw(&p.random) % 8);
        fsdp_forward(&f);
        backward_by(&f, with_padding, &p, 1);
        fsdp_update(&f);
    }
}

/* ---- sums in the gradients' places that are no gradients ----------------------------------------------- */

/* EWC's Fisher matrix: squares of a batch's gradients. */
static void squares(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] *= u->g[r][i];
}

/* Magnitudes of gradients, as a score of the parameters or of the batch. */
static void magnitudes(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = fabsf(u->g[r][i]);
}

/* SNIP's and movement pruning's saliency: gradient times weight. */
static void saliency(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] *= -u->w[i];
}

/* Signs of gradients, to be summed as votes. */
static void signs(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = (float)((u->g[r][i] > 0) - (u->g[r][i] < 0));
}

/* Learn one task, measure its Fisher matrix with `batches` passes, and learn the next one under a penalty. */
static void ewc_fisher(struct job *job)
{
    enum { TASK = 60, BATCHES = 10 };
    struct fsdp f = sharded(job, 4);
    float *anchor[UNITS_MOST], *fisher[UNITS_MOST];
    uint64_t random = (uint64_t)job_buffer(job);

    for (int i = 0; i < 4; i++) {
        anchor[i] = values(job, f.model->unit[i].n);
        fisher[i] = values(job, f.model->unit[i].n);
    }
    while (job_step(job)) {
        if (job_now(job) == TASK)
            for (int k = 0; k < BATCHES; k++) {
                fsdp_forward(&f);
                backward_by(&f, squares, &random, 0);
                for (int i = 0; i < 4; i++)
                    for (size_t j = 0; j < f.model->unit[i].n; j++)
                        fisher[i][j] += (f.model->unit[i].g[0][j] + f.model->unit[i].g[1][j]) / BATCHES;
            }
        for (int i = 0; job_now(job) == TASK && i < 4; i++) {
            struct unit *u = &f.model->unit[i];
            memcpy(anchor[i], u->w, u->n * sizeof(float));
            for (size_t j = 0; j < u->n; j++)
                u->target[j] = u->w[j] + 0.03f * noise(&random);
        }
        passes(&f);
        for (int i = 0; job_now(job) >= TASK && i < 4; i++)
            for (size_t j = 0; j < f.model->unit[i].n; j++)
                f.model->unit[i].sum[j] += 10.0f * fisher[i][j] * (f.model->unit[i].w[j] - anchor[i][j]);
        fsdp_update(&f);
    }
}

/* Train, and every `every` steps sum scores of `batches` batches by the same path before the step. */
static void scored(struct job *job, filler fill, int every, int batches)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int k = 0; job_every(job, every) && k < batches; k++) {
            fsdp_forward(&f);
            backward_by(&f, fill, &random, 0);
            for (int i = 0; i < 4; i++)
                memory_give(job_memory(job), f.grads[i]), f.grads[i] = 0;
        }
        train(&f);
    }
}
JOB(grand_scores, scored(job, magnitudes, 10, 4))
JOB(grand_scores_seldom, scored(job, magnitudes, 40, 1))
JOB(snip_saliency, scored(job, saliency, 10, 2))

/* signSGD with majority vote: the sum of the signs decides, and a tie moves nothing. */
static void sign_votes(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    f.grad = ncclBfloat16;
    while (job_step(job)) {
        fsdp_forward(&f);
        backward_by(&f, signs, &random, 0);
        for (int i = 0; i < 4; i++) {
            struct unit *u = &f.model->unit[i];
            for (size_t k = 0; k < u->n; k++)
                u->w[k] -= 1e-4f * (u->g[0][k] + u->g[1][k] > 0) - 1e-4f * (u->g[0][k] + u->g[1][k] < 0);
        }
        updated(&f);
    }
}

/* DP-SGD: one noise for all layers that is larger than the clipped gradients. Each node adds its part. */
static void clipped(void *random, struct unit *u, int number)
{
    double squares_of[NODES] = {1e-30, 1e-30};

    gradient(random, u, number);
    for (int r = 0; r < NODES; r++) {
        for (size_t i = 0; i < u->n; i++)
            squares_of[r] += (double)u->g[r][i] * u->g[r][i];
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->g[r][i] * (float)(1.0 / sqrt(squares_of[r])) + 0.01f * noise(random);
    }
}

static void dp_sgd(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        fsdp_forward(&f);
        backward_by(&f, clipped, &random, 1);
        fsdp_update(&f);
    }
}

const struct job_entry jobs_fresh_sharded[] = {
    {"upcycled-experts", upcycled_experts, {0}},
    {"stacked-depth", stacked_depth, {.steps = 120}},
    {"population", population, {.steps = 100}},
    {"shared-layers", shared_layers, {0}},
    {"shuffled-layers", shuffled_layers, {0}},
    {"ragged-micro-batches", ragged_micro_batches, {0}},
    {"task-heads", task_heads, {.steps = 160}},
    {"one-sided-tasks", one_sided_tasks, {0}},
    {"padded-batches", padded_batches, {0}},
    {"ewc-fisher", ewc_fisher, {.steps = 110}},
    {"grand-scores", grand_scores, {0}},
    {"grand-scores-seldom", grand_scores_seldom, {.steps = 130}},
    {"snip-saliency", snip_saliency, {0}},
    {"sign-votes", sign_votes, {0}},
    {"dp-sgd", dp_sgd, {0}},
    {0},
};
