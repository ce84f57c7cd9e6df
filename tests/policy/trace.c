/* SPDX-License-Identifier: Apache-2.0 */
/* Call orders of the frameworks. See trace.h. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#define LAYER (1u << 22) /* elements of a layer */
#define ROOT (3u << 21)  /* elements of the embedding unit */
#define INNER 1          /* communicators: inside the node, */
#define OUTER 2          /* between nodes, */
#define WORLD 3          /* all */
#define MAX_UNITS 256u
#define STATES 160u /* number of contents other than weights */
#define RANKS 16u

struct job {
    struct trace *t;
    enum framework framework;
    unsigned variants, layers, chunks;
    uint32_t step;
    uint64_t seed;
    unsigned shrink;
    uint64_t version[MAX_UNITS];  /* version of a block's weights */
    uint64_t gathered[MAX_UNITS]; /* version + 1 at the last gather */
    uint8_t zeros;                /* parts of the next gradient */
    unsigned active[2];           /* LISA */
    int dropped[MAX_UNITS];
    /* recycled memory: the job hands a few blocks round, in an order that depends on its other work */
    unsigned turn, blocks;
    uint64_t arena;
};

const char *variants_name(unsigned v)
{
    static char text[96];
    static const char *const names[] = {"eval", "checkpoint", "batch",   "LayerDrop",
                                        "LISA", "accumulate", "ramp-up", "prefetch"};

    text[0] = '\0';
    for (unsigned i = 0; i < 8; i++)
        if (v >> i & 1) {
            strcat(text, text[0] ? "+" : "");
            strcat(text, names[i]);
        }
    return text[0] ? text : "plain";
}

const char *framework_name(enum framework framework)
{
    static const char *const names[F_COUNT] = {
        "DDP",
        "FSDP1",
        "FSDP2",
        "FSDP2 no reshard",
        "HSDP",
        "Megatron",
        "Megatron overlap",
        "Megatron pipeline",
        "ZeRO-1",
        "ZeRO-2",
        "ZeRO-3",
        "local SGD outer",
    };
    return names[framework];
}

static int chance(struct job *j, unsigned percent)
{
    return rnd(&j->seed) % 100 < percent;
}

static uint64_t recycled(struct job *j)
{
    return j->arena + (uint64_t)(j->turn++ % j->blocks) * 0x8000000u;
}

static void emit(struct job *j, enum nb_func func, uint64_t comm, ncclDataType_t type, uint64_t count,
                 uint64_t send, uint64_t recv, int passes, enum content content, uint32_t unit)
{
    struct trace *t = j->t;
    struct event *e;

    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 4096;
        t->event = realloc(t->event, t->cap * sizeof(*t->event));
        if (!t->event)
            abort();
    }
    e = &t->event[t->n++];
    memset(e, 0, sizeof(*e));
    e->call = (struct nb_identity_call){comm, func, type, count, send, recv, passes, 0, 0};
    e->call.bucket = j->framework == F_DDP && content == C_GRADIENT;
    e->content = content;
    e->unit = unit;
    e->truth = unit;
    e->step = j->step;
    e->version = j->version[unit];
    e->zeros = content == C_GRADIENT ? j->zeros : 0;
    if (func == NB_FUNC_ALL_GATHER && content == C_WEIGHTS) {
        if (j->gathered[unit] == 0)
            e->unit = -1;
        e->changed = j->gathered[unit] != j->version[unit] + 1;
        j->gathered[unit] = j->version[unit] + 1;
    } else if (content != C_GRADIENT && content != C_WEIGHTS) {
        e->unit = -1;
        e->changed = 1;
    }
}

static void scalar(struct job *j, uint64_t comm)
{
    emit(j, NB_FUNC_ALL_REDUCE, comm, ncclFloat32, 1, 0x100, 0x100, 1, C_SCALAR, 0);
}

/* Sizes are divisible among the ranks, however small. */
static uint64_t sized(const struct job *j, uint64_t count)
{
    return (count / j->shrink + RANKS - 1) / RANKS * RANKS;
}

static uint64_t size_of(const struct job *j, unsigned unit)
{
    return sized(j, unit == j->layers ? ROOT : LAYER);
}

static int skipped(const struct job *j, unsigned layer)
{
    return layer < j->layers && j->dropped[layer];
}

static int trained(const struct job *j, unsigned layer)
{
    return layer >= j->layers || !(j->variants & V_LISA) || layer == j->active[0] || layer == j->active[1];
}

/* Do the optimizer's step. Blocks of weights have the numbers of layers, other blocks follow. */
static void update(struct job *j)
{
    for (unsigned u = 0; u < MAX_UNITS; u++)
        j->version[u] += (uint64_t)trained(j, u);
}

