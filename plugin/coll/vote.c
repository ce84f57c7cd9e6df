/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vote that ends connect, and the token of the group.
 *
 *   round    with whom           what is told                      when all votes are there, or a no's time is over
 *   ROW      row (no grid: all)  whether this node objects         grid: -> COLUMN; no grid, or differs: done
 *   COLUMN   column              whether all of the row said yes   done
 *
 * So each node learns the vote of all rows, and the communicator exists where every one said yes. The second
 * round takes place after a no, too: the other rows have to learn it. A row and a column share no connection,
 * so each peer is sent one vote and sends one.
 *
 * A node that differs from another one may compute other rows (mesh.c). It says no to all nodes at once,
 * without rounds, and a no counts in any round, so that no two nodes wait for each other.
 *
 * All or none, but for nodes that die between two of their votes, or lose a connection then: some have
 * received a yes and others nothing. Where the communicator exists all the same it fails at once, as with any
 * death of a node.
 */
#include "coll/mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

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
    const struct nb_handshake *note = &m->vote_in[rank];
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

/* ---- one round -------------------------------------------------------------------------------------- */

static void begin_round(struct nb_mesh *m, const struct nb_vote *mine)
{
    const struct nb_context *ctx = m->comm->ctx;

    m->round.mine = *mine;
    m->round.yes = (int)mine->yes;
    m->round.deadline = nb_clock_ns(&ctx->clock) + ctx->params->connect_timeout * (int64_t)NB_NS_PER_S;
}

/* The vote of peer `r` could not be sent, or will not come. */
static void lose(struct nb_mesh *m, int r, struct nb_handshake *vote, int err, const char *what)
{
    vote->done = 1;
    nb_mesh_lose(m, r, err, what);
    m->round.yes = 0;
}

/* Send the own vote to peer `r`. 1 when something moved; *open counts what is not done. */
static int send_vote(struct nb_mesh *m, int r, int *open)
{
    struct nb_outgoing *o = &m->out[r * NB_CLASS_COUNT + NB_CLASS_CONTROL];
    struct nb_handshake *vote = &m->vote_out[r];
    int ret;

    if (!o->conn || !o->hello.done || vote->done)
        return 0;
    if (!vote->len) {
        nb_vote_pack(&m->round.mine, vote->buf);
        vote->len = NB_VOTE_BYTES;
    }
    ret = nb_handshake_send(m->comm->net, o->conn, vote);
    if (ret < 0)
        lose(m, r, vote, ret, "cannot vote with");
    *open += !vote->done;
    return ret > 0;
}

/* Read the vote of peer `r`, likewise. */
static int receive_vote(struct nb_mesh *m, int r, int *open)
{
    struct nb_incoming *in = nb_mesh_in(m, r, NB_CLASS_CONTROL);
    struct nb_handshake *vote = &m->vote_in[r];
    int ret;

    if (!in || vote->done)
        return 0;
    ret = nb_handshake_receive(m->comm->net, in->conn, vote);
    if (ret < 0)
        lose(m, r, vote, ret, "no vote from");
    else if (vote->done)
        read_vote(m, r, m->round.mine.round, &m->round.yes);
    *open += !vote->done && (m->comm->peer[r].linked || m->differs);
    return ret > 0;
}

/* Exchange votes with all that take part. Peers that never connected cannot be asked: their absence is a
 * no. */
static enum nb_stepped step_round(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    int open = 0, moved = 0;

    for (int r = 0; r < comm->nnodes; r++) {
        if (!takes_part(m, r, m->round.mine.round))
            continue;
        moved |= send_vote(m, r, &open);
        moved |= receive_vote(m, r, &open);
        if (comm->peer[r].linked)
            m->round.yes &= nb_mesh_in(m, r, NB_CLASS_CONTROL) != NULL && !m->lost[r];
    }
    if (!open) {
        m->round.yes = m->round.yes && !m->reason[0];
        return NB_STEPPED_DONE;
    }
    if (!m->round.yes && nb_clock_ns(&comm->ctx->clock) > m->round.deadline)
        return NB_STEPPED_DONE; /* whatever the rest would say */
    if (!moved)
        moved = nb_mesh_answer(m);
    return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
}

/* ---- rounds ----------------------------------------------------------------------------------------- */

/* Shares of a token, in order: the same on all nodes, different for every group. */
static uint32_t fold(const struct nb_mesh *m, const uint32_t *share, int n)
{
    uint64_t h = nb_hash64(share, (size_t)n * sizeof(*share), m->mine.comm_id);
    return (uint32_t)(h ^ (h >> 32));
}

void nb_vote_begin(struct nb_mesh *m)
{
    struct nb_vote vote = {.yes = m->reason[0] == 0, .rank = (uint32_t)m->comm->rank, .round = ROUND_ROW};

    m->voting = 1;
    if (!m->vague)
        memcpy(vote.reason, m->reason, sizeof(vote.reason));
    begin_round(m, &vote);
}

/* The row has voted: tell the column what it says. */
static void begin_column(struct nb_mesh *m, uint32_t row_token)
{
    const int rank = m->comm->rank;
    struct nb_vote vote = {
        .yes = (uint32_t)m->round.yes, .rank = (uint32_t)rank, .round = ROUND_COLUMN, .token = row_token};

    if (m->heard)
        memcpy(vote.reason, m->reason, sizeof(vote.reason));
    else if (m->reason[0] && !m->vague) /* those who read this see a row's vote, not whose it was */
        snprintf(vote.reason, sizeof(vote.reason), "node %d (%.40s) declines: %.*s", rank, m->mine.host,
                 (int)sizeof(vote.reason) - 72, m->reason);
    begin_round(m, &vote);
}

enum nb_stepped nb_vote_step(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    const struct nb_grid grid = comm->grid;
    const int row = nb_grid_row(grid, comm->rank);
    const enum nb_stepped stepped = step_round(m);

    if (stepped != NB_STEPPED_DONE)
        return stepped;
    if (m->round.mine.round == ROUND_COLUMN) {
        comm->token = fold(m, m->row_token, grid.rows);
        return NB_STEPPED_DONE;
    }
    m->row_token[row] = fold(m, &m->token[nb_grid_node(grid, row, 0)], grid.columns);
    if (!nb_on_grid(comm)) {
        comm->token = m->row_token[row];
        return NB_STEPPED_DONE;
    }
    if (m->differs) {
        m->round.yes = 0;
        return NB_STEPPED_DONE;
    }
    begin_column(m, m->row_token[row]);
    return NB_STEPPED_ON;
}
