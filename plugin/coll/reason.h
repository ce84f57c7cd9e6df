/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a node votes no: the reason that is nearest to the cause (enum nb_cause) of all that it finds or hears.
 *
 * A node that declines tells all others why and closes its connections, so the end of one explains little:
 * its peer may have died, or may have gone for a reason that it has told. Connections are independent, and
 * their ends may be seen in any order. So an end is a suspicion only, until what the peer has said on its way
 * is read:
 *
 *   a no of the peer                    it has told why; its end means nothing
 *   the end of its CONTROL, no no       it is lost: it died, or could not say anything any more
 *   nothing for a moment                it is lost, as far as this node can tell
 *
 * Who has waited in vain for another node cannot know whether that one waits in turn for a third. The third's
 * neighbors do, and what they say takes a message or two more. So a node with such a reason stays a moment
 * after it is told all, to hear a better one and to pass it on.
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

/* Nothing can be said to peer `rank` any more: `what` ("lost", "cannot connect to"; a constant) has failed
 * with `err`. It is blamed when that is all that can be known. */
void nb_reason_suspect(struct nb_mesh *m, int rank, const char *what, int err);
/* Turn suspicions that nothing has explained into a reason. True when that has moved something. */
bool nb_reason_weigh(struct nb_mesh *m);
/* Whether the reason has stood for as long as something may be on its way. */
bool nb_reason_is_old(const struct nb_mesh *m);
/* Whether nothing that is nearer to the cause is to be expected of those who have said no. */
bool nb_reason_is_final(const struct nb_mesh *m);

#endif
