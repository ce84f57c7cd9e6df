/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of named sums.
 *
 * A script that sums by itself (DiLoCo's outer steps) calls the same sums in the same order, step after step,
 * often from memory that is new each time. Other traffic runs between them, hundreds of its steps long. So
 * only the order of the sums that the user has named tells their buffers apart: a cycle of kinds (type and
 * size), which is found by itself. A sum's turn is its place in the cycle. One cycle may have the sums of one
 * step, or of all fragments that are summed in turn.
 *
 * A cycle counts once it has come three times, without any exception since the search began, and if one kind
 * comes once in it. Without such a kind (layers of equal size only, or one vector) the cycle may be a part of
 * the true one, and nothing has a turn. Layers of a model repeat within its step, too. When a cycle breaks,
 * the search begins anew and asks for twice as long a proof.
 */
#include <stdlib.h>

#include "base/minmax.h"
#include "policy/identity/internal.h"

#define CYCLES 3u        /* that prove it */
#define FIRST_LIMIT 512u /* sums after which the search forgets the older half of them */
#define LONGEST (NB_TURNS_KEPT / CYCLES)

static uint32_t kind_at(const struct nb_turns *t, uint64_t number)
{
    return t->kind[number % NB_TURNS_KEPT];
}

static int repeats(const struct nb_turns *t, uint32_t period)
{
    for (uint64_t i = t->sums; i-- > t->from + period;)
        if (kind_at(t, i) != kind_at(t, i - period))
            return 0;
    return 1;
}

static int has_single(const struct nb_turns *t, uint32_t period)
{
    const uint64_t from = t->sums - period;

    for (uint64_t i = from; i < t->sums; i++) {
        unsigned alike = 0;
        for (uint64_t k = from; k < t->sums && alike < 2; k++)
            alike += kind_at(t, k) == kind_at(t, i);
        if (alike == 1)
            return 1;
    }
    return 0;
}

/* Look for the shortest cycle. Multiples of a cycle without a single kind have none either. */
static void look(struct nb_turns *t)
{
    const uint64_t have = t->sums - t->from;

    for (uint32_t p = 1; p <= have / CYCLES; p++)
        if (repeats(t, p)) {
            if (p > 1 && have >= t->wanted && has_single(t, p)) {
                t->period = p;
                t->since = t->sums;
            }
            return;
        }
    if (have >= t->limit) {
        t->from = t->sums - t->limit / 2;
        t->limit = 2 * t->limit < NB_TURNS_KEPT ? 2 * t->limit : NB_TURNS_KEPT;
    }
}

static void restart(struct nb_turns *t)
{
    const uint64_t run = t->sums - t->from;

    t->wanted = run < LONGEST ? 2 * run : 0; /* a longer one was no part of a cycle */
    t->from = t->sums + 1;                   /* without the sum that breaks it */
    t->limit = FIRST_LIMIT;
    t->period = 0;
}

int nb_turns_count(struct nb_turns *t, const struct nb_sig *s, uint32_t *turn, uint64_t *cycle)
{
    const uint32_t kind = (uint32_t)nb_mix(s->count, (uint64_t)s->type);
    int broken;

    *turn = NB_NONE;
    *cycle = 0;
    if (!t->kind)
        *t = (struct nb_turns){.kind = calloc(NB_TURNS_KEPT, sizeof(*t->kind)), .limit = FIRST_LIMIT};
    if (!t->kind)
        return 0;
    broken = t->period && kind != kind_at(t, t->sums - t->period);
    if (broken)
        restart(t);
    t->kind[t->sums++ % NB_TURNS_KEPT] = kind;
    if (t->period) {
        *turn = (uint32_t)((t->sums - 1 - t->since) % t->period);
        *cycle = nb_max64(1, (t->sums - 1 - t->from) / t->period);
    } else {
        look(t);
    }
    return broken;
}
