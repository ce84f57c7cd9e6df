/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to real jobs in the middle of training and must not hurt error feedback: steps whose gradient
 * is out of the ordinary, steps that are not taken, weights that jump, communicators that start anew.
 */
#ifndef NIBBLE_TRAIN_EVENTS_H
#define NIBBLE_TRAIN_EVENTS_H

#include <stddef.h>
#include <stdio.h>

enum nbt_event_kind {
    NBT_EVENT_SPIKE,      /* the gradient of all nodes is so many times larger */
    NBT_EVENT_OVERFLOW,   /* that of node 1 overflows FP16: the step is skipped, the loss scale halved */
    NBT_EVENT_SKIP,       /* the gradient is reduced and the step not taken; no weights are gathered */
    NBT_EVENT_EVAL,       /* before the step: validation, which gathers unchanged weights twice */
    NBT_EVENT_CHECKPOINT, /* before the step: weights and optimizer go back to where they were at half of it
                           */
    NBT_EVENT_RESTART,    /* before the step: the communicator is closed and a new one opened */
    NBT_EVENT_KINDS
};

struct nbt_event {
    enum nbt_event_kind kind;
    double factor; /* of a spike */
    size_t step;   /* from 0 */
};

#define NBT_EVENTS_MAX 32

struct nbt_events {
    struct nbt_event event[NBT_EVENTS_MAX];
    size_t count;
};

/* Add the events of a list such as "spike30@100,eval@120". 0, or -EINVAL after a line on `complaints`. */
int nbt_events_parse(const char *list, struct nbt_events *events, FILE *complaints);
/* The event of this kind at this step, or NULL. */
const struct nbt_event *nbt_event_at(const struct nbt_events *events, enum nbt_event_kind kind, size_t step);
/* 1 when a checkpoint of this step will be loaded later. */
int nbt_events_save(const struct nbt_events *events, size_t step);
/* "spike30@100"; `cap` of 48 is enough. */
void nbt_event_name(const struct nbt_event *event, char *name, size_t cap);

#endif
