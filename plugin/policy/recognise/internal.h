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

/* ---- samples.c: signs and integers among samples ------------------------------------------------------ */

struct nb_content {
    float values;             /* samples other than 0 */
    float negative, positive; /* of these samples */
    float could_be_broken,
        integer; /* samples so small that their type has bits behind the point, and samples among them
                    without any such bit set */
};

/* Count the samples of one call. The values are of `type`. */
struct nb_content nb_content_of(enum nb_dtype type, const float *samples, unsigned n);
/* Add a call to the earlier ones, which fade. */
void nb_content_add(struct nb_content *content, const struct nb_content *call);
/* Return the rms of the samples other than 0, or 0 without any. */
float nb_content_size(const float *samples, unsigned n);
/* Return 1 when enough values were seen and hardly any has the other sign, or when all of this call have one
 * sign. */
int nb_content_one_sign(const struct nb_content *content, const struct nb_content *call);
/* Return 1 when enough values were seen and nearly all are integers, or when all of this call are. */
int nb_content_integers(const struct nb_content *content, const struct nb_content *call);

/* ---- samples.c: samples of earlier operations --------------------------------------------------------- */

#define NB_BOOK_RECENT 8u
#define NB_BOOK_KEPT 24u
#define NB_BOOK_ENTRIES (NB_BOOK_RECENT + NB_BOOK_KEPT)
#define NB_SAME_CONTENT 0.999f /* correlation: weights from step to step are above, gradients below */

struct nb_sample {
    float value[NB_CLASSIFY_SAMPLES]; /* mean 0, norm 1. All 0 when the samples do not vary */
    uint64_t hash;                    /* of the samples as passed */
    uint64_t last;                    /* number of the look-up that made or matched it, from 1. 0: empty */
    uint64_t step;                    /* step in which it changed last, plus 1. The caller sets it */
    uint32_t changes;
};

/* Samples of one signature. All-zero bytes are an empty book. */
struct nb_book {
    struct nb_sample *entry; /* [NB_BOOK_ENTRIES], NULL until the first look-up */
    uint64_t looks;
    unsigned recent, hint;
};

struct nb_book_match {
    struct nb_sample *found; /* the entry that this content continues, or NULL */
    int changed;             /* 1: found, with different bits */
    int varies;              /* 0: all samples are equal, which is no evidence */
};

/* Look the n samples up and note them. Return found NULL for fewer than two samples, for samples that are not
 * finite, and without memory for the book. */
struct nb_book_match nb_book_find(struct nb_book *book, const float *samples, unsigned n);
/* Forget all samples and free the memory. */
void nb_book_clear(struct nb_book *book);

/* ---- signs.c: signs of values, and the agreement of two patterns -------------------------------------- */

#define NB_SIGNS_WORDS (NB_PICKS / 64u)

/* One bit for each position in each mask. Both bits are 0 where the value is 0 or not finite. */
struct nb_signs {
    uint64_t negative[NB_SIGNS_WORDS], positive[NB_SIGNS_WORDS];
};

/* Store the signs of n raw values (nb_pick) of the type. */
void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs);

/* Store the positions where n integers increased or decreased. Return 1 when any differs. */
int nb_signs_of_change(const int32_t *now, const int32_t *before, unsigned n, struct nb_signs *change);

/* A change and the change before it, with everything for comparisons with sums that does not depend on the
 * sum. */
struct nb_change {
    unsigned words, most;
    unsigned changed, up; /* positions that count for nb_signs_agree, and the positive positions among them */
    unsigned differ;      /* positions that nb_signs_contrast may use */
    uint64_t negative[NB_SIGNS_WORDS], positive[NB_SIGNS_WORDS]; /* these positions */
    uint64_t differs[NB_SIGNS_WORDS], twice[NB_SIGNS_WORDS],
        upwards[NB_SIGNS_WORDS]; /* for nb_signs_contrast */
};

/* Prepare the first n positions. Of the positions that changed, only the first `most` count. */
void nb_change_of(struct nb_change *c, const struct nb_signs *change, const struct nb_signs *before,
                  unsigned n, unsigned most);

/* The agreement of two patterns in n positions: the products of their signs, less the share that their means
 * cause, and the expected square of that by chance. Both add up over steps. */
