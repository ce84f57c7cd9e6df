/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays real training to the whole plugin and prints its decisions: a job (lib/job.h) whose gradients and
 * weights come from a trace of traces.py on standard input, with the collectives of a framework
 * (lib/parallel.h).
 *
 *     tests/jobs/traced [-v] [-s SEED] fsdp1|fsdp2|megatron|ddp|beside|late|teacher < TRACE
 *
 * `beside` is fsdp2 with further sums of the gradients' type and size: activations of the residual stream,
 * and squares of gradients. In `late` the weights come one step late, as from an optimizer on the host.
 * `teacher` gathers an average of the weights in each step, too. The program prints one line, as figures[]
 * names it. -v prints the plugin's log before it. Exit status 0: the trace was played to its end, whatever
 * the plugin did.
 *
 * A trace is, in the byte order of the machine: the text "NBTRACE1", four numbers of 4 bytes (units, steps,
 * values of activations, 0), 8 bytes for each unit's size, the weights of each (BF16). Then for each step:
 * the gradients of both nodes for each unit from the last to the first (FP32), activations of both nodes
 * (FP32), and all new weights (BF16).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/internal.h"
#include "lib/parallel.h"
#include "policy/identity/identity.h"
#include "policy/recognise/recognise.h"

#define LATER 100 /* first step whose feedback counts */
#define STEPS_MOST 100000u

struct trace {
    struct model_source source;
    size_t n[UNITS_MOST], activations;
    int units, steps;
    float *activation[NODES];
    uint16_t *weights;
    float *next[UNITS_MOST]; /* the weights of the next step. NULL: weights come at once */
    struct model *model;
    /* the plugin's decisions, by node and unit */
    /* step first recognised, step last unrecognised, -1 */
    int first[NODES][UNITS_MOST], unseen[NODES][UNITS_MOST];
    uint64_t later, coded, fed; /* gradients from step LATER on */
    uint64_t early;             /* quantized before the warm-up ended */
    /* reasons of gradients that were not quantized, or not fed */
    uint64_t why[NB_WHY_COUNT], whose[NB_ID_REASON_COUNT];
};

/* ---- the trace ----------------------------------------------------------------------------------------- */

static void get(void *to, size_t size, size_t n)
{
    if (fread(to, size, n, stdin) == n)
        return;
    fprintf(stderr, "the trace ends too early\n");
    exit(1);
}

static void get_weights(struct trace *t, float *w, size_t n)
{
    get(t->weights, 2, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)t->weights[i] << 16;
        memcpy(&w[i], &bits, 4);
    }
}

static void begin(void *arg, struct unit *u, int number)
{
    (void)number;
    get_weights(arg, u->w, u->n);
}

static void update(void *arg, struct unit *u, int number)
{
    const struct trace *t = arg;

    if (t->next[number])
        memcpy(u->w, t->next[number], u->n * sizeof(float));
    get_weights(arg, t->next[number] ? t->next[number] : u->w, u->n);
}

static void gradient(void *arg, struct unit *u, int number)
{
    (void)arg, (void)number;
    for (int r = 0; r < NODES; r++)
        get(u->g[r], sizeof(float), u->n);
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p)
        abort();
    return p;
}

static void trace_open(struct trace *t)
{
    char magic[8];
    uint32_t head[4];
    uint64_t n;
    size_t most = 0;

    get(magic, 1, sizeof(magic));
    get(head, sizeof(head[0]), 4);
    if (memcmp(magic, "NBTRACE1", 8) || !head[0] || head[0] > UNITS_MOST || !head[1] ||
        head[1] > STEPS_MOST) {
        fprintf(stderr, "no trace of traces.py\n");
        exit(1);
    }
    *t = (struct trace){.units = (int)head[0], .steps = (int)head[1], .activations = head[2]};
    for (int i = 0; i < t->units; i++) {
        get(&n, sizeof(n), 1);
        t->n[i] = n;
        most = n > most ? n : most;
    }
    t->weights = zeros(most, sizeof(uint16_t));
    for (int r = 0; r < NODES; r++)
        t->activation[r] = zeros(t->activations, sizeof(float));
    memset(t->first, 0xff, sizeof(t->first));
    memset(t->unseen, 0xff, sizeof(t->unseen));
    /* Updates come in the order of units, as the weights do. */
    t->source = (struct model_source){t->n, begin, gradient, update, t};
}

