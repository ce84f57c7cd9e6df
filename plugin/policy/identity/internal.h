/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: tracked buffers and profiles, weight blocks of weights, and the state of
 * identity. */
#ifndef NIBBLE_POLICY_IDENTITY_INTERNAL_H
#define NIBBLE_POLICY_IDENTITY_INTERNAL_H

#include <stdint.h>

#include "base/slab.h"
#include "policy/identity/identity.h"

/* ---- profile.c: tracked buffers and their profiles
 * ----------------------------------------------------------------- */

#define NB_TRACKED_NONE UINT32_MAX
#define NB_TRACKED_MATURE \
    20u /* profiles; measured: all of 12 layers told apart from the 20th on, 4 of 12 before the 10th */

struct nb_tracked_buffer {
    uint64_t weight_block; /* what it stands for; identity.c's numbering */
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

struct nb_tracked_set {
    uint32_t first;
    uint32_t n;    /* tracked buffers */
    uint32_t with; /* tracked buffers that have a profile */
    uint32_t mature;
    uint32_t known; /* valid groups of all profiles */
    uint64_t span;
    int32_t sum[NB_PROFILE_GROUPS]; /* of the averages' codes */
};

struct nb_tracked_buffers {
    struct nb_slab slab; /* of struct nb_tracked_buffer */
    uint32_t begun;      /* have been in use */
    uint32_t free;       /* the first of these that is not any more */
    uint32_t used;
};

/* A pool of `cap` tracked buffers; their memory is made when they are first needed. */
void nb_tracked_buffers_init(struct nb_tracked_buffers *buffers, uint32_t cap);
void nb_tracked_buffers_free(struct nb_tracked_buffers *buffers);
static inline struct nb_tracked_buffer *nb_tracked_at(const struct nb_tracked_buffers *buffers, uint32_t at)
{
    return nb_slab_at(&buffers->slab, at);
}

void nb_set_init(struct nb_tracked_set *set);
/* The tracked buffer of `weight block`; make: take a new one where there is none. NB_TRACKED_NONE: none, or
 * the pool is empty, or memory is short. */
uint32_t nb_set_find(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint64_t weight_block,
                     int make);
/* Give all tracked buffers back. */
void nb_set_clear(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set);

/* A profile made comparable: its mean over the groups that are not zero taken out. */
struct nb_shape {
    unsigned known, nonzero;
    float value[NB_PROFILE_GROUPS];
    int16_t code[NB_PROFILE_GROUPS]; /* 0 where nothing is known */
    int16_t mask[NB_PROFILE_GROUPS]; /* -1: known and not zero, else 0 */
};

/* 1 and *shape when the profile can be used with this set: enough groups that are not zero, finite values.
 * One of another span or length than those before makes the set begin anew. */
int nb_set_accepts(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set,
                   const struct nb_profile *profile, struct nb_shape *shape);
/* Take the profile into the tracked buffer's average. */
void nb_set_learn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked,
                  const struct nb_shape *shape);
/* Make the tracked buffer begin anew. */
void nb_set_unlearn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked);

/* 1: the profile is much less like the tracked buffer's average than those before were, by plain correlation.
 * Says nothing (0) before the tracked buffer has eight. */
int nb_set_breaks(const struct nb_tracked_buffers *buffers, uint32_t tracked, const struct nb_shape *shape);

/* How well the profile fits `tracked buffer` (may be NB_TRACKED_NONE), and which tracked buffer it fits
 * best. */
struct nb_fit {
    float own;         /* score of `tracked buffer` */
    float other;       /* best score of the others */
    float best, after; /* the best score of all, and the second */
    uint32_t best_tracked;
};
struct nb_fit nb_set_fit(const struct nb_tracked_buffers *buffers, const struct nb_tracked_set *set,
                         uint32_t tracked, const struct nb_shape *shape);

/* ---- weight blocks.c: weight blocks of weights
 * --------------------------------------------------------------------------- */

/* A block of weights, known by content. */
struct nb_weight_block {
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
    int64_t regather;   /* place of the weight block that a backward pass is expected to gather next */
    uint32_t regathers; /* backward gathers of this pass */
    uint64_t used;      /* for replacement */
    int taken;
};

