/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a node votes no: the reason that is nearest to the cause (enum nb_cause) of all that it finds or hears.
 *
 * For the thread that connects.
 */
#ifndef NIBBLE_COLL_REASON_H
#define NIBBLE_COLL_REASON_H

#include "coll/mesh.h"

/* This node votes no, for what it is itself. */
void nb_reason_object(struct nb_mesh *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* It votes no because of another node, which the text names. Nothing where there is a reason as good. */
void nb_reason_blame(struct nb_mesh *m, enum nb_cause cause, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Another node has voted no. */
void nb_reason_adopt(struct nb_mesh *m, enum nb_cause cause, const char *text);

#endif
