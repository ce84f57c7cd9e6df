/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs by an author who has not read the plugin's rules: further passes, models and sums beside a sharded
 * training, and other sums in the buckets of DDP and of scripts.
 */
#include <math.h>
#include <string.h>

#include "lib/parallel.h"

static struct fsdp sharded_on(struct job *job, struct comm *comm, int units)
{
    return fsdp_open(job, comm, model_new(job, &(struct model_settings){.units = units}), 2);
}

static struct fsdp sharded(struct job *job, int units)
{
    return sharded_on(job, comm_between(job, NULL), units);
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

/* Give all gradients other numbers, and the numbers of before to `names`. */
static void swap_names(struct model *m, truth *names)
{
    for (int i = 0; i < m->units; i++) {
        const truth was = m->unit[i].buffer;
        m->unit[i].buffer = names[i];
        names[i] = was;
    }
}

/* ---- models that are only gathered --------------------------------------------------------------------- */

/* IMPALA: actors use weights that are four steps old. Each step runs them three times beside the learner. */
static void stale_actor(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp learner = sharded_on(job, world, 4), actor = sharded_on(job, world, 4);

    copy_weights(actor.model, learner.model);
    while (job_step(job)) {
        for (int k = 0; k < 3; k++)
            fsdp_forward_only(&actor);
        fsdp_step(&learner);
        if (job_every(job, 4))
            copy_weights(actor.model, learner.model);
    }
}

/* DQN: the target network is a copy that is renewed every 20 steps. */
static void hard_targets(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp online = sharded_on(job, world, 4), target = sharded_on(job, world, 4);

    while (job_step(job)) {
        if (job_now(job) % 20 == 0)
            copy_weights(target.model, online.model);
        fsdp_forward(&online);
        fsdp_forward_only(&target);
        fsdp_backward(&online);
        fsdp_update(&online);
    }
}

/* DPO: the reference is the policy of the start. Both models see chosen and rejected answers. */
static void preferences(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp policy = sharded_on(job, world, 4), reference = sharded_on(job, world, 4);

    copy_weights(reference.model, policy.model);
    while (job_step(job)) {
        fsdp_forward_only(&reference);
        fsdp_forward_only(&policy);
        fsdp_forward_only(&reference);
        fsdp_step(&policy);
    }
}

/* Double Q-learning: two critics of one task that begin with the same weights, and an actor between them. */
static void twin_critics(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp a = sharded_on(job, world, 3), b = sharded_on(job, world, 3),
                actor = sharded_on(job, world, 3);

    same_task(b.model, a.model);
    copy_weights(b.model, a.model);
    while (job_step(job)) {
        fsdp_forward(&a);
        fsdp_forward(&b);
        fsdp_backward(&b);
        fsdp_backward(&a);
        fsdp_update(&a);
        fsdp_update(&b);
        if (job_every(job, 2)) {
            fsdp_forward(&actor);
            fsdp_forward_only(&a);
            fsdp_backward(&actor);
            fsdp_update(&actor);
        }
    }
}

/* ---- several gradients of one model -------------------------------------------------------------------- */

/* SVRG: each batch's gradient at the weights and at a snapshot. The snapshot's full gradient was summed
 * before. */
static void svrg(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp f = sharded_on(job, world, 3), s = sharded_on(job, world, 3);
    struct model *m = f.model, *snapshot = s.model;
    truth full[3], single[3];
    float *mean[3];

    same_task(snapshot, m);
    for (int i = 0; i < 3; i++) {
        mean[i] = values(job, m->unit[i].n);
        full[i] = EITHER(job_buffer(job));
        single[i] = EITHER(snapshot->unit[i].buffer);
    }
    swap_names(snapshot, single);
    while (job_step(job)) {
        if (job_now(job) % 10 == 0) {
            copy_weights(snapshot, m);
            swap_names(snapshot, full);
            for (int k = 0; k < 4; k++)
                fsdp_pass(&s);
            swap_names(snapshot, full);
            for (int i = 0; i < 3; i++)
                for (size_t k = 0; k < m->unit[i].n; k++) {
                    mean[i][k] = snapshot->unit[i].sum[k] / 4;
                    snapshot->unit[i].sum[k] = 0;
                }
            fsdp_updated(&s);
        }
        for (int i = 0; i < 3; i++)
            snapshot->unit[i].seed = m->unit[i].seed; /* the same batch */
        fsdp_pass(&f);
        fsdp_pass(&s);
        for (int i = 0; i < 3; i++)
            for (size_t k = 0; k < m->unit[i].n; k++) {
                m->unit[i].w[k] -= 0.05f * (m->unit[i].sum[k] - snapshot->unit[i].sum[k] + mean[i][k]);
                m->unit[i].sum[k] = snapshot->unit[i].sum[k] = 0;
            }
        fsdp_updated(&f);
        fsdp_updated(&s);
    }
}

/* PCGrad: each of two tasks has sums of its own. The optimizer takes opposed parts out before both move the
 * weights. */
static void gradient_surgery(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    struct model *m = f.model;
    truth names[2][4];
    float *first[4];

    for (int i = 0; i < 4; i++) {
        first[i] = values(job, m->unit[i].n);
        names[0][i] = EITHER(job_buffer(job));
        names[1][i] = EITHER(job_buffer(job));
    }
    while (job_step(job)) {
        for (int task = 0; task < 2; task++) {
            swap_names(m, names[task]);
            fsdp_pass(&f);
            swap_names(m, names[task]);
            for (int i = 0; i < 4 && !task; i++) {
                memcpy(first[i], m->unit[i].sum, m->unit[i].n * sizeof(float));
                memset(m->unit[i].sum, 0, m->unit[i].n * sizeof(float));
                memory_give(job_memory(job), f.grads[i]), f.grads[i] = 0;
            }
        }
        for (int i = 0; i < 4; i++) {
            double dot = 0, squares = 1e-30;
            for (size_t k = 0; k < m->unit[i].n; k++) {
                dot += (double)first[i][k] * m->unit[i].sum[k];
                squares += (double)first[i][k] * first[i][k];
            }
            for (size_t k = 0; k < m->unit[i].n; k++)
                m->unit[i].sum[k] += first[i][k] - (dot < 0 ? (float)(dot / squares) * first[i][k] : 0.0f);
        }
        fsdp_update(&f);
    }
}

/* ---- products with the curvature ----------------------------------------------------------------------- */

struct direction {
    float *const *p; /* of each unit */
    uint64_t random;
    float jitter; /* of a product on other batches */
};

/* Make the products of each node's curvature with a direction. Neighbors in a row interact. */
static void products(void *arg, struct unit *u, int number)
{
    struct direction *d = arg;
    const float *p = d->p[number];

    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++) {
            const float own =
                0.8f + 0.04f * (float)((7 * i + (size_t)r) % 11) + d->jitter * noise(&d->random);
            u->g[r][i] = 0.2f * u->curve[i / ROW] * own * (p[i] + 0.3f * p[i ^ 1]) + 1e-4f * p[i];
        }
}

