/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, hardware queues and multiprocessors of the model. model.h has the assumptions. */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>

#define QUEUES 32u
#define SMS 160u
#define SM_REGISTERS 65536u
#define SM_THREADS 2048u
#define SM_SHARED 233472u
#define SM_BLOCKS 32u
#define BEGIN_NS (2 * MODEL_US) /* from a queue's head to a kernel's first block */

struct sm {
    unsigned registers, threads, shared, blocks; /* free */
};

struct gpu {
    struct op *head[QUEUES], **tail[QUEUES];
    struct op *running, **running_tail; /* kernels in the order in which they left their queues */
    struct op *oldest, *newest;         /* all submitted operations that are not done */
    struct sm sm[SMS];
    unsigned next_queue;
    struct stream *legacy;
    struct op *spare;
};

static struct gpu gpus[MODEL_GPUS];
static uint64_t number;
static struct keep {
    struct keep *next;
} * kept; /* streams, events and graphs, freed at the end */

void *model_keep(size_t bytes)
{
    struct keep *k = calloc(1, sizeof(*k) + bytes);
    if (!k)
        abort();
    k->next = kept;
    kept = k;
    return k + 1;
}

void model_gpus_open(void)
{
    memset(gpus, 0, sizeof(gpus));
    number = 0;
    model_calls_open();
    if (model.queues > QUEUES || model.sms > SMS)
        model_wrong("too large a GPU");
    for (int g = 0; g < MODEL_GPUS; g++) {
        for (unsigned q = 0; q < QUEUES; q++)
            gpus[g].tail[q] = &gpus[g].head[q];
        gpus[g].running_tail = &gpus[g].running;
        for (unsigned i = 0; i < SMS; i++)
            gpus[g].sm[i] = (struct sm){SM_REGISTERS, SM_THREADS, SM_SHARED, SM_BLOCKS};
        gpus[g].legacy = model_make_stream(g, 0, 1);
    }
}

static void free_list(struct op *op)
{
    while (op) {
        struct op *next = op->next;
        free(op->where);
        free(op);
        op = next;
    }
}

void model_gpus_close(void)
{
    for (int g = 0; g < MODEL_GPUS; g++) {
        for (unsigned q = 0; q < QUEUES; q++)
            free_list(gpus[g].head[q]);
        free_list(gpus[g].running);
        free_list(gpus[g].spare);
    }
    while (kept) {
        struct keep *k = kept;
        kept = k->next;
        free(k);
    }
}

struct gpu *model_gpu(int ordinal)
{
    return &gpus[ordinal];
}

int model_gpu_number(const struct gpu *gpu)
{
    return (int)(gpu - gpus);
}

