/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of training methods that do more in a step than one forward and one backward pass of one model: second
 * passes over the same units, inner loops, several adapters, other sums in the gradients' places.
 */
#include <math.h>
#include <string.h>

#include "lib/parallel.h"
#include "policy/job/job.h"

/* ---- parts of a step ----------------------------------------------------------------------------------- */

/* Shard a model of four units. The framework tells NCCL this name of the communicator, or none. */
static struct fsdp sharded_on(struct job *job, ncclDataType_t grad, const char *name)
{
    struct model *m = model_new(job, &(struct model_settings){.units = 4});
    struct fsdp f = fsdp_open(job, comm_between(job, name), m, 2);

    f.grad = grad;
    return f;
}

static struct fsdp sharded(struct job *job, ncclDataType_t grad)
{
    return sharded_on(job, grad, NULL);
}

/* Free the weights that a forward pass without a backward pass has gathered. */
static void release(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->full[i]);
        f->full[i] = 0;
    }
}

/* Free the gradients without an update. */
static void drop(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->grads[i]);
        f->grads[i] = 0;
    }
}

/* Fill u->g, the contributions of both nodes, with other values than gradients. */
typedef void (*filler)(void *random, struct unit *u, int number);

/* Run a backward pass that sums such values in the gradients' places. */
static void backward_of(struct fsdp *f, filler fill, uint64_t *random)
{
    struct model *m = f->model, view = *m;
    const struct model_source source = {.gradient = fill, .arg = random};

    view.set.source = &source;
    for (int i = 0; i < m->units; i++) {
        view.unit[i].sum = NULL;
        view.unit[i].buffer = EXACT;
    }
    f->model = &view;
    fsdp_backward(f);
    f->model = m;
    drop(f);
}

/* Run a backward pass whose gradients no update uses directly. The plugin need not recognise them. */
static void backward_unapplied(struct fsdp *f)
{
    struct model *m = f->model;

    for (int i = 0; i < m->units; i++)
        m->unit[i].buffer = EITHER(m->unit[i].buffer);
    fsdp_backward(f);
    for (int i = 0; i < m->units; i++)
        m->unit[i].buffer = -m->unit[i].buffer;
    drop(f);
}

/* ---- two gradients a step ------------------------------------------------------------------------------ */

/* Move all weights by `by` along the summed gradients, scaled to a norm of 1 in each unit (`scaled`),
 * and clear these. Save the weights before. */
static void move_along(struct model *m, float **before, float by, int scaled)
{
    for (int i = 0; i < m->units; i++) {
        struct unit *u = &m->unit[i];
        double squares = 1e-30;
        memcpy(before[i], u->w, u->n * sizeof(float));
        for (size_t k = 0; k < u->n; k++)
            squares += (double)u->sum[k] * u->sum[k];
        for (size_t k = 0; k < u->n; k++)
            u->w[k] += by * u->sum[k] * (scaled ? (float)(1.0 / sqrt(squares)) : 1.0f);
        memset(u->sum, 0, u->n * sizeof(float));
    }
}

/* SAM climbs along the first gradient and takes the second one there. MAML goes down along the first. In both
 * the weights before are moved by the second gradient. */
static void two_gradients(struct job *job, float by, int scaled, const char *name)
{
    struct fsdp f = sharded_on(job, ncclFloat32, name);
    struct model *m = f.model;
    float *before[UNITS_MOST];

    for (int i = 0; i < m->units; i++)
        before[i] = values(job, m->unit[i].n);
    while (job_step(job)) {
        fsdp_forward(&f);
        backward_unapplied(&f);
        move_along(m, before, by, scaled);
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (int i = 0; i < m->units; i++)
            memcpy(m->unit[i].w, before[i], m->unit[i].n * sizeof(float));
        fsdp_update(&f);
    }
}
JOB(sam, two_gradients(job, 0.05f, 1, NULL))
JOB(sam_named, two_gradients(job, 0.05f, 1, "mesh nibble:gradients"))
JOB(maml, two_gradients(job, -0.5f, 0, NULL))

