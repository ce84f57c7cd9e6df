/* SPDX-License-Identifier: Apache-2.0 */
/* What has become of each block of an all-gather; see gather_notes.h. */
#include "coll/gather_notes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll/comm.h"

int nb_gather_notes_init(struct nb_gather_notes *notes, int nodes)
{
    notes->words = ((unsigned)nodes + 63) / 64;
    notes->bits = calloc((size_t)NB_OPS * 2 * notes->words, sizeof(*notes->bits));
    return notes->bits ? 0 : -ENOMEM;
}

void nb_gather_notes_destroy(struct nb_gather_notes *notes)
{
    free(notes->bits);
}

void nb_gather_notes_begin(struct nb_coll_comm *comm, struct nb_op *op)
{
    if (op->keep)
        return;
    op->keep = comm->notes.bits + (op->opno % NB_OPS) * 2 * comm->notes.words;
    op->lost = op->keep + comm->notes.words;
    memset(op->keep, 0, 2 * comm->notes.words * sizeof(*op->keep));
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
