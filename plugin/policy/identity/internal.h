/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: tracked buffers and profiles, weight blocks, and the state of identity. */
#ifndef NIBBLE_POLICY_IDENTITY_INTERNAL_H
#define NIBBLE_POLICY_IDENTITY_INTERNAL_H

#include <stdint.h>

#include "base/slab.h"
#include "policy/identity/identity.h"

/* ---- profile.c: tracked buffers and their profiles ---------------------------------------------------- */

#define NB_TRACKED_NONE UINT32_MAX
/* Profiles. Measured: all of 12 layers told apart from the 20th on, 4 of 12 before the 10th. */
#define NB_TRACKED_MATURE 20u

struct nb_tracked_buffer {
    uint64_t weight_block; /* the weight block, place or address that it stands for */
    uint64_t geometry;
    uint64_t used_round; /* round of its signature when it was last given out */
    uint32_t used_pass;  /* pass of gathers when it was last given out. 0: unknown */
    uint32_t next;       /* next in its set or in the free list */
    uint32_t profiles;   /* profiles in the average since it was made or began anew */
    uint32_t misses;     /* predictions in a row with which its content did not agree */
    int filled;          /* 1: has been given out and may hold an error */
    float agreed;        /* share of recent predictions that the content confirmed */
    float usual, spread; /* mean and deviation of the plain correlation with its own average */
    float average[NB_PROFILE_GROUPS];
    int16_t code[NB_PROFILE_GROUPS]; /* the average in sixteenths */
};

struct nb_tracked_set {
    uint32_t first;
    uint32_t n;    /* tracked buffers */
    uint32_t with; /* tracked buffers with a profile */
    uint32_t mature;
    uint32_t known; /* valid groups of all profiles */
    uint64_t span;
    int32_t sum[NB_PROFILE_GROUPS]; /* of the averages' codes */
};

struct nb_tracked_buffers {
    struct nb_slab slab; /* of struct nb_tracked_buffer */
    uint32_t begun;      /* tracked buffers that have ever been in use */
    uint32_t free;       /* the first of these that is free again */
};

/* Prepare a pool of at most `cap` tracked buffers. It allocates their memory when they are first needed. */
void nb_tracked_buffers_init(struct nb_tracked_buffers *buffers, uint32_t cap);
void nb_tracked_buffers_free(struct nb_tracked_buffers *buffers);
static inline struct nb_tracked_buffer *nb_tracked_at(const struct nb_tracked_buffers *buffers, uint32_t at)
{
    return nb_slab_at(&buffers->slab, at);
}

void nb_set_init(struct nb_tracked_set *set);
/* Return the tracked buffer of `weight_block`. With `make` the call takes a new one when there is none yet.
 * Return NB_TRACKED_NONE for an unknown one without `make`, with an empty pool, and without memory. */
uint32_t nb_set_find(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint64_t weight_block,
                     int make);
/* Free all tracked buffers of the set. */
void nb_set_clear(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set);

/* A profile made comparable, without its mean over the nonzero groups. */
struct nb_shape {
    unsigned known, nonzero;
    float value[NB_PROFILE_GROUPS];
    int16_t code[NB_PROFILE_GROUPS]; /* 0 where the group is unknown */
    int16_t mask[NB_PROFILE_GROUPS]; /* -1: known and nonzero, else 0 */
};

/* Return 1 and set *shape when the set can use the profile: enough nonzero groups, finite values. A profile
 * with another span or length than before makes the set begin anew. */
int nb_set_accepts(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set,
                   const struct nb_profile *profile, struct nb_shape *shape);
/* Add the profile to the tracked buffer's average. */
void nb_set_learn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked,
                  const struct nb_shape *shape);
/* Make the tracked buffer begin anew. */
void nb_set_unlearn(struct nb_tracked_buffers *buffers, struct nb_tracked_set *set, uint32_t tracked);

/* Return 1 when the profile is much less like the tracked buffer's average than earlier profiles were, by
 * plain correlation. Return 0 until the tracked buffer has eight profiles. */
int nb_set_breaks(const struct nb_tracked_buffers *buffers, uint32_t tracked, const struct nb_shape *shape);

/* The fit of a profile with `tracked`, which may be NB_TRACKED_NONE, and the tracked buffer that fits
 * best. */