struct nb_agreement {
    unsigned n;
    float product, chance;
};
#define NB_AGREEMENT_LEAST 8u /* fewest positions that mean something by themselves */

/* Return the agreement of `sum` with the change where the change has a sign. */
struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_change *change);

/* Return the agreement of `sum` with the change less the change before, where the sum has a sign. A position
 * that turned round counts twice. A position that changed in only one of the two changes counts once. A
 * position that changed as before counts 0. A pattern that agrees with both changes alike, however well,
 * therefore comes to 0 with deviation 1. */
struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_change *change);

/* Add an independent agreement. Each one is about its own means. */
void nb_agreement_add(struct nb_agreement *sum, const struct nb_agreement *agreement);

/* Return the agreement in standard deviations: the correlation times the square root of the number. Return 0
 * for too few positions, or when all values are equal. */
float nb_agreement_z(const struct nb_agreement *agreement);

/* ---- causal.c: the test whether the weights follow a sum ---------------------------------------------- */

#define NB_CAUSAL_Z 8.0f /* standard deviations over the running sums */
#define NB_CAUSAL_D 6.0f
#define NB_CAUSAL_WEIGHT_BLOCKS 128u /* of one field */
#define NB_CAUSAL_BUFFERS 384u       /* names that a field remembers: three of each weight block */
#define NB_CAUSAL_SUMS 512u          /* waiting sums of a step. Further sums are ignored */

/* Create a field that compares values at `positions` positions, at most NB_PICKS. Return NULL without
 * memory. */
struct nb_causal *nb_causal_create(unsigned positions);
void nb_causal_destroy(struct nb_causal *field);
unsigned nb_causal_positions(const struct nb_causal *field);

/* Return the place of the next sum to decide on among the sums since weights last changed, from 0. Call it in
 * the order of operations. */
unsigned nb_causal_place(struct nb_causal *field);

/* Note that a sum for which this buffer is predicted is decided on, in the order of operations. Return 1 when
 * this one or another one of late came although the buffer's weight block had not changed since the sum
 * before, as in a second backward pass. Then a proof of the buffer may hold for some of its sums only.
 * `given`: identity has found the sum to be this buffer's. */
int nb_causal_repeats(struct nb_causal *field, uint64_t name, int given);

/* Note a delivered sum, in the order of operations. A name of 0 is absent. */
void nb_causal_sum(struct nb_causal *field, const uint64_t names[NB_CAUSAL_NAMES],
                   const struct nb_signs *signs);

/* Note a gathered block, in the order of operations. `raw` has its values at the positions, each `width`
 * bytes (1, 2 or 4). */
void nb_causal_gather(struct nb_causal *field, size_t width, const uint32_t *raw);

/* Return 1 when the sums with this key are proved to move weights. */
int nb_causal_proved(const struct nb_causal *field, uint64_t key);
/* Return 1 when they are proved, and clearly moved their weight block on average of late. */
int nb_causal_clear(const struct nb_causal *field, uint64_t key);
/* Return 1 when sums with this key clearly moved different weight blocks of late: the key stands for several
 * buffers. */
int nb_causal_shared(const struct nb_causal *field, uint64_t key);
/* Return 1 when the sums for which identity predicted this buffer of late clearly moved one weight block and
 * only that one. Then the prediction comes true, whatever their content. */
int nb_causal_certain(const struct nb_causal *field, uint64_t guess);
/* Return the number of weight blocks that have changed at least twice. At 0 a proof is impossible. */
unsigned nb_causal_weight_blocks(const struct nb_causal *field);
/* The strongest hypothesis of a key, for reports and tests. The numbers are 0 without one. */
struct nb_causal_state {
    int weight_block; /* -1: no weight block */
    float z, d;
    unsigned steps; /* steps in which sum and change met */
};
struct nb_causal_state nb_causal_state(const struct nb_causal *field, uint64_t key);

/* Return the share of recent sums that are explained: their key is proved, or they agreed with one change far
 * better than all other sums of the step did. For reports and tests. */
float nb_causal_explained(const struct nb_causal *field);

/* ---- tables.c: fields of the causal test -------------------------------------------------------------- */

struct nb_field {
    struct nb_entry entry; /* its communicator, and the values of a rank's block */
    struct nb_causal *causal;
};

