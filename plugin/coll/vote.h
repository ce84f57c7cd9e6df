/* SPDX-License-Identifier: Apache-2.0 */
/* The vote that ends connect, the token of the group, and what becomes of a no. For the thread that connects.
 */
#ifndef NIBBLE_COLL_VOTE_H
#define NIBBLE_COLL_VOTE_H

#include "coll/mesh.h"

/* Begin to vote: nothing keeps this node from being part of the group. */
void nb_vote_begin(struct nb_mesh *m);
/* Exchange votes. Done when all nodes are known to be ready and to know it (then comm->token is set), or
 * when m->cause tells why there will be no communicator; at the latest at m->deadline. */
enum nb_stepped nb_vote_step(struct nb_mesh *m);
/* Whether there is a communicator. */
bool nb_vote_is_won(const struct nb_mesh *m);

/* Begin to tell all others why this node gives up: m->reason, or, where there is none that is nearer to the
 * cause, who is missing now. m->deadline is set anew: to a quarter of NIBBLE_CONNECT_TIMEOUT from now, within
 * m->end. */
void nb_decline_begin(struct nb_mesh *m);
/* Done when they have been told, and m->reason is as near to the cause as can be known; at the latest at
 * m->deadline. */
enum nb_stepped nb_decline_step(struct nb_mesh *m);

#endif
