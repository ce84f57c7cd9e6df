/* SPDX-License-Identifier: Apache-2.0 */
/* Why a node votes no; see reason.h. */
#include "coll/reason.h"

#include <stdarg.h>
#include <stdio.h>

/* Only a surer cause takes the place of another. */
static void set_reason(struct nb_mesh *m, enum nb_cause cause, bool own, const char *text)
{
    if (m->cause <= cause)
        return;
    m->cause = cause;
    m->own = own;
    m->version++;
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