/* Hessian-free training: a few steps of conjugate gradients find the update. gathered: the direction is
 * sharded as the weights are, and gathered for each product. Else each node keeps all of it (TRPO). */
static void conjugate(struct job *job, int gathered)
{
    enum { UNITS = 4, ROUNDS = 4 };
    struct comm *world = comm_between(job, NULL);
    struct fsdp f = sharded_on(job, world, UNITS), along = sharded_on(job, world, UNITS);
    float *p[UNITS], *left[UNITS], *step[UNITS];
    struct direction d = {.p = p};

    same_task(along.model, f.model);
    for (int i = 0; i < UNITS; i++) {
        p[i] = along.model->unit[i].w;
        left[i] = values(job, f.model->unit[i].n);
        step[i] = values(job, f.model->unit[i].n);
    }
    while (job_step(job)) {
        fsdp_pass(&f);
        for (int i = 0; i < UNITS; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++) {
                left[i][k] = p[i][k] = -f.model->unit[i].sum[k];
                step[i][k] = f.model->unit[i].sum[k] = 0;
            }
        fsdp_updated(&f);
        for (int round = 0; round < ROUNDS; round++) {
            struct fsdp *on = gathered ? &along : &f;
            double before = 1e-30, curvature = 1e-30, after = 0;
            if (gathered)
                fsdp_forward_only(&f);
            fsdp_forward(on);
            fsdp_backward_by(on, products, &d, 0);
            fsdp_updated(on);
            for (int i = 0; i < UNITS; i++)
                for (size_t k = 0; k < f.model->unit[i].n; k++) {
                    const struct unit *u = &on->model->unit[i];
                    before += (double)left[i][k] * left[i][k];
                    curvature += (double)p[i][k] * (u->g[0][k] + u->g[1][k]) / 2;
                }
            for (int i = 0; i < UNITS; i++)
                for (size_t k = 0; k < f.model->unit[i].n; k++) {
                    const struct unit *u = &on->model->unit[i];
                    step[i][k] += (float)(before / curvature) * p[i][k];
                    left[i][k] -= (float)(before / curvature) * (u->g[0][k] + u->g[1][k]) / 2;
                    after += (double)left[i][k] * left[i][k];
                }
            for (int i = 0; i < UNITS; i++)
                for (size_t k = 0; k < f.model->unit[i].n; k++)
                    p[i][k] = left[i][k] + (float)(after / before) * p[i][k];
        }
        for (int i = 0; i < UNITS; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++)
                f.model->unit[i].w[k] += 0.02f * step[i][k];
    }
}
JOB(hessian_free, conjugate(job, 1))
JOB(trpo_fisher_products, conjugate(job, 0))

