/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vote that ends connect, and the token of the group.
 *
 * Every node tells the others of its row yes or no. On a grid it then tells the others of its column what its row
 * says: yes where all of it said yes. So each hears of all rows, and the communicator exists where every one said
 * yes. The second round takes place after a no, too: the other rows have to learn it. A row and a column share no
 * connection, so each peer gets one vote and sends one.
 *
 * A node that differs from another one may see other rows (mesh.c). It says its no to all nodes at once, without
 * rounds, and a no counts in any round, so that nobody waits for one that waits for him.
 *
 * All or none, but for nodes that die between two of their votes, or lose a connection then: some have heard a yes
 * and others nothing. Where the communicator exists all the same it fails at once, as with any death of a node.
 */
#include "coll/mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/params.h"

enum { ROUND_ROW = 0, ROUND_COLUMN = 1 };

/* Whether this node votes with that one in this round. */
static int takes_part(const struct nb_mesh *m, int rank, uint32_t round)
{
    const struct nb_coll_comm *comm = m->comm;
    int column = nb_on_grid(comm) && nb_grid_same_column(comm->grid, comm->rank, rank);

    if (!comm->peer[rank].linked || m->differs)
        return m->linked[rank];
    return column == (round == ROUND_COLUMN);
}

static void read_vote(struct nb_mesh *m, int rank, uint32_t round, int *yes)
{
    const struct nb_note *note = &m->vote_in[rank];
    const char *name = m->comm->peer[rank].name, *why = "";
    int before = m->reason[0] && !m->vague;
    struct nb_vote v;

    if (nb_vote_parse(note->buf, note->len, &v, &why)) {
        *yes = 0;
        nb_mesh_object(m, "malformed vote from %s: %s", name, why);
    } else if (!v.yes && v.rank == (uint32_t)rank) {
        *yes = 0;
        if (!v.reason[0]) { /* vague there */
            if (!m->reason[0])
                snprintf(m->reason, sizeof(m->reason), "%s declines", name);
            m->vague |= !before;
            return;
        }
        if (v.round == ROUND_COLUMN) /* names who declines */
            nb_mesh_object(m, "%s", v.reason);
        else
            nb_mesh_object(m, "%s declines: %s", name, v.reason);
        m->heard |= !before;
    } else if (!m->comm->peer[rank].linked) {
        return; /* it has heard of no reason yet */
    } else if (v.rank != (uint32_t)rank || v.round != round) {
        *yes = 0;
        nb_mesh_object(m, "malformed vote from %s: that of node %u in round %u, expected was round %u", name,
                       v.rank, v.round, round);
    } else if (round == ROUND_COLUMN) {
        m->row_token[nb_grid_row(m->comm->grid, rank)] = v.token;
    }
}

/* One round: send `mine`, hear the others. 1 when all of them said yes, and this one does. Peers that never
 * connected cannot be asked: their absence is a no. */
static int exchange(struct nb_mesh *m, const struct nb_vote *mine)
{
    struct nb_coll_comm *comm = m->comm;
    int yes = (int)mine->yes;
    int64_t deadline = (int64_t)nb_now_ns() + nb_params()->connect_timeout * (int64_t)NB_NS_PER_S;

    for (;;) {
        int open = 0, moved = 0;
        for (int r = 0; r < comm->nranks; r++) {
            struct nb_outgoing *o = &m->out[r * NB_CLASS_COUNT + NB_CLASS_CONTROL];
            struct nb_incoming *in = nb_mesh_in(m, r, NB_CLASS_CONTROL);
            struct nb_note *vo = &m->vote_out[r], *vi = &m->vote_in[r];
            int near = comm->peer[r].linked, ret;
            if (!takes_part(m, r, mine->round))
                continue;
            if (o->conn && o->hello.done && !vo->done) {
                if (!vo->len) {
                    nb_vote_pack(mine, vo->buf);
                    vo->len = NB_VOTE_BYTES;
                }
                ret = nb_note_send(comm->net, o->conn, vo);
                if (ret < 0) {
                    vo->done = 1;
                    nb_mesh_lose(m, r, ret, "cannot vote with");
                    yes = 0;
                } else {
                    moved |= ret;
                }
                open += !vo->done;
            }
            if (in && !vi->done) {
                ret = nb_note_receive(comm->net, in->conn, vi);
                if (ret < 0) {
                    vi->done = 1;
                    nb_mesh_lose(m, r, ret, "no vote from");
                    yes = 0;
                } else {
                    moved |= ret;
                    if (vi->done)
                        read_vote(m, r, mine->round, &yes);
                }
                open += !vi->done && (near || m->differs);
            }
            if (near)
                yes &= in != NULL && !m->lost[r];
        }
        if (!open)
            return yes && !m->reason[0];
        if (!yes && (int64_t)nb_now_ns() > deadline)
            return 0; /* whatever the rest would say */
        if (!moved) {
            nb_mesh_answer(m);
            nb_mesh_pause();
        }
    }
}

/* Shares of a token, in order: the same on all nodes, different for every group. */
static uint32_t fold(const struct nb_mesh *m, const uint32_t *share, int n)
{
    uint64_t h = nb_hash64(share, (size_t)n * sizeof(*share), m->mine.comm_id);
    return (uint32_t)(h ^ (h >> 32));
}

int nb_mesh_vote(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_grid grid = comm->grid;
    int row = nb_grid_row(grid, comm->rank), yes;
    struct nb_vote vote = {.yes = m->reason[0] == 0, .rank = (uint32_t)comm->rank, .round = ROUND_ROW};

    m->voting = 1;
    if (!m->vague)
        memcpy(vote.reason, m->reason, sizeof(vote.reason));
    yes = exchange(m, &vote);
    m->row_token[row] = fold(m, &m->token[nb_grid_node(grid, row, 0)], grid.columns);
    if (!nb_on_grid(comm)) {
        comm->token = m->row_token[row];
        return yes;
    }
    if (m->differs)
        return 0;
    vote = (struct nb_vote){.yes = (uint32_t)yes, .rank = (uint32_t)comm->rank, .round = ROUND_COLUMN,
                            .token = m->row_token[row]};
    if (m->heard)
        memcpy(vote.reason, m->reason, sizeof(vote.reason));
    else if (m->reason[0] && !m->vague) /* those who read this see a row's vote, not whose it was */
        snprintf(vote.reason, sizeof(vote.reason), "node %d (%.40s) declines: %.*s", comm->rank, m->mine.host,
                 (int)sizeof(vote.reason) - 72, m->reason);
    yes = exchange(m, &vote);
    comm->token = fold(m, m->row_token, grid.rows);
    return yes;
}