/* Make the gradient of the other model's batch. The weights differ, and so does a part of the noise. */
struct same_batch {
    const struct model *other;
    uint64_t random;
};

static void of_same_batch(void *arg, struct unit *u, int number)
{
    struct same_batch *batch = arg;
    const struct unit *other = &batch->other->unit[number];

    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            const size_t row = i / ROW;
            const float alike = other->g[r][i] - other->curve[row] * (other->w[i] - other->target[i]);
            u->g[r][i] = u->curve[row] * (u->w[i] - u->target[i]) + 0.8f * alike +
                         0.6f * u->scale[row] * noise(&batch->random);
        }
}

/* SVRG (Johnson and Zhang, 2013): every `every` steps, keep the weights as a snapshot, and compute its
 * gradient over all batches. Each step computes a batch's gradient at the weights and at the snapshot. The
 * weights move by their difference and the snapshot's gradient. */
static void svrg(struct job *job, int every, int version, int own_comm)
{
    enum { BATCHES = 6 };
    struct comm *world = comm_between(job, NULL);
    const struct model_settings set = {.units = 4, .optimizer = SGD};
    struct fsdp f = fsdp_open(job, world, model_new(job, &set), version),
                s = fsdp_open(job, own_comm ? comm_between(job, NULL) : world, model_new(job, &set), version);
    struct unit *u = f.model->unit, *old = s.model->unit;
    struct same_batch batch = {f.model, 73};
    const struct model_source source = {.gradient = of_same_batch, .arg = &batch};
    float *full[UNITS_MOST];

    for (int i = 0; i < set.units; i++) {
        full[i] = values(job, u[i].n);
        old[i].target = u[i].target;
        old[i].curve = u[i].curve;
        old[i].scale = u[i].scale;
        old[i].buffer = EITHER(old[i].buffer);
    }
    while (job_step(job)) {
        if (job_now(job) % every == 0) {
            s.model->set.source = NULL;
            for (int i = 0; i < set.units; i++)
                memcpy(old[i].w, u[i].w, u[i].n * sizeof(float));
            for (int b = 0; b < BATCHES; b++)
                fsdp_forward(&s), fsdp_backward(&s);
            drop(&s);
            for (int i = 0; i < set.units; i++)
                for (size_t k = 0; k < u[i].n; k++)
                    full[i][k] = old[i].sum[k] / BATCHES, old[i].sum[k] = 0;
        }
        s.model->set.source = &source;
        fsdp_forward(&f), fsdp_backward(&f);
        fsdp_forward(&s), fsdp_backward(&s);
        drop(&s);
        for (int i = 0; i < set.units; i++)
            for (size_t k = 0; k < u[i].n; k++)
                u[i].sum[k] += full[i][k] - old[i].sum[k], old[i].sum[k] = 0;
        fsdp_update(&f);
    }
}
JOB(svrg_vouched, svrg(job, 20, 2, 0))
JOB(svrg_fsdp1, svrg(job, 100, 1, 0))
JOB(svrg_own_comm, svrg(job, 20, 2, 1))

/* ---- second passes that sum something else ------------------------------------------------------------- */

/* Hutchinson's estimate of the diagonal: v times Hv, with signs as v. */
static void hutchinson(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->curve[i / ROW] * (1.0f + 2.0f * noise(random));
}

/* Gauss, Newton and Bartlett: squares of gradients for sampled labels, times the batch. */
static void bartlett(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            const float g = u->scale[i / ROW] * noise(random);
            u->g[r][i] = 64.0f * g * g;
        }
}

/* The gradients of this many examples, one by one. */
#define EXAMPLES 16
#define CLEAR 1.0f

static float of_example(const struct unit *u, size_t i, void *random)
{
    return u->curve[i / ROW] * (u->w[i] - u->target[i]) + u->scale[i / ROW] * noise(random);
}