/* Influence functions by LiSSA: v follows v + g - Hv to the solution of Hv = g, and starts anew for each
 * example. The model's training is over. */
static void influence(struct job *job)
{
    enum { UNITS = 3 };
    struct comm *world = comm_between(job, NULL);
    struct fsdp f = sharded_on(job, world, UNITS), v = sharded_on(job, world, UNITS);
    float *p[UNITS], *example[UNITS], most[UNITS] = {0};
    struct direction d = {.p = p, .random = (uint64_t)job_buffer(job), .jitter = 0.3f};

    same_task(v.model, f.model);
    for (int i = 0; i < UNITS; i++) {
        const struct unit *u = &f.model->unit[i];
        p[i] = v.model->unit[i].w;
        example[i] = values(job, u->n);
        for (size_t row = 0; row < u->n / ROW; row++)
            most[i] = fmaxf(most[i], u->curve[row]);
    }
    while (job_step(job)) {
        for (int i = 0; i < UNITS && job_now(job) % 50 == 0; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++)
                p[i][k] = example[i][k] = f.model->unit[i].scale[k / ROW] * noise(&d.random);
        fsdp_forward_only(&f);
        fsdp_forward(&v);
        fsdp_backward_by(&v, products, &d, 0);
        fsdp_updated(&v);
        for (int i = 0; i < UNITS; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++)
                p[i][k] += example[i][k] - (v.model->unit[i].g[0][k] + v.model->unit[i].g[1][k]) / most[i];
    }
}

/* ---- sums of weights and moments ----------------------------------------------------------------------- */

/* Sum contributions a and b of a unit's size and the gradients' type from memory of the allocator. */
static void sum_exactly(struct fsdp *f, size_t n, const float *a, const float *b)
{
    struct memory *memory = job_memory(f->model->job);
    const size_t bytes = n * (f->grad == ncclFloat32 ? 4 : 2);
    struct buffer sum = {.type = f->grad, .n = n, .send = memory_take(memory, bytes)};

    sum.recv = memory_take(memory, bytes / NODES);
    reduce_scatter(f->comm, &sum, a, b);
    memory_give(memory, sum.send);
    memory_give(memory, sum.recv);
}

/* Each step averages the masters of one layer over nodes, in turn, since rounding lets them drift apart. */
static void average_in_turns(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    float *x[NODES] = {values(job, f.model->unit[0].n), values(job, f.model->unit[0].n)};
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        const struct unit *u = &f.model->unit[job_now(job) % 4];
        fsdp_pass(&f);
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < u->n; i++)
                x[r][i] = u->w[i] + 1e-5f * noise(&random);
        sum_exactly(&f, u->n, x[0], x[1]);
        fsdp_update(&f);
    }
}

/* An elastic job moves its shards every `every` steps: each node puts its part of both moments and of the
 * masters among zeros, and their sum has other owners. */
