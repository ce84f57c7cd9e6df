/* SPDX-License-Identifier: Apache-2.0 */
/* See content.h. */
#include "policy/content.h"

#include <math.h>

#define FADE 0.98f        /* a call */
#define ENOUGH 512.0f     /* samples that are not 0, before it is judged */
#define OTHER_SIGN 0.002f /* share of values */
#define WHOLE 0.99f
#define BITS_BEHIND \
    3 /* the point, that a value's type must have for an integer to be one by more than chance */

/* Values below this have so many bits behind the point. */
static float limit(enum nb_dtype type)
{
    static const int mantissa[NB_DTYPE_COUNT] = {[NB_F32] = 23, [NB_BF16] = 7, [NB_F16] = 10};

    return ldexpf(1.0f, mantissa[type] - BITS_BEHIND + 1);
}

void nb_content_note(struct nb_content *c, enum nb_dtype type, const float *samples, unsigned n)
{
    const float most = limit(type);
    unsigned negative = 0, positive = 0, could = 0, integer = 0;

    for (unsigned i = 0; i < n; i++) {
        const float v = samples[i], size = fabsf(v);
        negative += v < 0.0f;
        positive += v > 0.0f;
        could += v != 0.0f && size < most;
        integer += v != 0.0f && size < most && truncf(v) == v;
    }
    c->values = c->values * FADE + (float)(negative + positive);
    c->negative = c->negative * FADE + (float)negative;
    c->positive = c->positive * FADE + (float)positive;
    c->could_be_broken = c->could_be_broken * FADE + (float)could;
    c->integer = c->integer * FADE + (float)integer;
}

int nb_content_one_sign(const struct nb_content *c)
{
    return c->values >= ENOUGH && fminf(c->negative, c->positive) < OTHER_SIGN * c->values;
}

int nb_content_integers(const struct nb_content *c)
{
    return c->could_be_broken >= ENOUGH && c->integer >= WHOLE * c->could_be_broken;
}