/* Scores by which examples are chosen, or parameters pruned: magnitudes of the examples' gradients. */
static void magnitudes(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            u->g[r][i] = 0;
            for (int k = 0; k < EXAMPLES / 4; k++)
                u->g[r][i] += fabsf(of_example(u, i, random)) / (EXAMPLES / 4);
        }
}

/* Votes of the examples whose gradients are clear. Parameters whose examples disagree are masked. */
static void votes(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            u->g[r][i] = 0;
            for (int k = 0; k < EXAMPLES; k++) {
                const float g = of_example(u, i, random);
                u->g[r][i] += (float)(g > CLEAR) - (float)(g < -CLEAR);
            }
        }
}

/* Masters that went their own way for some steps. */
static void masters(void *random, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->w[i] + 1e-3f * noise(random);
}

/* Make all gradients larger. AdamW does not notice. */
static void scale_loss(struct model *m, float by)
{
    for (int i = 0; i < m->units; i++)
        for (size_t row = 0; row < m->unit[i].n / ROW; row++) {
            m->unit[i].curve[row] *= by;
            m->unit[i].scale[row] *= by;
        }
}

static void second_pass(struct job *job, filler fill, int every, ncclDataType_t grad)
{
    struct fsdp f = sharded(job, grad);
    uint64_t random = 41;

    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        if (job_every(job, every)) {
            /* the gradients stay where they are meanwhile, and the pass has memory of its own */
            struct fsdp second = f;
            memset(second.grads, 0, sizeof(second.grads));
            fsdp_forward(&second);
            backward_of(&second, fill, &random);
        }
        fsdp_update(&f);
    }
}
JOB(adahessian, second_pass(job, hutchinson, 1, ncclFloat32))
JOB(sophia_h, second_pass(job, hutchinson, 10, ncclFloat32))
JOB(sophia_g, second_pass(job, bartlett, 10, ncclFloat32))

/* Sum something else by the gradients' own path in every `every`-th step, in place of the gradients. */
static void instead(struct job *job, filler fill, int every, ncclDataType_t grad, float loss_scale)
{
    struct fsdp f = sharded(job, grad);
    uint64_t random = 43;

    scale_loss(f.model, loss_scale);
    while (job_step(job)) {
        if (!job_every(job, every)) {
            fsdp_step(&f);
            continue;
        }
        fsdp_forward(&f);
        backward_of(&f, fill, &random);
    }
}
JOB(masters_instead, instead(job, masters, 10, ncclFloat32, 1))
JOB(magnitudes_instead, instead(job, magnitudes, 30, ncclFloat32, 1))
JOB(votes_instead, instead(job, votes, 30, ncclFloat16, 4096))

/* Evaluate for five batches in every 50th step. Each sums logits of as many values as a unit has, in
 * memory that the weights and gradients have used. */
static void evaluation_sums(struct job *job)
{
    struct fsdp f = sharded(job, ncclFloat32);
    const size_t n = f.model->unit[1].n;
    float *x = values(job, n), *y = values(job, n);
    uint64_t random = 47;

    while (job_step(job)) {
        fsdp_step(&f);
        for (int batch = 0; job_every(job, 50) && batch < 5; batch++) {
            struct buffer b = {.type = ncclFloat32, .n = n};
            fsdp_forward(&f);
            release(&f);
            b.send = memory_take(job_memory(job), n * 4);
            b.recv = memory_take(job_memory(job), n * 4 / NODES);
            partial_products(&random, 3, 64, n, x);
            partial_products(&random, 3, 64, n, y);
            reduce_scatter(f.comm, &b, x, y);
            memory_give(job_memory(job), b.send);
            memory_give(job_memory(job), b.recv);
        }
    }
}

/* ---- several models and adapters ----------------------------------------------------------------------- */

/* PPO: every fourth step begins with a rollout, which only gathers: the actor generates three times, and
 * a frozen reference and the critic judge. Each step trains actor and critic. Advantages are summed by a
 * script. */