static void resharded(struct job *job, int every)
{
    struct fsdp f = sharded(job, 4);
    const size_t n = f.model->unit[0].n;
    float *x[NODES] = {values(job, n), values(job, n)};

    while (job_step(job)) {
        fsdp_step(&f);
        for (int i = 3; i >= 0 && job_every(job, every); i--) {
            const struct unit *u = &f.model->unit[i];
            const float *const state[3] = {u->m, u->v, u->w};
            for (int s = 0; s < 3; s++) {
                memcpy(x[0], state[s], n / 2 * sizeof(float));
                memcpy(x[1] + n / 2, state[s] + n / 2, n / 2 * sizeof(float));
                sum_exactly(&f, n, x[0], x[1]);
            }
        }
    }
}
JOB(moments_resharded, resharded(job, 20))
JOB(moments_resharded_often, resharded(job, 3))

/* Local AdamW: each node makes three steps by itself. Then both moments and the weights are averaged, and the
 * weights gathered. */
static void local_adam(struct job *job)
{
    enum { UNITS = 3 };
    struct fsdp f = sharded(job, UNITS);
    float *w[UNITS][NODES], *mean[UNITS][NODES], *square[UNITS][NODES];

    for (int i = 0; i < UNITS; i++)
        for (int r = 0; r < NODES; r++) {
            w[i][r] = values(job, f.model->unit[i].n);
            mean[i][r] = values(job, f.model->unit[i].n);
            square[i][r] = values(job, f.model->unit[i].n);
        }
    while (job_step(job)) {
        fsdp_forward_only(&f);
        for (int i = UNITS - 1; i >= 0; i--) {
            struct unit *u = &f.model->unit[i];
            for (int r = 0; r < NODES; r++) {
                memcpy(w[i][r], u->w, u->n * sizeof(float));
                memcpy(mean[i][r], u->m, u->n * sizeof(float));
                memcpy(square[i][r], u->v, u->n * sizeof(float));
            }
            for (int k = 0; k < 3; k++) {
                model_gradient(f.model, i, 0);
                for (int r = 0; r < NODES; r++)
                    for (size_t j = 0; j < u->n; j++) {
                        const float g = u->g[r][j] + u->curve[j / ROW] * (w[i][r][j] - u->w[j]);
                        mean[i][r][j] += 0.1f * (g - mean[i][r][j]);
                        square[i][r][j] += 0.05f * (g * g - square[i][r][j]);
                        w[i][r][j] -= 3e-4f * mean[i][r][j] / (sqrtf(square[i][r][j]) + 1e-8f);
                    }
            }
            sum_exactly(&f, u->n, mean[i][0], mean[i][1]);
            sum_exactly(&f, u->n, square[i][0], square[i][1]);
            sum_exactly(&f, u->n, w[i][0], w[i][1]);
            for (size_t j = 0; j < u->n; j++) {
                u->m[j] = 0.5f * (mean[i][0][j] + mean[i][1][j]);
                u->v[j] = 0.5f * (square[i][0][j] + square[i][1][j]);
                u->w[j] = 0.5f * (w[i][0][j] + w[i][1][j]);
            }
        }
    }
}

/* ---- activations beside -------------------------------------------------------------------------------- */

/* Online RL: every fourth step begins with the generation of four tokens. Keys and values are split over
 * nodes, so each layer sums parts of its attention, between the gathers of its weights. */
static void kv_cache_beside(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    const size_t n = f.model->unit[0].n;
    float *x[NODES] = {values(job, n), values(job, n)};
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int token = 0; job_now(job) % 4 == 0 && token < 4; token++)
            for (int i = 0; i < 4; i++) {
                fsdp_run_unit(&f, i, 0);
                for (int r = 0; r < NODES; r++)
                    partial_products(&random, (uint64_t)i, 256, n, x[r]);
                sum_exactly(&f, n, x[0], x[1]);
            }
        fsdp_step(&f);
    }
}

/* An embedding that is split by words: the nodes look up a batch's words, and each adds its rows to zeros.
 * The rows train, too, inside the node. */
