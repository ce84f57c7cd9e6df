/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bars around events. The step after a gradient out of the ordinary must not carry what is left of it:
 * the gradient that arrives is as long as the exact one. And in the steps that follow an event the update
 * with feedback is never further off than without: the shadow codes the very same gradients without feedback,
 * so the two are compared step by step.
 */
#include <math.h>
#include <stdio.h>

#include "report.h"

#define NORM_WITHIN 0.05
#define FOLLOWING 20u /* steps looked at from an event on; Adam's mean reaches that far */

/* Against the exact gradient at the same weights. The uncompressed run's norm is told beside it: its weights
 * are others by then, and single pairs differ by some percent for that reason alone. */
static void judge_norm(const struct nbt_outcome *o, const struct nbt_outcome *raw, const char *event,
                       size_t at, struct nbt_verdicts *v)
{
    const struct nbt_step *next = &o->board->step[at];
    const double gap = next->norm / next->norm_exact - 1;
    char beside[64] = "";
    if (raw && at < raw->board->steps_done)
        snprintf(beside, sizeof beside, "; %+.2f %% of the uncompressed run's",
                 100 * (next->norm / raw->board->step[at].norm - 1));
    nbt_verdict(v, fabs(gap) <= NORM_WITHIN,
                "%s, %s: gradient norm of the next step %.3f, %+.2f %% of the exact one (within %.0f %%%s)",
                o->run->title, event, next->norm, 100 * gap, 100 * NORM_WITHIN, beside);
}

static void judge_following(const struct nbt_outcome *o, const char *event, size_t from, size_t end,
                            struct nbt_verdicts *v)
{
    const struct nbt_board *b = o->board;
    double worst = 0;
    size_t worst_step = from, compared = 0;
    int worst_class = 0;
    for (size_t i = from; i < end; i++) {
        for (int c = 0; c < NBT_CLASSES && !b->step[i].skipped; c++) {
            const double ratio = b->step[i].off[c] / b->step[i].off_shadow[c];
            compared++;
            if (!(ratio <= worst)) { /* a NaN shows */
                worst = ratio;
                worst_step = i;
                worst_class = c;
            }
        }
    }
    nbt_verdict(v, compared > 0 && worst <= 1,
                "%s, %s: updates of the next %zu steps at most %.2f times as far off as without feedback "
                "(at most 1; %s, step %zu)",
                o->run->title, event, end - from, worst, nbt_fid_class_name(worst_class), worst_step);
}

void nbt_judge_events(const struct nbt_settings *s, const struct nbt_outcome *o,
                      const struct nbt_outcome *raw, struct nbt_verdicts *v)
{
    for (size_t i = 0; i < s->events.count && o->run->judged; i++) {
        const struct nbt_event *e = &s->events.event[i];
        size_t end = e->step + FOLLOWING;
        char name[48];
        nbt_event_name(e, name, sizeof name);
        for (size_t k = 0; k < s->events.count; k++) /* the next event is judged by itself */
            if (s->events.event[k].step > e->step && s->events.event[k].step < end)
                end = s->events.event[k].step;
        end = end < o->board->steps_done ? end : o->board->steps_done;
        if (e->step + 1 >= o->board->steps_done) {
            nbt_verdict(v, 0, "%s, %s: the run ends before the step that follows", o->run->title, name);
            continue;
        }
        if (e->kind == NBT_EVENT_SPIKE || e->kind == NBT_EVENT_OVERFLOW)
            judge_norm(o, raw, name, e->step + 1, v);
        if (e->kind == NBT_EVENT_OVERFLOW)
            nbt_verdict(v, o->board->step[e->step].skipped, "%s, %s: the step was skipped", o->run->title,
                        name);
        if (s->shadow &&
            e->kind != NBT_EVENT_OVERFLOW) /* the other nodes do not know that the step is lost */
            judge_following(o, name, e->step, end, v);
    }
}
