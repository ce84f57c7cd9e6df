/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of identity and their profiles: which of a signature's buffers does this content look like? Inside of
 * identity.c.
 *
 * A set holds the slots of one signature. A slot keeps the moving average (weight 0.8 on the old) of the
 * profiles of the operations that were found to be its own. A profile is compared with a slot by the
 * correlation of both after the mean over the set's slots is taken out: what all layers have in common says
 * nothing, and correlation ignores a common factor (a loss scale), since profiles are logarithms.
 */
#ifndef NIBBLE_POLICY_PROFILE_H
#define NIBBLE_POLICY_PROFILE_H

#include <stdint.h>

#include "base/slab.h"
#include "policy/identity.h"

#define NB_SLOT_NONE UINT32_MAX
#define NB_SLOT_MATURE \
    20u /* profiles; measured: all of 12 layers told apart from the 20th on, 4 of 12 before the 10th */

struct nb_slot {
    uint64_t unit; /* what it stands for; identity.c's numbering */
    uint64_t geometry;
    uint64_t used_round; /* of its signature, when it was last given out */
    uint32_t used_pass;  /* of gathers, likewise; 0: none was known */
    uint32_t next;       /* in its set or in the free list */
    uint32_t profiles;   /* taken into the average since it was made or began anew */
    uint32_t misses;     /* in a row: predicted, but the content did not agree */
    int filled;          /* has been given out: it may hold an error */
    int taken;
    int suspect;         /* its content once changed suddenly */
    float agreed;        /* share of predictions that the content confirmed, of late */
    float purity;        /* score of the confirmed ones, of late */
    float usual, spread; /* of the plain correlation with its own average: mean and deviation */
    float average[NB_PROFILE_GROUPS];
    int16_t code[NB_PROFILE_GROUPS]; /* the average in sixteenths */
};

struct nb_slot_set {
    uint32_t first;
    uint32_t n;    /* slots */
    uint32_t with; /* slots that have a profile */
    uint32_t mature;
    uint32_t known; /* valid groups of all profiles */
    uint64_t span;
    int32_t sum[NB_PROFILE_GROUPS]; /* of the averages' codes */
};

struct nb_slots {
    struct nb_slab slab; /* of struct nb_slot */
    uint32_t begun;      /* have been in use */
    uint32_t free;       /* the first of these that is not any more */
    uint32_t used;
};

/* A pool of `cap` slots; their memory is made when they are first needed. */
void nb_slots_init(struct nb_slots *slots, uint32_t cap);
void nb_slots_free(struct nb_slots *slots);
static inline struct nb_slot *nb_slot_at(const struct nb_slots *slots, uint32_t at)
{
    return nb_slab_at(&slots->slab, at);
}

void nb_set_init(struct nb_slot_set *set);
/* The slot of `unit`; make: take a new one where there is none. NB_SLOT_NONE: none, or the pool is empty, or memory is short. */
uint32_t nb_set_find(struct nb_slots *slots, struct nb_slot_set *set, uint64_t unit, int make);
/* Give all slots back. */
void nb_set_clear(struct nb_slots *slots, struct nb_slot_set *set);

/* A profile made comparable: its mean over the groups that are not zero taken out. */
struct nb_shape {
    unsigned known, nonzero;
    float value[NB_PROFILE_GROUPS];
    int16_t code[NB_PROFILE_GROUPS]; /* 0 where nothing is known */
    int16_t mask[NB_PROFILE_GROUPS]; /* -1: known and not zero, else 0 */
};

/* 1 and *shape when the profile can be used with this set: enough groups that are not zero, finite values.
 * One of another span or length than those before makes the set begin anew. */
int nb_set_accepts(struct nb_slots *slots, struct nb_slot_set *set, const struct nb_profile *profile,
                   struct nb_shape *shape);
/* Take the profile into the slot's average. */
void nb_set_learn(struct nb_slots *slots, struct nb_slot_set *set, uint32_t slot,
                  const struct nb_shape *shape);
/* Make the slot begin anew. */
void nb_set_unlearn(struct nb_slots *slots, struct nb_slot_set *set, uint32_t slot);

/* 1: the profile is much less like the slot's average than those before were, by plain correlation. Says
 * nothing (0) before the slot has eight. */
int nb_set_breaks(const struct nb_slots *slots, uint32_t slot, const struct nb_shape *shape);

/* How well the profile fits `slot` (may be NB_SLOT_NONE), and which slot it fits best. */
struct nb_fit {
    float own;         /* score of `slot` */
    float other;       /* best score of the others */
    float best, after; /* the best score of all, and the second */
    uint32_t best_slot;
};
struct nb_fit nb_set_fit(const struct nb_slots *slots, const struct nb_slot_set *set, uint32_t slot,
                         const struct nb_shape *shape);

#endif