static void split_embedding(struct job *job)
{
    enum { WIDTH = 64, WORDS = 1024 };
    struct fsdp f = sharded(job, 4);
    struct model *e = model_new(job, &(struct model_settings){.units = 1, .n = WORDS * WIDTH});
    const size_t n = f.model->unit[0].n;
    float *x[NODES] = {values(job, n), values(job, n)};
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (size_t token = 0; token < n / WIDTH; token++) {
            const size_t at = draw(&random) % WORDS, word = at * at / WORDS; /* some are frequent */
            for (size_t r = 0; r < NODES; r++)
                for (size_t k = 0; k < WIDTH; k++)
                    x[r][token * WIDTH + k] = word % NODES == r ? e->unit[0].w[word * WIDTH + k] : 0.0f;
        }
        sum_exactly(&f, n, x[0], x[1]);
        fsdp_step(&f);
        model_gradient(e, 0, 0);
        model_reduced(e, 0);
        model_update(e);
    }
}

/* ---- shards and buckets that change -------------------------------------------------------------------- */

/* An elastic job: the communicator is made anew, and FSDP's memory with it. */
static void remade_shards(struct job *job)
{
    struct fsdp f = sharded(job, 4);

    while (job_step(job)) {
        if (job_now(job) == 80) {
            comm_close(f.comm);
            f = fsdp_open(job, comm_between(job, NULL), f.model, 2);
        }
        fsdp_step(&f);
    }
}

/* ZeRO-3 whose buckets of two layers begin at one layer or the next, as unused parameters shift them. */
static void shifted_buckets(struct job *job)
{
    enum { UNITS = 6 };
    struct comm *world = comm_between(job, NULL);
    struct model *m = model_new(job, &(struct model_settings){.units = UNITS});
    struct memory *memory = job_memory(job);
    uint64_t random = (uint64_t)job_buffer(job);
    truth name[UNITS][2];

    for (int i = 0; i < UNITS; i++)
        for (int k = 0; k < 2; k++)
            name[i][k] = job_buffer(job);
    while (job_step(job)) {
        int end = UNITS, short_one = draw(&random) % 3 == 0;
        zero3_gather(world, m, 1, 0);
        zero3_gather(world, m, 1, 1);
        for (; end > 0; short_one = 0) {
            const int from = end - 1 - (!short_one && end > 1);
            const size_t n = model_size(m, from, end);
            const address in = memory_take(memory, n * 2), out = memory_take(memory, n * 2 / NODES);
            const struct buffer b = {
                .type = ncclBfloat16, .n = n, .send = in, .recv = out, .what = name[from][end - from - 1]};
            for (int i = end - 1; i >= from; i--)
                model_gradient(m, i, 0);
            reduce_scatter(world, &b, model_vector(m, from, end, OF_NODE_0, 1),
                           model_vector(m, from, end, OF_NODE_1, 1));
            for (int i = from; i < end; i++)
                model_reduced(m, i);
            memory_give(memory, in);
            memory_give(memory, out);
            end = from;
        }
        model_update(m);
    }
}

/* Megatron's reused buffers: the updated parameters are gathered where the gradients were. */
static void reused_buffers(struct job *job)
{
    struct model *m = model_new(job, &(struct model_settings){.units = 5});
    struct distopt d = distopt_open(job, comm_between(job, NULL), m);

    memcpy(d.param, d.grad, sizeof(d.param));
    while (job_step(job)) {
        distopt_gather(&d);
        for (int i = 0; i < m->units; i++)
            model_gradient(m, i, 0);
        distopt_reduce(&d);
        model_update(m);
    }
}

/* Put the average of the weights into the shards for three batches of an evaluation, in every tenth step. */
static void averages_evaluated(struct job *job)
{
    struct fsdp f = sharded(job, 4);
    float *average[4], *held = values(job, f.model->unit[0].n);

    for (int i = 0; i < 4; i++) {
        average[i] = values(job, f.model->unit[i].n);
        memcpy(average[i], f.model->unit[i].w, f.model->unit[i].n * sizeof(float));
    }
    while (job_step(job)) {
        fsdp_step(&f);
        for (int i = 0; i < 4; i++)
            for (size_t k = 0; k < f.model->unit[i].n; k++)
                average[i][k] += 0.05f * (f.model->unit[i].w[k] - average[i][k]);
        if (!job_every(job, 10))
            continue;
        for (int back = 0; back < 2; back++) {
            for (int i = 0; i < 4; i++) {
                const size_t bytes = f.model->unit[i].n * sizeof(float);
                memcpy(held, f.model->unit[i].w, bytes);
                memcpy(f.model->unit[i].w, average[i], bytes);
                memcpy(average[i], held, bytes);
            }
            for (int batch = 0; !back && batch < 3; batch++)
                fsdp_forward_only(&f);
        }
    }
}

