/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the other nodes that, and why, a communicator has failed. For the engine thread. */
#ifndef NIBBLE_COLL_ABORT_H
#define NIBBLE_COLL_ABORT_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;

/* The communicator has failed: send ABORT to all that still listen, as far as that is possible now, and let
 * NCCL's calls return the error. To be called again in every round. True when it has left for all, or enough
 * time has passed: then connections may be closed. */
bool nb_abort_progress(struct nb_coll_comm *comm, int64_t now_ns);

#endif