static void trace_close(struct trace *t)
{
    free(t->weights);
    for (int i = 0; i < t->units; i++)
        free(t->next[i]);
    for (int r = 0; r < NODES; r++)
        free(t->activation[r]);
}

/* ---- decisions of the plugin --------------------------------------------------------------------------- */

static void listen(void *arg, const struct told *told)
{
    struct trace *t = arg;
    const struct model *m = t->model;
    int unit = 0;

    if ((told->what == EXACT && told->quantized) || told->wrongly_fed)
        printf("# step %d, node %d: %s of %zu values: \"%s\", \"%s\"\n", told->step, told->node,
               told->what == EXACT ? "no gradient, and quantized" : "fed with another buffer's error",
               told->n, nb_class_reason_text((enum nb_class_reason)told->why),
               nb_identity_reason_text((enum nb_identity_reason)told->whose));
    if (told->what == EXACT)
        return;
    while (m->unit[unit].buffer != told->what)
        unit++;
    if (!told->recognised)
        t->unseen[told->node][unit] = told->step;
    else if (t->first[told->node][unit] < 0)
        t->first[told->node][unit] = told->step;
    if (told->step < LATER)
        return;
    t->later++;
    t->coded += (uint64_t)told->quantized;
    t->fed += (uint64_t)told->fed;
    if (!told->quantized && told->why >= 0)
        t->why[told->why]++;
    else if (!told->fed && told->whose >= 0)
        t->whose[told->whose]++;
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void print(const struct trace *t, const char *framework, const struct verdict *v)
{
    int first[NODES * UNITS_MOST], n = 0, last = 0;
    const double all = t->later ? (double)t->later : 1.0;

    for (int r = 0; r < NODES; r++)
        for (int i = 0; i < t->units; i++) {
            first[n++] = t->first[r][i] < 0 ? t->steps : t->first[r][i];
            if (t->unseen[r][i] + 1 > last)
                last = t->unseen[r][i] + 1;
        }
    qsort(first, (size_t)n, sizeof(first[0]), ascending);
    printf(
        "framework=%s sums=%lu recognised=%d last=%d for_good=%d coded=%.2f fed=%.2f quantized_wrongly=%lu "
        "fed_wrongly=%lu confused=%d",
        framework, (unsigned long)v->sums, first[n / 2], first[n - 1], last, 100 * (double)t->coded / all,
        100 * (double)t->fed / all, (unsigned long)v->quantized_wrongly, (unsigned long)v->fed_wrongly,
        v->confused);
    for (int i = 0; i < NB_WHY_COUNT; i++)
        if (t->why[i])
            printf(" raw_%d=%lu", i, (unsigned long)t->why[i]);
    for (int i = 0; i < NB_ID_REASON_COUNT; i++)
        if (t->whose[i])
            printf(" unfed_%d=%lu", i, (unsigned long)t->whose[i]);
    for (int r = 0; r < NODES; r++) /* unit by unit, the first is the root */
        for (int i = 0; i < t->units; i++)
            printf("%s%d", i ? "," : r ? " node1=" : " node0=", t->first[r][i]);
    printf("\n");
    if (v->warning[0])
        printf("# warning: %s\n", v->warning);
}

/* ---- frameworks ---------------------------------------------------------------------------------------- */

static struct model *model_of(struct job *job)
{
    struct trace *t = job_arg(job);

    t->model = model_new(job, &(struct model_settings){.units = t->units, .source = &t->source});
    return t->model;
}

static void get_activations(struct trace *t)
{
    for (int r = 0; r < NODES; r++)
        get(t->activation[r], sizeof(float), t->activations);
}

/* Make sums with the type and size of a unit's gradients. */
static void others(struct fsdp *f, const struct trace *t)
{
    struct memory *memory = job_memory(f->model->job);
    const struct unit *u = &f->model->unit[f->model->units - 1];
    float *x[NODES];

    for (int r = 0; r < NODES; r++)
        x[r] = zeros(u->n, sizeof(float));
    for (int kind = 0; kind < 2; kind++) {
        struct buffer b = {.type = f->grad, .n = u->n, .send = memory_take(memory, u->n * 4), .what = EXACT};
        b.recv = memory_take(memory, u->n * 4 / NODES);
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < u->n; i++)
                x[r][i] = kind == 0 ? t->activation[r][i % t->activations] : u->g[r][i] * u->g[r][i];
        reduce_scatter(f->comm, &b, x[0], x[1]);
        memory_give(memory, b.send);
        memory_give(memory, b.recv);
    }
    for (int r = 0; r < NODES; r++)
        free(x[r]);
}

