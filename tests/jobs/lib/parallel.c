/* SPDX-License-Identifier: Apache-2.0 */
/* See parallel.h. */
#include "parallel.h"

#include <stdlib.h>
#include <string.h>

static size_t size_of(ncclDataType_t type)
{
    return type == ncclFloat32 ? 4 : 2;
}

static int bit(unsigned mask, int i)
{
    return (int)(mask >> i & 1);
}

/* ---- DDP ----------------------------------------------------------------------------------------------- */

struct ddp ddp_open(struct job *job, struct comm *comm, struct model *model)
{
    struct ddp d = {.comm = comm, .model = model, .type = ncclFloat32, .caller = NB_CALLER_BUCKET};

    for (int i = 0; i < model->units; i++)
        d.bucket[i] = memory_take(job_memory(job), model->unit[i].n * 4);
    return d;
}

void ddp_backward(struct ddp *d, int micro_batches)
{
    for (int k = 0; k + 1 < micro_batches; k++)
        for (int i = d->model->units - 1; i >= 0; i--)
            model_gradient(d->model, i, k > 0);
    for (int i = d->model->units - 1; i >= 0; i--) {
        struct unit *u = &d->model->unit[i];
        const struct buffer b = {.type = d->type,
                                 .n = u->n,
                                 .send = d->bucket[i],
                                 .recv = d->bucket[i],
                                 .what = d->unproved ? EITHER(u->buffer) : u->buffer,
                                 .caller = d->caller};
        model_gradient(d->model, i, micro_batches > 1);
        all_reduce(d->comm, &b, u->g[0], u->g[1]);
        model_reduced(d->model, i);
    }
}

/* ---- FSDP ---------------------------------------------------------------------------------------------- */

struct fsdp fsdp_open(struct job *job, struct comm *comm, struct model *model, int version)
{
    struct fsdp f = {
        .comm = comm, .model = model, .param = ncclBfloat16, .grad = ncclFloat32, .version = version};

    for (int i = 0; i < model->units; i++)
        f.shard[i] = memory_take(job_memory(job), model->unit[i].n * 4 / NODES);
    return f;
}

/* Return the number of ranks that share a unit's parameters. */
static size_t sharded(const struct fsdp *f)
{
    return f->replicas ? 8 : 1;
}

static void gather(struct fsdp *f, int i)
{
    struct memory *memory = job_memory(f->model->job);
    const struct unit *u = &f->model->unit[i];
    const size_t n = u->n * sharded(f), bytes = n * size_of(f->param);
    address shard = 0;

    if (f->full[i])
        return;
    f->full[i] = memory_take(memory, bytes);
    if (f->version == 1) /* the shard in the gathered type, for the time of the gather */
        shard = memory_take(memory, bytes / NODES);
    all_gather(
        f->comm,
        &(struct buffer){.type = f->param, .n = n, .send = shard ? shard : f->full[i], .recv = f->full[i]},
        u->w);
    memory_give(memory, shard);
}

static void reshard(struct fsdp *f, int i)
{
    memory_give(job_memory(f->model->job), f->full[i]);
    f->full[i] = 0;
}

static int next_unit(const struct fsdp *f, int i, int by)
{
    do
        i += by;
    while (i >= 0 && i < f->model->units && bit(f->skip, i));
    return i;
}

static void prefetch(struct fsdp *f, int i, int by)
{
    i = next_unit(f, i, by);
    if (i >= 0 && i < f->model->units)
        gather(f, i);
}

void fsdp_forward(struct fsdp *f)
{
    const int last = next_unit(f, f->model->units, -1);

    for (int i = next_unit(f, -1, 1); i < f->model->units; i = next_unit(f, i, 1)) {
        gather(f, i);
        if (f->prefetch)
            prefetch(f, i, 1);
        if (!f->keep && i != last)
            reshard(f, i);
    }
}

static void reduce(struct fsdp *f, int i)
{
    struct memory *memory = job_memory(f->model->job);
    struct unit *u = &f->model->unit[i];
    const size_t n = u->n * sharded(f), bytes = n * size_of(f->grad);
    const address in = memory_take(memory, bytes),
                  out = memory_take(memory, bytes / (f->replicas ? 8 : NODES));
    struct buffer b = {.type = f->grad, .n = n, .send = in, .recv = out, .what = u->buffer};

    if (f->replicas) {
        b.what = EXACT;
        reduce_scatter(f->comm, &b, u->g[0], u->g[1]);
        b = (struct buffer){.type = f->grad, .n = u->n, .send = out, .recv = out, .what = u->buffer};
        all_reduce(f->replicas, &b, u->g[0], u->g[1]);
    } else {
        reduce_scatter(f->comm, &b, u->g[0], u->g[1]);
    }
    model_reduced(f->model, i);
    memory_give(memory, in);
    if (f->grads[i]) /* accumulated into the present values */
        memory_give(memory, out);
    else
        f->grads[i] = out;
}

