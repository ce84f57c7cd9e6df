/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the schedules in two hops share: the cut. The part of a window that lies in one block is cut into a
 * piece for each node but the block's owner: the node through which that piece goes.
 */
#include "coll/internal.h"

/* Pieces start at multiples of this from where the window's part of the block starts. */
#define QUANTUM 1024u

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The part of a window that lies in one block. */
struct part {
    uint64_t owner, beg, end;
    uint64_t each; /* bytes of a piece */
    uint64_t base; /* short parts have fewer pieces than there are nodes: go on where the part before stopped */
};

/* The part that holds `off`, which is not before the window: 1, or 0 behind its end. */
static int part_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off, struct part *p)
{
    uint64_t others = (uint64_t)comm->nranks - 1, block = win->op->block, each, rounds;

    if (off >= win->off + win->bytes)
        return 0;
    p->owner = off / block;
    p->beg = max64(win->off, p->owner * block);
    p->end = min64(win->off + win->bytes, (p->owner + 1) * block);
    /* As many pieces as other nodes, or a multiple of that where units are too short. */
    each = (p->end - p->beg + others - 1) / others;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    p->each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    p->base = (p->beg - p->owner * block) / p->each;
    return 1;
}

/* Where the first piece at or behind `from` begins that goes through `relay`, which is not the owner; at the
 * part's end or behind it: there is none. At once, however many nodes there are: every peer's cursor asks in
 * every window. */
static uint64_t through(const struct nb_coll_comm *comm, const struct part *p, uint64_t from, int relay)
{
    uint64_t nodes = (uint64_t)comm->nranks, others = nodes - 1, at = (from - p->beg) / p->each;
    uint64_t wanted = ((uint64_t)relay + nodes - p->owner - 1) % nodes;
    uint64_t ahead = (wanted + others - (p->base + at) % others) % others;

    return ahead ? p->beg + (at + ahead) * p->each : from;
}

int nb_two_hop_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                        struct nb_piece *piece)
{
    uint64_t nodes = (uint64_t)comm->nranks, at;
    struct part p;

    if (!part_at(comm, win, off, &p))
        return 0;
    at = (off - p.beg) / p.each;
    piece->off = off;
    piece->len = (uint32_t)(min64(p.beg + (at + 1) * p.each, p.end) - off);
    piece->owner = (int)p.owner;
    piece->relay = (int)((p.owner + 1 + (p.base + at) % (nodes - 1)) % nodes);
    piece->first = (off - p.owner * win->op->block) / win->op->value;
    piece->number = 0;
    piece->most = piece->len;
    piece->sure = 1;
    return 1;
}

int nb_two_hop_of_owner(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner,
                        uint64_t from, struct nb_piece *piece)
{
    from = max64(max64(from, win->off), (uint64_t)owner * win->op->block);
    return nb_two_hop_piece_at(comm, win, from, piece) && piece->owner == owner;
}

int nb_two_hop_of_relay(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int relay,
                        uint64_t from, struct nb_piece *piece)
{
    struct part p;

    for (from = max64(from, win->off); part_at(comm, win, from, &p); from = p.end) {
        if (p.owner == (uint64_t)relay || p.owner == (uint64_t)comm->rank)
            continue;
        from = through(comm, &p, from, relay);
        if (from < p.end)
            return nb_two_hop_piece_at(comm, win, from, piece);
    }
    return 0;
}

int nb_two_hop_between(const struct nb_coll_comm *comm, const struct nb_coll_req *win, int owner, int relay,
                       uint64_t from, struct nb_piece *piece)
{
    struct part p;

    from = max64(max64(from, win->off), (uint64_t)owner * win->op->block);
    if (!part_at(comm, win, from, &p) || p.owner != (uint64_t)owner)
        return 0;
    from = through(comm, &p, from, relay);
    return from < p.end && nb_two_hop_piece_at(comm, win, from, piece);
}
