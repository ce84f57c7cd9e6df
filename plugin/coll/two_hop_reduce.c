/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter in two hops, for operations that are much larger than what NCCL keeps in flight. NCCL walks
 * over the blocks of all nodes one after the other, so that at any time only one or two owners receive and
 * reduce. Here the nodes that do not own a block reduce it among each other: each of them gets one segment of
 * a window from all the others (CONTRIB), sums them in FP32 in rank order, its own values last, and sends the
 * sum, coded once more, to the owner (RESULT), which adds its own values. So every link carries the window
 * about once.
 *
 * The error of the second code is carried on by the node that makes it, in the same place of the same error
 * slot where its contribution's would be if it sent one: both belong to the owner's sum, so that it does not
 * matter if a place changes from the one kind to the other when windows are cut differently.
 */
#include "coll/comm.h"
#include "coll/cut.h"
#include "coll/schedule.h"
#include "policy/cost.h"

/*
 * As in two_hop_gather.c, but here owners receive. Contributions are staged, so that nodes run ahead of the
 * block that is summed; over links of limited speed (docs/performance.md) about
 *   k = 3/2 + N F / 8B, at most N (policy/cost.h)
 * owners receive at the same time, and
 *   direct    takes N (N-1) B t / k
 *   two hops  takes N B t, and a tenth more for the latency; twice that with 8 bits on the second hop
 *             (NIBBLE_RS_SECOND), all of which goes to the block's owner.
 * A second code of 4 bits doubles the error that one step adds: two hops have to promise half as much again.
 *
 * What all nodes know to be raw, by its type, reduction and size, by settings or by the reckoning, just takes
 * the faster way: values are rounded to their type once more, as in each step of a ring. What is raw only
 * because nothing is known of it, or not yet, is chosen for as if it were coded, since nodes may come to
 * differ about it.
 */
static enum nb_cost_second second_of(const struct nb_coll_comm *comm, const struct nb_op *op)
{
    enum nb_reason reason;

    if (nb_op_codec_allowed(comm, op, op->block * (uint64_t)comm->nnodes, 0, &reason) == NB_CODEC_RAW)
        return NB_COST_SECOND_RAW;
    return comm->ctx->params->rs_second == NB_RS_SECOND_INT8 ? NB_COST_SECOND_INT8 : NB_COST_SECOND_INT4;
}

static int pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const double flight = (double)NB_SCHEDULE_STEPS * (double)win->bytes;

    return nb_cut_pays(comm, win) &&
           nb_cost_two_hops_pay(comm->nnodes, flight, (double)win->op->block, second_of(comm, win->op));
}

static int takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const enum nb_schedule_word wanted = comm->ctx->params->schedule;

    return win->op->func == NB_FUNC_REDUCE_SCATTER && comm->nnodes >= 3 && wanted != NB_SCHEDULE_DIRECT &&
           (wanted == NB_SCHEDULE_TWO_HOP || pays(comm, win));
}

static uint64_t begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    return nb_cut_sums(comm, win);
}

static int next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
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
    .takes = takes,
    .begin = begin,
    .segment_at = nb_cut_segment_at,
    .next_send = nb_cut_through,
    .next_reduce = next_reduce,
    .next_result = nb_cut_own_through,
    .contributes = contributes,
};
