/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut that schedules share in which pieces go through other nodes. The part of a window that lies in one
 * block is cut into a piece for each column but the owner's; it goes through the node of that column that is
 * in the owner's row. In two hops, in a full mesh, there is one row, and so a piece for each node but the
 * owner.
 */
#include "coll/internal.h"

/* Pieces start at multiples of this from where the window's part of the block starts. */
#define QUANTUM 1024u

/* The part of a window that lies in one block. */
struct part {
    uint64_t beg, end;
    uint64_t each; /* bytes of a piece */
    uint64_t base; /* short parts have fewer pieces than there are ways: go on where the part before stopped */
    uint64_t ways; /* columns that pieces go through: all but the owner's */
    int owner;
};

/* The part that holds `off`, which is not before the window: 1, or 0 behind its end. */
static int part_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct part *p)
{
    uint64_t block = win->op->block, owner = off / block, each, rounds;

    if (off >= win->off + win->bytes)
        return 0;
    p->owner = (int)owner;
    p->beg = nb_max64(win->off, owner * block);
    p->end = nb_min64(win->off + win->bytes, (owner + 1) * block);
    /* As many pieces as ways, or a multiple of that where units are too short. */
    p->ways = (uint64_t)comm->grid.columns - 1;
    each = (p->end - p->beg + p->ways - 1) / p->ways;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    p->each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    p->base = (p->beg - owner * block) / p->each;
    return 1;
}

/* Ways are counted from the column behind the owner's; that to its own would be one too many. */
static uint64_t way_to(const struct nb_coll_comm *comm, const struct part *p, int column)
{
    uint64_t columns = (uint64_t)comm->grid.columns;

    return ((uint64_t)column + columns - (uint64_t)nb_grid_column(comm->grid, p->owner) - 1) % columns;
}

/* Where the first piece at or behind `from` begins that goes through `column`; at the part's end or behind
 * it: there is none. At once, however many nodes there are: every peer's cursor asks in every window. */
static uint64_t through(const struct nb_coll_comm *comm, const struct part *p, uint64_t from, int column)
{
    uint64_t at = (from - p->beg) / p->each, way = way_to(comm, p, column);
    uint64_t ahead = (way + p->ways - (p->base + at) % p->ways) % p->ways;

    if (way >= p->ways)
        return p->end;
    return ahead ? p->beg + (at + ahead) * p->each : from;
}

/* The part has no piece that goes through `column`: where to look next. Blocks that a window covers whole are
 * cut alike, so that those in between can be left out: in windows of many small blocks every peer's cursor
 * would look at every one. */
static uint64_t behind(const struct nb_coll_comm *comm, const struct nb_coll_req *win, const struct part *p, int column)
{
    const uint64_t block = win->op->block;
    const uint64_t last = (win->off + win->bytes - 1) / block * block; /* perhaps not whole */
    uint64_t way = way_to(comm, p, column), next;
    uint64_t pieces = nb_min64((p->end - p->beg + p->each - 1) / p->each, p->ways);

    if (p->end - p->beg < block || way < pieces)
        return p->end;
    /* From one owner to the next the way to a column is one less. */
    next = p->beg + (way - pieces + 1) * block;
    return nb_min64(next, nb_max64(last, p->end));
}

int nb_cut_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct nb_piece *piece)
{
    const struct nb_grid g = comm->grid;
    uint64_t at, way;
    struct part p;

    if (!part_at(comm, win, off, &p))
        return 0;
    at = (off - p.beg) / p.each;
    way = (uint64_t)nb_grid_column(g, p.owner) + 1 + (p.base + at) % p.ways;
    piece->off = off;
    piece->len = (uint32_t)(nb_min64(p.beg + (at + 1) * p.each, p.end) - off);
    piece->owner = p.owner;
    piece->relay = nb_grid_node(g, nb_grid_row(g, p.owner), (int)(way % (uint64_t)g.columns));
    piece->first = (off - (uint64_t)p.owner * win->op->block) / win->op->value;
    piece->number = 0;
    piece->most = piece->len;
    piece->sure = 1;
    return 1;
}

int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_piece *piece)
{
    from = nb_max64(nb_max64(from, win->off), (uint64_t)owner * win->op->block);
    return nb_cut_piece_at(comm, win, from, piece) && piece->owner == owner;
}

int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_piece *piece)
{
    const int column = nb_grid_column(comm->grid, node);
    struct part p;

    from = nb_max64(from, win->off);
    while (part_at(comm, win, from, &p)) {
        uint64_t at = p.owner == comm->rank ? p.end : through(comm, &p, from, column);
        if (at < p.end)
            return nb_cut_piece_at(comm, win, at, piece);
        from = p.owner == comm->rank ? p.end : behind(comm, win, &p, column);
    }
    return 0;
}

int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                       struct nb_piece *piece)
{
    struct part p;

    from = nb_max64(nb_max64(from, win->off), (uint64_t)comm->rank * win->op->block);
    if (!part_at(comm, win, from, &p) || p.owner != comm->rank)
        return 0;
    from = through(comm, &p, from, nb_grid_column(comm->grid, node));
    return from < p.end && nb_cut_piece_at(comm, win, from, piece);
}

uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t own = (uint64_t)comm->rank * win->op->block, from = win->off;
    uint64_t beg = nb_max64(own, win->off), end = nb_min64(own + win->op->block, win->off + win->bytes);
    uint64_t left = end > beg ? end - beg : 0;
    struct nb_piece piece;

    while (nb_cut_through(comm, win, comm->rank, from, &piece)) {
        left += piece.len;
        from = piece.off + piece.len;
    }
    return left;
}
