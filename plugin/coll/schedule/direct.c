/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct schedule: every contribution goes straight to the node that reduces it, every block of an
 * all-gather from its owner to all other nodes. Values take one hop and are quantized once on the way to the
 * reducer.
 *
 * Reduce-scatter and all-gather segments start where a window starts and at multiples of the wire unit of the
 * rank block. An all-reduce's window is cut with its padding. The nodes own its segments in turn, so all
 * nodes reduce. The cut depends only on the window's length.
 */
#include "coll/schedule/cut.h"

/* ---- reduce-scatter, all-gather -------------------------------------------------------------------- */

/* Find the segment at `off` of a vector of rank blocks, if it starts before `end`. */
static int block_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                         uint64_t end, struct nb_segment *segment)
{
    uint64_t block = win->op->block, rel, len;

    if (off >= end)
        return 0;
    rel = off % block;
    len = nb_min64(comm->unit - rel % comm->unit, block - rel);
    segment->off = off;
    segment->len = (uint32_t)nb_min64(len, end - off);
    segment->owner = (int)(off / block);
    segment->relay = -1;
    segment->first = rel / win->op->value;
    segment->number = 0;
    segment->most = segment->len;
    segment->sure = 1;
    return 1;
}

/* Find the next segment of `rank`'s block in the window. */
static int rank_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int rank,
                        uint64_t from, struct nb_segment *segment)
{
    uint64_t block = win->op->block;
    uint64_t beg = nb_max64(nb_max64(from, win->off), (uint64_t)rank * block);
    uint64_t end = nb_min64(win->off + win->bytes, (uint64_t)(rank + 1) * block);
    return block_segment(comm, win, beg, end, segment);
}

/* ---- all-reduce ------------------------------------------------------------------------------------ */

/* Find the owner's next segment. Each node has a share, so all nodes reduce. */
static int stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner,
                       uint64_t from, struct nb_segment *segment)
{
    return nb_stream_next(comm, win, comm->nnodes, comm->nnodes, owner, from, segment);
}

/* ---- the table ------------------------------------------------------------------------------------- */

static uint64_t direct_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    uint64_t block = win->op->block, end = win->off + win->bytes, own;

    switch (win->op->func) {
    case NB_FUNC_REDUCE_SCATTER:
        own = (uint64_t)comm->rank * block;
        end = nb_min64(end, own + block);
        own = nb_max64(own, win->off);
        return end > own ? end - own : 0;
    default: return win->bytes;
    }
}

static int direct_next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                            uint64_t from, struct nb_segment *segment)
{
    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER: return rank_segment(comm, win, comm->rank, from, segment);
    case NB_FUNC_REDUCE_SCATTER: return rank_segment(comm, win, peer, from, segment);
    default: return stream_next(comm, win, peer, from, segment);
    }
}

static int direct_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_segment *segment)
{
    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER: return 0;
    case NB_FUNC_REDUCE_SCATTER: return rank_segment(comm, win, comm->rank, from, segment);
    default: return stream_next(comm, win, comm->rank, from, segment);
    }
}

static int direct_next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                              uint64_t from, struct nb_segment *segment)
{
    return win->op->func == NB_FUNC_ALL_REDUCE && stream_next(comm, win, peer, from, segment);
}

static int direct_segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                             struct nb_segment *segment)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return nb_stream_segment(comm, win, comm->nnodes, off, segment);
    return block_segment(comm, win, off, win->off + win->bytes, segment);
}

static int takes_all(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    (void)comm, (void)win;
    return 1;
}

static int all_contribute(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank)
{
    (void)comm, (void)segment, (void)rank;
    return 1;
}

/* Return whether the window waits for the peer's block of an all-gather, which is delivered as it comes. */
static int waits_for_block(const struct nb_coll_comm *comm, const struct nb_coll_req *win,
                           const struct nb_peer *peer)
{
    const struct nb_rx *rx = &peer->rx[NB_CLASS_CONTRIB];
    const struct nb_op *op = win->op;
    uint64_t from = (uint64_t)peer->rank * op->block;
    struct nb_segment segment;

    if (op->func != NB_FUNC_ALL_GATHER || peer->gather.next_op > op->opno)
        return 0;
    if (peer->gather.open && peer->gather.op == op->opno)
        from += peer->gather.bytes;
    return rank_segment(comm, win, peer->rank, from, &segment) && rx->taken == rx->arrived;
}

/* When a block is whole, confirm it to its owner. */
static int direct_delivered(struct nb_coll_comm *comm, struct nb_op *op, struct nb_peer *owner,
                            const struct nb_msg *m, int kept)
{
    owner->gather.delivered += m->bytes;
    owner->gather.kept &= kept;
    if (owner->gather.delivered < op->block || !owner->gather.keep)
        return 0;
    return nb_confirm_block(comm, owner, op->opno, owner->gather.kept);
}

const struct nb_schedule_ops nb_schedule_direct = {
    .name = "direct",
    .takes = takes_all,
    .begin = direct_begin,
    .segment_at = direct_segment_at,
    .next_send = direct_next_send,
    .next_reduce = direct_next_reduce,
    .next_result = direct_next_result,
    .contributes = all_contribute,
    .waits_for = waits_for_block,
    .delivered = direct_delivered,
};
