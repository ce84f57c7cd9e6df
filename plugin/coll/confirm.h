/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Confirmations of all-gathers. An owner may use what it has sent as a reference once all nodes have
 * confirmed its block (state/reference.h). In a full mesh each node tells the owner (CONFIRM).
 *
 * On a grid they are aggregated: at the end of an all-gather a node tells each of its row that it has the
 * blocks of that one's column (COLUMN), and a node that has heard all of its row tells the owners of its
 * column (CONFIRM, for a row). So an owner receives one message for each row, and no connection carries more
 * than one for an operation. What is known of an operation at the node in the owners' column:
 *
 *              COLUMN of one of the row,                the last one of the row:
 *              or the own end                           CONFIRM to the owners
 *     nothing ----------------------------> some of row ------------------------> nothing
 *
 * While there is such an operation the node does not leave: others of its row may have to ask an owner
 * through it.
 *
 * For the engine thread. Functions return 0, or < 0 when the communicator has failed.
 */
#ifndef NIBBLE_COLL_CONFIRM_H
#define NIBBLE_COLL_CONFIRM_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_ctl;
struct nb_op;
struct nb_peer;

/* On a grid: nodes of this row that have taken over the blocks of this column. */
struct nb_confirm {
    uint64_t opno;
    uint32_t nodes;   /* 0: nothing is known yet */
    uint64_t told[2]; /* a bit for each of them, by its column */
    uint64_t rows[2],
        lost[2]; /* a bit for each owner, by its row: something was to be kept; some node could not */
};

struct nb_confirms {
    struct nb_confirm *op; /* [NB_OPS], where there is more than one row */
    unsigned open;         /* which wait for some of the row */
};

/* Memory for a communicator on a grid: 0 or -ENOMEM. destroy: also of none. */
int nb_confirms_init(struct nb_confirms *confirms);
void nb_confirms_destroy(struct nb_confirms *confirms);
/* True while others of the row may have something to ask of an owner through this node. */
static inline int nb_confirms_wait(const struct nb_confirms *confirms)
{
    return confirms->open != 0;
}

/* Others wait for a message from `peer`, a neighbor, about an all-gather that some of its row have taken over. */
bool nb_confirm_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer);
/* In a full mesh: `owner`'s block of all-gather `opno` was taken over whole; kept: what was to be kept could
 * be. */
int nb_confirm_block(struct nb_coll_comm *comm, struct nb_peer *owner, uint64_t opno, int kept);
/* On a grid: all windows of an all-gather are finished here; tell those whose blocks were to be kept. */
int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op);

/* CONFIRM has come from `peer`: of this node's block. */
int nb_confirm_received(struct nb_coll_comm *comm, const struct nb_peer *peer, const struct nb_ctl *ctl);
/* COLUMN has come from `peer`, a node of the row, which has the blocks of this column, this node's among
 * them. */
int nb_confirm_column_received(struct nb_coll_comm *comm, const struct nb_peer *peer,
                               const struct nb_ctl *ctl);

#endif