void fsdp_backward(struct fsdp *f)
{
    for (int i = next_unit(f, f->model->units, -1); i >= 0; i = next_unit(f, i, -1)) {
        gather(f, i);
        if (f->version == 2 || f->prefetch)
            prefetch(f, i, -1);
        model_gradient(f->model, i, 0);
        reshard(f, i);
        if (!bit(f->frozen, i))
            reduce(f, i);
    }
}

void fsdp_update(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->grads[i]);
        f->grads[i] = 0;
        if (!bit(f->frozen | f->skip, i))
            model_update_unit(f->model, i);
    }
    f->model->updates++;
}

void fsdp_updated(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++) {
        memory_give(job_memory(f->model->job), f->grads[i]);
        f->grads[i] = 0;
    }
    f->model->updates++;
}

void fsdp_release(struct fsdp *f)
{
    for (int i = 0; i < f->model->units; i++)
        reshard(f, i);
}

void fsdp_run_unit(struct fsdp *f, int i, int backwards)
{
    struct model one = *f->model;
    struct fsdp layer = *f;

    one.units = 1;
    one.unit[0] = f->model->unit[i];
    layer.model = &one;
    layer.shard[0] = f->shard[i];
    layer.full[0] = f->full[i];
    layer.grads[0] = f->grads[i];
    if (backwards) {
        fsdp_backward(&layer);
    } else {
        fsdp_forward(&layer);
        fsdp_release(&layer);
    }
    f->full[i] = layer.full[0];
    f->grads[i] = layer.grads[0];
    f->model->unit[i] = one.unit[0];
}

void fsdp_pass(struct fsdp *f)
{
    fsdp_forward(f);
    fsdp_backward(f);
}

void fsdp_step(struct fsdp *f)
{
    fsdp_pass(f);
    fsdp_update(f);
}

void fsdp_forward_only(struct fsdp *f)
{
    fsdp_forward(f);
    fsdp_release(f);
}

void fsdp_backward_by(struct fsdp *f, unit_fill fill, void *arg, int gradients)
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

/* ---- ZeRO ---------------------------------------------------------------------------------------------- */

size_t model_size(const struct model *m, int a, int b)
{
    size_t n = 0;

    for (int i = a; i < b; i++)
        n += m->unit[i].n;
    return n;
}

const float *model_vector(struct model *m, int a, int b, int of, int interleaved)
{
    float *out = m->vector[of];
    size_t at = 0;

    if (!out)
        out = m->vector[of] = values(m->job, model_size(m, 0, m->units));
    for (size_t rank = 0; rank < (interleaved ? NODES : 1); rank++)
        for (int i = a; i < b; i++) {
            const struct unit *u = &m->unit[i];
            const float *from = of == OF_WEIGHTS ? u->w : u->g[of - OF_NODE_0];
            const size_t n = interleaved ? u->n / NODES : u->n;
            memcpy(out + at, from + rank * n, n * sizeof(*out));
            at += n;
        }
    return out;
}

void zero12_reduce(struct comm *comm, struct model *m, int group, const truth *buffers)
{
    struct memory *memory = job_memory(m->job);

    for (int b = m->units; b > 0; b -= group) {
        const int a = b > group ? b - group : 0;
        const address at = memory_take(memory, model_size(m, a, b) * 2);
        const struct buffer bucket = {
            .type = ncclBfloat16, .n = model_size(m, a, b), .send = at, .recv = at, .what = buffers[a]};
        for (int i = b - 1; i >= a; i--)
            model_gradient(m, i, 0);
        all_reduce(comm, &bucket, model_vector(m, a, b, OF_NODE_0, 0), model_vector(m, a, b, OF_NODE_1, 0));
        for (int i = a; i < b; i++)
            model_reduced(m, i);
        memory_give(memory, at);
    }
}

void zero12_gather(struct comm *comm, struct model *m, address flat)
{
    const struct buffer b = {
        .type = ncclBfloat16, .n = model_size(m, 0, m->units), .send = flat, .recv = flat};

    all_gather(comm, &b, model_vector(m, 0, m->units, OF_WEIGHTS, 0));
}

void zero3_gather(struct comm *comm, struct model *m, int gathered, int backwards)
{
    struct memory *memory = job_memory(m->job);
    const int groups = (m->units + gathered - 1) / gathered;

    for (int k = 0; k < groups; k++) {
        const int a = (backwards ? groups - 1 - k : k) * gathered,
                  b = a + gathered < m->units ? a + gathered : m->units;
        const address at = memory_take(memory, model_size(m, a, b) * 2);
        const struct buffer flat = {.type = ncclBfloat16, .n = model_size(m, a, b), .send = at, .recv = at};
        all_gather(comm, &flat, model_vector(m, a, b, OF_WEIGHTS, 1));
        memory_give(memory, at);
    }
}

