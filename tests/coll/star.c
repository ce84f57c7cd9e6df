/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything through node 0.
 *
 *   all-reduce       all send their values to node 0, which sums and sends the result to all
 *   reduce-scatter   all but the owner send a block's values to node 0, which sums and sends the sum to the
 *                    owner, which adds its own values. The block of node 0 ends there
 *   all-gather       owners send their segments to node 0, which forwards them. Node 0 sends its own to all
 */
#include "star.h"
#include "coll/schedule/cut.h"

#include "coll/comm/comm.h"
#include "coll/schedule/schedule.h"

unsigned long star_windows;

static int takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    (void)comm, (void)win;
    return 1;
}

/* ---- the cut: blocks in wire units ------------------------------------------------------------------- */

static int segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment)
{
    const uint64_t block = win->op->block, rel = off % block;

    if (win->op->func == NB_FUNC_ALL_REDUCE) /* one share, node 0's */
        return nb_stream_segment(comm, win, 1, off, segment);
    if (off < win->off || off >= win->off + win->bytes)
        return 0;
    *segment = (struct nb_segment){
        .off = off, .owner = (int)(off / block), .first = rel / win->op->value, .sure = 1};
    segment->relay = segment->owner == 0 ? -1 : 0;
    segment->len =
        (uint32_t)nb_min64(nb_min64(comm->unit - rel % comm->unit, block - rel), win->off + win->bytes - off);
    segment->most = segment->len;
    return 1;
}

static int next_of_block(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner,
                         uint64_t from, struct nb_segment *segment)
{
    from = nb_max64(nb_max64(from, win->off), (uint64_t)owner * win->op->block);
    return segment_at(comm, win, from, segment) && segment->owner == owner;
}

/* Return the next rank whose block is not a's or b's. */
static int next_of_others(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int a, int b,
                          uint64_t from, struct nb_segment *segment)
{
    for (from = nb_max64(from, win->off); segment_at(comm, win, from, segment);
         from = segment->off + segment->len)
        if (segment->owner != a && segment->owner != b)
            return 1;
    return 0;
}

/* ---- the way of each segment --------------------------------------------------------------------------- */

static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    struct nb_segment segment;
    uint64_t bytes = 0;

    star_windows++;
    if (win->op->func == NB_FUNC_ALL_GATHER)
        nb_gather_notes_begin(comm, win->op);
    if (win->op->func != NB_FUNC_REDUCE_SCATTER || comm->rank == 0) /* sums for other nodes count too */
        return win->bytes;
    for (uint64_t from = win->off; next_of_block(comm, win, comm->rank, from, &segment);
         from = segment.off + segment.len)
        bytes += segment.len;
    return bytes;
}

static int next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_segment *segment)
{
    if (win->op->func == NB_FUNC_ALL_GATHER)
        return comm->rank == 0 && next_of_block(comm, win, 0, from, segment);
    if (peer != 0)
        return 0;
    return win->op->func == NB_FUNC_ALL_REDUCE
               ? segment_at(comm, win, from, segment)
               : next_of_others(comm, win, comm->rank, comm->rank, from, segment);
}

static int next_first_hop(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                          struct nb_segment *segment)
{
    return comm->rank != 0 && next_of_block(comm, win, comm->rank, from, segment);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_segment *segment)
{
    return comm->rank == 0 && win->op->func != NB_FUNC_ALL_GATHER && segment_at(comm, win, from, segment);
}

static int next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment)
{
    if (win->op->func != NB_FUNC_ALL_GATHER)
        return 0;
    return comm->rank == 0 ? next_of_others(comm, win, 0, 0, from, segment)
                           : next_of_block(comm, win, 0, from, segment);
}

static int next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                       uint64_t from, struct nb_segment *segment)
{
    if (comm->rank == 0 || peer != 0)
        return 0;
    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER: return next_of_others(comm, win, 0, comm->rank, from, segment);
    case NB_FUNC_REDUCE_SCATTER: return next_of_block(comm, win, comm->rank, from, segment);
    default: return segment_at(comm, win, from, segment);
    }
}

static int contributes(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank)
{
    (void)comm;
    return segment->relay < 0 || rank != segment->owner;
}

static struct nb_rx *forward_from(const struct nb_coll_comm *comm, const struct nb_op *op,
                                  const struct nb_segment *segment, struct nb_peer **peer)
{
    (void)op;
    *peer = &comm->peer[segment->owner];
    return &(*peer)->rx[NB_CLASS_CONTRIB];
}

static int forwards_to(const struct nb_coll_comm *comm, const struct nb_op *op,
                       const struct nb_segment *segment, const struct nb_peer *peer)
{
    (void)op;
    return comm->rank == 0 && peer->rank != segment->owner;
}

const struct nb_schedule_ops star_schedule = {
    .name = "star",
    .flags = NB_MSG_TWO_HOP,
    .takes = takes,
    .begin = begin,
    .segment_at = segment_at,
    .next_send = next_send,
    .next_first_hop = next_first_hop,
    .next_reduce = next_reduce,
    .next_forward = next_forward,
    .next_result = next_result,
    .contributes = contributes,
    .forward_from = forward_from,
    .forwards_to = forwards_to,
    .delivered = nb_gather_note,
    .finished = nb_gather_confirm_blocks,
};
