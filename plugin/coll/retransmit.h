/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retransmit requests. A receiver of an all-gather that does not hold the reference a segment is coded
 * against, or finds another hash, asks the block's owner for the segment's raw bytes (RAW), a part at a time,
 * and gets them as DATA. Both are CONTROL messages, which are always read, so that this needs no place in the
 * order of data messages. A node has one request to an owner in flight at a time; other tasks of that owner's
 * block queue behind it.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_RETRANSMIT_H
#define NIBBLE_COLL_RETRANSMIT_H

#include <stdint.h>

#include "coll/link.h"

struct nb_coll_comm;
struct nb_ctl;
struct nb_peer;
struct nb_task;

/* Raw bytes of the own block that a node asked for. */
struct nb_ask {
    uint64_t opno, off;
    uint32_t len;
    int rank;
};
#define NB_ASKS 4u /* of one node at a time: it has one, the rest is slack */

struct nb_peer_raw {         /* of each peer */
    struct nb_task *waiting; /* for raw bytes of this peer's block; one at a time asks */
    struct nb_ask *ask;      /* [most] raw bytes that it, or nodes behind it, asked this node for: so many */
    unsigned n, most;
    struct nb_shared answer; /* DATA on its way to it, or relayed to it */
};

/* The task waits for raw bytes of its segment, and asks for them when it is its turn: 0 when all have come,
 * -EAGAIN, or another error when the communicator has failed. */
int nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *task);
/* DATA has come from `peer`, followed by `data`. 0, or < 0 when the communicator has failed. */
int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           const uint8_t *data);
/* RAW has come from `peer`: note it. 0, or < 0 when the communicator has failed. */
int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);
/* Answer what `peer`, or nodes behind it, have asked for, as far as its ring has room: 1 something was sent,
 * 0, or < 0 when the communicator has failed. */
int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer);

#endif
