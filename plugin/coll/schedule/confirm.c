/* SPDX-License-Identifier: Apache-2.0 */
/* Confirmations of all-gathers, from receivers to owners. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll/schedule/cut.h"

/* ---- confirmations ----------------------------------------------------------------------------------- */

int nb_confirms_create(struct nb_coll_comm *comm)
{
    struct nb_confirms *c = comm->confirms = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->words = ((unsigned)comm->nnodes + 63) / 64;
    c->bits = calloc((size_t)NB_OPS * 2 * c->words, sizeof(*c->bits));
    if (nb_on_grid(comm))
        c->op = calloc(NB_OPS, sizeof(*c->op));
    return c->bits && (c->op || !nb_on_grid(comm)) ? 0 : -ENOMEM;
}

void nb_confirms_destroy(struct nb_coll_comm *comm)
{
    if (!comm->confirms)
        return;
    free(comm->confirms->op);
    free(comm->confirms->bits);
    free(comm->confirms);
}

static int bit(const uint64_t *bits, int at)
{
    return (int)(bits[at / 64] >> (at % 64) & 1);
}

/* All nodes of the row have the blocks of this column. Send CONFIRM to the owners in other rows. */
static int tell_owners(struct nb_coll_comm *comm, const struct nb_confirm *c)
{
    for (int i = 0; i < comm->nneighbors; i++) {
        const int row = nb_grid_row(comm->grid, comm->neighbors[i]->rank);
        const struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM,
                                   .a = c->opno,
                                   .b = (uint64_t)!bit(c->lost, row),
                                   .c = (uint32_t)comm->grid.columns};
        if (row != nb_grid_row(comm->grid, comm->rank) && bit(c->rows, row) &&
            nb_control(comm, comm->neighbors[i], &ctl))
            return -1;
    }
    return 0;
}

/* Return the state of an operation, or a free place for it, or NULL when all places are taken. One node's
 * messages may come much later than another node's, so open operations may lie far apart. */
static struct nb_confirm *confirms_of(struct nb_coll_comm *comm, uint64_t opno)
{
    struct nb_confirm *place = NULL;
    unsigned seen = 0;

    for (unsigned i = 0; i < NB_OPS && (seen < comm->confirms_open || !place); i++) {
        struct nb_confirm *c = &comm->confirms->op[(opno + i) % NB_OPS];
        if (c->nodes && c->opno == opno)
            return c;
        seen += c->nodes != 0;
        if (!c->nodes && !place)
            place = c;
    }
    return place;
}

/* One more node of this row has the blocks of this column. Return 0, or < 0 when the communicator has
 * failed. */
static int gather_confirm(struct nb_coll_comm *comm, int rank, uint64_t opno, const uint64_t rows[2],
                          const uint64_t lost[2])
{
    const int column = nb_grid_column(comm->grid, rank);
    const int row = nb_grid_row(comm->grid, comm->rank);
    uint64_t others[2] = {rows[0], rows[1]};
    struct nb_confirm *c;

    others[row / 64] &= ~(UINT64_C(1) << (row % 64));
    if (!others[0] && !others[1]) /* no owner in another row waits for a CONFIRM */
        return 0;
    c = confirms_of(comm, opno);
    if (!c)
        return nb_comm_error(comm, -EPROTO, "all_gather %llu is confirmed before %u other all_gathers",
                             (unsigned long long)opno, NB_OPS);
    if (c->nodes == 0) {
        *c = (struct nb_confirm){.opno = opno};
        comm->confirms_open++;
    }
    c->nodes++;
    c->reported[column / 64] |= UINT64_C(1) << (column % 64);
    for (int i = 0; i < 2; i++) {
        c->rows[i] |= others[i];
        c->lost[i] |= lost[i];
    }
    if (c->nodes < (uint32_t)comm->grid.columns)
        return 0;
    c->nodes = 0;
    comm->confirms_open--;
    return tell_owners(comm, c);
}

/* Note the confirmation. All-gathers end in their order, so the newest one stands for all earlier ones. */
static void note_confirmed(struct nb_coll_comm *comm, const struct nb_ctl *ctl)
{
    struct nb_peer_life *life = &comm->peer[ctl->from].life;

    if (ctl->a >= life->confirmed)
        life->confirmed = ctl->a + 1;
}