#define NB_STACKS 64u

struct nb_weight_blocks {
    struct nb_slab slab; /* of struct nb_weight_block */
    uint32_t hand;       /* where the next new one goes */
    struct nb_chains chains;
    struct nb_stack stack[NB_STACKS];
    uint64_t now;
    uint32_t passes; /* begun so far, on all communicators */
};

/* A table of `cap` weight blocks: 0 or -ENOMEM. */
int nb_weight_blocks_init(struct nb_weight_blocks *u, uint32_t cap);
void nb_weight_blocks_free(struct nb_weight_blocks *u);
void nb_weight_blocks_forget(struct nb_weight_blocks *u, uint64_t comm);
/* The weight block, made when it is new; never NULL. */
struct nb_weight_block *nb_weight_blocks_get(struct nb_weight_blocks *u, uint64_t comm, uint32_t number);
/* The weight block was gathered: update the stack of its communicator. */
void nb_weight_blocks_gathered(struct nb_weight_blocks *u, struct nb_weight_block *weight_block, int changed);
/* The weight block whose gradient comes next on `comm`, of `count` elements; NULL: none waits. *alike: how
 * many weight blocks of that size the pass has gathered and not left out on its way back. */
struct nb_weight_block *nb_weight_blocks_expect(struct nb_weight_blocks *u, uint64_t comm, uint64_t count,
                                                unsigned *alike);
/* The pass that the communicator is in, from 1 on; 0: nothing is gathered on it. */
uint32_t nb_weight_blocks_pass(const struct nb_weight_blocks *u, uint64_t comm);
/* The gradient of `weight block` has come: of weight blocks of its size, those gathered later than it will
 * not come any more.
 */
void nb_weight_blocks_reduced(struct nb_weight_blocks *u, struct nb_weight_block *weight_block);
/* The weight block by its number as tracked buffers know it; NULL when it is gone. */
struct nb_weight_block *nb_weight_blocks_find(struct nb_weight_blocks *u, uint64_t comm, uint32_t number);

/* ---- the state
 * ------------------------------------------------------------------------------------------- */

/*
 * What the parts of identity share: identity.c decides, tables.c queues calls until their first window,
 * tables.c keeps signatures and buffers and what each sees of the steps, steps.c tells what a
 * step is.
 */

#define CERTAIN_AFTER 3u /* steps seen before a tracked buffer is given out */
#define LARGE 1024u      /* elements; below are scalars, which say nothing about steps */
#define MOST_STEPS 67u   /* percent */

enum nb_clock { CLOCK_NONE, CLOCK_RARE, CLOCK_RUNS, CLOCK_WEIGHTS };
enum nb_mode { MODE_NONE, MODE_ADDRESS, MODE_WEIGHTS, MODE_PLACE };
/* Kinds of nb_tracked_buffer.weight block, in its upper half. */
enum { TRACKED_GATHERED = 1, TRACKED_PLACE, TRACKED_KEY };

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
    uint64_t step;         /* of its signature, when last seen */
    uint32_t streak;       /* steps in a row in which it came */
    uint64_t weight_block; /* + 1, of the gathers, whose gradient it held last; 0: unknown */
    uint64_t round;        /* of buckets, when last called */
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
    uint32_t predicted_run,
        unpredicted_run; /* operations in a row with and without a weight block expected */
    struct nb_tracked_set set;
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
    struct nb_tracked_buffers buffers;
    struct nb_weight_blocks weight_blocks;
    uint32_t
        predicted; /* tracked buffer of the reduction at hand, by its address or place; NB_TRACKED_NONE */
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
 * with the gradient of the same weight block (`expected`, NULL: unknown): recycled memory may be handed out
 * in turn. The order of weight blocks need not be that of the gathers, so once content can tell tracked
 * buffers apart it is left to it.
 * -1: not settled, and what a tracked buffer of the buffer holds is another weight block's. */
int nb_key_settled(struct nb_sig *s, const struct nb_view *v, struct nb_key *k, uint64_t recv,
                   const struct nb_weight_block *expected);

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
void nb_clock_weights(struct nb_identity *id, struct nb_weight_block *weight_block);
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
