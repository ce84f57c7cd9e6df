/* SPDX-License-Identifier: Apache-2.0 */
/* The two schedules of two hops: all-gathers whose relays forward, and reduce-scatters whose relays sum. */
#include "coll/decide/decide.h"
#include "coll/schedule/cut.h"
#include "policy/reckon/reckon.h"

/* ---- all-gathers ------------------------------------------------------------------------------------- */

/*
 * All-gather in two hops. The part of a window that lies in one block is cut into a segment for each other
 * node. The owner sends every node one segment (CONTRIB). That node forwards the coded bytes unchanged to all
 * remaining nodes (RESULT). So each node's link carries the window about once, where the owner's link alone
 * would carry it N-1 times.
 *
 * Segments of a block reach a receiver by several routes, in any order. The block is complete when the
 * windows up to its end are done.
 */

/*
 * Return whether two hops are faster for an all-gather.
 *
 * NCCL's windows walk over the blocks of all nodes one after the other, with some bytes in flight. When these
 * bytes belong to one or two owners only, a direct all-gather lets these owners send everything N-1 times
 * while the other nodes' links are idle. Let a node have B bytes, F bytes be in flight, and a link take time
 * t for a byte. Owners run ahead in their own blocks, because their contributions are staged. Then
 *   direct    takes N (N-1) B t / k, where about k = 1 + F / 2B owners send at the same time, k <= N
 *   two hops  takes N B t, since all links carry each window once, and a tenth more for headers and latency
 * as measured at four and eight nodes (docs/performance.md). The gathered values are exact in either case.
 * Between distant nodes (NIBBLE_LINK_RTT_US) each turn of NCCL's windows waits for its relays.
 */
static int gather_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const double flight = (double)NB_SCHEDULE_STEPS * (double)win->bytes, block = (double)win->op->block;
    const double hop =
        nb_reckon_hop(&comm->reckoning, NB_FUNC_ALL_GATHER, 2, comm->ctx->params->ag != NB_AG_RAW, block);

    return nb_cut_pays(comm, win) && nb_cost_gather_hops_pay(comm->nnodes, flight, block, hop);
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
    return 0; /* next_first_hop sends each segment to its relay */
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
 * Reduce-scatter in two hops, for operations that are much larger than the bytes that NCCL keeps in flight.
 * NCCL walks over the blocks of all nodes one after the other, so at any time only one or two owners receive
 * and reduce. Here the other nodes reduce a block for its owner. Each of them gets one segment of a window
 * from all the others (CONTRIB) and sums the values in FP32 in rank order, its own values last. It sends the
 * sum, coded once more, to the owner (RESULT), which adds its own values. So every link carries the window
 * about once.
 *
 * The node that codes a sum carries the error of this second code. It keeps the error in the place of the
 * residual where it would keep its contribution's error if it sent one. Both errors belong to the owner's
 * sum, so a place may change from one kind to the other when windows are cut differently.
 */

/*
 * Return how the sum of the second hop is coded, for the choice between the schedules.
 *
 * The choice is the same as for all-gathers, but here owners receive. Contributions are staged, so nodes run
 * ahead of the block that is summed. k owners receive at the same time (nb_cost_owners in
 * policy/reckon/reckon.h), about 1 + F/B, and
 *   direct    takes N (N-1) B t / k
 *   two hops  takes N B t, and a tenth more for the latency. The second hop goes to the block's owner, so 6
 *             or 8 bits there (NIBBLE_SECOND_HOP) take half as much again or twice as much.
 * A second code of 4 bits doubles the error that one step adds, so two hops with 4 bits have to promise half
 * as much again. With 6 or 8 bits the sum is no further off than a direct one (docs/training.md), so two hops
 * only have to be the faster way.
 *
 * An operation that all nodes know to be raw, by its type, reduction and size, by settings or by the
 * reckoning, takes the faster way. Its values are rounded to their type once more, as in each step of a ring.
 * An operation may also be raw only because evidence is missing, or missing so far. The choice treats it as
 * coded, because nodes may come to differ about it.
 */
static enum nb_cost_second second_of(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    if (nb_op_is_known_raw(comm, op, op->block * (uint64_t)comm->nnodes))
        return NB_COST_SECOND_RAW;
    return nb_cost_second_of(nb_second_hop_bits(comm->ctx->params->second_hop));
}

static int reduce_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const double flight = (double)NB_SCHEDULE_STEPS * (double)win->bytes, block = (double)win->op->block;
    const enum nb_cost_second second = second_of(comm, win->op);
    const double hop = nb_reckon_hop(&comm->reckoning, NB_FUNC_REDUCE_SCATTER, (double)win->op->value,
                                     second != NB_COST_SECOND_RAW, block);

    return nb_cut_pays(comm, win) && nb_cost_two_hops_pay(comm->nnodes, flight, block, hop, second);
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

/* All neighbors contribute except the owner, which adds its values at the end. */
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
