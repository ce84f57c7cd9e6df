/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose nodes train alone for a while: local SGD, DiLoCo. A step is a step between nodes. */
#include <string.h>

#include "lib/parallel.h"

#define BUCKET 65536u
#define LAYER 16384u

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

/* How a job of outer steps sums the movements of its nodes. */
struct outer {
    int units;     /* parameters or buckets of equal size. 0: 2 */
    size_t first;  /* values of one more, the first (an embedding) or, in buckets, the last. 0: none */
    int last;      /* `first` is the last one */
    int fragments; /* parts of the model that are summed in turn (Streaming DiLoCo). 0: 1 */
    enum {
        FIXED,
        TOGETHER,
        ONE_BY_ONE
    } memory;    /* of sums: the same always, or from the allocator, for all
                                                    of a fragment together or for one after the other */
    int inside;  /* inner steps between two outer ones, of FSDP inside the node */
    int scalar;  /* a mean loss after each outer step */
    int edit;    /* EDiT: the norm of a layer before its sum, and the layer's gather after it */
    int delay;   /* inner steps between the sums of a fragment and their use */
    size_t tail; /* zeros at the end of each bucket, where the next parameter did not fit */
    int vouched; /* the settings name the sums */
};

#define SHARDS 8 /* GPUs of FSDP inside the node */

/* Announce the traffic of FSDP inside the node for one layer. */
static void inside(struct comm *shards, const struct unit *u, address full, int reduce)
{
    const struct buffer weights = {.type = ncclBfloat16, .n = SHARDS * u->n, .send = full, .recv = full},
                        gradient = {.type = ncclFloat32, .n = SHARDS * u->n, .send = full, .recv = full};

    all_gather(shards, &weights, u->w);
    if (reduce)
        reduce_scatter(shards, &gradient, u->g[0], u->g[1]);
}

/* Sum the movement of one unit. */
static void sum_movement(struct comm *world, struct replicas *s, struct unit *u, address at,
                         const struct outer *set)
{
    const struct buffer b = {.type = ncclFloat32,
                             .n = u->n,
                             .send = at,
                             .recv = at,
                             .what = set->vouched ? u->buffer : EITHER(u->buffer)};

    for (int r = 0; r < NODES; r++)
        for (size_t k = 0; k < u->n; k++)
            u->g[r][k] = k < u->n - set->tail ? s->outer[k] - s->w[r][k] : 0;
    all_reduce(world, &b, u->g[0], u->g[1]);
}

/* Let the outer optimizer (SGD with Nesterov's momentum) apply the sum. */
static void apply_movement(struct replicas *s, struct unit *u)
{
    for (size_t k = 0; k < u->n; k++) {
        const float g = 0.5f * (u->g[0][k] + u->g[1][k]);
        s->momentum[k] = 0.9f * s->momentum[k] + g;
        s->outer[k] -= 0.7f * (0.9f * s->momentum[k] + g);
        u->w[k] = s->w[0][k] = s->w[1][k] = s->outer[k];
    }
}

static void move(struct comm *world, struct replicas *s, struct unit *u, address at, const struct outer *set)
{
    sum_movement(world, s, u, at, set);
    apply_movement(s, u);
}

/* Announce the traffic of FSDP inside the node for so many inner steps. */
static void inner_steps(struct comm *shards, const struct model *m, int units, address full, int steps)
{
    for (int k = 0; k < steps; k++)
        for (int i = 0; i < 2 * units; i++) /* forward, backward */
            inside(shards, &m->unit[i < units ? i : 2 * units - 1 - i], full, i >= units);
}

/* DiLoCo and its kin: average the movement of a node's parameters as a gradient for an outer optimizer. Only
 * the user can distinguish it from other sums of a script. A step of the job is the outer step of one
 * fragment. */
