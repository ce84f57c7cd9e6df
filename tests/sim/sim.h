/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster in one process: nodes of the real engine, policy, state and codecs, stepped in virtual time, over
 * a simulated network (network.h), devices (device.h) and NCCL (nccl.h). One number, the seed, decides
 * everything. A run does not depend on clocks, addresses or the order of memory, so it repeats event by
 * event.
 *
 *   plan.h      the plan of a seed: nodes, settings, communicators, operations, faults
 *   queue.h     future events, by virtual time
 *   memory.h    owners of memory, refusals, leaks
 *   data.h      values that operations carry, and their results
 *   network.h, device.h, nccl.h, node.h   the parts of a node's world
 *   fault.h     the plan's faults
 *   judge.h     conditions that must hold, and reports of violations
 *   cluster.h   a run: the loop over events
 *   compare.h   a run against the same run without lateness
 *   shrink.h    a failure, reduced
 */
#ifndef NIBBLE_TESTS_SIM_H
#define NIBBLE_TESTS_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/harness/lib/harness.h"
#include "tests/sim/plan.h"
#include "tests/sim/queue.h"

#define SIM_NODES_MAX 4096
#define SIM_US INT64_C(1000)
#define SIM_MS INT64_C(1000000)
#define SIM_S INT64_C(1000000000)

struct sim_network;
struct sim_node;

/* One of the last events, for a report. */
struct sim_trace_entry {
    int64_t at;
    const char *what;
    int node;
    long a, b;
    char text[200];
};
#define SIM_TRACE 96

struct sim {
    const struct sim_plan *plan;
    int64_t now;
    uint64_t events, windows, operations; /* so far. operations: of each node */
    int64_t progress;                     /* when something other than a heartbeat last happened */
    struct sim_queue queue;
    struct sim_network *network;
    struct sim_node **node; /* [plan->nnodes] */
    uint64_t random;        /* state of the generator for draws outside the plan: jitter */

    /* faults that wait for their moment */
    unsigned char *fault_state; /* [plan->nfaults] */
    uint64_t *fault_event;      /* the event for which each waits. UINT64_MAX: none yet */
    int64_t *fault_at;          /* [plan->nfaults] when it took effect. 0: it has not */
    uint64_t fault_next;        /* the smallest of them */

    uint64_t hash;    /* of the trace */
    uint64_t results; /* hash of all operations' results in the plan's order, the same at any timing */
    bool loud;        /* print the trace */
    bool partial;     /* some operation of some node is not complete */
    bool failed;      /* the first violation ends a run */
    char violation[1024];
    struct sim_trace_entry trace[SIM_TRACE];
    uint64_t traced;
    int log_node; /* whose code runs */
};

/* Return a value in [0, n), and true with one chance in n, from the run's generator. */
static inline uint64_t sim_below(struct sim *s, uint64_t n)
{
    return hx_rand_below(&s->random, n);
}

/* Add a line to the trace. `what` is a constant, `text` may be NULL. */
void sim_trace(struct sim *s, const char *what, int node, long a, long b, const char *text);
/* Report a violation: the run ends. Only the first counts. */
void sim_violation(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Switch to node `node` (its memory, its label in the log), or to the simulation with SIM_NOBODY. Return the
 * node before the call. */
int sim_enter(struct sim *s, int node);

#endif
