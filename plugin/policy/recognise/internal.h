/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder: samples, signs, the causal test, and the state of classification. */
#ifndef NIBBLE_POLICY_RECOGNISE_INTERNAL_H
#define NIBBLE_POLICY_RECOGNISE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/slab.h"
#include "codec/pick.h"
#include "nibble/codec.h"
#include "nibble/nccl_types.h"
#include "policy/recognise/recognise.h"

struct nb_causal;

/* ---- samples.c: signs and integers among samples
 * --------------------------------------------------------- */

struct nb_content {
    float values;             /* samples that are not 0 */
    float negative, positive; /* of them */
    float could_be_broken,
        integer; /* so small that their type has bits behind the point; of them, without any set */
};

/* One call's samples, of values of the type. */
void nb_content_note(struct nb_content *content, enum nb_dtype type, const float *samples, unsigned n);
/* 1 when hardly any value has the other sign, of enough that were seen. */
int nb_content_one_sign(const struct nb_content *content);
/* 1 when all are integers, likewise. */
int nb_content_integers(const struct nb_content *content);

/* ---- samples.c: samples seen before
 * ---------------------------------------------------------------------- */

#define NB_BOOK_RECENT 8u
#define NB_BOOK_KEPT 24u
#define NB_BOOK_ENTRIES (NB_BOOK_RECENT + NB_BOOK_KEPT)
#define NB_SAME_CONTENT 0.999f /* correlation: weights from step to step are above, gradients below */

struct nb_sample {
    float value[NB_CLASSIFY_SAMPLES]; /* mean 0, norm 1; all 0 when the samples do not vary */
    uint64_t hash;                    /* of the samples as given */
    uint64_t last;                    /* look-up that made or matched it, from 1; 0: empty */
    uint64_t step;                    /* + 1, in which it changed last; the caller's */
    uint32_t matches, changes;
};

/* Zeroes are an empty one. */
struct nb_book {
    struct nb_sample *entry; /* [NB_BOOK_ENTRIES]; NULL until the first look-up */
    uint64_t looks;
    unsigned recent, hint;
};

struct nb_book_match {
    struct nb_sample *found; /* the entry that this content continues, NULL: none */
    float likeness;          /* best correlation with any entry; -1: nothing to compare */
    int changed;             /* found, and not the same bits */
    int varies;              /* 0: all samples are equal: no evidence of anything */
};

/* Look the samples up and note them. n from 2; values must be finite (checked: found is then NULL, likeness
 * -1; likewise where there is no memory for the book). */
struct nb_book_match nb_book_find(struct nb_book *book, const float *samples, unsigned n);
/* Forget all, and give the memory back. */
void nb_book_clear(struct nb_book *book);

/* ---- signs.c: signs of values, and how far two patterns agree
 * -------------------------------------------- */

#define NB_SIGNS_WORDS (NB_PICKS / 64u)

/* A bit for each position; neither is set where the value is 0 or not finite. */
struct nb_signs {
    uint64_t negative[NB_SIGNS_WORDS], positive[NB_SIGNS_WORDS];
};

/* Signs of n raw values (nb_pick) of the type. */
void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs);

/* Where n integers are more, and where less, than before: 1 when any is. */
int nb_signs_of_change(const int32_t *now, const int32_t *before, unsigned n, struct nb_signs *change);

/* A change and the one before, with all that comparing sums with them needs and that does not depend on the
 * sum. */
struct nb_change {
    unsigned words, most;
    unsigned changed, up; /* positions that count for nb_signs_agree, and how many of them are positive */
    unsigned differ;      /* positions that nb_signs_contrast may look at */
    uint64_t negative[NB_SIGNS_WORDS], positive[NB_SIGNS_WORDS]; /* these positions */
    uint64_t differs[NB_SIGNS_WORDS], twice[NB_SIGNS_WORDS],
        upwards[NB_SIGNS_WORDS]; /* for nb_signs_contrast */
};

/* Of the first n positions; of those that changed the first `most` count. */
void nb_change_of(struct nb_change *c, const struct nb_signs *change, const struct nb_signs *before,
                  unsigned n, unsigned most);

/* How far two patterns agree in n positions: the products of their signs, less what their means make of them,
 * and how large the square of that is by chance. Both add up over steps. */
struct nb_agreement {
    unsigned n;
    float product, chance;
};
#define NB_AGREEMENT_LEAST 8u /* positions, for it to say anything by itself */

/* Where the change has a sign. */
struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_change *change);

/* The agreement of `sum` with the change less the one before, where the sum has a sign: what turned round
 * counts twice, what changed in one of them only counts once, and what changed as before not at all. So a
 * pattern that agrees with both alike, however well, comes to 0 with deviation 1. */
struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_change *change);

/* What is independent adds up, each about its own means. */
void nb_agreement_add(struct nb_agreement *sum, const struct nb_agreement *agreement);

/* In standard deviations: the correlation times the square root of the number. 0 where there are too few
 * positions or nothing varies. */
float nb_agreement_z(const struct nb_agreement *agreement);

/* ---- causal.c: do the weights follow a sum?
 * -------------------------------------------------------------- */

