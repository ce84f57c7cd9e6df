/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct schedule: every contribution goes straight to the node that reduces it, every block of an
 * all-gather from its owner to everyone. One hop, one quantization on the way to the reducer.
 *
 * Reduce-scatter and all-gather pieces start at multiples of the wire unit of the rank block (and wherever a
 * window starts). An all-reduce window is cut per channel into one slice a node, so that all nodes reduce.
 */
#include "coll/internal.h"

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- reduce-scatter, all-gather -------------------------------------------------------------------- */

/* Piece at `off` of a vector of rank blocks, not beyond `end`. */
static int block_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, uint64_t end,
                       struct nb_piece *piece)
{
    uint64_t block = win->op->block, rel, len;

    if (off >= end)
        return 0;
    rel = off % block;
    len = min64(comm->unit - rel % comm->unit, block - rel);
    piece->off = off;
    piece->len = (uint32_t)min64(len, end - off);
    piece->owner = (int)(off / block);
    piece->first = rel / win->op->value;
    return 1;
}

/* Next piece of `rank`'s block in the window. */
static int rank_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int rank, uint64_t from,
                      struct nb_piece *piece)
{
    uint64_t block = win->op->block;
    uint64_t beg = max64(max64(from, win->off), (uint64_t)rank * block);
    uint64_t end = min64(win->off + win->bytes, (uint64_t)(rank + 1) * block);
    return block_piece(comm, win, beg, end, piece);
}

/* ---- all-reduce ------------------------------------------------------------------------------------ */

/* Slices are whole groups, so that no group is split between reducers. */
static uint64_t slice_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t valid)
{
    uint64_t quantum = NB_GROUP * win->op->value;
    uint64_t each = (valid + (uint64_t)comm->nranks - 1) / (uint64_t)comm->nranks;
    return (each + quantum - 1) / quantum * quantum;
}

static int stream_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                        struct nb_piece *piece)
{
    for (uint64_t seg = off / win->stride; seg < win->segments; seg++, off = seg * win->stride) {
        uint64_t valid = win->valid[seg], rel = off - seg * win->stride, slice, in;
        if (rel >= valid)
            continue;
        slice = slice_of(comm, win, valid);
        in = rel % slice;
        piece->off = off;
        piece->len = (uint32_t)min64(min64(comm->unit - in % comm->unit, slice - in), valid - rel);
        piece->owner = (int)((rel / slice + seg) % (uint64_t)comm->nranks);
        piece->first = win->op->ef_base + off / win->op->value;
        return 1;
    }
    return 0;
}

static int stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                       struct nb_piece *piece)
{
    while (stream_piece(comm, win, from, piece)) {
        if (piece->owner == owner)
            return 1;
        from = piece->off + piece->len;
    }
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------------- */

static uint64_t direct_begin(struct nb_coll_comm *comm, struct nb_coll_req *win)
{
    uint64_t block = win->op->block, end = win->off + win->bytes, own, sum = 0;

    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER:
        return win->bytes;
    case NB_FUNC_REDUCE_SCATTER:
        own = (uint64_t)comm->rank * block;
        end = min64(end, own + block);
        own = max64(own, win->off);
        return end > own ? end - own : 0;
    default:
        for (unsigned s = 0; s < win->segments; s++)
            sum += win->valid[s];
        return sum;
    }
}

static int direct_next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer, uint64_t from,
                            struct nb_piece *piece)
{
    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER: return rank_piece(comm, win, comm->rank, from, piece);
    case NB_FUNC_REDUCE_SCATTER: return rank_piece(comm, win, peer, from, piece);
    default: return stream_next(comm, win, peer, from, piece);
    }
}

static int direct_next_reduce(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t from,
                              struct nb_piece *piece)
{
    switch (win->op->func) {
    case NB_FUNC_ALL_GATHER: return 0;
    case NB_FUNC_REDUCE_SCATTER: return rank_piece(comm, win, comm->rank, from, piece);
    default: return stream_next(comm, win, comm->rank, from, piece);
    }
}

static int direct_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                           struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return stream_piece(comm, win, off, piece);
    return block_piece(comm, win, off, win->off + win->bytes, piece);
}

const struct nb_schedule_ops nb_schedule_direct = {
    .name = "direct",
    .begin = direct_begin,
    .next_send = direct_next_send,
    .next_reduce = direct_next_reduce,
    .piece_at = direct_piece_at,
};
