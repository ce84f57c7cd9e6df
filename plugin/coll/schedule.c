/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which schedule an operation takes. Nodes do not agree on it by message: each decides for itself from facts
 * that are the same everywhere, and messages say what was decided, so that a difference is found.
 */
#include "base/params.h"
#include "coll/internal.h"

/* NCCL has at most this many steps of an operation in flight. */
#define STEPS 8u
/* Two hops cut a window into N-1 pieces. Below this length headers, calls and the second hop's latency cost
 * more than idle links do. */
#define MIN_PIECE 8192u

/*
 * NCCL's windows walk over the blocks of all nodes one after the other, with some bytes in flight. When those
 * bytes are of one or two owners only, a direct all-gather has these send everything N-1 times while the
 * other nodes' links are idle. With B bytes a node, F in flight and a link's time of t a byte, where owners run
 * ahead in their own blocks, since what they send is staged:
 *   direct    N (N-1) B t / k, where about k = 1 + F / 2B owners send at the same time, k <= N
 *   two hops  N B t: everybody's links carry each window once; a tenth more for headers and latency
 * as measured at four and eight nodes (docs/performance.md). What is gathered is exact in either case.
 */
static int two_hop_gather_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t others = (uint64_t)comm->nranks - 1, flight = STEPS * win->bytes;
    double owners = 1 + (double)flight / (2 * (double)win->op->block);

    if (owners > comm->nranks)
        owners = comm->nranks;
    return win->bytes / others >= MIN_PIECE && (double)others > 1.1 * owners;
}

/* Sums that have a quantizer: others are exact, and would not be if they were rounded twice. */
static int reduces_in_two_hops(const struct nb_op *op)
{
    enum nb_dtype dtype;

    return op->func == NB_FUNC_REDUCE_SCATTER && op->redop == ncclSum &&
           nb_policy_dtype(op->type, &dtype) == 0;
}

/*
 * The same for a reduce-scatter, where owners receive. Contributions are staged, so that nodes run ahead of the
 * block that is summed; over links of limited speed (docs/performance.md) about
 *   k = 3/2 + N F / 8B, at most N
 * owners receive at the same time, and
 *   direct    takes N (N-1) B t / k
 *   two hops  takes N B t, and a tenth more for the latency; twice that with 8 bits on the second hop
 *             (NIBBLE_RS_SECOND), all of which goes to the block's owner.
 * A second code of 4 bits doubles the error that one step adds: two hops have to promise half as much again.
 */
static int two_hop_reduce_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    int eight_bits = nb_params()->rs_second == 1;
    double n = comm->nranks, flight = (double)STEPS * (double)win->bytes, block = (double)win->op->block;
    double owners = 1.5 + n * flight / (8 * block), two_hops = eight_bits ? 2.2 : 1.1, promise = eight_bits ? 1.2 : 1.5;

    if (owners > n)
        owners = n;
    return win->bytes / (uint64_t)(comm->nranks - 1) >= MIN_PIECE && (n - 1) / owners >= promise * two_hops;
}

const struct nb_schedule_ops *nb_schedule_choose(const struct nb_coll_comm *comm,
                                                 const struct nb_coll_req *win)
{
    int64_t wanted = nb_params()->schedule;
    const struct nb_op *op = win->op;

    if (nb_on_grid(comm)) /* nodes are not connected for any other */
        return &nb_schedule_two_level;
    if (comm->nranks < 3 || wanted == NB_SCHEDULE_DIRECT)
        return &nb_schedule_direct;
    if (op->func == NB_FUNC_ALL_GATHER && (wanted == NB_SCHEDULE_TWO_HOP || two_hop_gather_pays(comm, win)))
        return &nb_schedule_two_hop_gather;
    if (reduces_in_two_hops(op) && (wanted == NB_SCHEDULE_TWO_HOP || two_hop_reduce_pays(comm, win)))
        return &nb_schedule_two_hop_reduce;
    return &nb_schedule_direct;
}