#define NB_CAUSAL_Z 8.0f /* standard deviations over the running sums */
#define NB_CAUSAL_D 6.0f
#define NB_CAUSAL_WEIGHT_BLOCKS 128u /* of a field */
#define NB_CAUSAL_BUFFERS 256u       /* keys of a field that are remembered */
#define NB_CAUSAL_SUMS 512u          /* of a step that wait; further ones are not looked at */

/* A field that is looked at in `positions` positions (at most NB_PICKS), or NULL. */
struct nb_causal *nb_causal_create(unsigned positions);
void nb_causal_destroy(struct nb_causal *field);
unsigned nb_causal_positions(const struct nb_causal *field);

/* A sum is being decided on, the next in the order of operations: returns its place among those since weights
 * last changed, from 0. */
unsigned nb_causal_place(struct nb_causal *field);

/* A sum was delivered; in the order of operations. names: 0 for none. */
void nb_causal_sum(struct nb_causal *field, const uint64_t names[NB_CAUSAL_NAMES],
                   const struct nb_signs *signs);

/* A block was gathered; in the order of operations. raw: its values in the positions, `width` bytes each
 * (1, 2 or 4). */
void nb_causal_gather(struct nb_causal *field, size_t width, const uint32_t *raw);

/* Do the sums with this key move weights, as far as is known? */
int nb_causal_proved(const struct nb_causal *field, uint64_t key);
/* 1 when sums with this key clearly moved different weight blocks of late: it stands for several buffers. */
int nb_causal_shared(const struct nb_causal *field, uint64_t key);
/* 1 when the sums for which this buffer was predicted clearly moved one weight block, of late, and no other:
 * the prediction comes true, whatever their content looks like. */
int nb_causal_certain(const struct nb_causal *field, uint64_t guess);
/* 1 when several sums of a step had this key, of late, of which some clearly moved weights and others
 * nothing: what is proved of it holds for some of them only. */
int nb_causal_mixed(const struct nb_causal *field, uint64_t key);
/* Units that have changed at least twice: without any, nothing can be proved. */
unsigned nb_causal_weight_blocks(const struct nb_causal *field);
/* The strongest hypothesis of a key, for reports and tests: 0 where there is none. */
struct nb_causal_state {
    int weight_block; /* -1: none */
    float z, d;
    unsigned steps; /* in which sum and change met */
};
struct nb_causal_state nb_causal_state(const struct nb_causal *field, uint64_t key);

/* The share of sums, lately, that were explained: their key is proved, or they agreed with one change far
 * better than all other sums of the step did. 0 before there were enough of them to tell. */
float nb_causal_explained(const struct nb_causal *field);

/* ---- tables.c: fields of the causal test
 * ----------------------------------------------------------------- */

#define NB_FIELDS 64u

struct nb_field {
    uint64_t comm;
    uint64_t values; /* of a rank's block; 0: free */
    uint64_t used;
    struct nb_causal *causal;
};

struct nb_fields {
    struct nb_field field[NB_FIELDS];
    uint64_t now;
};

/* The field of blocks of `values` values, made when it is new and `make` is not 0: the longest unused makes
 * room. NULL: none, too small to be looked at, or no memory. */
struct nb_causal *nb_field_get(struct nb_fields *fields, uint64_t comm, uint64_t values, int make);
/* The field that a gathered block of `bytes` bytes belongs to, by its size, or NULL: *values values of *width
 * bytes each. Where the type says nothing (bytes), 2, 4 and 1 are tried. */
struct nb_causal *nb_field_of_bytes(struct nb_fields *fields, uint64_t comm, ncclDataType_t type,
                                    uint64_t bytes, uint64_t *values, size_t *width);

/* ---- tables.c: the state
 * --------------------------------------------------------------------------------- */

/*
 * What the parts of classification share: classify.c weighs the evidence, tables.c keeps what it is about.
 */

#define COMMS 128u
#define RECENT_RS 16u

struct nb_class_key { /* buffer of an all-reduce */
    uint32_t sig, chain;
    uint64_t send;
    uint64_t round; /* of its communicator; UINT64_MAX: none yet */
    int linked;     /* a reduce-scatter just called has its result there */
    int taken;
};

struct nb_class_comm {
    uint64_t comm;
    int taken;
    int gathers; /* some were seen */
    uint64_t used;
    uint64_t weight_steps, first_weight_step; /* its own; the process's when it first reduced */
    uint64_t rare_steps;
    uint64_t reductions;
    const struct nb_class_sig *last; /* signature of the last large one */
    /* rounds of all-reduces that are gradients by caller or user; a buffer that comes again begins the next
     * one */
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

/* The operation's signature, its communicator, and a buffer of a signature; made when they are new. Never
 * NULL. */
struct nb_class_sig *nb_class_sig_of(struct nb_classify *c, const struct nb_class_op *op);
struct nb_class_comm *nb_class_comm_of(struct nb_classify *c, uint64_t comm);
struct nb_class_key *nb_class_key_of(struct nb_classify *c, uint32_t sig, uint64_t send);

#endif
