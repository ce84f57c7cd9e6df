/* SPDX-License-Identifier: Apache-2.0 */
/* The two schedules of two hops: all-gathers whose relays forward, and reduce-scatters whose relays sum. */
#include "coll/decide/decide.h"
#include "coll/schedule/cut.h"
#include "policy/reckon/reckon.h"

/* ---- all-gathers ------------------------------------------------------------------------------------- */

/*
 * All-gather in two hops. The part of a window that lies in one block is cut into a segment for each other
 * node. The owner sends every node one segment (CONTRIB), and that node forwards it unchanged to the rest
 * (RESULT): coded bytes are never coded again. So each node's link carries the window about once, where the
 * owner's alone would carry it N-1 times.
 *
 * Segments of a block reach a receiver by several routes, in any order. The block is complete when the
 * windows up to its end are done.
 */

/*
 * NCCL's windows walk over the blocks of all nodes one after the other, with some bytes in flight. When those
 * bytes are of one or two owners only, a direct all-gather has these send everything N-1 times while the
 * other nodes' links are idle. With B bytes a node, F in flight and a link's time of t a byte, where owners
 * run ahead in their own blocks, since what they send is staged:
 *   direct    N (N-1) B t / k, where about k = 1 + F / 2B owners send at the same time, k <= N
 *   two hops  N B t: everybody's links carry each window once; a tenth more for headers and latency
 * as measured at four and eight nodes (docs/performance.md). What is gathered is exact in either case.
 */
static int gather_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t others = (uint64_t)comm->nnodes - 1, flight = NB_SCHEDULE_STEPS * win->bytes;
    double owners = 1 + (double)flight / (2 * (double)win->op->block);

    if (owners > comm->nnodes)
        owners = comm->nnodes;
    return nb_cut_pays(comm, win) && (double)others > 1.1 * owners;
}

static int gather_takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const enum nb_schedule_word wanted = comm->ctx->params->schedule;

    return win->op->func == NB_FUNC_ALL_GATHER && comm->nnodes >= 3 && wanted != NB_SCHEDULE_DIRECT &&
           (wanted == NB_SCHEDULE_TWO_HOP || gather_pays(comm, win));
}

static uint64_t gather_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
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

static int next_first_hop(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                          struct nb_segment *segment)
{
    return nb_cut_of_owner(comm, win, comm->rank, from, segment);
}

static int gather_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
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
    .takes = gather_takes,
    .begin = gather_begin,
    .segment_at = nb_cut_segment_at,
    .next_send = next_send,
    .next_first_hop = next_first_hop,
    .next_reduce = gather_next_reduce,
    .next_forward = next_forward,
    .next_result = nb_cut_through,
    .forward_from = forward_from,
    .forwards_to = forwards_to,
    .delivered = nb_gather_note,
    .finished = nb_gather_confirm_blocks,
};

/* ---- reduce-scatters --------------------------------------------------------------------------------- */

/*
 * Reduce-scatter in two hops, for operations that are much larger than what NCCL keeps in flight. NCCL walks
 * over the blocks of all nodes one after the other, so that at any time only one or two owners receive and
 * reduce. Here the nodes that do not own a block reduce it among each other: each of them gets one segment of
 * a window from all the others (CONTRIB), sums them in FP32 in rank order, its own values last, and sends the
 * sum, coded once more, to the owner (RESULT), which adds its own values. So every link carries the window
 * about once.
 *
 * The error of the second code is carried on by the node that makes it, in the same place of the same error
 * message buffer where its contribution's would be if it sent one: both belong to the owner's sum, so that it
 * does not matter if a place changes from the one kind to the other when windows are cut differently.
 */

/*
 * As for all-gathers, but here owners receive. Contributions are staged, so that nodes run ahead of the
 * block that is summed; over links of limited speed (docs/performance.md) about
 *   k = 3/2 + N F / 8B, at most N (policy/reckon/cost.c)
 * owners receive at the same time, and
 *   direct    takes N (N-1) B t / k
 *   two hops  takes N B t, and a tenth more for the latency; twice that with 8 bits on the second hop
 *             (NIBBLE_RS_SECOND), all of which goes to the block's owner.
 * A second code of 4 bits doubles the error that one step adds: two hops have to promise half as much again.
 *
 * What all nodes know to be raw, by its type, reduction and size, by settings or by the reckoning, just
 * takes the faster way: values are rounded to their type once more, as in each step of a ring. What is
 * raw only because nothing is known of it, or not yet, is chosen for as if it were coded, since nodes may
 * come to differ about it.
 */
static enum nb_cost_second second_of(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (nb_op_is_known_raw(comm, op, op->block * (uint64_t)comm->nnodes))
        return NB_COST_SECOND_RAW;
    return comm->ctx->params->rs_second == NB_RS_SECOND_INT8 ? NB_COST_SECOND_INT8 : NB_COST_SECOND_INT4;
}

static int reduce_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const double flight = (double)NB_SCHEDULE_STEPS * (double)win->bytes;

    return nb_cut_pays(comm, win) &&
           nb_cost_two_hops_pay(comm->nnodes, flight, (double)win->op->block, second_of(comm, win->op));
}

static int reduce_takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const enum nb_schedule_word wanted = comm->ctx->params->schedule;

    return win->op->func == NB_FUNC_REDUCE_SCATTER && comm->nnodes >= 3 && wanted != NB_SCHEDULE_DIRECT &&
           (wanted == NB_SCHEDULE_TWO_HOP || reduce_pays(comm, win));
}

static uint64_t reduce_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    return nb_cut_sums(comm, win);
}

static int reduce_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_segment *segment)
{
    return nb_cut_through(comm, win, comm->rank, from, segment);
}

/* The owner adds its values at the end. */
static int contributes(const struct nb_coll_comm *comm, const struct nb_segment *segment, int rank)
{
    (void)comm;
    return rank != segment->owner;
}

const struct nb_schedule_ops nb_schedule_two_hop_reduce = {
    .name = "two-hop",
    .flags = NB_MSG_TWO_HOP,
    .takes = reduce_takes,
    .begin = reduce_begin,
    .segment_at = nb_cut_segment_at,
    .next_send = nb_cut_through,
    .next_reduce = reduce_next_reduce,
    .next_result = nb_cut_own_through,
    .contributes = contributes,
};
