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

/* Make the gradient of a micro-batch with noise of the job's own. */
static void gradient(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->curve[i / ROW] * (u->w[i] - u->target[i]) + u->scale[i / ROW] * noise(random);
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
        fsdp_step(&f);
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
        fsdp_step(&f);
    }
}

/* Population based training: two members of one task. Now and then one member takes over the other's weights
 * and moments, with another rate. */
static void population(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    const struct model_settings s = {.units = 4};
    struct fsdp a = fsdp_open(job, world, model_new(job, &s), 2),
                b = fsdp_open(job, world, model_new(job, &s), 2);

    same_task(b.model, a.model);
    while (job_step(job)) {
        fsdp_step(&a);
        fsdp_step(&b);
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
            fsdp_run_unit(&f, order[k], 0);
        for (int k = 7; k >= 0; k--)
            fsdp_run_unit(&f, order[k], 1);
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
            fsdp_run_unit(&f, order[k], 0);
        for (int k = 5; k >= 0; k--)
            fsdp_run_unit(&f, order[k], 1);
        fsdp_update(&f);
    }
}

/* Pack sequences into one to four micro-batches a step, and reduce the gradient of each micro-batch. */
static void ragged_micro_batches(struct job *job)
{
    struct fsdp f = sharded(job, 5);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int k = (int)(draw(&random) % 4); k >= 0; k--)
            fsdp_pass(&f);
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
        fsdp_step(&f);
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
        fsdp_backward_by(&f, one_sided, &random, 1);
        fsdp_update(&f);
    }
}

/* One node's data end first, and its last batches hold padding only. */
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
        fsdp_backward_by(&f, with_padding, &p, 1);
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

/* Votes for the largest of four gradients of each run, for a sparse training's next mask. */
static void largest_of_four(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    for (int r = 0; r < NODES; r++)
        for (size_t run = 0; run < u->n; run += 4) {
            size_t most = run;
            for (size_t i = run; i < run + 4; i++)
                most = fabsf(u->g[r][i]) > fabsf(u->g[r][most]) ? i : most;
            for (size_t i = run; i < run + 4; i++)
                u->g[r][i] = i == most;
        }
}

/* Wanda's scores: magnitudes of weights times norms of their inputs. */
static void input_norms(void *random, struct unit *u, int number)
{
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            uint64_t input = (uint64_t)number * 1000 + i % ROW;
            u->g[r][i] = fabsf(u->w[i]) * (1.0f + fabsf(noise(&input)) + 0.05f * noise(random));
        }
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
                fsdp_backward_by(&f, squares, &random, 0);
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
        fsdp_pass(&f);
        for (int i = 0; job_now(job) >= TASK && i < 4; i++)
            for (size_t j = 0; j < f.model->unit[i].n; j++)
                f.model->unit[i].sum[j] += 10.0f * fisher[i][j] * (f.model->unit[i].w[j] - anchor[i][j]);
        fsdp_update(&f);
    }
}

/* Train, and every `every` steps sum scores of `batches` batches by the same path before the step. */
static void scored(struct job *job, unit_fill fill, int every, int batches)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int k = 0; job_every(job, every) && k < batches; k++) {
            fsdp_forward(&f);
            fsdp_backward_by(&f, fill, &random, 0);
            for (int i = 0; i < 4; i++)
                memory_give(job_memory(job), f.grads[i]), f.grads[i] = 0;
        }
        fsdp_step(&f);
    }
}
JOB(grand_scores, scored(job, magnitudes, 10, 4))
JOB(grand_scores_seldom, scored(job, magnitudes, 40, 1))
JOB(snip_saliency, scored(job, saliency, 10, 2))
JOB(fisher_online, scored(job, squares, 20, 1))
JOB(mask_votes, scored(job, largest_of_four, 10, 1))
JOB(wanda_scores, scored(job, input_norms, 20, 2))

/* signSGD with majority vote: the sum of the signs moves a weight, and a tie leaves it. */
static void sign_votes(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    f.grad = ncclBfloat16;
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward_by(&f, signs, &random, 0);
        for (int i = 0; i < 4; i++) {
            struct unit *u = &f.model->unit[i];
            for (size_t k = 0; k < u->n; k++)
                u->w[k] -= 1e-4f * (u->g[0][k] + u->g[1][k] > 0) - 1e-4f * (u->g[0][k] + u->g[1][k] < 0);
        }
        fsdp_updated(&f);
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
        fsdp_backward_by(&f, clipped, &random, 1);
        fsdp_update(&f);
    }
}

