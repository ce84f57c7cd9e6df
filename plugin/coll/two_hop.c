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

int nb_two_hop_piece_at(const struct nb_coll_comm *comm, const struct nb_coll_req *win, uint64_t off,
                        struct nb_piece *piece)
{
    uint64_t others = (uint64_t)comm->nranks - 1, block = win->op->block, owner, beg, end, each, rounds, at;

    if (off >= win->off + win->bytes)
        return 0;
    owner = off / block;
    beg = max64(win->off, owner * block);
    end = min64(win->off + win->bytes, (owner + 1) * block);
    /* As many pieces as other nodes, or a multiple of that where units are too short. */
    each = (end - beg + others - 1) / others;
    rounds = (each + comm->unit - 1) / comm->unit;
    each = (each + rounds - 1) / rounds;
    each = (each + QUANTUM - 1) / QUANTUM * QUANTUM;
    at = (off - beg) / each;
    piece->off = off;
    piece->len = (uint32_t)(min64(beg + (at + 1) * each, end) - off);
    piece->owner = (int)owner;
    /* Short parts have fewer pieces than there are nodes: go on where the part before stopped. */
    piece->relay = (int)((owner + 1 + ((beg - owner * block) / each + at) % others) % (uint64_t)comm->nranks);
    piece->first = (off - owner * block) / win->op->value;
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
    for (from = max64(from, win->off); nb_two_hop_piece_at(comm, win, from, piece);) {
        if (piece->owner == relay || piece->owner == comm->rank) {
            from = (uint64_t)(piece->owner + 1) * win->op->block;
            continue;
        }
        if (piece->relay == relay)
            return 1;
        from = piece->off + piece->len;
    }
    return 0;
}
