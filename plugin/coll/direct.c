/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct schedule: every contribution goes straight to the node that reduces it, every block of an
 * all-gather from its owner to everyone. One hop, one quantization on the way to the reducer.
 *
 * Reduce-scatter and all-gather pieces start at multiples of the wire unit of the rank block (and wherever a
 * window starts). An all-reduce window, padding and all, is cut into pieces that go round over the nodes, so
 * that all reduce; the cut depends on nothing but its length.
 */
#include "coll/internal.h"

/* ---- reduce-scatter, all-gather -------------------------------------------------------------------- */

/* Piece at `off` of a vector of rank blocks, not beyond `end`. */
static int block_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                       uint64_t end, struct nb_piece *piece)
{
    uint64_t block = win->op->block, rel, len;

    if (off >= end)
        return 0;
    rel = off % block;
    len = nb_min64(comm->unit - rel % comm->unit, block - rel);
    piece->off = off;
    piece->len = (uint32_t)nb_min64(len, end - off);
    piece->owner = (int)(off / block);
    piece->relay = -1;
    piece->first = rel / win->op->value;
    piece->number = 0;
    piece->most = piece->len;
    piece->sure = 1;
    return 1;
}

/* Next piece of `rank`'s block in the window. */
static int rank_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int rank, uint64_t from,
                      struct nb_piece *piece)
{
    uint64_t block = win->op->block;
    uint64_t beg = nb_max64(nb_max64(from, win->off), (uint64_t)rank * block);
    uint64_t end = nb_min64(win->off + win->bytes, (uint64_t)(rank + 1) * block);
    return block_piece(comm, win, beg, end, piece);
}

/* ---- all-reduce ------------------------------------------------------------------------------------ */

/* The window in `shares` shares, in as many pieces as wire units need. Whole groups, so that none is split between
 * reducers. */
static uint64_t cut_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares)
{
    uint64_t quantum = NB_GROUP * win->op->value;
    uint64_t each = (win->bytes + (uint64_t)shares - 1) / (uint64_t)shares;
    uint64_t parts = (each + comm->unit - 1) / comm->unit;

    each = (each + parts - 1) / parts;
    return (each + quantum - 1) / quantum * quantum;
}

int nb_stream_piece(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, uint64_t off,
                    struct nb_piece *piece)
{
    uint64_t cut = cut_of(comm, win, shares), end;

    if (off >= win->bytes)
        return 0;
    end = nb_min64(off - off % cut + cut, win->bytes);
    piece->off = off;
    piece->len = (uint32_t)(end - off);
    piece->owner = (int)(off / cut % (uint64_t)shares);
    piece->relay = -1;
    piece->first = off / win->op->value;
    piece->number = off / cut;
    end = nb_min64(end, win->most);
    piece->most = end > off ? (uint32_t)(end - off) : 0;
    piece->sure = end <= win->sure || piece->most == 0;
    return 1;
}

/* At once, however many nodes there are: every peer's cursor asks in every window. */
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus, int residue,
                   uint64_t from, struct nb_piece *piece)
{
    const uint64_t every = (uint64_t)modulus, cut = cut_of(comm, win, shares), number = from / cut;
    const uint64_t ahead = ((uint64_t)residue + every - number % every) % every;

    return nb_stream_piece(comm, win, shares, ahead ? (number + ahead) * cut : from, piece);
}

/* A share for each node: so all reduce. */
static int stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                       struct nb_piece *piece)
{
    return nb_stream_next(comm, win, comm->nranks, comm->nranks, owner, from, piece);
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
    default:
        return win->bytes;
    }
}

static int direct_next_send(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                            uint64_t from, struct nb_piece *piece)
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

static int direct_next_owned(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner,
                             uint64_t from, struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return stream_next(comm, win, owner, from, piece);
    return rank_piece(comm, win, owner, from, piece);
}

static int direct_next_result(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int peer,
                              uint64_t from, struct nb_piece *piece)
{
    return win->op->func == NB_FUNC_ALL_REDUCE && stream_next(comm, win, peer, from, piece);
}

static int direct_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                           struct nb_piece *piece)
{
    if (win->op->func == NB_FUNC_ALL_REDUCE)
        return nb_stream_piece(comm, win, comm->nranks, off, piece);
    return block_piece(comm, win, off, win->off + win->bytes, piece);
}

const struct nb_schedule_ops nb_schedule_direct = {
    .name = "direct",
    .begin = direct_begin,
    .next_send = direct_next_send,
    .next_reduce = direct_next_reduce,
    .next_owned = direct_next_owned,
    .next_result = direct_next_result,
    .piece_at = direct_piece_at,
};
