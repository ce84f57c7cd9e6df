/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vetoes from the values of what is summed: gradients have both signs and are not integers. Squares, counts and
 * histograms are worth nothing with a value of the wrong sign, or a broken one.
 *
 * What is counted fades, so that a change of content shows after some ten calls. Pure; the caller serialises.
 */
#ifndef NIBBLE_POLICY_CONTENT_H
#define NIBBLE_POLICY_CONTENT_H

#include <stdint.h>

#include "nibble/codec.h"

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

#endif
