/* SPDX-License-Identifier: Apache-2.0 */
/* Data messages against operations and windows: what a message begins with, which window holds one that has
 * arrived, and whether it fits there. For the engine thread. */
#ifndef NIBBLE_COLL_MESSAGE_H
#define NIBBLE_COLL_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "coll/wire.h"

struct nb_coll_comm;
struct nb_coll_req;
struct nb_op;
struct nb_peer;
struct nb_segment;

/* Fill in what every message of the segment begins with; its codec and what follows from that is the
 * caller's. */
void nb_msg_describe(const struct nb_coll_comm *comm, const struct nb_op *op,
                     const struct nb_segment *segment, struct nb_msg *msg);
/* Count `copies` messages of `len` bytes each for the summary. */
void nb_count_unit(struct nb_coll_comm *comm, enum nb_func func, const struct nb_msg *msg, size_t len,
                   uint64_t copies);

/* The window that holds message `m`, starting from *seq, which moves past windows that ended before it;
 * *segment is the window's segment that it carries. NULL: NCCL has not posted it here yet, or (after an
 * error) it does not fit. */
struct nb_coll_req *nb_find_window(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_msg *m,
                                   uint64_t *seq, struct nb_segment *segment);
/* 1 when the message is that of the segment. Of an all-reduce's it carries what its sender takes for values,
 * from the start: all of it, a part, or nothing. */
int nb_msg_carries(const struct nb_op *op, const struct nb_segment *segment, const struct nb_msg *m);
/* 0, or < 0 when the communicator has failed because the operation has another schedule there, or another
 * type. Which schedule an operation takes follows from what all nodes know. */
int nb_msg_check_schedule(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                          const struct nb_msg *m);
int nb_msg_check_type(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_op *op,
                      const struct nb_msg *m);

#endif
