/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory of a communicator: for each neighbor and class of messages a ring to send from and one to
 * receive into (link.h), buffers that several rings send from, and scratch memory; all on the communicator's
 * device, counted against the node's staging budget, and registered with the connections that use it.
 *
 * For the thread that connects or closes (NCCL's proxy service thread), while the engine does not know the
 * communicator.
 */
#ifndef NIBBLE_COLL_STAGING_H
#define NIBBLE_COLL_STAGING_H

#include <stddef.h>
#include <stdint.h>

struct nb_coll_comm;

struct nb_staging {
    size_t taken;      /* bytes, of the budget */
    uint8_t *arrivals; /* memory of all rings that are forwarded from, one after the other by rank */
    size_t arrivals_bytes;
};

/* Allocate: as many buffers a ring as NIBBLE_CREDITS says, fewer (after a log line) when they do not fit into
 * the budget, at least one. 0 or -ENOMEM; nb_staging_destroy is due in any case. */
int nb_staging_create(struct nb_coll_comm *comm);
/* Free all of it, also after a failed create or none. Nothing is registered any more. */
void nb_staging_destroy(struct nb_coll_comm *comm);

/* Register with the connections, which the rings have been given. 0, or a negative errno;
 * nb_staging_unregister is due in any case. */
int nb_staging_register(struct nb_coll_comm *comm);
/* Stop receiving on the connections and deregister what is registered; may be called twice. */
void nb_staging_unregister(struct nb_coll_comm *comm);

#endif
