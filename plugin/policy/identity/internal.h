/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: slots and profiles, units of weights, and the state of identity. */
#ifndef NIBBLE_POLICY_IDENTITY_INTERNAL_H
#define NIBBLE_POLICY_IDENTITY_INTERNAL_H

#include <stdint.h>

#include "base/slab.h"
#include "policy/identity/identity.h"

/* ---- profile.c: slots and their profiles ----------------------------------------------------------------- */

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

/* ---- units.c: units of weights --------------------------------------------------------------------------- */

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

/* ---- the state ------------------------------------------------------------------------------------------- */

/*
 * What the parts of identity share: identity.c decides, tables.c queues calls until their first window,
 * tables.c keeps signatures and buffers and what each sees of the steps, steps.c tells what a
 * step is.
 */

#define CERTAIN_AFTER 3u /* steps seen before a slot is given out */
#define LARGE 1024u      /* elements; below are scalars, which say nothing about steps */
#define MOST_STEPS 67u   /* percent */

enum nb_clock { CLOCK_NONE, CLOCK_RARE, CLOCK_RUNS, CLOCK_WEIGHTS };
enum nb_mode { MODE_NONE, MODE_ADDRESS, MODE_UNIT, MODE_PLACE };
/* Kinds of nb_slot.unit, in its upper half. */
enum { UNIT_GATHERED = 1, UNIT_PLACE, UNIT_KEY };

struct nb_view {                     /* of the steps, by a signature when one of its operations was called */
    uint32_t round_ops, round_usual; /* operations in this round of the clock, and in the one before */
    uint64_t in_rounds;              /* of the clock, in which it was seen */
    uint64_t rounds;                 /* passes in which it was seen */
    uint32_t in_round;               /* operations since the pass began */
    uint32_t usual;                  /* operations in the pass before */
    uint32_t same;                   /* passes in a row with that many */
    int clean;                       /* passes in a row with exactly one */
    uint32_t context, context_same;  /* gathers before the pass, and passes in a row with that many */
};

struct nb_call {
    struct nb_identity_call c;
    struct nb_view view;
    uint64_t number;
    uint64_t parent; /* all-reduce: elements of the reduce-scatter whose result it sums */
    int begun;
};

struct nb_key { /* a buffer of a signature */
    uint32_t sig, chain;
    uint64_t send, recv;
    uint64_t step;   /* of its signature, when last seen */
    uint32_t streak; /* steps in a row in which it came */
    uint64_t unit;   /* + 1, of the gathers, whose gradient it held last; 0: unknown */
    uint64_t round;  /* of buckets, when last called */
    int taken;
};

struct nb_sig {
    uint64_t comm, count;
    enum nb_func func;
    ncclDataType_t type;
    uint32_t own; /* its place in the table */
    int bucket;   /* all-reduces that DDP's reducer calls */
    uint32_t chain;
    int taken;
    uint64_t used;                    /* call that used it last */
    uint64_t calls, bursts;           /* reductions; those that followed another signature's */
    uint64_t first_round, last_round; /* of the clock: + 1 */
    uint64_t round;                   /* + 1, of the passes, when last seen */
    struct nb_view view;              /* of the last operation that was called */
    uint64_t unstable; /* the last round with an operation whose buffer was not (yet) used once a step */
    uint32_t violations, quiet;
    uint64_t violated;  /* the last round in which a buffer was not what it had been */
    uint32_t unsettled; /* operations by address whose buffer was not settled */
    unsigned alike;     /* blocks of its size that the pass gathered and may still send gradients of */
    uint32_t shifted;   /* pass of gathers in which content last contradicted a prediction; 0: none */
    float full;         /* share of passes, of late, with a sum for each of them at least */
    uint32_t full_run;  /* passes of that kind in a row */
    uint32_t wary;      /* of them still to come until the order of gathers predicts for certain again */
    enum nb_mode mode;
    uint32_t predicted_run, unpredicted_run; /* operations in a row with and without a unit expected */
    struct nb_slot_set set;
};

struct nb_run_total { /* gathers of one size in the run that is going on */
    uint64_t count;
    uint32_t n;
};
#define NB_RUN_TOTALS 16u
#define NB_RECENT_RS 16u
#define NB_COMMS 32u /* whose operations may come between each other's */

