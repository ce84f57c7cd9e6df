/* SPDX-License-Identifier: Apache-2.0 */
/* The sending of an all-gather's own block where each segment goes to one node, which forwards it. For the
 * engine thread. */
#ifndef NIBBLE_COLL_SCATTER_H
#define NIBBLE_COLL_SCATTER_H

struct nb_coll_comm;

/* Send the next own segments to the nodes that forward them: 1 moved, 0 not, < 0 when the communicator has
 * failed. */
int nb_scatter_progress(struct nb_coll_comm *comm);

#endif
