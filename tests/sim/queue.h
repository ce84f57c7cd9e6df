/* SPDX-License-Identifier: Apache-2.0 */
/* Future events, by virtual time. Events of one time happen in the order in which they were queued. */
#ifndef NIBBLE_TESTS_SIM_QUEUE_H
#define NIBBLE_TESTS_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_event_kind {
    SIM_NODE,   /* a node's engine is stepped, and its NCCL goes on */
    SIM_ARRIVE, /* the head of a connection's messages arrives */
    SIM_BACK,   /* the sender learns that the receiver has gone */
    SIM_UP,     /* a connection is made, or refused */
    SIM_WORK,   /* a device finishes a piece of work */
    SIM_HEAL,   /* a fault ends */
    SIM_DUE,    /* by now all nodes must know of a fault */
    SIM_EVENTS
};

struct sim_event {
    int64_t at;
    uint64_t number; /* in the order of queueing */
    enum sim_event_kind kind;
    int node;    /* SIM_NODE, else -1 */
    void *thing; /* object of the event */
};

struct sim_queue {
    struct sim_event *event; /* a heap */
    size_t n, cap;
    uint64_t numbers;
    size_t foreground; /* number of events other than steps of nodes and looks of the judge */
};

void sim_queue_put(struct sim_queue *q, int64_t at, enum sim_event_kind kind, int node, void *thing);
/* Take the next event. Return false when the queue is empty. */
bool sim_queue_take(struct sim_queue *q, struct sim_event *event);
void sim_queue_free(struct sim_queue *q);

#endif