static void ppo(struct job *job, size_t critic_n)
{
    struct comm *world = comm_between(job, NULL);
    const struct model_settings usual = {.units = 4}, other = {.units = 4, .n = critic_n};
    struct fsdp actor = fsdp_open(job, world, model_new(job, &usual), 2),
                reference = fsdp_open(job, world, model_new(job, &usual), 2),
                critic = fsdp_open(job, world, model_new(job, &other), 2);
    enum { ADVANTAGES = 16384 };
    const address at = memory_take(job_memory(job), ADVANTAGES * 4);
    float *x = values(job, ADVANTAGES);
    uint64_t random = 53;

    for (int i = 0; i < 4; i++)
        memcpy(reference.model->unit[i].w, actor.model->unit[i].w, actor.model->unit[i].n * sizeof(float));
    while (job_step(job)) {
        if (job_now(job) % 4 == 0) {
            for (int k = 0; k < 3; k++)
                fsdp_forward(&actor), release(&actor);
            fsdp_forward(&reference), release(&reference);
            fsdp_forward(&critic), release(&critic);
            for (int i = 0; i < ADVANTAGES; i++)
                x[i] = noise(&random);
            all_reduce(world, &(struct buffer){.type = ncclFloat32, .n = ADVANTAGES, .send = at, .recv = at},
                       x, x);
        }
        fsdp_step(&actor);
        fsdp_step(&critic);
    }
}
JOB(ppo_one_comm, ppo(job, 16384))
JOB(ppo_alike, ppo(job, 24576))

/* Four adapters of three equal units each. Each step trains one, at random or in long turns. */
static void adapters(struct job *job, int turn)
{
    struct model *m = model_new(job, &(struct model_settings){.units = 12, .n = 16384, .lr = 1e-3f});
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), m, 2);
    uint64_t random = 59;

    while (job_step(job)) {
        const int now = turn ? job_now(job) / turn % 4 : (int)(draw(&random) % 4);
        f.skip = 0xfffu & ~(7u << 3 * now);
        fsdp_step(&f);
    }
}
JOB(adapters_at_random, adapters(job, 0))
JOB(adapters_in_turns, adapters(job, 15))

/* ---- inner loops over something that is gathered ------------------------------------------------------- */

/* Adversarial training: perturb the inputs in inner steps down the signs of their summed gradients, to a
 * target. Each batch starts again. The gathered perturbation has a unit's size. */
static void perturbed(struct job *job, int inner, ncclDataType_t grad)
{
    struct fsdp f = sharded(job, grad);
    const size_t n = f.model->unit[1].n;
    const address full = memory_take(job_memory(job), n * 2), in = memory_take(job_memory(job), n * 4),
                  out = memory_take(job_memory(job), n * 4 / NODES);
    float *x = values(job, n), *target = values(job, n), *g[NODES] = {values(job, n), values(job, n)};
    uint64_t random = 61;

    while (job_step(job)) {
        for (size_t i = 0; i < n; i++)
            x[i] = 0.01f * noise(&random), target[i] = noise(&random);
        for (int k = 0; k < inner; k++) {
            all_gather(f.comm, &(struct buffer){.type = f.param, .n = n, .send = full, .recv = full}, x);
            fsdp_forward(&f);
            release(&f);
            for (int r = 0; r < NODES; r++)
                for (size_t i = 0; i < n; i++)
                    g[r][i] = 1e-3f * (0.2f * (x[i] - target[i]) + 0.3f * noise(&random));
            reduce_scatter(f.comm, &(struct buffer){.type = f.grad, .n = n, .send = in, .recv = out}, g[0],
                           g[1]);
            for (size_t i = 0; i < n; i++)
                x[i] -= 0.01f * (g[0][i] + g[1][i] > 0 ? 1.0f : -1.0f);
        }
        fsdp_step(&f);
    }
}
JOB(perturbed_inputs, perturbed(job, 3, ncclFloat32))
JOB(perturbed_inputs_bf16, perturbed(job, 5, ncclBfloat16))

