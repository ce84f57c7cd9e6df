/* SPDX-License-Identifier: Apache-2.0 */
/* Certainty about reduce-scatters from call counts between weight changes; see policy.h. */
#include <stdlib.h>

#include "policy/policy.h"

#define MAX_SIGNATURES 1024u
#define CERTAIN_AFTER 3
#define PENALTY (-50)

struct signature {
    ncclDataType_t type;
    uint64_t bytes;
    unsigned in_step; /* operations since the last step began */
    int clean;        /* steps in a row with exactly one */
};

struct nb_signatures {
    struct signature sig[MAX_SIGNATURES];
    unsigned n;
    int has_anchor;
    uint32_t anchor; /* the gathered block whose change marks a step */
};

struct nb_signatures *nb_signatures_create(void)
{
    return calloc(1, sizeof(struct nb_signatures));
}

void nb_signatures_destroy(struct nb_signatures *sigs)
{
    free(sigs);
}

int nb_signatures_reduce(struct nb_signatures *sigs, ncclDataType_t type, uint64_t bytes)
{
    struct signature *s = sigs->sig;

    while (s < sigs->sig + sigs->n && (s->type != type || s->bytes != bytes))
        s++;
    if (s == sigs->sig + sigs->n) {
        if (sigs->n == MAX_SIGNATURES)
            return 0;
        sigs->n++;
        s->type = type;
        s->bytes = bytes;
    }
    if (++s->in_step > 1)
        s->clean = PENALTY;
    return s->clean >= CERTAIN_AFTER;
}

int nb_signatures_gather(struct nb_signatures *sigs, uint32_t slot, int changed)
{
    if (!changed)
        return 0;
    if (!sigs->has_anchor) {
        sigs->has_anchor = 1;
        sigs->anchor = slot;
    }
    if (slot != sigs->anchor)
        return 0;
    for (unsigned i = 0; i < sigs->n; i++) {
        struct signature *s = &sigs->sig[i];
        if (s->in_step == 1 && s->clean < CERTAIN_AFTER)
            s->clean++;
        s->in_step = 0;
    }
    return 1;
}
