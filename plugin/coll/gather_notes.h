/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has become of each block of an all-gather whose segments are forwarded: a bit for each owner says that
 * some of its block was to be kept as a reference, another that some could not be. Segments of a block arrive
 * by several routes, in no order between these, so that only the end of windows tells that a block is whole.
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_GATHER_NOTES_H
#define NIBBLE_COLL_GATHER_NOTES_H

#include <stdint.h>

struct nb_coll_comm;
struct nb_coll_req;
struct nb_msg;
struct nb_op;
struct nb_peer;

struct nb_gather_notes {
    unsigned words; /* of each operation's `keep`, and of its `lost` */
    uint64_t *bits; /* [NB_OPS][2][words] */
};

/* Memory for a communicator of so many nodes: 0 or -ENOMEM. */
int nb_gather_notes_init(struct nb_gather_notes *notes, int nodes);
void nb_gather_notes_destroy(struct nb_gather_notes *notes);

/* The operation begins: get its bits, all clear. */
void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op);
/* As in the schedule's table: a segment of `owner`'s block was delivered; kept: as its message wished.
 * Returns 0. */
int nb_gather_note(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner, const struct nb_msg *m,
                   int kept);
/* Likewise: all windows up to and with `win` are finished: confirm the blocks of an all-gather that end in it
 * to their owners, with which this node is connected. */
void nb_gather_confirm_blocks(struct nb_coll_comm *comm, const struct nb_coll_req *win);

#endif
