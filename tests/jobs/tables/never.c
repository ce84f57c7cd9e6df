/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that must always be raw by default, through the plugin's tables on two nodes: averaged
 * parameters, tied embeddings, gradients of gathered keys and values or logits, statistics, states of an
 * optimizer. Each runs beside a job whose own gradients are recognised meanwhile, long enough for a decision,
 * and must arrive right to the bit in every step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "player.h"

#define STEPS 96u
#define BUCKET 66000u /* elements of the job's own gradients. Fewer do not mark steps */

static const char *const env_default[] = {"NIBBLE_MIN_BYTES=0", "NIBBLE_GRAD=", "NIBBLE_WARMUP_STEPS=50",
                                          NULL};

struct other {
    enum nb_func func;
    ncclDataType_t type;
    uint64_t count; /* of the whole vector */
    enum content content;
    int stable; /* each sum of a step has its own buffer. 2: all share one */
    unsigned per_step, every;
    int gathered; /* gathered before, so many times in a row: the same (recomputed) activations */
    int shards;   /* the job shards its weights (FSDP), else it does not (DDP) */
};

static void add(struct trace *t, uint64_t comm, enum nb_func func, ncclDataType_t type, uint64_t count,
                uint64_t address, enum content content, uint32_t unit, uint32_t step)
{
    struct event *e;

    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 1024;
        t->event = realloc(t->event, t->cap * sizeof(*t->event));
        if (!t->event)
            abort();
    }
    e = &t->event[t->n++];
    memset(e, 0, sizeof(*e));
    e->call = (struct nb_identity_call){comm, func, type, count, address, address + 64, 1, 0, 0};
    e->call.bucket = func == NB_FUNC_ALL_REDUCE && content == C_GRADIENT;
    e->content = content;
    e->unit = e->truth = unit;
    e->step = step;
    e->version = step;
}

/* Run the job: two buckets or units on the world, and the other operations on their own communicator. Under
 * sanitizers it is smaller, too small for its own gradients to be recognised. */
static int beside(const char *what, const struct other *o)
{
    const uint32_t steps = hx_quick() ? 60 : STEPS;
    const uint64_t bucket = hx_quick() ? 2048 : BUCKET, less = hx_quick() ? 8 : 1;
    struct trace t = {.steps = steps};
    struct fw_play how = {.trace = &t, .env = env_default, .warmup = 50, .late = 80};
    struct fw_result r[2];
    uint64_t fresh = 0x10000000;
    int rc;

    for (uint32_t step = 0; step < steps; step++) {
        for (unsigned k = 0; step % o->every == 0 && k < o->per_step; k++) {
            uint64_t at = 0x5000000 + (o->stable == 2 ? 0 : k * 0x100000);
            if (!o->stable)
                at = fresh += 0x100000;
            for (int i = 0; i < o->gathered; i++)
                add(&t, 2, NB_FUNC_ALL_GATHER, o->type, o->count / less, at + 0x8000, o->content, 60 + k,
                    step);
            if (o->func != NB_FUNC_ALL_GATHER)
                add(&t, 2, o->func, o->type, o->count / less, at, o->content, 60 + k, step);
        }
        for (unsigned b = 0; b < 2 && !o->shards; b++)
            add(&t, 3, NB_FUNC_ALL_REDUCE, ncclFloat32, bucket + 512 * b, 0x900000 + b * 0x100000, C_GRADIENT,
                b, step);
        for (unsigned b = 0; b < 2 && o->shards; b++)
            add(&t, 3, NB_FUNC_ALL_GATHER, ncclBfloat16, bucket + 512 * b, fresh += 0x100000, C_WEIGHTS, b,
                step);
        for (unsigned b = 2; b-- > 0 && o->shards;)
            add(&t, 3, NB_FUNC_REDUCE_SCATTER, ncclFloat32, bucket + 512 * b, fresh += 0x100000, C_GRADIENT,
                b, step);
    }
    rc = fw_run(what, &how, r);
    free(t.event);
    for (int node = 0; node < 2 && rc == 0; node++) {
        HX_CHECK(hx_quick() || r[node].coded * 10 >= r[node].gradients * 9,
                 "%s: of the job's own %lu gradients %lu were coded", what, (unsigned long)r[node].gradients,
                 (unsigned long)r[node].coded);
        HX_CHECK(r[node].others_coded == 0, "%s: %lu of %lu were quantized", what,
                 (unsigned long)r[node].others_coded, (unsigned long)r[node].others);
        HX_CHECK(r[node].others + r[node].gathers > 0, "%s: nothing of the kind was seen", what);
    }
    return rc;
}

