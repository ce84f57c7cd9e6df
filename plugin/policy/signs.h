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

/* The agreement of two patterns in standard deviations: the correlation of signs where both planes of
 * `change` have one, means taken out, times the square root of their number. Of the changed positions the
 * first `most` count. 0 where nothing varies. */
float nb_signs_agree(const struct nb_signs *sum, const struct nb_signs *change, unsigned most);

/* The agreement of `sum` with `change` less `before`, likewise: what turned round counts twice, what changed
 * in one of them only counts once, and what changed as before not at all. So a pattern that agrees with both
 * alike, however well, comes to 0 with deviation 1. */
float nb_signs_contrast(const struct nb_signs *sum, const struct nb_signs *change,
                        const struct nb_signs *before, unsigned most);

#endif
