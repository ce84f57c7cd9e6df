/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom the oldest unfinished window waits for. For the engine thread, and for others that hold progress_lock;
 * nothing is changed.
 */
#ifndef NIBBLE_COLL_LATE_H
#define NIBBLE_COLL_LATE_H

#include <stdbool.h>
#include <stddef.h>

struct nb_coll_comm;
struct nb_peer;

/* The oldest unfinished window needs something from `peer`, a neighbor, that has not arrived. There is such a
 * window: oldest < begun. */
bool nb_late_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* Names of all such peers, with commas; what does not fit is left out. */
void nb_late_names(const struct nb_coll_comm *comm, char *buf, size_t cap);

#endif
