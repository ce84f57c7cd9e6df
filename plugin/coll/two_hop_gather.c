/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather in two hops. The part of a window that lies in one block is cut into a segment for each of the
 * other nodes; its owner sends every node one segment (CONTRIB), and that node forwards it to the rest
 * (RESULT) as it is: coded bytes are never coded again. So each node's link carries the window about once,
 * where the owner's would carry it N-1 times.
 *
 * Segments of a block reach a receiver by several routes and in no order between these; that a block is whole
 * is known when the windows up to its end are finished.
 */
#include "coll/comm.h"
#include "coll/cut.h"
#include "coll/gather_notes.h"
#include "coll/schedule.h"

/*
 * NCCL's windows walk over the blocks of all nodes one after the other, with some bytes in flight. When those
 * bytes are of one or two owners only, a direct all-gather has these send everything N-1 times while the
 * other nodes' links are idle. With B bytes a node, F in flight and a link's time of t a byte, where owners
 * run ahead in their own blocks, since what they send is staged:
 *   direct    N (N-1) B t / k, where about k = 1 + F / 2B owners send at the same time, k <= N
 *   two hops  N B t: everybody's links carry each window once; a tenth more for headers and latency
 * as measured at four and eight nodes (docs/performance.md). What is gathered is exact in either case.
 */
static int pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t others = (uint64_t)comm->nnodes - 1, flight = NB_SCHEDULE_STEPS * win->bytes;
    double owners = 1 + (double)flight / (2 * (double)win->op->block);

    if (owners > comm->nnodes)
        owners = comm->nnodes;
    return nb_cut_pays(comm, win) && (double)others > 1.1 * owners;
}

static int takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const enum nb_schedule_word wanted = comm->ctx->params->schedule;

    return win->op->func == NB_FUNC_ALL_GATHER && comm->nnodes >= 3 && wanted != NB_SCHEDULE_DIRECT &&
           (wanted == NB_SCHEDULE_TWO_HOP || pays(comm, win));
}

static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    nb_gather_notes_begin(comm, win->op);
    return win->bytes;
}

static int next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                     struct nb_segment *segment)
{
    (void)comm, (void)win, (void)peer, (void)from, (void)segment;
    return 0; /* they are scattered */
}

static int next_scatter(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment)
{
    return nb_cut_of_owner(comm, win, comm->rank, from, segment);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                       struct nb_segment *segment)
{
    (void)comm, (void)win, (void)from, (void)segment;
    return 0;
}

static int next_forward(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                        struct nb_segment *segment)
{
    return nb_cut_through(comm, win, comm->rank, from, segment);
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
    (void)comm, (void)op;
    return peer->rank != segment->owner;
}

const struct nb_schedule_ops nb_schedule_two_hop_gather = {
    .name = "two-hop",
    .flags = NB_MSG_TWO_HOP,
    .takes = takes,
    .begin = begin,
    .segment_at = nb_cut_segment_at,
    .next_send = next_send,
    .next_scatter = next_scatter,
    .next_reduce = next_reduce,
    .next_forward = next_forward,
    .next_result = nb_cut_through,
    .forward_from = forward_from,
    .forwards_to = forwards_to,
    .delivered = nb_gather_note,
    .finished = nb_gather_confirm_blocks,
};