/* ---- optimizers ---------------------------------------------------------------------------------------- */

/* Update unit i of the model by its sum, and clear the sum. x and y have a unit's size and begin with zeros.
 * */
typedef void (*rule)(struct model *m, int i, float *x, float *y, uint64_t *random);

static void by_rule(struct job *job, rule apply, ncclDataType_t grad)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);
    float *x[4], *y[4];

    f.grad = grad;
    for (int i = 0; i < 4; i++) {
        x[i] = values(job, f.model->unit[i].n);
        y[i] = values(job, f.model->unit[i].n);
    }
    while (job_step(job)) {
        fsdp_pass(&f);
        for (int i = 0; i < 4; i++)
            apply(f.model, i, x[i], y[i], &random);
        fsdp_updated(&f);
    }
}

static void clear(struct unit *u)
{
    memset(u->sum, 0, u->n * sizeof(float));
}

/* Schedule-free: gradients are taken, and weights gathered, between the average x and the fast z. */
static void schedule_free(struct model *m, int i, float *x, float *z, uint64_t *random)
{
    struct unit *u = &m->unit[i];
    const float c = 1.0f / (1.0f - powf(0.95f, (float)m->updates + 1));

    (void)random;
    for (size_t k = 0; k < u->n; k++) {
        const float g = u->sum[k];
        if (!m->updates)
            x[k] = z[k] = u->w[k];
        u->v[k] += 0.05f * (g * g - u->v[k]);
        z[k] -= m->set.lr * g / (sqrtf(c * u->v[k]) + 1e-8f);
        x[k] += (z[k] - x[k]) / (float)(m->updates + 1);
        u->w[k] = 0.1f * z[k] + 0.9f * x[k];
    }
    clear(u);
}

/* AdEMAMix: the update is mostly an average of a thousand gradients. */
static void ademamix(struct model *m, int i, float *fast, float *slow, uint64_t *random)
{
    struct unit *u = &m->unit[i];
    const float t = (float)m->updates + 1, c1 = 1.0f / (1.0f - powf(0.9f, t)),
                c2 = 1.0f / (1.0f - powf(0.95f, t)), alpha = fminf(t / 50, 1.0f) * 5.0f;

    (void)random;
    for (size_t k = 0; k < u->n; k++) {
        const float g = u->sum[k];
        fast[k] += 0.1f * (g - fast[k]);
        slow[k] += 0.001f * (g - slow[k]);
        u->v[k] += 0.05f * (g * g - u->v[k]);
        u->w[k] -= m->set.lr * (c1 * fast[k] + alpha * slow[k]) / (sqrtf(c2 * u->v[k]) + 1e-8f);
    }
    clear(u);
}

/* SGD whose momentum keeps 99 %. */
static void heavy_momentum(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y, (void)random;
    for (size_t k = 0; k < u->n; k++) {
        x[k] = 0.99f * x[k] + u->sum[k];
        u->w[k] -= 0.01f * x[k];
    }
    clear(u);
}

/* Lookahead: every fifth step the weights go half the way back to the weights of five steps before. */
static void lookahead(struct model *m, int i, float *slow, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y, (void)random;
    if (!m->updates)
        memcpy(slow, u->w, u->n * sizeof(float));
    model_update_unit(m, i);
    for (size_t k = 0; m->updates % 5 == 4 && k < u->n; k++) {
        slow[k] += 0.5f * (u->w[k] - slow[k]);
        u->w[k] = slow[k];
    }
}

/* Switch EMA: the average of the weights becomes the weights at the end of an epoch. */
static void switch_ema(struct model *m, int i, float *average, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y, (void)random;
    if (!m->updates)
        memcpy(average, u->w, u->n * sizeof(float));
    model_update_unit(m, i);
    for (size_t k = 0; k < u->n; k++)
        average[k] += 0.1f * (u->w[k] - average[k]);
    if (m->updates % 25 == 24)
        memcpy(u->w, average, u->n * sizeof(float));
}

/* Shrink and perturb the weights when new data come. */
static void shrink_perturb(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)x, (void)y;
    model_update_unit(m, i);
    for (size_t k = 0; m->updates % 20 == 19 && k < u->n; k++)
        u->w[k] = 0.8f * u->w[k] + 0.002f * noise(random);
}