bool nb_confirm_misses(const struct nb_coll_comm *comm, const struct nb_peer *peer)
{
    const int column = nb_grid_column(comm->grid, peer->rank);
    unsigned seen = 0;

    if (!nb_grid_same_row(comm->grid, comm->rank, peer->rank))
        return false;
    for (unsigned i = 0; i < NB_OPS && seen < comm->confirms_open; i++) {
        const struct nb_confirm *c = &comm->confirms->op[i];
        if (c->nodes && !bit(c->reported, column))
            return true;
        seen += c->nodes != 0;
    }
    return false;
}

int nb_confirm_received(struct nb_coll_comm *comm, const struct nb_peer *peer, const struct nb_ctl *ctl)
{
    if (ctl->c != (nb_on_grid(comm) ? (uint32_t)comm->grid.columns : 1))
        return nb_comm_error(comm, -EPROTO, "%s confirms for %u nodes", peer->name, ctl->c);
    nb_refs_confirmed(comm->refs, ctl->a, ctl->b != 0, ctl->c);
    note_confirmed(comm, ctl);
    return 0;
}

int nb_confirm_column_received(struct nb_coll_comm *comm, const struct nb_peer *peer,
                               const struct nb_ctl *ctl)
{
    const int row = nb_grid_row(comm->grid, comm->rank);

    if (!nb_on_grid(comm) || !nb_grid_same_row(comm->grid, peer->rank, comm->rank))
        return nb_comm_error(comm, -EPROTO, "%s confirms a column to a node outside its row", peer->name);
    if (bit(ctl->rows, row)) {
        nb_refs_confirmed(comm->refs, ctl->a, !bit(ctl->lost, row), 1);
        note_confirmed(comm, ctl);
    }
    return gather_confirm(comm, peer->rank, ctl->a, ctl->rows, ctl->lost);
}

int nb_confirm_block(struct nb_coll_comm *comm, struct nb_peer *owner, uint64_t opno, int kept)
{
    const struct nb_ctl ctl = {.kind = NB_CTL_CONFIRM, .a = opno, .b = kept != 0, .c = 1};

    return nb_control(comm, owner, &ctl);
}

int nb_confirm_columns(struct nb_coll_comm *comm, const struct nb_op *op)
{
    const struct nb_grid g = comm->grid;

    for (int column = 0; column < g.columns; column++) {
        struct nb_ctl ctl = {.kind = NB_CTL_COLUMN, .a = op->opno};
        int to = nb_grid_node(g, nb_grid_row(g, comm->rank), column), ret;

        for (int row = 0; row < g.rows; row++) {
            const int owner = nb_grid_node(g, row, column);
            if (owner == comm->rank)
                continue;
            ctl.rows[row / 64] |= (uint64_t)bit(op->keep, owner) << (row % 64);
            ctl.lost[row / 64] |= (uint64_t)bit(op->lost, owner) << (row % 64);
        }
        if (!ctl.rows[0] && !ctl.rows[1])
            continue;
        ret = to == comm->rank ? gather_confirm(comm, comm->rank, op->opno, ctl.rows, ctl.lost)
                               : nb_control(comm, &comm->peer[to], &ctl);
        if (ret)
            return ret;
    }
    return 0;
}

/* ---- blocks whose segments are forwarded ------------------------------------------------------------- */

void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op)
{
    if (op->keep)
        return;
    op->keep = comm->confirms->bits + (op->opno % NB_OPS) * 2 * comm->confirms->words;
    op->lost = op->keep + comm->confirms->words;
    memset(op->keep, 0, 2 * comm->confirms->words * sizeof(*op->keep));
}

int nb_gather_note(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner, const struct nb_msg *m,
                   int kept)
{
    const int r = owner->rank;
    const uint64_t bit = UINT64_C(1) << (r % 64);

    (void)comm;

    if (m->flags & NB_MSG_KEEP)
        op->keep[r / 64] |= bit;
    if (!kept)
        op->lost[r / 64] |= bit;
    return 0;
}

void nb_gather_confirm_blocks(struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const struct nb_op *op = win->op;

    if (op->func != NB_FUNC_ALL_GATHER)
        return;
    for (uint64_t r = win->off / op->block; (r + 1) * op->block <= win->off + win->bytes; r++)
        if (r != (uint64_t)comm->rank && (op->keep[r / 64] >> (r % 64) & 1))
            nb_confirm_block(comm, &comm->peer[r], op->opno, !(op->lost[r / 64] >> (r % 64) & 1));
}