struct nb_fit {
    float own;         /* score of `tracked` */
    float other;       /* best score of all other tracked buffers */
    float best, after; /* the best score of all, and the second best */
    uint32_t best_tracked;
};
struct nb_fit nb_set_fit(const struct nb_tracked_buffers *buffers, const struct nb_tracked_set *set,
                         uint32_t tracked, const struct nb_shape *shape);

/* ---- weight_blocks.c: weight blocks ------------------------------------------------------------------- */

#define NB_WEIGHT_SAMPLES 64u

/* A block of weights, identified by content. */
struct nb_weight_block {
    struct nb_entry entry;               /* its communicator, and the caller's number */
    uint64_t count;                      /* elements, or bytes for a type of bytes */
    struct nb_weight_block *below;       /* next one down in the stack */
    uint32_t pass;                       /* pass of its communicator in which it went onto the stack */
    uint32_t place;                      /* place in the stack, from 0 */
    int bytes;                           /* 1: count may be bytes */
    int reduced;                         /* 1: its gradient has come in this pass, or will not come */
    int again;                           /* 1: the backward pass has gathered its bytes */
    uint64_t changed_step;               /* step of its last change, plus 1. 0: never */
    float version[2][NB_WEIGHT_SAMPLES]; /* samples of its last version, and of the version before it */
    int summed;                          /* 1: a gradient may have come at the last version */
    float back; /* share of versions that are the one before the last, after a gradient at the last */
};

/* The order of the named sums of a communicator (turns.c). */
struct nb_turns {
    uint32_t *kind;  /* [NB_TURNS_KEPT] a ring: type and size of the last sums. NULL: none yet */
    uint64_t sums;   /* so far */
    uint64_t from;   /* the first sum that counts as proof */
    uint64_t wanted; /* sums of the next proof at least */
    uint32_t limit;  /* sums without a cycle after which the search forgets the older half of them */
    uint32_t period; /* sums of a cycle. 0: unknown */
    uint64_t since;  /* the first sum of a cycle */
};
#define NB_TURNS_KEPT 4096u

struct nb_sig;

/* A communicator: its gathers since the pass began, newest on top, and its sums. */
struct nb_identity_comm {
    struct nb_entry entry; /* its number, and 0 */
    struct nb_weight_block *top;
    uint32_t pass; /* 0: no gather yet */
    uint32_t height;
    int64_t regather;          /* place of the weight block that a backward pass should gather next */
    uint32_t regathers;        /* backward gathers of this pass */
    const struct nb_sig *last; /* signature of its last large reduction */
    struct nb_turns turns;
};

struct nb_weight_blocks {
    struct nb_table blocks; /* of struct nb_weight_block */
    struct nb_table comms;  /* of struct nb_identity_comm */
    uint32_t passes;        /* passes begun so far on all communicators */
};

/* Create the tables, of `cap` weight blocks. Return 0 or -ENOMEM. */
int nb_weight_blocks_init(struct nb_weight_blocks *u, uint32_t cap);
void nb_weight_blocks_free(struct nb_weight_blocks *u);
void nb_weight_blocks_forget(struct nb_weight_blocks *u, uint64_t comm);
/* Return the communicator. The call creates a new one, and always returns one. */
struct nb_identity_comm *nb_identity_comm_of(struct nb_weight_blocks *u, uint64_t comm);
/* Return the weight block of that number. The call creates a new one, and always returns one. */
struct nb_weight_block *nb_weight_blocks_get(struct nb_weight_blocks *u, uint64_t comm, uint32_t number);
/* Note samples of the weight block as it was gathered. */
void nb_weight_blocks_version(struct nb_weight_block *weight_block, const float *samples, unsigned n);
/* Return 1 when the block stands for two contents in turn (weights and a snapshot of them that is like them):
 * one comes back unchanged after a gradient at the other. Its sums are gradients of two buffers. */
int nb_weight_blocks_is_two(const struct nb_weight_block *weight_block);
/* Note a gather of the weight block in the stack of its communicator. */
void nb_weight_blocks_gathered(struct nb_weight_blocks *u, struct nb_weight_block *weight_block, int changed);
/* Return the weight block of `count` elements whose gradient comes next on `comm`, or NULL when all have
 * come. Store at *alike the number of weight blocks of that size that the pass has gathered. */