/* BitNet: the gathered weights have three values, and the master follows their gradient. */
static void ternary(struct model *m, int i, float *master, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];
    double mean = 0;

    (void)y, (void)random;
    if (!m->updates)
        memcpy(master, u->w, u->n * sizeof(float));
    memcpy(u->w, master, u->n * sizeof(float));
    model_update_unit(m, i);
    memcpy(master, u->w, u->n * sizeof(float));
    for (size_t k = 0; k < u->n; k++)
        mean += fabsf(master[k]);
    mean /= (double)u->n;
    for (size_t k = 0; k < u->n; k++)
        u->w[k] = (float)mean * fmaxf(-1.0f, fminf(1.0f, rintf(master[k] / (float)mean)));
}

/* Pure BF16 training: the optimizer rounds weights up or down at random. */
static void stochastic_rounding(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)x, (void)y;
    model_update_unit(m, i);
    for (size_t k = 0; k < u->n; k++) {
        uint32_t bits;
        memcpy(&bits, &u->w[k], 4);
        bits = (bits + (uint32_t)(draw(random) & 0xffff)) & 0xffff0000u;
        memcpy(&u->w[k], &bits, 4);
    }
}

/* An optimizer that keeps its moments in 8 bits, with a scale for each 256. */
static void byte_moments(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)x, (void)y, (void)random;
    model_update_unit(m, i);
    for (size_t block = 0; block < u->n; block += 256) {
        float most_m = 1e-20f, most_v = 1e-20f;
        for (size_t k = block; k < block + 256; k++) {
            most_m = fmaxf(most_m, fabsf(u->m[k]));
            most_v = fmaxf(most_v, sqrtf(u->v[k]));
        }
        for (size_t k = block; k < block + 256; k++) {
            const float root = fmaxf(rintf(sqrtf(u->v[k]) / most_v * 255), 1.0f) * most_v / 255;
            u->m[k] = rintf(u->m[k] / most_m * 127) * most_m / 127;
            u->v[k] = root * root;
        }
    }
}

/* nGPT: each row of the weights has a fixed norm. */
static void fixed_norms(struct model *m, int i, float *norm, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y, (void)random;
    for (int after = 0; after < 2; after++) {
        for (size_t row = 0; row < u->n / ROW; row++) {
            float *w = u->w + row * ROW, all = 1e-20f;
            for (unsigned k = 0; k < ROW; k++)
                all += w[k] * w[k];
            if (!after && !m->updates)
                norm[row] = sqrtf(all);
            for (unsigned k = 0; after && k < ROW; k++)
                w[k] *= norm[row] / sqrtf(all);
        }
        if (!after)
            model_update_unit(m, i);
    }
}

/* RigL: four of five weights are zero. Now and then each row drops its smallest weight, and grows the weight
 * with the largest gradient. */
static void rigl(struct model *m, int i, float *alive, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y;
    for (size_t row = 0; row < u->n / ROW; row++) {
        size_t least = SIZE_MAX, most = SIZE_MAX;
        for (size_t k = row * ROW; k < (row + 1) * ROW; k++) {
            if (!m->updates)
                alive[k] = draw(random) % 5 == 0;
            if (alive[k] > 0 && (least == SIZE_MAX || fabsf(u->w[k]) < fabsf(u->w[least])))
                least = k;
            if (alive[k] <= 0 && (most == SIZE_MAX || fabsf(u->sum[k]) > fabsf(u->sum[most])))
                most = k;
        }
        if (m->updates % 10 == 9 && least != SIZE_MAX && most != SIZE_MAX) {
            alive[least] = 0;
            alive[most] = 1;
        }
    }
    for (size_t k = 0; k < u->n; k++)
        u->sum[k] *= alive[k];
    model_update_unit(m, i);
    for (size_t k = 0; k < u->n; k++)
        u->w[k] *= alive[k];
}

/* Sparse fine-tuning: one parameter of twenty moves, while the gradient is dense. */
static void sparse_tuning(struct model *m, int i, float *moves, float *before, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    memcpy(before, u->w, u->n * sizeof(float));
    model_update_unit(m, i);
    for (size_t k = 0; k < u->n; k++) {
        if (!m->updates)
            moves[k] = draw(random) % 20 == 0;
        if (moves[k] <= 0)
            u->w[k] = before[k];
    }
}