/* Choose which parts of the next gradient are zero, for frameworks that reduce gradients of all layers. */
static void choose_zeros(struct job *j, unsigned layer)
{
    j->zeros = 0;
    if (!trained(j, layer))
        j->zeros = 0xff;
    for (unsigned k = 0; k < 8 && j->variants & V_DROP; k++)
        j->zeros |= (uint8_t)(chance(j, 10) << k);
}

/* ---- FSDP, HSDP ---------------------------------------------------------------------------------------- */

static void gather_unit(struct job *j, unsigned unit)
{
    int inner = j->framework == F_HSDP;
    uint64_t at = recycled(j);
    emit(j, NB_FUNC_ALL_GATHER, inner ? INNER : WORLD, ncclBfloat16, size_of(j, unit),
         j->framework == F_FSDP1 ? 0x70000000u + unit * 0x100000u : at, at, !inner, C_WEIGHTS, unit);
}

static void reduce_unit(struct job *j, unsigned unit)
{
    int inner = j->framework == F_HSDP;
    uint64_t send = recycled(j), recv = recycled(j);
    emit(j, NB_FUNC_REDUCE_SCATTER, inner ? INNER : WORLD, ncclFloat32, size_of(j, unit), send, recv, !inner,
         C_GRADIENT, unit);
    if (inner)
        emit(j, NB_FUNC_ALL_REDUCE, OUTER, ncclFloat32, size_of(j, unit) / 8, recv, recv, 1, C_GRADIENT,
             unit);
}

static void fsdp_forward(struct job *j)
{
    int ahead = (j->variants & V_PREFETCH) != 0;

    gather_unit(j, j->layers); /* the root keeps its weights through the backward pass */
    if (ahead)
        gather_unit(j, 0);
    for (unsigned l = 0; l < j->layers; l++) {
        if (ahead) { /* gathers the next one by position, whether or not it will run */
            if (l + 1 < j->layers)
                gather_unit(j, l + 1);
        } else if (!skipped(j, l)) {
            gather_unit(j, l);
        }
    }
}

static void fsdp_backward(struct job *j)
{
    int again = j->framework != F_FSDP2_KEEP;
    int next = (int)j->layers - 1;

    while (next >= 0 && skipped(j, (unsigned)next))
        next--;
    if (again && next >= 0 && j->framework == F_FSDP1)
        gather_unit(j, (unsigned)next);
    while (next >= 0) {
        int before = next - 1;
        while (before >= 0 && skipped(j, (unsigned)before))
            before--;
        if (again && before >= 0)
            gather_unit(j, (unsigned)before);
        if (trained(j, (unsigned)next))
            reduce_unit(j, (unsigned)next);
        next = before;
    }
    reduce_unit(j, j->layers);
}

static void fsdp_step(struct job *j)
{
    unsigned micro = j->variants & V_ACCUMULATE ? 4 : 1;

    for (unsigned m = 0; m < micro; m++) {
        for (unsigned l = 0; l < j->layers; l++)
            j->dropped[l] = j->variants & V_DROP ? chance(j, 10) : 0;
        fsdp_forward(j);
        fsdp_backward(j);
    }
    scalar(j, WORLD); /* norm of the gradient */
    update(j);
}

/* ---- DDP ------------------------------------------------------------------------------------------------
 */

static void ddp_step(struct job *j)
{
    /* After the first step DDP makes buckets anew, in the order in which gradients came. */
    uint64_t base = j->step == 0 ? 0x10000000u : 0x900000000u;
    unsigned set = j->step == 0 ? 100 : 0;

    for (unsigned b = 0; b < j->layers; b++) {
        uint64_t count = b == 0 ? 300000 : b < 4 ? 6553600 + b * 16 * j->shrink : 6553600;
        uint64_t at = base + (uint64_t)b * 0x2000000u;
        choose_zeros(j, b);
        emit(j, NB_FUNC_ALL_REDUCE, WORLD, ncclFloat32, sized(j, count) + set, at, at, 1, C_GRADIENT,
             b + set);
    }
    if (j->variants & V_DROP) /* which parameters were used */
        emit(j, NB_FUNC_ALL_REDUCE, WORLD, ncclInt32, 500, 0x3000, 0x3000, 1, C_SCALAR, 0);
    scalar(j, WORLD);
    update(j);
}

/* ---- Megatron -------------------------------------------------------------------------------------------
 */

static uint64_t bucket_count(const struct job *j, unsigned b)
{
    return sized(j, b % 5 == 4 ? 5000000 + b * 16 * j->shrink : 6000000);
}

static void megatron_gather(struct job *j, unsigned b)
{
    uint64_t at = 0x300000000u + (uint64_t)b * 0x2000000u;
    emit(j, NB_FUNC_ALL_GATHER, WORLD, ncclBfloat16, bucket_count(j, b), at + 0x1000, at, 1, C_WEIGHTS, b);
}

