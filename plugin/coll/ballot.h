/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes say to each other over CONTROL while a group is made: a yes in each round that they share, and
 * a no at any time (struct nb_vote). Yeses wait for their turn, a no does not: a node with a reason tells it
 * to all that it is connected with, and who hears it does the same. So it reaches all nodes in two hops,
 * whatever they wait for, and what stands in their logs is the reason nearest to the cause (enum nb_cause).
 *
 * For the thread that connects.
 */
#ifndef NIBBLE_COLL_BALLOT_H
#define NIBBLE_COLL_BALLOT_H

#include "coll/mesh.h"

/* Say what is due, and hear what has come, of all peers. True when something moved. */
bool nb_ballots_move(struct nb_mesh *m);

/* Whether the yes of round `round` has been said to peer `rank`, and heard of it. */
bool nb_ballot_is_done(const struct nb_mesh *m, int rank, enum nb_round round);
/* Whether this node shares the round with that one. */
bool nb_ballot_is_shared(const struct nb_mesh *m, int rank, enum nb_round round);
/* The yes of this round may be said to all who share it. */
void nb_ballots_open(struct nb_mesh *m, enum nb_round round);

/* There is a reason, so there will be no communicator: nothing but that is said from here on. */
void nb_ballots_decline(struct nb_mesh *m);
/* Whether all who can be told have been, and nothing can be heard that is nearer to the cause. */
bool nb_ballots_are_over(const struct nb_mesh *m);

#endif