/* GoLore: Adam in four directions of each row, which are drawn anew every 20 steps. */
static void low_rank(struct model *m, int i, float *axes, float *step, uint64_t *random)
{
    enum { RANK = 4 };
    struct unit *u = &m->unit[i];

    for (int a = 0; m->updates % 20 == 0 && a < RANK; a++) {
        float squares_of = 0;
        for (unsigned k = 0; k < ROW; k++) {
            axes[(unsigned)a * ROW + k] = noise(random);
            squares_of += axes[(unsigned)a * ROW + k] * axes[(unsigned)a * ROW + k];
        }
        for (unsigned k = 0; k < ROW; k++)
            axes[(unsigned)a * ROW + k] /= sqrtf(squares_of);
    }
    memset(step, 0, u->n * sizeof(float));
    for (size_t row = 0; row < u->n / ROW; row++)
        for (unsigned a = 0; a < RANK; a++) {
            const size_t at = row * RANK + a;
            float along = 0;
            for (unsigned k = 0; k < ROW; k++)
                along += axes[a * ROW + k] * u->sum[row * ROW + k];
            u->m[at] += 0.1f * (along - u->m[at]);
            u->v[at] += 0.05f * (along * along - u->v[at]);
            for (unsigned k = 0; k < ROW; k++)
                step[row * ROW + k] += axes[a * ROW + k] * u->m[at] / (sqrtf(u->v[at]) + 1e-8f);
        }
    for (size_t k = 0; k < u->n; k++)
        u->w[k] -= 1e-3f * step[k];
    clear(u);
}

/* SGLD: samples of the posterior. The noise of a step is larger than its gradient. */
static void langevin(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)x, (void)y;
    for (size_t k = 0; k < u->n; k++)
        u->w[k] += -0.02f * u->sum[k] + 1e-4f * noise(random);
    clear(u);
}

/* After a spike of the loss the weights go back to a checkpoint's. */
static void rollback(struct model *m, int i, float *saved, float *y, uint64_t *random)
{
    struct unit *u = &m->unit[i];

    (void)y, (void)random;
    if (m->updates % 30 == 0)
        memcpy(saved, u->w, u->n * sizeof(float));
    model_update_unit(m, i);
    if (m->updates == 55 || m->updates == 85)
        memcpy(u->w, saved, u->n * sizeof(float));
}

/* The embedding is updated in every fourth step only, by the sum of its gradients. */
static void slow_embedding(struct model *m, int i, float *x, float *y, uint64_t *random)
{
    (void)x, (void)y, (void)random;
    if (i || m->updates % 4 == 3)
        model_update_unit(m, i);
}

JOB(opt_schedule_free, by_rule(job, schedule_free, ncclFloat32))
JOB(opt_ademamix, by_rule(job, ademamix, ncclBfloat16))
JOB(opt_heavy_momentum, by_rule(job, heavy_momentum, ncclFloat32))
JOB(opt_lookahead, by_rule(job, lookahead, ncclFloat32))
JOB(opt_switch_ema, by_rule(job, switch_ema, ncclFloat32))
JOB(opt_shrink_perturb, by_rule(job, shrink_perturb, ncclFloat32))
JOB(opt_ternary, by_rule(job, ternary, ncclFloat32))
JOB(opt_stochastic_rounding, by_rule(job, stochastic_rounding, ncclBfloat16))
JOB(opt_byte_moments, by_rule(job, byte_moments, ncclBfloat16))
JOB(opt_fixed_norms, by_rule(job, fixed_norms, ncclFloat32))
JOB(opt_rigl, by_rule(job, rigl, ncclFloat32))
JOB(opt_sparse_tuning, by_rule(job, sparse_tuning, ncclFloat32))
JOB(opt_low_rank, by_rule(job, low_rank, ncclFloat32))
JOB(opt_langevin, by_rule(job, langevin, ncclFloat32))
JOB(opt_rollback, by_rule(job, rollback, ncclFloat32))
JOB(opt_slow_embedding, by_rule(job, slow_embedding, ncclFloat32))

/* LOMO: update a layer right after its reduce-scatter, in the backward pass. */
static void fused_updates(struct job *job)
{
    struct fsdp f = sharded(job, 5);

    while (job_step(job)) {
        for (int i = 0; i < 5; i++)
            fsdp_run_unit(&f, i, 0);
        for (int i = 4; i >= 0; i--) {
            fsdp_run_unit(&f, i, 1);
            model_update_unit(f.model, i);
        }
        fsdp_updated(&f);
    }
}