static void outer(struct job *job, size_t n, const struct outer *set)
{
    struct comm *world = comm_between(job, NULL), *shards = comm_inside(job, NULL, SHARDS);
    struct memory *memory = job_memory(job);
    const int equal = set->units ? set->units : 2, units = equal + (set->first > 0);
    const int fragments = set->fragments ? set->fragments : 1;
    struct model *m = model_new(job, &(struct model_settings){.units = units, .n = n, .first = set->first});
    struct replicas s[UNITS_MOST];
    address at[UNITS_MOST], full = memory_take(memory, 4096), scalar = memory_take(memory, 512);
    int order[UNITS_MOST];

    for (int i = 0; i < units; i++) {
        s[i] = start(job, &m->unit[i]);
        order[i] = set->last ? (i + 1) % units : i;
        at[i] = set->memory == FIXED ? memory_take(memory, m->unit[i].n * 4) : 0;
    }
    while (job_step(job)) {
        const int part = job_now(job) % fragments, from = units * part / fragments,
                  to = units * (part + 1) / fragments;
        /* what the inner steps have left behind */
        const address other = set->memory == FIXED ? 0 : memory_take(memory, (1 + draw(&m->random) % 4) * n);

        inner_steps(shards, m, units, full, set->inside);
        for (int i = from; i < to && set->memory == TOGETHER; i++)
            at[order[i]] = memory_take(memory, m->unit[order[i]].n * 4);
        for (int i = from; i < to; i++) {
            const int o = order[i];

            if (set->memory == ONE_BY_ONE)
                at[o] = memory_take(memory, m->unit[o].n * 4);
            train(&s[o], &m->unit[o], m, o, 3);
            if (set->edit)
                all_reduce_scalar(world, scalar, model_loss(m, 0), model_loss(m, 1));
            sum_movement(world, &s[o], &m->unit[o], at[o], set);
            if (!set->delay)
                apply_movement(&s[o], &m->unit[o]);
            if (set->edit)
                inside(shards, &m->unit[o], full, 0);
            if (set->memory == ONE_BY_ONE)
                memory_give(memory, at[o]);
        }
        inner_steps(shards, m, units, full, set->delay);
        for (int i = from; i < to && set->delay; i++) /* what inner steps did meanwhile is lost */
            apply_movement(&s[order[i]], &m->unit[order[i]]);
        for (int i = from; i < to && set->memory == TOGETHER; i++)
            memory_give(memory, at[order[i]]);
        if (set->memory != FIXED)
            memory_give(memory, other);
        if (set->scalar)
            all_reduce_scalar(world, scalar, model_loss(m, 0), model_loss(m, 1));
    }
}

/* Streaming DiLoCo of fragments that have the same two sizes. */
static void same(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *large = model_new(job, &(struct model_settings){.units = 6, .n = LAYER}),
                 *small = model_new(job, &(struct model_settings){.units = 6, .n = LAYER / 2});
    const address at[2] = {memory_take(job_memory(job), LAYER * 4), memory_take(job_memory(job), LAYER * 2)};
    struct replicas s[12];

    for (int i = 0; i < 12; i++)
        s[i] = start(job, i < 6 ? &large->unit[i] : &small->unit[i - 6]);
    while (job_step(job)) {
        const int i = job_now(job) % 6;

        train(&s[i], &large->unit[i], large, i, 3);
        move(world, &s[i], &large->unit[i], at[0], &(struct outer){.vouched = 1});
        train(&s[6 + i], &small->unit[i], small, i, 3);
        move(world, &s[6 + i], &small->unit[i], at[1], &(struct outer){.vouched = 1});
    }
}

#define OUTER(...) outer(job, LAYER, &(struct outer){__VA_ARGS__})
JOB(diloco, outer(job, BUCKET, &(struct outer){0}))
JOB(diloco_vouched, outer(job, BUCKET, &(struct outer){.vouched = 1}))
JOB(diloco_scalar, outer(job, BUCKET, &(struct outer){.scalar = 1}))
JOB(diloco_scalar_vouched, outer(job, BUCKET, &(struct outer){.scalar = 1, .vouched = 1}))
/* One sum for each parameter, of tensors that are made for it. */
#define PARAMETERS .units = 6, .first = 4 * LAYER, .memory = TOGETHER
JOB(diloco_parameters, OUTER(PARAMETERS))
JOB(diloco_parameters_vouched, OUTER(PARAMETERS, .vouched = 1))
JOB(diloco_inside, OUTER(PARAMETERS, .inside = 30))
JOB(diloco_inside_vouched, OUTER(PARAMETERS, .inside = 30, .vouched = 1))
JOB(diloco_rare_vouched, OUTER(PARAMETERS, .inside = 500, .vouched = 1))
/* The whole model as one vector. */
JOB(diloco_flat_vouched, OUTER(.units = 1, .memory = ONE_BY_ONE, .vouched = 1))
/* torchft: buckets of one size, and the rest. */
#define BUCKETS .units = 3, .first = LAYER / 2, .last = 1
JOB(diloco_buckets, OUTER(BUCKETS, .memory = TOGETHER))
JOB(diloco_buckets_vouched, OUTER(BUCKETS, .memory = TOGETHER, .vouched = 1))
JOB(diloco_buckets_in_turn_vouched, OUTER(BUCKETS, .memory = ONE_BY_ONE, .vouched = 1))
/* torchft in full: the sums of all buckets of a fragment, the inner steps of the delay, then their use. A
 * parameter that does not fit begins the next bucket. */
