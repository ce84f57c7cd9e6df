/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has this content, or nearly this content, been seen before? A book keeps the samples of the last few
 * operations of a signature, and of some older ones, so that blocks of one size that take turns are found
 * again. Inside of classify.c.
 */
#ifndef NIBBLE_POLICY_SAMPLE_BOOK_H
#define NIBBLE_POLICY_SAMPLE_BOOK_H

#include <stdint.h>

#include "policy/classify.h"

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

struct nb_look {
    struct nb_sample *found; /* the entry that this content continues, NULL: none */
    float likeness;          /* best correlation with any entry; -1: nothing to compare */
    int changed;             /* found, and not the same bits */
    int varies;              /* 0: all samples are equal: no evidence of anything */
};

/* Look the samples up and note them. n from 2; values must be finite (checked: found is then NULL, likeness
 * -1; likewise where there is no memory for the book). */
struct nb_look nb_book_look(struct nb_book *book, const float *samples, unsigned n);
/* Forget all, and give the memory back. */
void nb_book_clear(struct nb_book *book);

#endif