/* ---- other sums in DDP's buckets ----------------------------------------------------------------------- */

#define BUCKET 32768u

static struct ddp replicas(struct job *job, int units)
{
    return ddp_open(job, comm_between(job, NULL),
                    model_new(job, &(struct model_settings){.units = units, .n = BUCKET}));
}

/* Let hooks of the parameters change their gradients before DDP sums them. The sums have to stay exact. */
static void hooked_backward(struct ddp *d, unit_fill hook, void *arg)
{
    for (int i = d->model->units - 1; i >= 0; i--) {
        struct unit *u = &d->model->unit[i];
        model_gradient(d->model, i, 0);
        hook(arg, u, i);
        all_reduce(
            d->comm,
            &(struct buffer){
                .type = d->type, .n = u->n, .send = d->bucket[i], .recv = d->bucket[i], .caller = d->caller},
            u->g[0], u->g[1]);
    }
}

static void squared(void *arg, struct unit *u, int number)
{
    (void)arg, (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] *= u->g[r][i];
}

static void absolute(void *arg, struct unit *u, int number)
{
    (void)arg, (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = fabsf(u->g[r][i]);
}

static void voted(void *arg, struct unit *u, int number)
{
    (void)arg, (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = (float)((u->g[r][i] > 0) - (u->g[r][i] < 0));
}

/* The loss w * stop_gradient(w), whose gradient is the weights: a way to average them by a backward pass. */
static void weights(void *arg, struct unit *u, int number)
{
    (void)number;
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < u->n; i++)
            u->g[r][i] = u->w[i] + 1e-5f * noise(arg);
}

/* Train by DDP, and run `times` hooked passes every `every` steps from step `from` on. */
static void hooked(struct job *job, unit_fill hook, int from, int every, int times)
{
    struct ddp d = replicas(job, 3);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int k = 0; job_now(job) >= from && job_every(job, every) && k < times; k++)
            hooked_backward(&d, hook, &random);
        ddp_backward(&d, 1);
        model_update(d.model);
    }
}
JOB(ddp_fisher, hooked(job, squared, 60, 30, 10))
JOB(ddp_grand_scores, hooked(job, absolute, 0, 10, 2))
JOB(ddp_weights_as_gradients, hooked(job, weights, 0, 10, 1))

/* Majority votes in DDP's buckets, in each step. */
static void ddp_votes(struct job *job)
{
    struct ddp d = replicas(job, 3);

    while (job_step(job)) {
        hooked_backward(&d, voted, NULL);
        for (int i = 0; i < 3; i++)
            for (size_t k = 0; k < BUCKET; k++) {
                struct unit *u = &d.model->unit[i];
                const float votes = u->g[0][k] + u->g[1][k];
                u->w[k] -= 1e-4f * (float)((votes > 0) - (votes < 0));
            }
    }
}

/* A parameter whose "gradient" is a table of counts of tokens, so that DDP sums it with the others. It has a
 * bucket of its own. */
static void ddp_counts(struct job *job)
{
    struct ddp d = replicas(job, 3);
    const address at = memory_take(job_memory(job), BUCKET * 4);
    const struct buffer b = {
        .type = ncclFloat32, .n = BUCKET, .send = at, .recv = at, .caller = NB_CALLER_BUCKET};
    float *count[NODES] = {values(job, BUCKET), values(job, BUCKET)};
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        for (int r = 0; r < NODES; r++) {
            memset(count[r], 0, BUCKET * sizeof(float));
            for (int token = 0; token < 16384; token++) {
                const uint64_t a = draw(&random) % BUCKET, c = draw(&random) % BUCKET;
                count[r][a * c / BUCKET]++; /* some tokens are frequent */
            }
        }
        ddp_backward(&d, 1);
        all_reduce(d.comm, &b, count[0], count[1]);
        model_update(d.model);
    }
}