/* SOAP: sum products of gradients in each step, and gather the bases that follow from their average by a
 * step of power iteration every few steps. The products have a unit's size and the gradients' type. */
#define SIDE 16u
static void next_basis(const float *a, float *q)
{
    float x[SIDE][SIDE] = {{0}};

    for (unsigned c = 0; c < SIDE; c++) {
        float squares = 1e-20f;
        for (unsigned i = 0; i < SIDE; i++)
            for (unsigned k = 0; k < SIDE; k++)
                x[c][i] += a[i * SIDE + k] * q[k * SIDE + c];
        for (unsigned d = 0; d < c; d++) {
            float along = 0;
            for (unsigned i = 0; i < SIDE; i++)
                along += x[c][i] * x[d][i];
            for (unsigned i = 0; i < SIDE; i++)
                x[c][i] -= along * x[d][i];
        }
        for (unsigned i = 0; i < SIDE; i++)
            squares += x[c][i] * x[c][i];
        for (unsigned i = 0; i < SIDE; i++)
            x[c][i] /= sqrtf(squares);
    }
    for (unsigned i = 0; i < SIDE * SIDE; i++)
        q[i] = x[i % SIDE][i / SIDE];
}

static void soap(struct job *job, int every)
{
    struct fsdp f = sharded(job, ncclFloat32);
    const size_t n = f.model->unit[1].n;
    const address at = memory_take(job_memory(job), n * 4), in = memory_take(job_memory(job), n * 4),
                  out = memory_take(job_memory(job), n * 4 / NODES);
    float *average = values(job, n), *q = values(job, n), *x[NODES] = {values(job, n), values(job, n)};
    const struct unit *u = &f.model->unit[1];

    for (size_t i = 0; i < n; i++)
        q[i] = i % SIDE == i / SIDE % SIDE;
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_backward(&f);
        for (int r = 0; r < NODES; r++)
            for (size_t b = 0; b < n; b += SIDE * SIDE)
                for (unsigned i = 0; i < SIDE * SIDE; i++) {
                    x[r][b + i] = 0;
                    for (unsigned k = 0; k < SIDE; k++)
                        x[r][b + i] +=
                            1e3f * u->g[r][b + i / SIDE * SIDE + k] * u->g[r][b + i % SIDE * SIDE + k];
                }
        reduce_scatter(f.comm, &(struct buffer){.type = f.grad, .n = n, .send = in, .recv = out}, x[0], x[1]);
        for (size_t i = 0; i < n; i++)
            average[i] += 0.05f * ((x[0][i] + x[1][i]) / 2 - average[i]);
        if (job_every(job, every)) {
            for (size_t b = 0; b < n; b += SIDE * SIDE)
                next_basis(average + b, q + b);
            all_gather(f.comm, &(struct buffer){.type = ncclFloat32, .n = n, .send = at, .recv = at}, q);
        }
        fsdp_update(&f);
    }
}
JOB(soap_bases, soap(job, 2))

/* A codebook of a unit's size: sum the vectors that fell to each code word, and gather the words, which
 * follow their averages. differences: sum the distances from the words instead. That is the gradient of
 * k-means. */
static void codebook(struct job *job, int differences)
{
    struct fsdp f = sharded(job, ncclFloat32);
    const size_t n = f.model->unit[1].n;
    const address at = memory_take(job_memory(job), n * 4), in = memory_take(job_memory(job), n * 4),
                  out = memory_take(job_memory(job), n * 4 / NODES);
    const struct buffer sum = {.type = f.grad,
                               .n = n,
                               .send = in,
                               .recv = out,
                               .what = differences ? EITHER(job_buffer(job)) : EXACT};
    float *word = values(job, n), *home = values(job, n), *x[NODES] = {values(job, n), values(job, n)};
    uint64_t random = 67;

    for (size_t i = 0; i < n; i++)
        home[i] = noise(&random), word[i] = noise(&random);
    while (job_step(job)) {
        all_gather(f.comm, &(struct buffer){.type = ncclFloat32, .n = n, .send = at, .recv = at}, word);
        fsdp_forward(&f);
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < n; i++)
                x[r][i] = home[i] + 0.5f * noise(&random) - (differences ? word[i] : 0.0f);
        reduce_scatter(f.comm, &sum, x[0], x[1]);
        for (size_t i = 0; i < n; i++) {
            const float mean = (x[0][i] + x[1][i]) / 2;
            word[i] += 0.02f * (differences ? mean : mean - word[i]);
        }
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}
JOB(codebook_sharded, codebook(job, 0))
JOB(codebook_differences, codebook(job, 1))

