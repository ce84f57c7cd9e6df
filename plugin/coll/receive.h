/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half: what has arrived is taken, summed, forwarded and delivered. For the engine thread. */
#ifndef NIBBLE_COLL_RECEIVE_H
#define NIBBLE_COLL_RECEIVE_H

#include <stdint.h>

struct nb_coll_comm;

struct nb_peer_results { /* of each peer: its results, in their order */
    uint64_t seq;        /* cursor over windows */
    uint64_t win;        /* the window in which the last was, */
    uint64_t off;        /* and where the next must begin in it, or lie behind */
};

/* Do what the messages at the heads of the rings allow: 1 moved, 0 not, < 0 when the communicator has
 * failed. */
int nb_receive_progress(struct nb_coll_comm *comm);

#endif
