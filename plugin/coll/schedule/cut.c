/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut of windows, shared by schedules whose segments go through other nodes. The part of a window that
 * lies in one block is cut into a segment for each column except the owner's. A segment goes through the node
 * in its column and the owner's row. In two hops, the full mesh is a single row, so there is a segment for
 * each node except the owner.
 */
#include "coll/schedule/cut.h"
#include "policy/reckon/reckon.h"

/* Segments start at multiples of this, counted from the start of the window's part of the block. */
#define QUANTUM 1024u

/* In shorter segments, headers, calls and the second hop's latency cost more than idle links do. */
#define MIN_PIECE 8192u

/* The part of a window that lies in one block. */
struct part {
    uint64_t beg, end;
    uint64_t each; /* bytes of a segment */
    /* Segments of the block before this part. A short part has fewer segments than ways, so the next part
     * continues with the next way. */
    uint64_t base;
    uint64_t ways; /* columns that segments go through: all except the owner's */
    int owner;
};

/* Find the part that holds `off`, at or behind the window's start. Return 1, or 0 behind the window's end. */
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
    /* As many segments as ways. A multiple of that where wire units are too short, fewer where segments would
     * be too short. */
    p->ways = (uint64_t)comm->grid.columns - 1;
    count = nb_max64(1, nb_min64(p->ways, (p->end - p->beg) / least));
    each = (p->end - p->beg + count - 1) / count;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    p->each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    p->base = (p->beg - owner * block) / p->each;
    return 1;
}

/* Return the way that leads through `column`. Ways are counted from the column behind the owner's. The way
 * through the owner's own column would be one too many. */
static uint64_t route_to(const struct nb_coll_comm *comm, const struct part *p, int column)
{
    uint64_t columns = (uint64_t)comm->grid.columns;

    return ((uint64_t)column + columns - (uint64_t)nb_grid_column(comm->grid, p->owner) - 1) % columns;
}

/* Return where the first segment at or behind `from` begins that goes through `column`. A result at the
 * part's end or behind it means that the part has no such segment. The time is constant for any number of
 * nodes, since every peer's cursor asks in every window. */
static uint64_t through(const struct nb_coll_comm *comm, const struct part *p, uint64_t from, int column)
{
    uint64_t at = (from - p->beg) / p->each, way = route_to(comm, p, column);
    uint64_t ahead = (way + p->ways - (p->base + at) % p->ways) % p->ways;

    if (way >= p->ways)
        return p->end;
    return ahead ? p->beg + (at + ahead) * p->each : from;
}

/*
 * Return where to search on when the part has no segment that goes through `column`. In windows of many small
 * blocks, with fewer segments than ways in each, every peer's cursor would visit every block. This function
 * skips the blocks that cannot have such a segment.
 *
 * All blocks that the window covers whole have the same number of segments, p, which go through the first p
 * ways. Ways are counted from the owner's column, so the way to a given column is one less for the next
 * owner. With way w >= p here, the next block whose segment goes through the column is w - p + 1 blocks on:
 *
 *     owner's column   0   1   2   3   4          p = 2, 8 columns, looking for column 5:
 *     way to column 5  4   3   2   1   0          from owner 0 (w = 4) the next is owner 3: 4 - 2 + 1 = 3
 *
 * The window's last block may be cut off. Its segments then have another length, so it is never skipped.
 * Where places do not follow ranks (comm/grid.h), the next owner can have any column. Then none is skipped.
 */
static uint64_t behind(const struct nb_coll_comm *comm, const struct nb_coll_req *win, const struct part *p,
                       int column)
{
    const uint64_t block = win->op->block;
    const uint64_t last = (win->off + win->bytes - 1) / block * block; /* the window may end inside it */
    uint64_t way = route_to(comm, p, column), next;
    uint64_t segments = nb_min64((p->end - p->beg + p->each - 1) / p->each, p->ways);

    if (p->end - p->beg < block || way < segments || comm->grid.place)
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

/* Return the length of segments when the window is cut into `shares` shares and each share into as many
 * segments as wire units need. Segments are whole groups, so one reducer has all values of a group. */
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

/* The time is constant for any number of nodes, since every peer's cursor asks in every window. */
int nb_stream_next(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int shares, int modulus,
                   int residue, uint64_t from, struct nb_segment *segment)
{
    const uint64_t every = (uint64_t)modulus, cut = cut_of(comm, win, shares), number = from / cut;
    const uint64_t ahead = ((uint64_t)residue + every - number % every) % every;

    return nb_stream_segment(comm, win, shares, ahead ? (number + ahead) * cut : from, segment);
}
