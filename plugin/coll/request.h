/* SPDX-License-Identifier: Apache-2.0 */
/* Windows handed over by NCCL's proxy thread (request.c), as far as closing asks about them. */
#ifndef NIBBLE_COLL_REQUEST_H
#define NIBBLE_COLL_REQUEST_H

#include <stdbool.h>

struct nb_coll_comm;

/* True when NCCL is in the middle of something: windows are not finished, or there are more to come of an
 * operation whose first ones may well be. Any thread. */
bool nb_requests_unfinished(struct nb_coll_comm *comm);

#endif
