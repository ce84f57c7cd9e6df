/* SPDX-License-Identifier: Apache-2.0 */
/* What will happen, by time: the events of follow.c. */
#ifndef NIBBLE_TOOLS_MODEL_AGENDA_H
#define NIBBLE_TOOLS_MODEL_AGENDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nm_event {
    double at;
    uint64_t number; /* of several at the same time the one that was put first comes first */
    int kind, node;
    void *thing;
};

struct nm_agenda { /* zeroed: empty */
    struct nm_event *heap;
    size_t n, room;
    uint64_t put;
    bool failed; /* there was no memory for an event */
};

/* Seconds; what kind, node and thing mean is the caller's. */
void nm_agenda_put(struct nm_agenda *a, double at, int kind, int node, void *thing);
/* The first; false: there is none. */
bool nm_agenda_take(struct nm_agenda *a, struct nm_event *event);
void nm_agenda_free(struct nm_agenda *a);

#endif