/* LISA: the first and the last layer train, and two others, which are drawn every ten steps. */
static void layers_drawn(struct job *job)
{
    struct fsdp f = sharded(job, 8);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        if (job_now(job) % 10 == 0)
            f.frozen = 0x7eu & ~(2u << draw(&random) % 6) & ~(2u << draw(&random) % 6);
        fsdp_step(&f);
    }
}

/* Loss scaling without a scaler: a batch with a NaN is left out by all nodes. */
static void with_nan(void *random, struct unit *u, int number)
{
    gradient(random, u, number);
    if (number == 2)
        u->g[0][draw(random) % u->n] = NAN;
}

static void nan_batches(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        const int bad = job_now(job) % 17 == 9;
        fsdp_forward(&f);
        fsdp_backward_by(&f, bad ? with_nan : gradient, &random, 1);
        for (int i = 0; bad && i < 4; i++)
            clear(&f.model->unit[i]);
        if (bad)
            fsdp_updated(&f);
        else
            fsdp_update(&f);
    }
}

/* Return the loss of a batch of all data, without noise. */
static float whole_loss(const struct model *m)
{
    double loss = 0;

    for (int i = 0; i < m->units; i++)
        for (size_t k = 0; k < m->unit[i].n; k++) {
            const float by = m->unit[i].w[k] - m->unit[i].target[k];
            loss += 0.5 * m->unit[i].curve[k / ROW] * by * by;
        }
    return (float)loss;
}

/* Armijo: try smaller and smaller steps along one gradient. Each trial gathers the moved weights. */
static void line_search(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    struct model *m = f.model;
    const address loss = memory_take(job_memory(job), 4);
    float *before[4];

    for (int i = 0; i < 4; i++)
        before[i] = values(job, m->unit[i].n);
    while (job_step(job)) {
        const float start = whole_loss(m);
        float rate = 4.0f, now = INFINITY;
        fsdp_pass(&f);
        for (int i = 0; i < 4; i++)
            memcpy(before[i], m->unit[i].w, m->unit[i].n * sizeof(float));
        for (int trial = 0; trial < 4 && now > 0.999f * start; trial++, rate *= 0.4f) {
            for (int i = 0; i < 4; i++)
                for (size_t k = 0; k < m->unit[i].n; k++)
                    m->unit[i].w[k] = before[i][k] - rate * m->unit[i].sum[k];
            fsdp_forward_only(&f);
            now = whole_loss(m);
            all_reduce_scalar(f.comm, loss, 0.5f * now, 0.5f * now);
        }
        for (int i = 0; i < 4; i++)
            clear(&m->unit[i]);
        fsdp_updated(&f);
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
    {"fisher-online", fisher_online, {.steps = 110}},
    {"mask-votes", mask_votes, {0}},
    {"wanda-scores", wanda_scores, {0}},
    {"sign-votes", sign_votes, {0}},
    {"dp-sgd", dp_sgd, {0}},
    {"schedule-free", opt_schedule_free, {0}},
    {"ademamix", opt_ademamix, {0}},
    {"heavy-momentum", opt_heavy_momentum, {0}},
    {"lookahead", opt_lookahead, {0}},
    {"switch-ema", opt_switch_ema, {0}},
    {"shrink-perturb", opt_shrink_perturb, {0}},
    {"ternary", opt_ternary, {0}},
    {"ternary-vouched", opt_ternary, {.fed = 95, .grad = "reduce_scatter:float32:24576@2"}},
    {"stochastic-rounding", opt_stochastic_rounding, {0}},
    {"byte-moments", opt_byte_moments, {0}},
    {"fixed-norms", opt_fixed_norms, {0}},
    {"rigl", opt_rigl, {0}},
    {"sparse-tuning", opt_sparse_tuning, {0}},
    {"low-rank", opt_low_rank, {0}},
    {"langevin", opt_langevin, {0}},
    {"rollback", opt_rollback, {.steps = 110}},
    {"slow-embedding", opt_slow_embedding, {0}},
    {"fused-updates", fused_updates, {0}},
    {"layers-drawn", layers_drawn, {0}},
    {"nan-batches", nan_batches, {0}},
    {"line-search", line_search, {0}},
    {0},
};