enum { PLAIN, BESIDE, ONE_LATE, TEACHER };

/* Gather the average of the weights, and let it follow them. */
static void gather_average(struct fsdp *average, const struct model *m)
{
    fsdp_forward(average);
    for (int i = 0; i < m->units; i++) {
        struct unit *u = &average->model->unit[i];
        memory_give(job_memory(m->job), average->full[i]);
        average->full[i] = 0;
        for (size_t k = 0; k < u->n; k++)
            u->w[k] += 0.01f * (m->unit[i].w[k] - u->w[k]);
    }
}

static void fully_sharded(struct job *job, int version, int kind)
{
    struct trace *t = job_arg(job);
    struct fsdp f = fsdp_open(job, comm_between(job, NULL), model_of(job), version), average = f;
    const address norm = memory_take(job_memory(job), 4);
    const struct model *m = f.model;

    for (int i = 0; kind == ONE_LATE && i < m->units; i++) {
        t->next[i] = zeros(m->unit[i].n, sizeof(float));
        memcpy(t->next[i], m->unit[i].w, m->unit[i].n * sizeof(float));
    }
    if (kind == TEACHER) {
        const struct model_settings s = {.units = m->units, .first = m->unit[0].n, .n = m->unit[1].n};
        average = fsdp_open(job, f.comm, model_new(job, &s), version);
        for (int i = 0; i < m->units; i++)
            memcpy(average.model->unit[i].w, m->unit[i].w, m->unit[i].n * sizeof(float));
    }
    while (job_step(job)) {
        fsdp_forward(&f);
        if (kind == TEACHER)
            gather_average(&average, m);
        fsdp_backward(&f);
        get_activations(t);
        if (kind == BESIDE)
            others(&f, t);
        all_reduce_scalar(f.comm, norm, f.model->unit[0].g[0][0], f.model->unit[0].g[1][0]);
        fsdp_update(&f);
    }
}

JOB(fsdp1, fully_sharded(job, 1, PLAIN))
JOB(fsdp2, fully_sharded(job, 2, PLAIN))
JOB(beside, fully_sharded(job, 2, BESIDE))
JOB(late, fully_sharded(job, 2, ONE_LATE))
JOB(teacher, fully_sharded(job, 2, TEACHER))

static void megatron(struct job *job)
{
    struct distopt d = distopt_open(job, comm_between(job, NULL), model_of(job));

    while (job_step(job)) {
        distopt_reduce(&d);
        get_activations(job_arg(job));
        model_update(d.model);
        distopt_gather(&d);
    }
}

static void ddp(struct job *job)
{
    struct ddp d = ddp_open(job, comm_between(job, NULL), model_of(job));

    while (job_step(job)) {
        ddp_backward(&d, 1);
        get_activations(job_arg(job));
        model_update(d.model);
    }
}

int main(int argc, char **argv)
{
    static const struct job_entry jobs[] = {
        {"fsdp1", fsdp1, {0}},   {"fsdp2", fsdp2, {0}}, {"megatron", megatron, {0}}, {"ddp", ddp, {0}},
        {"beside", beside, {0}}, {"late", late, {0}},   {"teacher", teacher, {0}}};
    static struct trace t;
    struct job_entry entry = {.name = NULL};
    struct verdict v;
    uint64_t seed = 1;
    int at = 1, loud = 0;

    for (; at < argc && argv[at][0] == '-'; at++) {
        loud |= strcmp(argv[at], "-v") == 0;
        if (strcmp(argv[at], "-s") == 0 && at + 1 < argc)
            seed = strtoull(argv[++at], NULL, 10);
    }
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]) && at + 1 == argc; i++)
        if (strcmp(argv[at], jobs[i].name) == 0)
            entry = jobs[i];
    if (!entry.name) {
        fprintf(stderr, "usage: traced [-v] [-s SEED] "
                        "fsdp1|fsdp2|megatron|ddp|beside|late|teacher < TRACE\n");
        return 1;
    }
    trace_open(&t);
    entry.settings = (struct job_settings){.steps = t.steps, .listen = listen, .arg = &t};
    job_play(&entry, seed, loud, &v);
    print(&t, entry.name, &v);
    trace_close(&t);
    return 0;
}