struct nb_weight_block *nb_weight_blocks_expect(struct nb_weight_blocks *u, uint64_t comm, uint64_t count,
                                                unsigned *alike);
/* Return the communicator's current pass, from 1, or 0 for a communicator without gathers. */
uint32_t nb_weight_blocks_pass(const struct nb_weight_blocks *u, uint64_t comm);
/* Note that the gradient of `weight_block` has come. Gradients of weight blocks of its size that were
 * gathered later will not come in this pass. */
void nb_weight_blocks_reduced(struct nb_weight_blocks *u, struct nb_weight_block *weight_block);

/* ---- the state ---------------------------------------------------------------------------------------- */

/*
 * State that the parts of identity share. identity.c decides. tables.c keeps the signatures and buffers, with
 * each one's view of the steps, and queues calls until their first window. steps.c finds where steps begin.
 */

#define CERTAIN_AFTER 3u /* steps seen before a tracked buffer is given out */
#define LARGE 1024u      /* elements. Smaller sums are scalars, which do not tell steps apart */
#define MOST_STEPS 67u   /* percent */

enum nb_clock { CLOCK_NONE, CLOCK_RARE, CLOCK_RUNS, CLOCK_WEIGHTS };
enum nb_mode { MODE_NONE, MODE_ADDRESS, MODE_WEIGHTS, MODE_PLACE, MODE_TURN };
/* Kinds of nb_tracked_buffer.weight_block, in its upper half. */
enum { TRACKED_GATHERED = 1, TRACKED_PLACE, TRACKED_KEY, TRACKED_TURN };

/* The steps as a signature sees them when one of its operations is called. */
struct nb_view {
    uint32_t round_ops, round_usual; /* operations in this round of the clock and in the round before */
    uint64_t in_rounds;              /* rounds of the clock in which it was seen */
    uint64_t rounds;                 /* passes in which it was seen */
    uint32_t in_round;               /* operations since the pass began */
    uint32_t usual;                  /* operations in the pass before */
    uint32_t same;                   /* passes in a row with that number */
    int clean;                       /* passes in a row with exactly one operation */
    uint32_t context, context_same;  /* gathers before the pass, and passes in a row with that number */
};

struct nb_call {
    struct nb_identity_call c;
    struct nb_view view;
    uint64_t parent; /* all-reduce: elements of the reduce-scatter whose result it sums */
    int begun;
    uint32_t turn;  /* of a named sum, NB_NONE: none */
    uint64_t cycle; /* of named sums, from 1. 0: unknown */
};

struct nb_key {            /* a buffer of a signature */
    struct nb_entry entry; /* its send address, and the place of the signature */
    uint64_t recv;
    uint64_t step;         /* step of its signature when last seen */
    uint32_t streak;       /* steps in a row in which it came */
    uint64_t weight_block; /* weight block whose gradient it held last, plus 1. 0: unknown */
    uint64_t round;        /* round of buckets when last called */
};

struct nb_sig {
    struct nb_entry entry; /* its communicator, and all else */
    uint64_t count;
    enum nb_func func;
    ncclDataType_t type;
    int bucket;                       /* 1: all-reduces that DDP's reducer calls */
    uint64_t calls, bursts;           /* reductions, and reductions that followed another signature's */
    uint64_t first_round, last_round; /* rounds of the clock, plus 1 */
    uint64_t round;                   /* pass when last seen, plus 1 */
    struct nb_view view;              /* view of the last called operation */
    uint64_t unstable; /* last round with an operation whose buffer was not, or not yet, used once a step */
    uint32_t violations, quiet;
    uint64_t violated;  /* last round in which a buffer broke its pattern */
    uint32_t unsettled; /* weight of the operations by address with unsettled buffers */
    unsigned alike;     /* blocks of its size that the pass gathered and whose gradients may still come */
    uint32_t shifted;   /* pass of gathers in which content last contradicted a prediction. 0: none */
    float full;         /* share of recent full passes: at least one sum for each such block */
    uint32_t full_run;  /* full passes in a row */
    uint32_t wary;      /* full passes still to come until the order of gathers predicts for certain again */
    enum nb_mode mode;
    uint64_t cycle; /* of named sums, of the operation at hand. 0: unknown */
    uint32_t predicted_run,
        unpredicted_run; /* operations in a row with and without an expected weight block */
    struct nb_tracked_set set;
};

