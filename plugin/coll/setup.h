/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and unmaking a communicator's memory. Called on NCCL's proxy service thread, before the engine knows the
 * communicator and after it has let go of it.
 */
#ifndef NIBBLE_COLL_SETUP_H
#define NIBBLE_COLL_SETUP_H

#include "coll/internal.h"

/* The object itself, without connections, rings or engine. NULL: no memory. */
struct nb_coll_comm *nb_setup_comm(int dev, uint64_t comm_id, const struct nb_net_ops *net, int nranks, int rank);
/* Rings and pools, under the staging budget: as many credits as NIBBLE_CREDITS says, fewer when they do not fit,
 * at least one. 0 or -ENOMEM. */
int nb_setup_memory(struct nb_coll_comm *comm);
/* Register rings and pools with the connections that use them. 0 or a negative errno. */
int nb_setup_register(struct nb_coll_comm *comm);
void nb_setup_unregister(struct nb_coll_comm *comm);
/* Free everything but connections and engine. */
void nb_setup_free(struct nb_coll_comm *comm);

#endif