/* ---- activations of the gradients' type and size ------------------------------------------------------- */

/* Between the units of both passes: gather keys and values of all positions, and in the backward pass
 * sum their gradients. `sizes`: as many tokens as came to the experts of this step, from an eighth of a
 * unit to twice it. forward: the combined outputs are summed, too, and the logits of a teacher at the
 * end. */
static void between_units(struct job *job, int sizes, int forward, ncclDataType_t type, uint64_t tag)
{
    struct fsdp f = sharded(job, type);
    struct model *m = f.model;
    const size_t unit = m->unit[1].n;
    float *x[NODES] = {values(job, 2 * unit), values(job, 2 * unit)};
    uint64_t random = 71;

    while (job_step(job)) {
        const size_t n = sizes ? unit / 8 * (1 + draw(&random) % 16) : unit;
        struct model one = *m;
        struct fsdp layer = f;
        layer.model = &one;
        one.units = 1;
        for (int pass = 0; pass < 2; pass++)
            for (int k = 0; k < m->units; k++) {
                const int i = pass ? m->units - 1 - k : k;
                const address at = memory_take(job_memory(job), n * 4),
                              to = memory_take(job_memory(job), n * 4 / NODES);
                const struct buffer whole = {.type = type, .n = n, .send = at, .recv = at},
                                    sum = {.type = type, .n = n, .send = at, .recv = to, .tag = tag};
                activations(&random, (uint64_t)i, 256, n, x[0]);
                all_gather(f.comm, &whole, x[0]);
                for (int r = 0; r < NODES; r++)
                    partial_products(&random, (uint64_t)i + 100, 256, n, x[r]);
                for (size_t j = 0; pass && j < n; j++)
                    x[0][j] *= 1e-3f, x[1][j] *= 1e-3f;
                if (pass || forward)
                    reduce_scatter(f.comm, &sum, x[0], x[1]);
                memory_give(job_memory(job), at);
                memory_give(job_memory(job), to);
                one.unit[0] = m->unit[i];
                layer.full[0] = f.full[i];
                layer.grads[0] = f.grads[i];
                if (pass)
                    fsdp_backward(&layer);
                else
                    fsdp_forward(&layer);
                if (!pass && i + 1 < m->units)
                    release(&layer);
                f.full[i] = layer.full[0];
                f.grads[i] = layer.grads[0];
                m->unit[i] = one.unit[0];
            }
        fsdp_update(&f);
    }
}
JOB(context_of_a_units_size, between_units(job, 0, 0, ncclBfloat16, 0))
JOB(distilled_logits, between_units(job, 0, 1, ncclBfloat16, 0))
JOB(distilled_logits_tagged, between_units(job, 0, 1, ncclBfloat16, NB_TAG_EXACT))
JOB(experts_of_changing_sizes, between_units(job, 1, 1, ncclBfloat16, 0))

/* ---- schedules ----------------------------------------------------------------------------------------- */

/* Reduce one, then two, then four micro-batches a step. */
static void batch_ramp(struct job *job)
{
    struct fsdp f = sharded(job, ncclFloat32);

    while (job_step(job)) {
        for (int k = 0; k < 1 << job_now(job) / 40; k++) {
            fsdp_forward(&f);
            fsdp_backward(&f);
        }
        fsdp_update(&f);
    }
}