/* TRPO by DDP: ten products of the Fisher matrix pass through the buckets before each step's update. */
static void ddp_products(struct job *job)
{
    struct ddp d = replicas(job, 3);
    float *p[3];
    struct direction direction = {.p = p};

    for (int i = 0; i < 3; i++)
        p[i] = values(job, BUCKET);
    while (job_step(job)) {
        ddp_backward(&d, 1);
        for (int i = 0; i < 3; i++)
            memcpy(p[i], d.model->unit[i].sum, BUCKET * sizeof(float));
        for (int round = 0; round < 4; round++) {
            hooked_backward(&d, products, &direction);
            for (int i = 0; i < 3; i++) { /* Richardson's iteration */
                const struct unit *u = &d.model->unit[i];
                for (size_t k = 0; k < BUCKET; k++)
                    p[i][k] += u->sum[k] - 2.0f * (u->g[0][k] + u->g[1][k]);
            }
        }
        for (int i = 0; i < 3; i++)
            memcpy(d.model->unit[i].sum, p[i], BUCKET * sizeof(float));
        model_update(d.model);
    }
}

/* A script without no_sync: DDP sums after each micro-batch, and the bucket then holds the mean of the first
 * and the node's own part of the second. */
static void ddp_synced(struct job *job)
{
    struct ddp d = replicas(job, 3);

    while (job_step(job)) {
        for (int k = 0; k < 2; k++)
            for (int i = 2; i >= 0; i--) {
                struct unit *u = &d.model->unit[i];
                model_gradient(d.model, i, k);
                all_reduce(d.comm,
                           &(struct buffer){.type = d.type,
                                            .n = u->n,
                                            .send = d.bucket[i],
                                            .recv = d.bucket[i],
                                            .what = u->buffer,
                                            .caller = d.caller},
                           u->g[0], u->g[1]);
                for (size_t j = 0; j < u->n; j++)
                    u->g[0][j] = u->g[1][j] = 0.5f * (u->g[0][j] + u->g[1][j]);
                if (k)
                    model_reduced(d.model, i);
            }
        model_update(d.model);
    }
}

/* Join: node 1 has no data for the last steps of an epoch. It adds zeros, and all nodes count the nodes with
 * data. */
static void ddp_join(struct job *job)
{
    struct ddp d = replicas(job, 3);
    const address left = memory_take(job_memory(job), 4);

    while (job_step(job)) {
        const int ended = job_now(job) % 20 >= 15;
        all_reduce_scalar(d.comm, left, 1.0f, ended ? 0.0f : 1.0f);
        for (int i = 2; i >= 0; i--) {
            struct unit *u = &d.model->unit[i];
            model_gradient(d.model, i, 0);
            if (ended)
                memset(u->g[1], 0, u->n * sizeof(float));
            all_reduce(d.comm,
                       &(struct buffer){.type = d.type,
                                        .n = u->n,
                                        .send = d.bucket[i],
                                        .recv = d.bucket[i],
                                        .what = u->buffer,
                                        .caller = d.caller},
                       u->g[0], u->g[1]);
            model_reduced(d.model, i);
        }
        model_update(d.model);
    }
}

/* Many tasks by DDP, each with a head in a bucket of its own. Heads that no node uses are zero. */
static void ddp_heads(struct job *job)
{
    struct ddp d = replicas(job, 6);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        const int task[NODES] = {2 + (int)(draw(&random) % 4), 2 + (int)(draw(&random) % 4)};
        for (int i = 5; i >= 0; i--) {
            struct unit *u = &d.model->unit[i];
            model_gradient(d.model, i, 0);
            for (int r = 0; r < NODES; r++)
                if (i >= 2 && i != task[r])
                    memset(u->g[r], 0, u->n * sizeof(float));
            all_reduce(d.comm,
                       &(struct buffer){.type = d.type,
                                        .n = u->n,
                                        .send = d.bucket[i],
                                        .recv = d.bucket[i],
                                        .what = u->buffer,
                                        .caller = d.caller},
                       u->g[0], u->g[1]);
            model_reduced(d.model, i);
        }
        model_update(d.model);
    }
}

/* ---- gradients of scripts and other frameworks --------------------------------------------------------- */

