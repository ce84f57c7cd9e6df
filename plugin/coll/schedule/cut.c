/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut that schedules share in which segments go through other nodes. The part of a window that lies in
 * one block is cut into a segment for each column but the owner's; it goes through the node of that column
 * that is in the owner's row. In two hops, in a full mesh, there is one row, and so a segment for each node
 * but the owner.
 */
#include "coll/schedule/cut.h"
#include "policy/reckon/reckon.h"

/* Segments start at multiples of this from where the window's part of the block starts. */
#define QUANTUM 1024u

/* Below this length headers, calls and the second hop's latency cost more than idle links do. */
#define MIN_PIECE 8192u

/* The part of a window that lies in one block. */
struct part {
    uint64_t beg, end;
    uint64_t each; /* bytes of a segment */
    uint64_t
        base; /* short parts have fewer segments than there are ways: go on where the part before stopped */
    uint64_t ways; /* columns that segments go through: all but the owner's */
    int owner;
};

/* The part that holds `off`, which is not before the window: 1, or 0 behind its end. */
static int part_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                   struct part *p)
{
    const uint64_t least = nb_on_grid(comm) ? NB_COST_PIECE_GRID : NB_COST_PIECE;
    uint64_t block = win->op->block, owner = off / block, count, each, rounds;

    if (off >= win->off + win->bytes)
        return 0;
    p->owner = (int)owner;
    p->beg = nb_max64(win->off, owner * block);
    p->end = nb_min64(win->off + win->bytes, (owner + 1) * block);
    /* As many segments as ways, or a multiple of that where units are too short; fewer where segments would
     * be. */
    p->ways = (uint64_t)comm->grid.columns - 1;
    count = nb_max64(1, nb_min64(p->ways, (p->end - p->beg) / least));
    each = (p->end - p->beg + count - 1) / count;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    p->each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    p->base = (p->beg - owner * block) / p->each;
    return 1;
}

/* Ways are counted from the column behind the owner's; that to its own would be one too many. */
static uint64_t route_to(const struct nb_coll_comm *comm, const struct part *p, int column)
{
    uint64_t columns = (uint64_t)comm->grid.columns;

    return ((uint64_t)column + columns - (uint64_t)nb_grid_column(comm->grid, p->owner) - 1) % columns;
}

/* Where the first segment at or behind `from` begins that goes through `column`; at the part's end or behind
 * it: there is none. At once, however many nodes there are: every peer's cursor asks in every window. */
static uint64_t through(const struct nb_coll_comm *comm, const struct part *p, uint64_t from, int column)
{
    uint64_t at = (from - p->beg) / p->each, way = route_to(comm, p, column);
    uint64_t ahead = (way + p->ways - (p->base + at) % p->ways) % p->ways;

    if (way >= p->ways)
        return p->end;
    return ahead ? p->beg + (at + ahead) * p->each : from;
}

/*
 * The part has no segment that goes through `column`: where to look next. In windows of many small blocks
 * (each with fewer segments than ways) every peer's cursor would look at every block; so those that
 * cannot have one are left out.
 *
 * A block that the window covers whole has as many segments, p, as any other such one, and they go through
 * the first p ways. Ways are counted from the owner's column, so the way to a given column is one less for
 * the next owner. With way w >= p here, the next block whose segment goes through the column is w - p + 1
 * blocks on:
 *
 *     owner's column   0   1   2   3   4          p = 2, 8 columns, looking for column 5:
 *     way to column 5  4   3   2   1   0          from owner 0 (w = 4) the next is owner 3: 4 - 2 + 1 = 3
 *
 * The window's last block may be cut off, and then has segments of another length: it is never left out.
 */
static uint64_t behind(const struct nb_coll_comm *comm, const struct nb_coll_req *win, const struct part *p,
                       int column)
{
    const uint64_t block = win->op->block;
    const uint64_t last = (win->off + win->bytes - 1) / block * block; /* perhaps not whole */
    uint64_t way = route_to(comm, p, column), next;
    uint64_t segments = nb_min64((p->end - p->beg + p->each - 1) / p->each, p->ways);

    if (p->end - p->beg < block || way < segments)
        return p->end;
    /* From one owner to the next the way to a column is one less. */
    next = p->beg + (way - segments + 1) * block;
    return nb_min64(next, nb_max64(last, p->end));
}