/* Gather masters and both moments for a checkpoint between forward and backward pass of every seventh
 * step. */
static void checkpoint_inside(struct job *job)
{
    struct fsdp f = sharded(job, ncclFloat32);
    const address at = memory_take(job_memory(job), f.model->unit[1].n * 4);

    while (job_step(job)) {
        fsdp_forward(&f);
        for (int i = 0; job_every(job, 7) && i < f.model->units; i++) {
            const struct unit *u = &f.model->unit[i];
            const struct buffer full = {.type = ncclFloat32, .n = u->n, .send = f.shard[i], .recv = at},
                                bf16 = {.type = ncclBfloat16, .n = u->n, .send = f.shard[i], .recv = at};
            all_gather(f.comm, &full, u->w);
            all_gather(f.comm, &full, u->m);
            all_gather(f.comm, &full, u->v);
            all_gather(f.comm, &bf16, u->w);
        }
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}

/* Updates are left out where a scaled gradient overflows, and for 30 steps whose rate is zero. */
static void paused(struct job *job)
{
    struct fsdp f = sharded(job, ncclBfloat16);

    while (job_step(job)) {
        const int now = job_now(job), rest = now >= 70 && now < 100;
        fsdp_forward(&f);
        fsdp_backward(&f);
        if (rest || job_every(job, 25)) {
            drop(&f);
            for (int i = 0; i < f.model->units; i++)
                memset(f.model->unit[i].sum, 0, f.model->unit[i].n * sizeof(float));
        } else {
            fsdp_update(&f);
        }
    }
}

const struct job_entry jobs_passes[] = {
    {"sam", sam, {0}},
    {"sam-named", sam_named, {.fed = 95}},
    {"sam-vouched", sam, {.fed = 95, .grad = "reduce_scatter:float32:24576@2"}},
    {"maml", maml, {0}},
    {"svrg-fsdp1", svrg_fsdp1, {.steps = 130}},
    {"svrg-vouched", svrg_vouched, {.steps = 130, .grad = "reduce_scatter:float32:24576@2"}},
    {"svrg-own-comm-vouched", svrg_own_comm, {.fed = 95, .grad = "reduce_scatter:float32:24576@2"}},
    {"adahessian", adahessian, {0}},
    {"sophia-h", sophia_h, {0}},
    {"sophia-g", sophia_g, {0}},
    {"masters-instead", masters_instead, {0}},
    {"masters-instead-3", masters_instead, {.seed = 2}},
    {"magnitudes-instead", magnitudes_instead, {.steps = 130}},
    {"votes-instead", votes_instead, {.steps = 130}},
    {"evaluation-sums", evaluation_sums, {.steps = 110}},
    {"ppo-one-comm", ppo_one_comm, {0}},
    {"ppo-alike", ppo_alike, {0}},
    {"adapters-at-random", adapters_at_random, {.steps = 150}},
    {"adapters-in-turns", adapters_in_turns, {.steps = 160}},
    {"perturbed-inputs", perturbed_inputs, {0}},
    {"perturbed-inputs-bf16", perturbed_inputs_bf16, {0}},
    {"soap-bases", soap_bases, {0}},
    {"codebook-sharded", codebook_sharded, {0}},
    {"codebook-differences", codebook_differences, {0}},
    {"context-of-a-units-size", context_of_a_units_size, {0}},
    {"distilled-logits", distilled_logits, {.seed = 3}},
    {"distilled-logits-tagged", distilled_logits_tagged, {0}},
    {"experts-of-changing-sizes", experts_of_changing_sizes, {0}},
    {"batch-ramp", batch_ramp, {.steps = 110}},
    {"checkpoint-inside", checkpoint_inside, {.fed = 95}},
    {"checkpoint-inside-other-size", checkpoint_inside, {.fed = 95, .seed = 4}},
    {"paused", paused, {.steps = 130}},
    {0},
};
