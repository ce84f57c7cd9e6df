/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and freeing the object of a communicator. Called on NCCL's proxy service thread, before the engine
 * knows the communicator and after it has let go of it.
 */
#ifndef NIBBLE_COLL_SETUP_H
#define NIBBLE_COLL_SETUP_H

#include "net/transport.h"

struct nb_coll_comm;
struct nb_context;

/* The object itself with the state of its modules, without connections, staging memory (staging.h) or engine:
 * node `rank` of `nnodes` nodes on net device `dev`. Its device is that which nb_device_choose says, or, with
 * the reason in comm->device_error, the host. NULL: no memory. */
struct nb_coll_comm *nb_setup_comm(struct nb_context *ctx, int dev, uint64_t comm_id,
                                   const struct nb_net_ops *net, int nnodes, int rank);
/* Free everything, staging memory included, but not connections and the reference to the engine. */
void nb_setup_free(struct nb_coll_comm *comm);

#endif