#define NEVER(name, what, ...) \
    static int name(void) \
    { \
        static const struct other o = __VA_ARGS__; \
        return beside(what, &o); \
    }

NEVER(average, "parameters averaged in every step",
      {NB_FUNC_ALL_REDUCE, ncclFloat32, 32768, C_WEIGHTS, 1, 1, 1, 0, 0})
NEVER(average_seldom, "parameters averaged every second step",
      {NB_FUNC_ALL_REDUCE, ncclFloat32, 32768, C_WEIGHTS, 1, 1, 2, 0, 0})
NEVER(average_fresh, "parameters averaged from memory made for it",
      {NB_FUNC_ALL_REDUCE, ncclBfloat16, 65536, C_WEIGHTS, 0, 1, 1, 0, 0})
NEVER(tied, "tied embeddings at the start",
      {NB_FUNC_ALL_REDUCE, ncclBfloat16, 65536, C_WEIGHTS, 1, 1, 1000, 0, 0})
NEVER(keys, "gradients of gathered keys and values",
      {NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 16384, C_ACTIVATION, 1, 4, 1, 1, 0})
NEVER(keys_again, "gradients of keys and values that are gathered again",
      {NB_FUNC_REDUCE_SCATTER, ncclBfloat16, 16384, C_ACTIVATION, 1, 4, 1, 2, 0})
NEVER(logits, "gradients of gathered logits",
      {NB_FUNC_REDUCE_SCATTER, ncclFloat32, 24576, C_ACTIVATION, 0, 2, 1, 1, 0})
NEVER(tensor_parallel, "activations of tensor parallelism, memory used again",
      {NB_FUNC_ALL_REDUCE, ncclBfloat16, 16384, C_ACTIVATION, 2, 4, 1, 0, 0})
NEVER(tensor_parallel_own, "activations of tensor parallelism from buffers of their own",
      {NB_FUNC_ALL_REDUCE, ncclBfloat16, 16384, C_ACTIVATION, 1, 4, 1, 0, 1})
NEVER(statistics, "statistics that move slowly",
      {NB_FUNC_ALL_REDUCE, ncclFloat32, 32768, C_STATISTIC, 1, 1, 1, 0, 0})
NEVER(state_sum, "states of an optimizer that are summed",
      {NB_FUNC_REDUCE_SCATTER, ncclFloat32, 32768, C_STATE, 1, 1, 1, 0, 0})
NEVER(state_gather, "states of an optimizer that are gathered",
      {NB_FUNC_ALL_GATHER, ncclFloat32, 32768, C_STATE, 0, 2, 5, 1, 0})

HX_MAIN({"parameter-average", average, HX_CASE_FULL},
        {"parameter-average-seldom", average_seldom, HX_CASE_FULL},
        {"parameter-average-fresh", average_fresh, HX_CASE_FULL}, {"tied-embeddings", tied, HX_CASE_FULL},
        {"keys-and-values", keys, 0}, {"keys-and-values-again", keys_again, HX_CASE_FULL},
        {"logits", logits, HX_CASE_FULL}, {"tensor-parallel", tensor_parallel, HX_CASE_FULL},
        {"tensor-parallel-own-buffers", tensor_parallel_own, HX_CASE_FULL},
        {"statistics", statistics, HX_CASE_FULL}, {"optimizer-state-summed", state_sum, HX_CASE_FULL},
        {"optimizer-state-gathered", state_gather, HX_CASE_FULL})