int nb_cut_segment_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                      struct nb_segment *segment)
{
    const struct nb_grid g = comm->grid;
    uint64_t at, way;
    struct part p;

    if (!part_at(comm, win, off, &p))
        return 0;
    at = (off - p.beg) / p.each;
    way = (uint64_t)nb_grid_column(g, p.owner) + 1 + (p.base + at) % p.ways;
    segment->off = off;
    segment->len = (uint32_t)(nb_min64(p.beg + (at + 1) * p.each, p.end) - off);
    segment->owner = p.owner;
    segment->relay = nb_grid_node(g, nb_grid_row(g, p.owner), (int)(way % (uint64_t)g.columns));
    segment->first = (off - (uint64_t)p.owner * win->op->block) / win->op->value;
    segment->number = 0;
    segment->most = segment->len;
    segment->sure = 1;
    return 1;
}

int nb_cut_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, uint64_t from,
                    struct nb_segment *segment)
{
    from = nb_max64(nb_max64(from, win->off), (uint64_t)owner * win->op->block);
    return nb_cut_segment_at(comm, win, from, segment) && segment->owner == owner;
}

int nb_cut_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node, uint64_t from,
                   struct nb_segment *segment)
{
    const int column = nb_grid_column(comm->grid, node);
    struct part p;

    from = nb_max64(from, win->off);
    while (part_at(comm, win, from, &p)) {
        uint64_t at = p.owner == comm->rank ? p.end : through(comm, &p, from, column);
        if (at < p.end)
            return nb_cut_segment_at(comm, win, at, segment);
        from = p.owner == comm->rank ? p.end : behind(comm, win, &p, column);
    }
    return 0;
}

int nb_cut_own_through(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int node,
                       uint64_t from, struct nb_segment *segment)
{
    struct part p;

    from = nb_max64(nb_max64(from, win->off), (uint64_t)comm->rank * win->op->block);
    if (!part_at(comm, win, from, &p) || p.owner != comm->rank)
        return 0;
    from = through(comm, &p, from, nb_grid_column(comm->grid, node));
    return from < p.end && nb_cut_segment_at(comm, win, from, segment);
}

uint64_t nb_cut_sums(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    uint64_t own = (uint64_t)comm->rank * win->op->block, from = win->off;
    uint64_t beg = nb_max64(own, win->off), end = nb_min64(own + win->op->block, win->off + win->bytes);
    uint64_t left = end > beg ? end - beg : 0;
    struct nb_segment segment;

    while (nb_cut_through(comm, win, comm->rank, from, &segment)) {
        left += segment.len;
        from = segment.off + segment.len;
    }
    return left;
}

int nb_cut_pays(const struct nb_coll_comm *comm, const struct nb_coll_req *win)
{
    return win->bytes / (uint64_t)(comm->nnodes - 1) >= MIN_PIECE;
}

/* ---- all-reduces ------------------------------------------------------------------------------------- */

/* The window in `shares` shares, in as many segments as wire units need. Whole groups, so that none is split
 * between reducers. */
static uint64_t cut_of(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares)
{
    uint64_t quantum = NB_GROUP * win->op->value;
    uint64_t each = (win->bytes + (uint64_t)shares - 1) / (uint64_t)shares;
    uint64_t parts = (each + comm->unit - 1) / comm->unit;

    each = (each + parts - 1) / parts;
    return (each + quantum - 1) / quantum * quantum;
}

int nb_stream_segment(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares,
                      uint64_t off, struct nb_segment *segment)
{
    uint64_t cut = cut_of(comm, win, shares), end;

    if (off >= win->bytes)
        return 0;
    end = nb_min64(off - off % cut + cut, win->bytes);
    segment->off = off;
    segment->len = (uint32_t)(end - off);
    segment->owner = (int)(off / cut % (uint64_t)shares);
    segment->relay = -1;
    segment->first = off / win->op->value;
    segment->number = off / cut;
    end = nb_min64(end, win->most);
    segment->most = end > off ? (uint32_t)(end - off) : 0;
    segment->sure = end <= win->sure || segment->most == 0;
    return 1;
}

/* At once, however many nodes there are: every peer's cursor asks in every window. */
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment)
{
    const uint64_t every = (uint64_t)modulus, cut = cut_of(comm, win, shares), number = from / cut;
    const uint64_t ahead = ((uint64_t)residue + every - number % every) % every;

    return nb_stream_segment(comm, win, shares, ahead ? (number + ahead) * cut : from, segment);
}
