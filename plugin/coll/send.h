/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half: contributions to sums, and all-gathers that go to every peer. For the engine thread. */
#ifndef NIBBLE_COLL_SEND_H
#define NIBBLE_COLL_SEND_H

#include <stdint.h>

#include "coll/cursor.h"

struct nb_coll_comm;

struct nb_peer_send { /* of each peer */
    struct nb_cursor cursor;
    uint64_t gather_next; /* next shared all-gather unit to queue */
};

/* Shadow mode: where coded units go that are counted and not sent. */
struct nb_scratch {
    uint8_t *mem; /* a unit's slot for a contribution, and one for an all-gather */
    int used;     /* the first, by a task */
};

/* Encode and queue what there is to send, as far as there is room: 1 moved, 0 not, < 0 when the communicator
 * has failed. */
int nb_send_progress(struct nb_coll_comm *comm);

#endif