void zero3_reduce(struct comm *comm, struct model *m, int reduced, const truth *buffers)
{
    struct memory *memory = job_memory(m->job);

    for (int b = m->units; b > 0; b -= reduced) {
        const int a = b > reduced ? b - reduced : 0;
        const size_t n = model_size(m, a, b);
        const address in = memory_take(memory, n * 2), out = memory_take(memory, n * 2 / NODES);
        const struct buffer bucket = {
            .type = ncclBfloat16, .n = n, .send = in, .recv = out, .what = buffers[a]};
        for (int i = b - 1; i >= a; i--)
            model_gradient(m, i, 0);
        reduce_scatter(comm, &bucket, model_vector(m, a, b, OF_NODE_0, 1),
                       model_vector(m, a, b, OF_NODE_1, 1));
        for (int i = a; i < b; i++)
            model_reduced(m, i);
        memory_give(memory, out);
        memory_give(memory, in);
    }
}

/* ---- Megatron ------------------------------------------------------------------------------------------ */

struct distopt distopt_open(struct job *job, struct comm *comm, struct model *model)
{
    struct distopt d = {.comm = comm, .model = model};

    for (int i = 0; i < model->units; i++) {
        d.grad[i] = memory_take(job_memory(job), model->unit[i].n * 4);
        d.param[i] = memory_take(job_memory(job), model->unit[i].n * 2);
    }
    return d;
}

void distopt_reduce(struct distopt *d)
{
    for (int i = d->model->units - 1; i >= 0; i--) {
        const struct unit *u = &d->model->unit[i];
        const struct buffer b = {
            .type = ncclFloat32, .n = u->n, .send = d->grad[i], .recv = d->grad[i], .what = u->buffer};
        reduce_scatter(d->comm, &b, u->g[0], u->g[1]);
        model_reduced(d->model, i);
    }
}

void distopt_gather(struct distopt *d)
{
    for (int i = 0; i < d->model->units; i++) {
        const struct unit *u = &d->model->unit[i];
        const struct buffer b = {.type = ncclBfloat16, .n = u->n, .send = d->param[i], .recv = d->param[i]};
        all_gather(d->comm, &b, u->w);
    }
}

/* ---- tensor parallelism -------------------------------------------------------------------------------- */

struct tensor_parallel tensor_parallel_open(struct job *job, struct comm *comm, int layers, size_t n,
                                            int fixed)
{
    struct tensor_parallel t = {.job = job,
                                .comm = comm,
                                .layers = layers,
                                .n = n,
                                .width = 256,
                                .type = ncclBfloat16,
                                .fixed = fixed,
                                .random = (uint64_t)job_buffer(job) * 7919,
                                .whole = values(job, n)};

    for (int r = 0; r < NODES; r++)
        t.value[r] = values(job, n);
    for (int i = 0; i < 2 * layers && fixed; i++)
        t.at[i] = memory_take(job_memory(job), n * 2);
    return t;
}

static void one(struct tensor_parallel *t, int i, uint64_t kind)
{
    struct memory *memory = job_memory(t->job);
    const uint64_t seed = kind * 1000 + (uint64_t)i;
    struct buffer b = {.type = t->type, .n = t->n};

    if (!t->fixed)
        t->at[i] = memory_take(memory, t->n * 2);
    b.send = b.recv = t->at[i];
    if (t->sequence) {
        activations(&t->random, seed + 500, t->width, t->n, t->whole);
        all_gather(t->comm, &b, t->whole);
    }
    for (int r = 0; r < NODES; r++) {
        partial_products(&t->random, seed, t->width, t->n, t->value[r]);
        for (size_t k = 0; kind == 2 && k < t->n; k++) /* gradients of activations are small */
            t->value[r][k] *= 1e-4f;
    }
    if (t->sequence)
        reduce_scatter(t->comm, &b, t->value[0], t->value[1]);
    else
        all_reduce(t->comm, &b, t->value[0], t->value[1]);
}

static void release(struct tensor_parallel *t, int i)
{
    if (t->fixed)
        return;
    memory_give(job_memory(t->job), t->at[i]);
    t->at[i] = 0;
}

/* After the attention and the MLP of each layer. Outputs are kept for the backward pass. */
void tensor_parallel_forward(struct tensor_parallel *t)
{
    for (int i = 0; i < 2 * t->layers; i++)
        one(t, i, 1);
    if (!t->fixed)
        for (int i = 0; i < 2 * t->layers; i++)
            release(t, i);
}

/* Before each of them: the gradients of their inputs, each freed before the next. */
void tensor_parallel_backward(struct tensor_parallel *t)
{
    for (int i = 2 * t->layers - 1; i >= 0; i--) {
        one(t, i, 2);
        release(t, i);
    }
}
