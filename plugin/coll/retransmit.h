/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retransmit requests. A receiver of an all-gather that does not hold the reference a segment is coded
 * against, or finds another hash, asks the block's owner for the segment's raw bytes (RAW), a part at a time,
 * and gets them as DATA. Both are CONTROL messages, which are always read, so that this needs no place in the
 * order of data messages. A node has one request to an owner in flight at a time; other tasks of that owner's
 * block queue behind it.
 *
 * The device copies the bytes, and nobody waits for it: from the owner's reference, which is not written before the node
 * that asks has confirmed all of it, into the answer; and out of the ring of messages, whose slot is held meanwhile, to
 * where the block is wanted.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_RETRANSMIT_H
#define NIBBLE_COLL_RETRANSMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/link.h"
#include "device/device.h"

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
    struct nb_shared answer; /* DATA on its way to it, or relayed to it; `left` is not 0 while it is in use */
    enum nb_answering {
        NB_ANSWER_NONE,
        NB_ANSWER_COPYING,
        NB_ANSWER_COPIED
    } answering;         /* the first of `ask` */
    struct nb_work work; /* while it is copied */
};

struct nb_retransmits {
    unsigned copying; /* answers */
};

/* The step of a task that waits for raw bytes of its segment, and asks for them when it is its turn: as the device's
 * functions, for the copy of a part that has come; -EAGAIN while there is none. copied: that is done; true when it was
 * the last part, else the step goes on, unless *error is < 0: the communicator has failed. */
ssize_t nb_retransmit_await(struct nb_coll_comm *comm, struct nb_task *task);
bool nb_retransmit_copied(struct nb_coll_comm *comm, struct nb_task *task, int *error);
/* DATA has come from `peer`, and lies in slot `at` of `rx`. 0, or < 0 when the communicator has failed. */
int nb_retransmit_received(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl,
                           struct nb_rx *rx, unsigned at);
/* RAW has come from `peer`: note it. 0, or < 0 when the communicator has failed. */
int nb_retransmit_requested(struct nb_coll_comm *comm, struct nb_peer *peer, const struct nb_ctl *ctl);
/* Answer what `peer`, or nodes behind it, have asked for, as far as its ring and the device have room: 1 something moved,
 * 0, or < 0 when the communicator has failed. */
int nb_retransmit_progress(struct nb_coll_comm *comm, struct nb_peer *peer);

#endif
