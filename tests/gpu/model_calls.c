/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the model's host threads: contexts and their locks, waits for the GPU, launches. See model.h. */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>

static struct model_thread *context_lock[MODEL_GPUS]; /* the holder of the lock of each GPU's context */
static uint64_t tickets[MODEL_GPUS];                  /* last ticket of the lock's callers, in order (A12) */
static struct line {
    uint64_t ticket[128]; /* tickets of the waiting threads */
    unsigned n;
} lines[MODEL_GPUS];
static unsigned forbidden; /* driver calls of serving threads */
static const char *forbidden_first;

void model_calls_open(void)
{
    memset(context_lock, 0, sizeof(context_lock));
    memset(tickets, 0, sizeof(tickets));
    memset(lines, 0, sizeof(lines));
    forbidden = 0;
}

int model_current_gpu(void)
{
    const struct model_contexts *c = model_contexts();
    return c->depth ? c->gpu[c->depth - 1] : c->gpu[0];
}

void model_current(int gpu)
{
    struct model_contexts *c = model_contexts();
    c->depth = 1;
    c->gpu[0] = gpu;
}

struct place { /* a place in a lock's line */
    int gpu;
    uint64_t ticket;
};

static int lock_is_free(void *place)
{
    const struct place *p = place;
    const struct line *line = &lines[p->gpu];

    for (unsigned i = 0; i < line->n; i++)
        if (model.unfair ? line->ticket[i] > p->ticket : line->ticket[i] < p->ticket)
            return 0;
    return !context_lock[p->gpu];
}

static unsigned lock_blockers(void *place, const void **out, unsigned most)
{
    const struct place *p = place;
    unsigned n = 0;

    if (context_lock[p->gpu] && n < most)
        out[n++] = context_lock[p->gpu];
    return n;
}

void model_lock_context(int gpu)
{
    struct place p = {gpu, tickets[gpu]++};

    struct line *line = &lines[gpu];
    unsigned at = 0;

    if (line->n == sizeof(line->ticket) / sizeof(*line->ticket))
        model_wrong("too many wait for a context's lock");
    line->ticket[line->n++] = p.ticket;
    model_block(lock_is_free, &p, "the context's lock", lock_blockers);
    while (line->ticket[at] != p.ticket)
        at++;
    line->ticket[at] = line->ticket[--line->n];
    context_lock[gpu] = model_self();
}

void model_unlock_context(int gpu)
{
    context_lock[gpu] = NULL;
}

void model_none_forbidden(void)
{
    if (!forbidden)
        return;
    fprintf(stderr, "%u calls of the driver after connect, the first %s\n", forbidden, forbidden_first);
    abort();
}

void model_call(const char *name, int takes_lock)
{
    const struct model_thread *self = model_self();
    static char said[96];

    if (!self)
        return;
    if (model_after_connect && model_thread_role(self) == MODEL_SERVES && forbidden++ == 0) {
        snprintf(said, sizeof(said), "%s on thread %s", name, model_thread_name(self));
        forbidden_first = said;
    }
    model_sleep(2 * MODEL_US + (int64_t)model_random(4000));
    if (takes_lock) {
        model_lock_context(model_current_gpu());
        model_unlock_context(model_current_gpu());
    }
}

struct wanted { /* everything that was submitted earlier */
    int gpu;
    uint64_t before;
};

static int is_drained(void *wanted)
{
    const struct wanted *w = wanted;
    const void *one[1];
    return model_undone_before(w->gpu, w->before, one, 1) == 0;
}

static unsigned drain_blockers(void *wanted, const void **out, unsigned most)
{
    const struct wanted *w = wanted;
    return model_undone_before(w->gpu, w->before, out, most);
}

static void await_all(int gpu, const char *why)
{
    struct wanted w = {gpu, model_last_number() + 1};
    model_block(is_drained, &w, why, drain_blockers);
}

void model_drain(int gpu, const char *why)
{
    model_lock_context(gpu);
    await_all(gpu, why);
    model_unlock_context(gpu);
}

void model_load(int *loaded, const char *name)
{
    const int gpu = model_current_gpu();

    if (loaded[gpu])
        return;
    model_drain(gpu, name);
    loaded[gpu] = 1;
}

static int is_reached(void *reference)
{
    return model_done(reference);
}

static unsigned reference_blockers(void *reference, const void **out, unsigned most)
{
    const struct reference *r = reference;
    if (model_done(r) || !most)
        return 0;
    out[0] = r->op;
    return 1;
}

void model_synchronize(nb_cu_stream stream)
{
    model_join_branches(stream);
    struct reference last = ((struct stream *)stream)->last;
    model_block(is_reached, &last, "the stream", reference_blockers);
}

void model_synchronize_device(void)
{
    await_all(model_current_gpu(), "the whole GPU");
}

void model_free(void)
{
    model_call("cudaFree", 0);
    model_drain(model_current_gpu(), "the whole GPU (cudaFree)");
}

nb_cu_stream model_stream(int priority)
{
    return model_make_stream(model_current_gpu(), priority, 0);
}

nb_cu_context model_context(int gpu)
{
    return model_gpu(gpu);
}

void model_launch(nb_cu_stream stream, struct model_kernel *k)
{
    struct stream *s = stream;
    struct op *op;

    model_call("cuLaunchKernel", 1);
    if (k->loaded && !model.eager)
        model_load(k->loaded, "the GPU, to load a kernel");
    if (k->grown)
        model_load(k->grown, "the GPU, at a kernel's first launch");
    op = model_new_op(s, OP_KERNEL);
    op->kernel = k;
    model_put(s, op);
}

void model_set(nb_cu_stream stream, uint32_t *word, uint32_t value)
{
    struct stream *s = stream;
    struct op *op;

    model_call("cuMemsetD32Async", 1);
    op = model_new_op(s, OP_SET);
    op->word = word;
    op->value = value;
    model_put(s, op);
}