int model_done(const struct reference *r)
{
    return !r->op || r->op->number != r->number;
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

struct stream *model_make_stream(int gpu, int priority, int blocking)
{
    struct stream *s = model_keep(sizeof(*s));
    s->gpu = &gpus[gpu];
    s->queue = s->gpu->next_queue++ % model.queues;
    s->priority = priority;
    s->blocking = blocking;
    return s;
}

struct op *model_take_op(struct gpu *gpu)
{
    struct op *op = gpu->spare;
    uint8_t *where;

    if (op) {
        gpu->spare = op->next;
    } else {
        op = calloc(1, sizeof(*op));
        if (!op || !(op->where = calloc(SMS, 1)))
            abort();
    }
    where = op->where;
    memset(op, 0, sizeof(*op));
    op->where = where;
    op->kind = MODEL_AN_OPERATION;
    op->gpu = gpu;
    return op;
}

void model_give_op(struct op *op)
{
    op->next = op->gpu->spare;
    op->gpu->spare = op;
}

struct op *model_new_op(struct stream *stream, enum model_operation what)
{
    struct op *op = model_take_op(stream->gpu);
    op->what = what;
    op->stream = stream;
    return op;
}

void model_number(struct op *op)
{
    struct gpu *g = op->gpu;
    op->number = ++number;
    op->older = g->newest;
    if (g->newest)
        g->newest->newer = op;
    else
        g->oldest = op;
    g->newest = op;
}

void model_queue(struct op *op, unsigned queue)
{
    struct gpu *g = op->gpu;
    op->queue = queue;
    op->next = NULL;
    *g->tail[queue] = op;
    g->tail[queue] = &op->next;
}

void model_refer(struct op *op)
{
    if (op->what == OP_KERNEL && op->kernel) {
        op->kernel->op = op;
        op->kernel->begun = op->kernel->over = 0;
        op->kernel->kind = MODEL_A_KERNEL;
    }
    op->left = op->what == OP_KERNEL ? (op->kernel ? op->kernel : &op->own)->blocks : 0;
}

void model_join_branches(struct stream *s)
{
    const int n = s->branches;

    s->branches = 0;
    for (int i = 0; i < n; i++) {
        struct op *join = model_new_op(s, OP_WAIT);
        join->event = s->branch[i];
        model_put(s, join);
    }
}

void model_put(struct stream *s, struct op *op)
{
    if (s->capture) {
        model_put_in_graph(s->capture, s, op, -1);
        return;
    }
    model_join_branches(s);
    op->before = s->last;
    if (s == s->gpu->legacy)
        op->blocking_before = number + 1;
    else if (s->blocking)
        op->legacy = s->gpu->legacy->last;
    model_number(op);
    model_refer(op);
    s->last = (struct reference){op, op->number};
    model_queue(op, s->queue);
}

/* ---- Causes that hold an operation up ------------------------------------------------------------------ */

static unsigned undone(const struct op *op, const void **out, unsigned most)
{
    const struct reference *r[] = {&op->before, &op->legacy, &op->event};
    unsigned n = 0;

    for (unsigned i = 0; i < 3; i++)
        if (!model_done(r[i]) && n < most)
            out[n++] = r[i]->op;
    for (const struct op *o = op->gpu->oldest; op->blocking_before && o && o->number < op->blocking_before;
         o = o->newer)
        if (o->stream->blocking && o != op && n < most)
            out[n++] = o;
    return n;
}

static int may_begin(const struct op *op)
{
    const void *one[1];
    return undone(op, one, 1) == 0;
}

static const struct model_kernel *kernel_of(const struct op *op)
{
    return op->kernel ? op->kernel : &op->own;
}

unsigned model_op_blockers(const struct op *op, const void **out, unsigned most, const char **why)
{
    static char turn[32];
    const struct model_kernel *k = kernel_of(op);
    unsigned n = 0;

    if (!op->issued && op->gpu->head[op->queue] != op) {
        snprintf(turn, sizeof(turn), "its turn in queue %u", op->queue);
        *why = turn;
        if (most)
            out[n++] = op->gpu->head[op->queue];
        return n;
    }
    if (!op->issued) {
        *why = op->what == OP_WAIT ? "the event" : "the stream's order";
        return undone(op, out, most);
    }
    if (op->placed < op->left) {
        *why = "room";
        for (const struct op *o = op->gpu->running; o; o = o->next)
            if (o != op && o->placed && n < most)
                out[n++] = o;
        return n;
    }
    *why = k->what ? k->what : "the end";
    const void *const *w = op->kernel ? k->waits : model_codec_waits(op);
    for (; w && *w && n < most; w++)
        out[n++] = *w;
    return n;
}

const char *model_op_name(const struct op *op)
{
    static char text[4][64];
    static unsigned turn;
    char *to = text[turn++ % 4];

    if (op->number == 0)
        return "(done)";
    if (op->what == OP_KERNEL)
        return op->kernel ? op->kernel->name : model_codec_name(op);
    snprintf(to, sizeof(text[0]), "%s in queue %u",
             op->what == OP_WAIT     ? "event waited for"
             : op->what == OP_RECORD ? "event recorded"
                                     : "memset",
             op->queue);
    return to;
}

uint64_t model_last_number(void)
{
    return number;
}

unsigned model_undone_before(int gpu, uint64_t before, const void **out, unsigned most)
{
    unsigned n = 0;
    for (const struct op *o = gpus[gpu].oldest; o && o->number < before && n < most; o = o->newer)
        out[n++] = o;
    return n;
}

nb_cu_stream model_legacy(void)
{
    return gpus[model_current_gpu()].legacy;
}

unsigned model_all_waiting(const void **out, unsigned most)
{
    unsigned n = 0;
    for (int g = 0; g < MODEL_GPUS; g++)
        for (const struct op *o = gpus[g].oldest; o && n < most; o = o->newer)
            out[n++] = o;
    return n;
}

/* ---- The GPU's side ------------------------------------------------------------------------------------ */

static void finish(struct op *op)
{
    struct gpu *g = op->gpu;

    if (op->older)
        op->older->newer = op->newer;
    else
        g->oldest = op->newer;
    if (op->newer)
        op->newer->older = op->older;
    else
        g->newest = op->older;
    const int moved =
        op->kernel && !op->kernel->aside; /* and not a codec kernel's, which may come and go for ever */

    if (op->kernel) {
        op->kernel->over = 1;
        op->kernel->op = NULL;
    }
    op->number = 0;
    op->older = op->newer = NULL;
    op->next = g->spare;
    g->spare = op;
    if (moved)
        model_moved();
}

static void release(struct op *op)
{
    const struct model_kernel *k = kernel_of(op);

    for (unsigned i = 0; i < model.sms; i++) {
        struct sm *sm = &op->gpu->sm[i];
        const unsigned n = op->where[i];
        sm->registers += n * k->registers * k->threads;
        sm->threads += n * k->threads;
        sm->shared += n * k->shared;
        sm->blocks += n;
        op->where[i] = 0;
    }
    op->placed = 0;
}

/* Place as many blocks as find room, each on the multiprocessor with the most free threads. */
static int place(struct op *op)
{
    const struct model_kernel *k = kernel_of(op);
    const unsigned registers = k->registers * k->threads;
    int any = 0;

    while (op->placed < op->left) {
        struct sm *best = NULL;
        for (unsigned i = 0; i < model.sms; i++) {
            struct sm *sm = &op->gpu->sm[i];
            if (sm->registers >= registers && sm->threads >= k->threads && sm->shared >= k->shared &&
                sm->blocks && (!best || sm->threads > best->threads))
                best = sm;
        }
        if (!best)
            break;
        best->registers -= registers;
        best->threads -= k->threads;
        best->shared -= k->shared;
        best->blocks--;
        op->where[best - op->gpu->sm]++;
        op->placed++;
        any = 1;
    }
    return any;
}

/* Do one step of a running kernel. Return 1 when something happened. */
static int step_kernel(struct op *op, int may_place)
{
    const struct model_kernel *k = kernel_of(op);
    int any = 0;

    if (may_place && op->placed < op->left && (op->placed == 0 || k->ns == 0)) {
        any = place(op);
        if (any && k->ns)
            op->until = model_now() + BEGIN_NS + k->ns;
        if (any && op->kernel && op->placed == op->left)
            op->kernel->begun = 1;
    }
    if (k->ns && op->placed && op->until <= model_now()) {
        const unsigned ended = op->placed;
        release(op);
        op->left -= ended;
        op->until = 0;
        return op->left == 0 ? 2 : 1;
    }
    if (k->ns)
        return any;
    if (!op->kernel)
        return op->placed >= 2 && model_codec_step(op, &op->until) && op->placed == op->left ? 2 : any;
    if (op->placed == op->left && k->done(k->argument)) {
        release(op);
        return 2;
    }
    return any;
}

static int step_running(struct gpu *g)
{
    int any = 0, full_at = INT32_MIN; /* kernels of this priority or a lower one find no room */

    for (int pass = 1; pass >= 0; pass--) { /* high priority first */
        for (struct op **link = &g->running, *op; (op = *link);) {
            int what;
            if ((op->stream->priority < 0) != pass) {
                link = &op->next;
                continue;
            }
            what = step_kernel(op, full_at == INT32_MIN);
            if (what == 2) {
                *link = op->next;
                if (!*link)
                    g->running_tail = link;
                if (op->placed)
                    release(op);
                finish(op);
                any = 1;
                continue;
            }
            any |= what;
            if (op->placed < op->left)
                full_at = op->stream->priority;
            link = &op->next;
        }
    }
    return any;
}

static int step_queue(struct gpu *g, unsigned q)
{
    struct op *op = g->head[q];

    if (!op || !may_begin(op))
        return 0;
    g->head[q] = op->next;
    if (!g->head[q])
        g->tail[q] = &g->head[q];
    op->issued = 1;
    if (op->what == OP_KERNEL) {
        op->next = NULL;
        *g->running_tail = op;
        g->running_tail = &op->next;
        return 1;
    }
    if (op->what == OP_SET)
        __atomic_store_n(op->word, op->value, __ATOMIC_RELEASE);
    finish(op);
    return 1;
}

int model_gpus_step(void)
{
    int any = 0;

    for (int g = 0; g < MODEL_GPUS; g++) {
        for (unsigned q = 0; q < model.queues; q++)
            while (step_queue(&gpus[g], q))
                any = 1;
        any |= step_running(&gpus[g]);
    }
    return any;
}

int64_t model_gpus_next(void)
{
    int64_t next = INT64_MAX;

    for (int g = 0; g < MODEL_GPUS; g++)
        for (const struct op *op = gpus[g].running; op; op = op->next)
            if (op->until > model_now() && op->until < next)
                next = op->until;
    return next;
}
