/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of weights known by content, and the order in which a pass gathered them: from it follows whose
 * gradient comes next. Inside of identity.c.
 */
#ifndef NIBBLE_POLICY_UNITS_H
#define NIBBLE_POLICY_UNITS_H

#include <stdint.h>

#include "base/slab.h"
#include "policy/identity.h"

#define NB_NONE UINT32_MAX

/* Elements that hold a set of chained hash tables' entries: index chains, so that nothing is allocated later.
 */
struct nb_chains {
    uint32_t *head;
    uint32_t mask;
};
int nb_chains_init(struct nb_chains *c, uint32_t entries);
void nb_chains_free(struct nb_chains *c);
uint64_t nb_mix(uint64_t a, uint64_t b);

/* A block of weights, known by content. */
struct nb_unit {
    uint64_t comm;
    uint64_t count;  /* elements, or bytes where the type is one of bytes */
    uint32_t number; /* the caller's */
    uint32_t own;    /* its place in the table */
    uint32_t chain;  /* next of the same hash */
    uint32_t below;  /* in the stack */
    uint32_t pass;   /* of its communicator, in which it was put on the stack */
    uint32_t place;  /* in the stack, from 0 */
    int bytes;       /* count may be bytes */
    int reduced;     /* in this pass; or it will not be */
    int left_out;    /* of the backward pass */
    int taken;
    uint64_t changed_step; /* + 1; 0: never */
};

/* Gathers of one communicator since the pass began, newest on top. */
struct nb_stack {
    uint64_t comm;
    uint32_t top;
    uint32_t pass;
    uint32_t height;
    int64_t regather;   /* place of the unit that a backward pass is expected to gather next */
    uint32_t regathers; /* backward gathers of this pass */
    uint64_t used;      /* for replacement */
    int taken;
};

#define NB_STACKS 64u

struct nb_units {
    struct nb_slab slab; /* of struct nb_unit */
    uint32_t hand;       /* where the next new one goes */
    struct nb_chains chains;
    struct nb_stack stack[NB_STACKS];
    uint64_t now;
    uint32_t passes; /* begun so far, on all communicators */
};

/* A table of `cap` units: 0 or -ENOMEM. */
int nb_units_init(struct nb_units *u, uint32_t cap);
void nb_units_free(struct nb_units *u);
void nb_units_forget(struct nb_units *u, uint64_t comm);
/* The unit, made when it is new; never NULL. */
struct nb_unit *nb_units_get(struct nb_units *u, uint64_t comm, uint32_t number);
/* The unit was gathered: update the stack of its communicator. */
void nb_units_gathered(struct nb_units *u, struct nb_unit *unit, int changed);
/* The unit whose gradient comes next on `comm`, of `count` elements; NULL: none waits. *alike: how many units
 * of that size the pass has gathered and not left out on its way back. */
struct nb_unit *nb_units_expect(struct nb_units *u, uint64_t comm, uint64_t count, unsigned *alike);
/* The pass that the communicator is in, from 1 on; 0: nothing is gathered on it. */
uint32_t nb_units_pass(const struct nb_units *u, uint64_t comm);
/* The gradient of `unit` has come: of units of its size, those gathered later than it will not come any more.
 */
void nb_units_reduced(struct nb_units *u, struct nb_unit *unit);
/* The unit by its number as slots know it; NULL when it is gone. */
struct nb_unit *nb_units_find(struct nb_units *u, uint64_t comm, uint32_t number);

#endif