#define NB_RECENT_RS 16u

struct nb_identity {
    struct nb_identity_config config;
    struct nb_call *calls; /* [config.calls] a ring, by number */
    uint64_t announced, taken_up;
    struct nb_table sigs; /* of struct nb_sig */
    struct nb_table keys; /* of struct nb_key */
    struct nb_tracked_buffers buffers;
    struct nb_weight_blocks weight_blocks;
    uint32_t predicted; /* predicted tracked buffer of the reduction at hand, or NB_TRACKED_NONE */
    /* The clock. */
    enum nb_clock clock;
    uint64_t round; /* steps begun */
    uint64_t weight_steps;
    uint32_t run, run_most, run_odd; /* gathers inside the node since a reduction, and usually */
    uint32_t context;                /* length of the run before this round */
    struct nb_sig *rare;             /* signature that marks a step */
    uint64_t bucket_round;           /* rounds: times that a bucket came again */
    uint64_t reductions, rare_passes;
    struct {
        uint64_t recv, count; /* count 0: none, or an all-reduce has summed its result */
        ncclDataType_t type;
    } recent_rs[NB_RECENT_RS];
    uint32_t recent_at;
};

/* ---- tables.c ----------------------------------------------------------------------------------------- */

/* Return the signature of a call, and a buffer of a signature by its send address. Both functions create a
 * new entry when needed. */
struct nb_sig *nb_sig_of(struct nb_identity *id, const struct nb_identity_call *call);
struct nb_key *nb_key_of(struct nb_identity *id, const struct nb_sig *sig, uint64_t send);
/* Forget the signatures of a communicator. */
void nb_sigs_forget(struct nb_identity *id, uint64_t comm);
/* Note a use of the buffer. Return 1 when it has come exactly once in every step of its signature, for long
 * enough and with the gradient of the same weight block. `expected` is this weight block, or NULL when it is
 * unknown. Recycled memory may be handed out in turn. Then the buffer holds another weight block's gradient:
 * return -1, and the error in the buffer's tracked buffer is not this gradient's. Return 0 for buffers that
 * are not settled yet. Gradients need not come in the order of the gathers. Once content can tell tracked
 * buffers apart, the function therefore ignores `expected` and leaves the decision to content. */
int nb_key_settled(struct nb_sig *s, const struct nb_view *v, struct nb_key *k, uint64_t recv,
                   const struct nb_weight_block *expected);

/* ---- tables.c: announced calls ------------------------------------------------------------------------ */

/* Take up the call `number`, which begins, after all calls before it. Return NULL when its announcement is
 * gone. */
struct nb_call *nb_call_take_up(struct nb_identity *id, uint64_t number);

/* ---- turns.c ------------------------------------------------------------------------------------------ */

/* Note a call of a named sum, and store its turn, or NB_NONE, and the number of its cycle. Return 1 when the
 * communicator's cycle is broken, so that what had a turn has none. */
int nb_turns_count(struct nb_turns *turns, const struct nb_sig *s, uint32_t *turn, uint64_t *cycle);

/* ---- steps.c ------------------------------------------------------------------------------------------ */

/* End the run of gathers, at a reduction inside the node or at any reduction that passes. */
void nb_clock_end_run(struct nb_identity *id);
/* Note a call of a reduction of this signature. */
void nb_clock_reduce(struct nb_identity *id, struct nb_sig *s);
/* Note a gather of changed weights. */
void nb_clock_weights(struct nb_identity *id, struct nb_weight_block *weight_block);
/* Return the number of passes. They are steps, but several a step when gradients of micro-batches are reduced
 * one by one. */
uint64_t nb_clock_pass(const struct nb_identity *id);
/* Return 1 when the signature comes in `percent` percent of the steps since it first came. Signatures of only
 * some steps belong to layers that are frozen at other times. */
int nb_clock_in_steps(const struct nb_identity *id, const struct nb_sig *s, unsigned percent);
/* Return 1 when this step has more operations than the step before, by a clock that does not depend on
 * reductions. */
int nb_clock_more_than_usual(const struct nb_identity *id, const struct nb_view *v);

#endif
