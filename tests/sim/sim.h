/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster in one process: nodes of the real engine, policy, state and codecs, stepped in virtual time, over
 * a simulated network (network.h), devices (device.h) and NCCL (nccl.h). One number, the seed, decides
 * everything: no clock, address, or order of memory takes part, so that a run happens again event by event.
 *
 *   plan.h      what the seed stands for: nodes, settings, communicators, operations, faults
 *   queue.h     what is to happen, by virtual time
 *   memory.h    whose memory is whose; refusals, leaks
 *   data.h      values that operations carry, and what comes of them
 *   network.h, device.h, nccl.h, node.h   the parts of a node's world
 *   fault.h     doing to them what the plan says
 *   judge.h     what must be true, and what is reported when it is not
 *   cluster.h   a run: the loop over events
 *   compare.h   a run against the same one without lateness
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

/* What has happened last, for a report. */
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
    uint64_t events, windows, operations; /* so far; operations: of each node */
    int64_t progress;                     /* when something other than a heartbeat happened last */
    struct sim_queue queue;
    struct sim_network *network;
    struct sim_node **node; /* [plan->nnodes] */
    uint64_t random;        /* state of the generator for what is not in the plan: jitter */

    /* faults that wait for their moment */
    unsigned char *fault_state; /* [plan->nfaults] */
    uint64_t *fault_event;      /* the event that they wait for, UINT64_MAX: none yet */
    int64_t *fault_at;          /* [plan->nfaults] when it took effect; 0: it has not */
    uint64_t fault_next;        /* the smallest of them */

    uint64_t hash; /* of the trace */
    uint64_t
        results;  /* of what all operations brought, in the order of the plan: the same whatever the time */
    bool loud;    /* the trace is printed */
    bool partial; /* some operation of some node is not complete */
    bool failed;  /* the first violation ends a run */
    char violation[1024];
    struct sim_trace_entry trace[SIM_TRACE];
    uint64_t traced;
    int log_node; /* whose code runs */
};

/* A value in [0, n), and one chance in n; from the run's generator. */
static inline uint64_t sim_below(struct sim *s, uint64_t n)
{
    return hx_rand_below(&s->random, n);
}

/* A line of the trace: `what` is a constant, `text` may be NULL. */
void sim_trace(struct sim *s, const char *what, int node, long a, long b, const char *text);
/* Something that must not be: the run ends. Only the first counts. */
void sim_violation(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* From here on node `node` works (its memory, its label in the log); SIM_NOBODY: the simulation. Returns who
 * did before. */
int sim_enter(struct sim *s, int node);

#endif