static void megatron_reduce(struct job *j, unsigned b)
{
    uint64_t at = 0x600000000u + (uint64_t)b * 0x2000000u;
    choose_zeros(j, b);
    emit(j, NB_FUNC_REDUCE_SCATTER, WORLD, ncclFloat32, bucket_count(j, b), at, at + 0x1000, 1, C_GRADIENT,
         b);
}

static void megatron_step(struct job *j)
{
    int overlap = j->framework != F_MEGATRON;
    unsigned chunks = j->framework == F_MEGATRON_PIPELINE ? 4 : 1, each = j->layers / chunks;
    unsigned micro = j->variants & V_RAMP ? 1 + j->step / 16 : 4;

    if (overlap)
        for (unsigned b = 0; b < j->layers; b++)
            megatron_gather(j, b);
    for (unsigned i = 0; i < chunks; i++) {
        /* The schedule, and so the micro-batches, decides which chunk's gradients are complete first. */
        unsigned c = (i * (micro % 2 ? 1 : 3) + micro) % chunks;
        for (unsigned b = each; b-- > 0;)
            megatron_reduce(j, c * each + b);
    }
    scalar(j, WORLD);
    update(j);
    if (!overlap)
        for (unsigned b = 0; b < j->layers; b++)
            megatron_gather(j, b);
}

/* ---- DeepSpeed -------------------------------------------------------------------------------------------
 */

static uint64_t flat_count(const struct job *j, unsigned b)
{
    /* some buckets share a size, others have their own */
    return sized(j, b % 3 == 0 ? 4194304 : 4194304 - 16 * j->shrink * b);
}

static void zero12_step(struct job *j)
{
    unsigned micro = j->variants & V_ACCUMULATE && j->framework == F_ZERO2 ? 4 : 1;
    uint64_t all = 0;

    for (unsigned b = 0; b < j->layers; b++)
        all += flat_count(j, b);
    for (unsigned m = 0; m < micro; m++)
        for (unsigned b = j->layers; b-- > 0;) {
            uint64_t at = recycled(j);
            choose_zeros(j, b);
            emit(j, NB_FUNC_ALL_REDUCE, WORLD, ncclBfloat16, flat_count(j, b), at, at, 1, C_GRADIENT, b);
        }
    scalar(j, WORLD);
    update(j);
    emit(j, NB_FUNC_ALL_GATHER, WORLD, ncclBfloat16, (all + RANKS - 1) / RANKS * RANKS, 0x500001000u,
         0x500000000u, 1, C_WEIGHTS, 0);
}

/* The job gathers parameters two by two in the forward pass and three by three in the backward pass, and
 * reduces gradients in buckets of four. Sizes of gathers and reductions never agree. */
static void zero3_forward(struct job *j)
{
    for (unsigned l = 0; l < j->layers; l += 2)
        if (!skipped(j, l))
            emit(j, NB_FUNC_ALL_GATHER, WORLD, ncclBfloat16, 2 * sized(j, LAYER), recycled(j), recycled(j), 1,
                 C_WEIGHTS, l);
}

static void zero3_step(struct job *j)
{
    for (unsigned l = 0; l < j->layers; l++)
        j->dropped[l] = j->variants & V_DROP ? chance(j, 10) : 0;
    zero3_forward(j);
    for (unsigned l = j->layers; l >= 3; l -= 3)
        emit(j, NB_FUNC_ALL_GATHER, WORLD, ncclBfloat16, 3 * sized(j, LAYER), recycled(j), recycled(j), 1,
             C_WEIGHTS, 64 + l);
    for (unsigned l = j->layers; l >= 4; l -= 4)
        if (trained(j, l - 1))
            emit(j, NB_FUNC_REDUCE_SCATTER, WORLD, ncclBfloat16, 4 * sized(j, LAYER), recycled(j),
                 recycled(j), 1, C_GRADIENT, 128 + l);
    emit(j, NB_FUNC_REDUCE_SCATTER, WORLD, ncclBfloat16, sized(j, ROOT), recycled(j), recycled(j), 1,
         C_GRADIENT, 200);
    scalar(j, WORLD);
    update(j);
}

/* ---- local SGD with an outer optimizer --------------------------------------------------------------------
 */

