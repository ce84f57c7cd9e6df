/* SPDX-License-Identifier: Apache-2.0 */
/* Why a node votes no; see reason.h. */
#include "coll/reason.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"

/* For what is on its way; less where NIBBLE_CONNECT_TIMEOUT leaves little. */
#define MOMENT_NS ((int64_t)NB_NS_PER_S / 2)
#define MOMENTS 16 /* of them are in the time limit */

static int64_t now(const struct nb_mesh *m)
{
    return nb_clock_ns(&m->comm->ctx->clock);
}

static int64_t moment_ns(const struct nb_mesh *m)
{
    const int64_t most = (m->end - m->begun) / MOMENTS;

    return most < MOMENT_NS ? most : MOMENT_NS;
}

/* Only a surer cause takes the place of another. */
static void set_reason(struct nb_mesh *m, enum nb_cause cause, bool own, const char *text)
{
    if (m->cause <= cause)
        return;
    m->cause = cause;
    m->own = own;
    m->version++;
    m->reason_ns = now(m);
    snprintf(m->reason, sizeof(m->reason), "%s", text);
}

void nb_reason_object(struct nb_mesh *m, const char *fmt, ...)
{
    char text[sizeof(m->reason)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    set_reason(m, NB_CAUSE_SURE, true, text);
}

void nb_reason_blame(struct nb_mesh *m, enum nb_cause cause, const char *fmt, ...)
{
    char text[sizeof(m->reason)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    set_reason(m, cause, true, text);
}

void nb_reason_adopt(struct nb_mesh *m, enum nb_cause cause, const char *text)
{
    set_reason(m, cause, false, text);
}

/* ---- suspicions ------------------------------------------------------------------------------------- */

void nb_reason_suspect(struct nb_mesh *m, int rank, const char *what, int err)
{
    struct nb_suspicion *s = &m->ballot[rank].suspicion;

    m->ballot[rank].unreachable = true;
    if (!s->what)
        *s = (struct nb_suspicion){.what = what, .err = err, .since_ns = now(m)};
}

bool nb_reason_weigh(struct nb_mesh *m)
{
    bool moved = false;

    for (int r = 0; r < m->comm->nnodes; r++) {
        const struct nb_ballot *b = &m->ballot[r];
        struct nb_suspicion *s = &m->ballot[r].suspicion;

        if (!s->what)
            continue;
        if (!b->no && !b->ended && now(m) - s->since_ns < moment_ns(m))
            continue;
        if (!b->no)
            nb_reason_blame(m, NB_CAUSE_LOST, "%s %s: %s", s->what, m->comm->peer[r].name, strerror(-s->err));
        s->what = NULL;
        moved = true;
    }
    return moved;
}

bool nb_reason_is_old(const struct nb_mesh *m)
{
    return now(m) - m->reason_ns >= moment_ns(m);
}

bool nb_reason_is_final(const struct nb_mesh *m)
{
    if (m->cause == NB_CAUSE_SURE)
        return true;
    for (int r = 0; r < m->comm->nnodes; r++)
        if (m->ballot[r].suspicion.what)
            return false;
    return m->cause == NB_CAUSE_LOST || nb_reason_is_old(m);
}