struct nb_identity {
    struct nb_identity_config config;
    struct nb_call *
        calls; /* a ring, by number; grows up to config.calls while what would be overwritten is still wanted */
    uint32_t calls_cap;
    uint64_t announced, taken_up;
    struct nb_slab sigs; /* of struct nb_sig */
    uint32_t sigs_used;
    struct nb_chains sig_chains;
    struct nb_slab keys; /* of struct nb_key */
    uint32_t key_hand;
    struct nb_chains key_chains;
    struct nb_slots slots;
    struct nb_units units;
    uint32_t predicted; /* slot of the reduction at hand, by its address or place; NB_SLOT_NONE */
    /* the clock */
    enum nb_clock clock;
    uint64_t round; /* steps begun */
    uint64_t weight_steps;
    uint32_t run, run_most, run_odd; /* gathers inside the node since the last reduction; usual length */
    uint32_t context;                /* length of the run before this round */
    struct nb_run_total run_total[NB_RUN_TOTALS], pass_total[NB_RUN_TOTALS];
    uint32_t rare;         /* the signature that marks a step */
    uint64_t bucket_round; /* as often as a bucket came again */
    uint64_t reductions, rare_seen, rare_gap, rare_ticks, rare_passes;
    struct {
        uint64_t comm;
        const struct nb_sig *sig; /* of its last large reduction */
    } before[NB_COMMS];
    uint32_t before_at;
    struct {
        uint64_t recv, count;
    } recent_rs[NB_RECENT_RS];
    uint32_t recent_at;
    struct nb_identity_stats stats;
};

/* ---- tables.c --------------------------------------------------------------------------------- */

static inline struct nb_sig *nb_sig_at(const struct nb_identity *id, uint32_t at)
{
    return nb_slab_at(&id->sigs, at);
}

/* The signature of a call, made when it is new: a free one, else the longest unused. */
struct nb_sig *nb_sig_of(struct nb_identity *id, const struct nb_identity_call *call);
void nb_sig_free(struct nb_identity *id, uint32_t at);
/* The buffer of a signature, by the address it is sent from; made when it is new. */
struct nb_key *nb_key_of(struct nb_identity *id, uint32_t sig, uint64_t send);
/* Note the buffer; 1 when it has come once in every step that its signature came in, for long enough, and
 * with the gradient of the same unit (`expected`, NULL: unknown): recycled memory may be handed out in turn.
 * The order of units need not be that of the gathers, so once content can tell slots apart it is left to it.
 * -1: not settled, and what a slot of the buffer holds is another unit's. */
int nb_key_settled(struct nb_sig *s, const struct nb_view *v, struct nb_key *k, uint64_t recv,
                   const struct nb_unit *expected);

/* ---- tables.c ---------------------------------------------------------------------------------- */

/* The call of that number, which begins, with all calls up to it dequeued. NULL: its announcement is gone. */
struct nb_call *nb_call_take_up(struct nb_identity *id, uint64_t number);

/* ---- steps.c ---------------------------------------------------------------------------------- */

/* A gather inside the node, of so many elements. */
void nb_clock_gather(struct nb_identity *id, uint64_t count);
/* A reduction inside the node, or any that passes: the run of gathers before it is over. */
void nb_clock_end_run(struct nb_identity *id);
/* A reduction of this signature was called. */
void nb_clock_reduce(struct nb_identity *id, struct nb_sig *s);
/* A block of weights was gathered. */
void nb_clock_weights(struct nb_identity *id, struct nb_unit *unit);
/* Passes: as steps, but several a step where gradients of micro-batches are reduced one by one. */
uint64_t nb_clock_pass(const struct nb_identity *id);
/* How many blocks of `count` elements the pass gathered inside the node. */
uint32_t nb_clock_alike(const struct nb_identity *id, uint64_t count);
/* 1: the signature comes in so many percent of the steps since it first came. What comes in some steps only
 * belongs to layers that are frozen at other times. */
int nb_clock_in_steps(const struct nb_identity *id, const struct nb_sig *s, unsigned percent);
/* 1: more operations in this step than in the one before, by a clock that does not hang on reductions. */
int nb_clock_more_than_usual(const struct nb_identity *id, const struct nb_view *v);

#endif
