/* SPDX-License-Identifier: Apache-2.0 */
/* Signs of sampled values as planes of bits, and how far two patterns agree: the statistic of
 * policy/causal.h. Pure. */
#ifndef NIBBLE_POLICY_SIGNS_H
#define NIBBLE_POLICY_SIGNS_H

#include <stdint.h>

#include "codec/pick.h"
#include "nibble/codec.h"

#define NB_SIGNS_WORDS (NB_PICKS / 64u)

/* A bit for each position; neither is set where the value is 0 or not finite. */
struct nb_signs {
    uint64_t negative[NB_SIGNS_WORDS], positive[NB_SIGNS_WORDS];
};

/* Signs of n raw values (nb_pick) of the type. */
void nb_signs_of(enum nb_dtype type, const uint32_t *raw, unsigned n, struct nb_signs *signs);

/* Where n integers are more, and where less, than before: 1 when any is. */
int nb_signs_of_change(const int32_t *now, const int32_t *before, unsigned n, struct nb_signs *change);

/* A change and the one before, with all that comparing sums with them needs and that does not depend on the sum. */
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

/* How far two patterns agree in n positions: the products of their signs, less what their means make of them, and
 * how large the square of that is by chance. Both add up over steps. */
struct nb_agreement {
    unsigned n;
    float product, chance;
};
#define NB_AGREEMENT_LEAST 8u /* positions, for it to say anything by itself */

/* Where the change has a sign. */
struct nb_agreement nb_signs_agree(const struct nb_signs *sum, const struct nb_change *change);

/* The agreement of `sum` with the change less the one before, where the sum has a sign: what turned round counts
 * twice, what changed in one of them only counts once, and what changed as before not at all. So a pattern that
 * agrees with both alike, however well, comes to 0 with deviation 1. */
struct nb_agreement nb_signs_contrast(const struct nb_signs *sum, const struct nb_change *change);

/* What is independent adds up, each about its own means. */
void nb_agreement_add(struct nb_agreement *sum, const struct nb_agreement *agreement);

/* In standard deviations: the correlation times the square root of the number. 0 where there are too few positions
 * or nothing varies. */
float nb_agreement_z(const struct nb_agreement *agreement);

#endif
