/* SPDX-License-Identifier: Apache-2.0 */
/* What is to happen, by virtual time; events of one time happen in the order in which they were put in. */
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
    SIM_WORK,   /* a device finishes a work */
    SIM_HEAL,   /* a fault ends */
    SIM_DUE,    /* by now a fault has to be known everywhere */
    SIM_EVENTS
};

struct sim_event {
    int64_t at;
    uint64_t number; /* in the order of their putting in */
    enum sim_event_kind kind;
    int node;    /* SIM_NODE; else -1 */
    void *thing; /* what it happens to */
};

struct sim_queue {
    struct sim_event *event; /* a heap */
    size_t n, cap;
    uint64_t numbers;
    size_t foreground; /* of those, all but steps of nodes and looks of the judge: something will happen */
};

void sim_queue_put(struct sim_queue *q, int64_t at, enum sim_event_kind kind, int node, void *thing);
/* False: there is none. */
bool sim_queue_take(struct sim_queue *q, struct sim_event *event);
void sim_queue_free(struct sim_queue *q);

#endif
