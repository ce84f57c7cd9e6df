/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter in two hops, for operations that are much larger than what NCCL keeps in flight. NCCL walks
 * over the blocks of all nodes one after the other, so that at any time only one or two owners receive and
 * reduce. Here the nodes that do not own a block reduce it among each other: each of them gets one piece of a
 * window from all the others (CONTRIB), sums them in FP32 in rank order, its own values last, and sends the
 * sum, coded once more, to the owner (RESULT), which adds its own values. So every link carries the window
 * about once.
 *
 * The error of the second code is carried on by the node that makes it, in the same place of the same error
 * slot where its contribution's would be if it sent one: both belong to the owner's sum, so that it does not
 * matter if a place changes from the one kind to the other when windows are cut differently.
 */
#include <errno.h>
#include <string.h>

#include "coll/task.h"

/* ---- the schedule ----------------------------------------------------------------------------------- */

static uint64_t reduce_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    return nb_cut_sums(comm, win);
}

static int reduce_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_piece *piece)
{
    return nb_cut_through(comm, win, comm->rank, from, piece);
}

const struct nb_schedule_ops nb_schedule_two_hop_reduce = {
    .name = "two-hop",
    .flags = NB_MSG_TWO_HOP,
    .begin = reduce_begin,
    .next_send = nb_cut_through,
    .next_reduce = reduce_next_reduce,
    .next_owned = nb_cut_of_owner,
    .next_result = nb_cut_own_through,
    .piece_at = nb_cut_piece_at,
};

/* ---- second hop ------------------------------------------------------------------------------------- */

int nb_two_hop_sum(struct nb_coll_comm *comm, struct nb_peer *peer, struct nb_coll_req *win,
                   const struct nb_piece *piece)
{
    struct nb_rx *rx = &peer->rx[NB_CLASS_RESULT];
    const struct nb_msg *m = &rx->head;
    struct nb_task *t = nb_task_new(comm, win, piece);

    if (!t)
        return 0;
    t->exact = nb_policy_dtype(win->op->type, &t->dtype) != 0 || win->op->redop != ncclSum;
    if (t->exact && m->codec != NB_CODEC_RAW) {
        nb_task_drop(comm, t);
        return nb_comm_error(comm, -EBADMSG, "%s sent a sum of %s %llu, whose type has no quantizer", peer->name,
                             nb_func_name(m->func), (unsigned long long)m->opno);
    }
    t->step = NB_STEP_SUM;
    t->sources[0] = (struct nb_source){.codec = m->codec, .len = m->coded,
                                       .coded = rx->mem + nb_rx_at(rx) * rx->slot + rx->head_bytes};
    t->plain[0] = t->sources[0].coded;
    t->nsources = 1;
    t->own = win->send + (piece->off - win->off);
    t->values = win->recv + (piece->off - win->part_off);
    t->bytes = piece->len;
    return nb_take_result(comm, peer, t);
}