/* Sum the gradient of a unit as a script does: without a known caller. */
static void sum_gradient(struct ddp *d, int i, address at, int vouched)
{
    struct unit *u = &d->model->unit[i];

    all_reduce(d->comm,
               &(struct buffer){.type = ncclFloat32,
                                .n = u->n,
                                .send = at,
                                .recv = at,
                                .what = vouched ? u->buffer : EITHER(u->buffer)},
               u->g[0], u->g[1]);
    model_reduced(d->model, i);
}

/* Horovod: tensors pass through one fusion buffer in the order in which they are ready, which varies. */
static void fusion_buffer(struct job *job, int vouched)
{
    struct ddp d = replicas(job, 5);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        int order[5] = {4, 3, 2, 1, 0};
        const size_t swap = draw(&random) % 16;
        if (swap < 4) {
            order[swap]--;
            order[swap + 1]++;
        }
        for (int k = 0; k < 5; k++) {
            model_gradient(d.model, order[k], 0);
            sum_gradient(&d, order[k], d.bucket[0], vouched);
        }
        model_update(d.model);
    }
}
JOB(fusion_buffer_unnamed, fusion_buffer(job, 0))
JOB(fusion_buffer_vouched, fusion_buffer(job, 1))

/* A script's loop over parameters, whose gradients the allocator places anew in each backward pass. The loop
 * skips parameters without a gradient in this step. */
static void loop_of_sums(struct job *job, int vouched)
{
    struct ddp d = replicas(job, 6);
    uint64_t random = (uint64_t)job_buffer(job);

    while (job_step(job)) {
        const int without = 1 + (int)(draw(&random) % 12);
        address at[6] = {0};
        for (int i = 5; i >= 0; i--)
            if (i != without) {
                model_gradient(d.model, i, 0);
                at[i] = memory_take(job_memory(job), BUCKET * 4);
            }
        for (int i = 0; i < 6; i++)
            if (i != without)
                sum_gradient(&d, i, at[i], vouched);
        for (int i = 0; i < 6; i++)
            memory_give(job_memory(job), at[i]);
        model_update(d.model);
    }
}
JOB(loop_of_sums_unnamed, loop_of_sums(job, 0))
JOB(loop_of_sums_vouched, loop_of_sums(job, 1))

#define NAMED .grad = "all_reduce:float32:32768@2"

const struct job_entry jobs_fresh_others[] = {
    {"stale-actor", stale_actor, {0}},
    {"hard-targets", hard_targets, {.steps = 110}},
    {"preferences", preferences, {0}},
    {"twin-critics", twin_critics, {.steps = 130}},
    {"svrg", svrg, {.steps = 130}},
    {"gradient-surgery", gradient_surgery, {0}},
    {"hessian-free", hessian_free, {.steps = 70}},
    {"trpo-fisher-products", trpo_fisher_products, {.steps = 70}},
    {"influence", influence, {.steps = 200}},
    {"average-in-turns", average_in_turns, {0}},
    {"moments-resharded", moments_resharded, {.steps = 110}},
    {"moments-resharded-often", moments_resharded_often, {0}},
    {"local-adam", local_adam, {.steps = 120}},
    {"kv-cache-beside", kv_cache_beside, {0}},
    {"split-embedding", split_embedding, {0}},
    {"remade-shards", remade_shards, {.steps = 160}},
    {"shifted-buckets", shifted_buckets, {.steps = 120}},
    {"reused-buffers", reused_buffers, {0}},
    {"averages-evaluated", averages_evaluated, {0}},
    {"ddp-fisher", ddp_fisher, {.steps = 100}},
    {"ddp-grand-scores", ddp_grand_scores, {0}},
    {"ddp-weights-as-gradients", ddp_weights_as_gradients, {0}},
    {"ddp-sign-votes", ddp_votes, {0}},
    {"ddp-counts-as-gradients", ddp_counts, {0}},
    {"ddp-fisher-products", ddp_products, {.steps = 70}},
    {"ddp-synced-micro-batches", ddp_synced, {0}},
    {"ddp-join", ddp_join, {0}},
    {"ddp-heads", ddp_heads, {0}},
    {"fusion-buffer", fusion_buffer_unnamed, {0}},
    {"fusion-buffer-vouched", fusion_buffer_vouched, {NAMED}},
    {"loop-of-sums", loop_of_sums_unnamed, {0}},
    {"loop-of-sums-vouched", loop_of_sums_vouched, {NAMED}},
    {0},
};
