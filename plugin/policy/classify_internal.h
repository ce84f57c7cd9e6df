/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of classification share: classify.c weighs the evidence, classify_tables.c keeps what it is about. */
#ifndef NIBBLE_POLICY_CLASSIFY_INTERNAL_H
#define NIBBLE_POLICY_CLASSIFY_INTERNAL_H

#include "base/slab.h"
#include "policy/classify.h"
#include "policy/content.h"
#include "policy/fields.h"
#include "policy/sample_book.h"
#include "policy/units.h" /* hash chains */

#define COMMS 128u
#define RECENT_RS 16u

struct nb_class_key { /* buffer of an all-reduce */
    uint32_t sig, chain;
    uint64_t send;
    uint64_t round; /* of its communicator; UINT64_MAX: none yet */
    int linked;     /* a reduce-scatter just called has its result there */
    int taken;
};

struct nb_class_sig;

struct nb_class_comm {
    uint64_t comm;
    int taken;
    int gathers; /* some were seen */
    uint64_t used;
    uint64_t weight_steps, first_weight_step; /* its own; the process's when it first reduced */
    uint64_t rare_steps;
    uint64_t reductions;
    const struct nb_class_sig *last; /* signature of the last large one */
    /* rounds of all-reduces that are gradients by caller or user; a buffer that comes again begins the next one */
    uint64_t round, set, last_set;
    uint64_t alike_rounds; /* that had the buffers of the round before */
    /* volumes since the step began: elements gathered, of them weights, reduced */
    uint64_t gathered, weights, scattered, reduced;
    uint32_t operations;
    uint32_t scatter_adds_up, reduce_adds_up; /* steps in a row */
};

struct nb_class_sig {
    uint64_t comm, count;
    uint32_t nranks;
    enum nb_func func;
    ncclDataType_t type;
    uint32_t own; /* its place in the table */
    uint32_t chain;
    int taken;
    uint64_t used, announced, calls, sampled;
    uint64_t bursts;                          /* calls that followed another signature's */
    uint64_t first_reduction, last_reduction; /* of its communicator, when first and last seen */
    uint64_t linked;                          /* all-reduces of a reduce-scatter's result */
    uint64_t last_steady;                     /* `sampled` when seen; 0: never */
    uint64_t step;                            /* + 1, of its communicator, when last seen */
    uint32_t steps_in_sum;                    /* steps in a row it was in while they added up */
    uint64_t sum_step;                        /* of its communicator, when enough had */
    int weights;                              /* gather: weight-like */
    unsigned char told[NB_WHY_COUNT];         /* how often the log had each reason */
    struct nb_content content;
    int bucket; /* all-reduces that DDP's reducer calls */
    enum nb_class_kind kind;
    enum nb_class_reason reason, evidence;
    struct nb_book book;
};

struct nb_classify {
    unsigned warmup, used;
    struct nb_grad_rules rules;
    struct nb_slab sigs; /* of struct nb_class_sig */
    struct nb_slab keys; /* of struct nb_class_key */
    struct nb_chains sig_chains, key_chains;
    uint32_t key_hand;
    struct nb_class_comm comms[COMMS];
    uint64_t now;
    uint64_t announced;    /* calls */
    uint64_t weight_steps; /* of the process: the most of any communicator */
    struct {
        uint64_t recv, count; /* of a rank */
        ncclDataType_t type;
    } recent_rs[RECENT_RS];
    uint32_t recent_at;
    struct nb_fields fields;
};

static inline struct nb_class_sig *nb_class_sig_at(const struct nb_classify *c, uint32_t at)
{
    return nb_slab_at(&c->sigs, at);
}

/* The operation's signature, its communicator, and a buffer of a signature; made when they are new. Never NULL. */
struct nb_class_sig *nb_class_sig_of(struct nb_classify *c, const struct nb_class_op *op);
struct nb_class_comm *nb_class_comm_of(struct nb_classify *c, uint64_t comm);
struct nb_class_key *nb_class_key_of(struct nb_classify *c, uint32_t sig, uint64_t send);

#endif