/* Return the field of blocks of `values` values in the table of fields. With `make` the call creates a new
 * field. Return NULL for an unknown field without `make`, for blocks with too few values, and without
 * memory. */
struct nb_causal *nb_field_get(struct nb_table *fields, uint64_t comm, uint64_t values, int make);
/* Return the field of a gathered block of `bytes` bytes, by its size, or NULL. Store its number of values at
 * *values and their width in bytes at *width. For a type of bytes the function tries widths of 2, 4 and 1. */
struct nb_causal *nb_field_of_bytes(struct nb_table *fields, uint64_t comm, ncclDataType_t type,
                                    uint64_t bytes, uint64_t *values, size_t *width);

/* ---- tables.c: the state ------------------------------------------------------------------------------ */

/*
 * State that the parts of classification share. classify.c weighs the evidence, tables.c keeps its subjects.
 */

/* The usual sizes of some sums. */
struct nb_sizes {
    float smallest, largest; /* log2 of their usual rms */
    uint32_t odd;            /* sums outside this range, less those inside */
    int known;               /* 1: there is a range */
};

/* Memory that a signature's sums come from, a predicted buffer, or a place in the step. */
struct nb_class_key {
    struct nb_entry
        entry; /* its address, or the name of the buffer or place, and the place of the signature */
    struct nb_sizes sizes; /* of a buffer or place */
    uint64_t step;         /* of a reduce-scatter: the last step in which it came, */
    uint32_t streak;       /* and the steps in a row before that one */
    uint64_t round;        /* round of its communicator. UINT64_MAX: none yet */
};

struct nb_class_comm {
    struct nb_entry entry;                    /* its number, and 0 */
    int gathers;                              /* 1: gathers were seen */
    uint64_t weight_steps, first_weight_step; /* its own steps, and the process's steps when it first
                                                 reduced */
    /* Rounds of all-reduces that are gradients by caller or user. A buffer that comes again begins the next
     * round. */
    uint64_t round, set, last_set;
    uint64_t alike_rounds; /* rounds with the same buffers as the round before */
    /* Elements since the step began: gathered, gathered as weights, reduce-scattered, all-reduced. */
    uint64_t gathered, weights, scattered, reduced;
    uint32_t operations;
    uint32_t scatter_adds_up, reduce_adds_up; /* steps in a row */
};

struct nb_class_sig {
    struct nb_entry entry; /* its communicator, and all else */
    uint64_t count;
    uint32_t nranks;
    enum nb_func func;
    ncclDataType_t type;
    uint64_t calls, sampled;
    uint64_t passes;                  /* passes that identity counted. 0: none yet */
    uint64_t linked;                  /* all-reduces of a reduce-scatter's result */
    uint64_t last_steady;             /* `sampled` when content was last steady. 0: never */
    uint64_t step;                    /* step of its communicator when last seen, plus 1 */
    uint32_t steps_in_sum;            /* steps in a row that it was part of and that added up */
    uint64_t sum_step;                /* step of its communicator when enough steps had added up */
    int weights;                      /* gather: 1 when it behaves like weights */
    unsigned char told[NB_WHY_COUNT]; /* log lines with each reason */
    struct nb_content content;
    int bucket;          /* all-reduces that DDP's reducer calls */
    enum nb_caller said; /* the framework's word on its sums, or NB_CALLER_UNKNOWN */
    enum nb_class_kind kind;
    enum nb_class_reason reason, evidence;
    struct nb_book book;
};

struct nb_classify {
    unsigned warmup;
    struct nb_grad_rules rules;
    struct nb_table sigs;   /* of struct nb_class_sig */
    struct nb_table keys;   /* of struct nb_class_key */
    struct nb_table comms;  /* of struct nb_class_comm */
    struct nb_table fields; /* of struct nb_field */
    uint64_t weight_steps;  /* of the process: the largest number of any communicator */
};

/* Return the operation's signature, a communicator, or a buffer of a signature. Each function creates a new
 * entry when there is none yet, and always returns one. */
struct nb_class_sig *nb_class_sig_of(struct nb_classify *c, const struct nb_class_op *op);
struct nb_class_comm *nb_class_comm_of(struct nb_classify *c, uint64_t comm);
struct nb_class_key *nb_class_key_of(struct nb_classify *c, const struct nb_class_sig *sig, uint64_t send);

#endif