static void outer_step(struct job *j)
{
    for (unsigned b = 0; b < j->layers; b++) { /* DDP inside the node */
        uint64_t at = 0x10000000u + (uint64_t)b * 0x2000000u;
        emit(j, NB_FUNC_ALL_REDUCE, INNER, ncclFloat32, sized(j, 6553600) + b % 4, at, at, 0, C_GRADIENT, b);
    }
    update(j);
    if (j->step % 5 != 4)
        return;
    for (unsigned b = 0; b < j->layers; b++) {
        uint64_t at = 0x900000000u + (uint64_t)b * 0x2000000u;
        choose_zeros(j, b);
        emit(j, NB_FUNC_ALL_REDUCE, OUTER, ncclFloat32, sized(j, b == 0 ? 300000 : 6553600), at, at, 1,
             C_GRADIENT, 64 + b);
    }
}

/* ---- phases between steps ---------------------------------------------------------------------------------
 */

static int shards(const struct job *j)
{
    return j->framework == F_FSDP1 || j->framework == F_FSDP2 || j->framework == F_FSDP2_KEEP ||
           j->framework == F_HSDP;
}

static void evaluate(struct job *j)
{
    memset(j->dropped, 0, sizeof(j->dropped)); /* evaluation uses all layers */
    for (unsigned i = 0; i < 3; i++) {
        if (shards(j))
            fsdp_forward(j);
        else if (j->framework == F_ZERO3)
            zero3_forward(j);
        else if (j->framework == F_MEGATRON_OVERLAP && i == 0)
            for (unsigned b = 0; b < j->layers; b++)
                megatron_gather(j, b); /* once, before the first pass */
        emit(j, NB_FUNC_ALL_REDUCE, WORLD, ncclFloat32, 8192, 0x2000, 0x2000, 1, C_ACTIVATION, 0);
    }
    j->turn += 1 + (unsigned)(rnd(&j->seed) % 5); /* memory comes back in another order */
}

static void checkpoint(struct job *j)
{
    if (j->framework != F_DDP && j->framework != F_OUTER)
        for (unsigned l = 0; l < j->layers; l++)
            for (unsigned state = 0; state < 2; state++)
                emit(j, NB_FUNC_ALL_GATHER, j->framework == F_HSDP ? INNER : WORLD, ncclFloat32,
                     sized(j, LAYER), recycled(j), recycled(j), j->framework != F_HSDP, C_STATE,
                     STATES + (2 * l + state) % 40);
    else /* a barrier while one rank writes */
        emit(j, NB_FUNC_ALL_REDUCE, WORLD, ncclInt32, 1, 0x4000, 0x4000, 1, C_SCALAR, 0);
    j->turn += 3;
}

void trace_make(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                uint32_t steps, uint64_t seed)
{
    trace_make_small(trace, framework, variants, layers, steps, seed, 1);
}

void trace_make_small(struct trace *trace, enum framework framework, unsigned variants, unsigned layers,
                      uint32_t steps, uint64_t seed, unsigned shrink)
{
    struct job j = {.t = trace,
                    .shrink = shrink,
                    .framework = framework,
                    .variants = variants,
                    .layers = layers,
                    .seed = seed,
                    .blocks = 5,
                    .arena = 0x7f0000000000u};

    memset(trace, 0, sizeof(*trace));
    trace->steps = steps;
    for (j.step = 0; j.step < steps; j.step++) {
        if (j.step % 20 == 0) {
            j.active[0] = (unsigned)(rnd(&j.seed) % layers);
            j.active[1] = (j.active[0] + 1 + (unsigned)(rnd(&j.seed) % (layers - 1))) % layers;
        }
        if (variants & V_EVAL && j.step % 10 == 9)
            evaluate(&j);
        if (variants & V_CHECKPOINT && j.step % 25 == 24)
            checkpoint(&j);
        if (variants & V_BATCH && j.step == steps / 2) {
            j.blocks = 7;
            j.arena += 0x40000000;
        }
        switch (framework) {
        case F_DDP: ddp_step(&j); break;
        case F_FSDP1:
        case F_FSDP2:
        case F_FSDP2_KEEP:
        case F_HSDP: fsdp_step(&j); break;
        case F_MEGATRON:
        case F_MEGATRON_OVERLAP:
        case F_MEGATRON_PIPELINE: megatron_step(&j); break;
        case F_ZERO1:
        case F_ZERO2: zero12_step(&j); break;
        case F_ZERO3: zero3_step(&j); break;
        case F_OUTER: outer_step(&j); break;
        case F_COUNT: break;
        }
    }
}

int trace_first_fed(const uint32_t *asked, const uint32_t *fed, uint32_t steps)
{
    for (uint32_t s = 0, n = 0, a = 0, f = 0, start = 0; s < steps; s++) {
        if (!asked[s])
            continue;
        if (fed[s] * 20 < asked[s] * 19 && (n == 0 || (f + fed[s]) * 20 < (a + asked[s]) * 19)) {
            n = a = f = 0;
            continue;
        }
        start = n ? start : s + 1;
        a += asked[s];
        f += fed[s];
        if (++n == 8)
            return (int)start;
    }
    return -1;
}
