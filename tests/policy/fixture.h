/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of records, and NCCL's side of it, for tests of events. One C file of a program includes this. */
#ifndef NIBBLE_TESTS_POLICY_FIXTURE_H
#define NIBBLE_TESTS_POLICY_FIXTURE_H

#include <check.h>
#include <stdint.h>

#include "abi/process.h"
#include "abi/tables.h"
#include "base/context.h"
#include "events.h"
#include "policy/records/records.h"

static const ncclProfiler_v7_t *const prof = &NB_NEWEST_PROFILER;
static int buffer[4];
static struct nb_context *node; /* the process's context */
static _Thread_local int gpu = -1;

static inline int gpu_of_thread(struct nb_context *of)
{
    (void)of;
    return gpu;
}

static inline struct ev_op op(int func, const char *type, size_t type_bytes, size_t count)
{
    return (struct ev_op){.func = func,
                          .type = type,
                          .type_bytes = type_bytes,
                          .count = count,
                          .send = &buffer[0],
                          .recv = &buffer[1]};
}

static inline void both(struct ev_comm *c, struct ev_op *o)
{
    ev_call(prof, c, o);
    ev_launch(prof, c, o, 1);
}

static inline struct nb_queue *consume(uint64_t id, int device, int nnodes)
{
    struct nb_queue *q = nb_queue_get(node, id, device);

    ck_assert_ptr_nonnull(q);
    ck_assert_int_eq(nb_queue_attach(q, nnodes), 0);
    return q;
}

static inline void end(struct nb_queue *q)
{
    nb_queue_detach(q);
    nb_queue_put(q);
}

static inline struct nb_record next(struct nb_queue *q)
{
    struct nb_record r;

    ck_assert_uint_eq(nb_queue_take(q, &r, 1), 1);
    return r;
}

static inline uint32_t missing_of(const struct nb_record *r)
{
    uint32_t n = 0;
    for (int f = 0; f < NB_FUNC_COUNT; f++)
        n += r->missing[f];
    return n;
}

static inline uint32_t missing_of_next(struct nb_queue *q)
{
    struct nb_record r = next(q);
    return missing_of(&r);
}

static inline void nothing(struct nb_queue *q)
{
    struct nb_record r;
    ck_assert_uint_eq(nb_queue_take(q, &r, 1), 0);
}

/* Prepare the tests. Return 0, or -1 without memory. */
static inline int fixture_open(void)
{
    node = nb_process_context();
    if (!node)
        return -1;
    node->current_gpu = gpu_of_thread;
    return 0;
}

#endif
