/* SPDX-License-Identifier: Apache-2.0 */
/* Sums. For the engine thread. */
#ifndef NIBBLE_COLL_REDUCE_H
#define NIBBLE_COLL_REDUCE_H

#include <stdint.h>

#include "coll/cursor.h"
#include "coll/link.h"

struct nb_coll_comm;

#define NB_PARTIALS 4u /* sums in flight to their owners */

struct nb_reduce {
    struct nb_cursor cursor; /* over what this node sums */
    struct nb_pool results;  /* messages with an all-reduce's results, which go to several peers */
    uint8_t *partial;        /* [NB_PARTIALS] sums of segments on their way to their owners */
    unsigned partials;       /* bit: is in use */
};

/* Sum the next segment: 1 moved, 0 not now, < 0 when the communicator has failed. */
int nb_reduce_next(struct nb_coll_comm *comm);

#endif
