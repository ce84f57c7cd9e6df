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

/* Sums that have a quantizer: others are exact, and would not be if they were rounded twice. */
static int has_quantizer(const struct nb_op *op)
{
    enum nb_dtype dtype;

    return op->func == NB_FUNC_REDUCE_SCATTER && op->redop == ncclSum &&
           nb_policy_dtype(op->type, &dtype) == 0;
}

/*
 * As in two_hop_gather.c, but here owners receive. Contributions are staged, so that nodes run ahead of the
 * block that is summed; over links of limited speed (docs/performance.md) about
 *   k = 3/2 + N F / 8B, at most N (policy/cost.h)
 * owners receive at the same time, and
 *   direct    takes N (N-1) B t / k
 *   two hops  takes N B t, and a tenth more for the latency; twice that with 8 bits on the second hop
 *             (NIBBLE_RS_SECOND), all of which goes to the block's owner.
 * A second code of 4 bits doubles the error that one step adds: two hops have to promise half as much again.
 */
static int pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const double flight = (double)NB_SCHEDULE_STEPS * (double)win->bytes;

    return nb_cut_pays(comm, win) && nb_cost_two_hops_pay(comm->nnodes, flight, (double)win->op->block,
                                                          comm->ctx->params->rs_second == 1);
}

static int takes(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    const int64_t wanted = comm->ctx->params->schedule;

    return comm->nnodes >= 3 && wanted != NB_SCHEDULE_DIRECT && has_quantizer(win->op) &&
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