#define TORCHFT \
    .units = 6, .first = LAYER / 2, .last = 1, .fragments = 2, .memory = TOGETHER, .inside = 3, .delay = 2, \
    .tail = 3000
JOB(torchft, OUTER(TORCHFT))
JOB(torchft_vouched, OUTER(TORCHFT, .vouched = 1))
/* Streaming DiLoCo: fragments in turn. */
JOB(streaming, OUTER(.units = 11, .first = 2 * LAYER, .fragments = 12, .memory = ONE_BY_ONE, .inside = 3))
JOB(streaming_vouched,
    OUTER(.units = 11, .first = 2 * LAYER, .fragments = 12, .memory = ONE_BY_ONE, .inside = 3, .vouched = 1))
JOB(streaming_fixed_vouched, OUTER(.units = 11, .first = 2 * LAYER, .fragments = 12, .vouched = 1))
JOB(streaming_alike_vouched, OUTER(.units = 12, .fragments = 12, .memory = ONE_BY_ONE, .vouched = 1))
/* Fragments of the same two buckets each: a stage in the middle of a pipeline. */
JOB(streaming_same_vouched, same(job))
/* EDiT: layer by layer in the forward pass, FSDP inside the node. */
#define EDIT .units = 6, .first = 4 * LAYER, .memory = ONE_BY_ONE, .inside = 30, .edit = 1
JOB(edit, OUTER(EDIT))
JOB(edit_vouched, OUTER(EDIT, .vouched = 1))

/* The lines of the documents: every large sum of two ranks, from the first step on, with feedback; small sums
 * stay exact. */
#define NAMED "all_reduce:float32:8192-1000000000@2"
#define LINE .grad = NAMED, .no_warmup = 1
#define FED LINE, .fed = 98

const struct job_entry jobs_local[] = {
    {"local-sgd", local_sgd, {0}},
    {"post-local-sgd", post_local, {0}},
    {"ddp-teacher", teacher, {0}},
    {"diloco", diloco, {0}},
    {"diloco-vouched", diloco_vouched, {LINE}},
    {"diloco-scalar", diloco_scalar, {.all_collnet = 1}},
    {"diloco-scalar-vouched", diloco_scalar_vouched, {.all_collnet = 1, LINE}},
    {"diloco-parameters", diloco_parameters, {0}},
    {"diloco-parameters-vouched", diloco_parameters_vouched, {FED}},
    {"diloco-parameters-warmed", diloco_parameters_vouched, {.grad = NAMED, .fed = 98}},
    {"diloco-inside", diloco_inside, {.all_collnet = 1}},
    {"diloco-inside-vouched", diloco_inside_vouched, {.all_collnet = 1, FED}},
    {"diloco-rare-vouched", diloco_rare_vouched, {.ahead = -1, FED}},
    {"diloco-flat-vouched", diloco_flat_vouched, {.by_signature = 1, LINE}},
    {"diloco-buckets", diloco_buckets, {0}},
    {"diloco-buckets-vouched", diloco_buckets_vouched, {FED}},
    {"diloco-buckets-in-turn-vouched", diloco_buckets_in_turn_vouched, {FED}},
    {"torchft-diloco", torchft, {.all_collnet = 1, .steps = 120}},
    {"torchft-diloco-vouched", torchft_vouched, {.all_collnet = 1, .steps = 120, FED}},
    {"streaming-diloco", streaming, {.steps = 240}},
    {"streaming-diloco-vouched", streaming_vouched, {.steps = 240, FED}},
    {"streaming-diloco-fixed-vouched", streaming_fixed_vouched, {.steps = 240, FED}},
    {"streaming-diloco-alike-vouched", streaming_alike_vouched, {.steps = 240, LINE}},
    {"streaming-diloco-same-vouched", streaming_same_vouched, {.steps = 120, LINE}},
    {"edit", edit, {.all_collnet = 1}},
    {"edit-vouched", edit_vouched, {.all_collnet = 1, FED}},
    {0},
};
