/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vote that ends connect, and the token of the group.
 *
 *   round        with whom           what a yes says                       when all of them are there
 *   ROW          row (no grid: all)  this node is ready                    grid: -> COLUMN; else -> ROW_ALL
 *   COLUMN       column              all of the row are                    -> ROW_ALL
 *   ROW_ALL      row (no grid: all)  this node knows that all are          grid: -> COLUMN_ALL; else made
 *   COLUMN_ALL   column              all of the row know it                made
 *
 * One deadline holds for all rounds, and for the connections before them. A node that has waited until then,
 * has lost a peer, or hears a no, gives up: it tells all it is connected with, in any round (ballot.h), and
 * closes its connections.
 *
 * Nobody can be made to wait for ever, so no number of rounds makes sure that all have a communicator or
 * none: a node may give up when the last yes is on its way to it. What the last two rounds do is to make that
 * rare. Without them a node would have its communicator with the last vote that it needs, while another one,
 * to which that vote does not get through (a link that was cut since the hellos, a node that stops between
 * two of its votes), gives up, perhaps minutes later. With them, the node that misses a vote never says that
 * it knows of all; so the others do not get their communicator either, and decline with it. What remains is a
 * failure within the exchange of the last round itself, of about one round trip. Where a communicator exists
 * then all the same, it fails at once: the no of the node that gave up arrives over its CONTROL connection.
 * Or it fails after NIBBLE_PEER_TIMEOUT, where a node that has stopped is missed by it before the others give
 * up; meanwhile those who wait for that node send heartbeats, so that nobody takes them for it, and decline
 * when they hear of the failure (ballot.c).
 */
#include "coll/vote.h"

#include <stdio.h>

#include "base/clock.h"
#include "coll/ballot.h"
#include "coll/name_list.h"
#include "coll/reason.h"

static int64_t now(const struct nb_mesh *m)
{
    return nb_clock_ns(&m->comm->ctx->clock);
}

/* ---- rounds ----------------------------------------------------------------------------------------- */

/* Shares of a token, in order: the same on all nodes, different for every group. */
static uint32_t fold(const struct nb_mesh *m, const uint32_t *share, int n)
{
    uint64_t h = nb_hash64(share, (size_t)n * sizeof(*share), m->mine.comm_id);
    return (uint32_t)(h ^ (h >> 32));
}

static void open_round(struct nb_mesh *m, enum nb_round round)
{
    m->round = round;
    nb_ballots_open(m, round);
}

void nb_vote_begin(struct nb_mesh *m)
{
    open_round(m, NB_ROUND_ROW);
}

static bool is_complete(const struct nb_mesh *m)
{
    for (int r = 0; r < m->comm->nnodes; r++)
        if (nb_ballot_is_shared(m, r, m->round) && !nb_ballot_is_done(m, r, m->round))
            return false;
    return true;
}

static bool is_last(const struct nb_mesh *m)
{
    return m->round == (nb_on_grid(m->comm) ? NB_ROUND_COLUMN_ALL : NB_ROUND_ROW_ALL);
}

static void next_round(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    const struct nb_grid grid = comm->grid;
    const int row = nb_grid_row(grid, comm->rank);

    if (m->round == NB_ROUND_ROW)
        comm->token = m->row_token[row] = fold(m, &m->token[nb_grid_node(grid, row, 0)], grid.columns);
    else if (m->round == NB_ROUND_COLUMN)
        comm->token = fold(m, m->row_token, grid.rows);
    open_round(m, m->round == NB_ROUND_ROW && !nb_on_grid(comm) ? NB_ROUND_ROW_ALL : m->round + 1);
}

enum nb_stepped nb_vote_step(struct nb_mesh *m)
{
    bool moved = nb_mesh_move(m);

    moved |= nb_ballots_move(m);
    if (m->cause != NB_CAUSE_NONE)
        return NB_STEPPED_DONE;
    if (is_complete(m) && is_last(m)) /* however late: nobody has given up before it knew of all */
        return NB_STEPPED_DONE;
    if (now(m) > m->deadline)
        return NB_STEPPED_DONE;
    if (is_complete(m)) {
        next_round(m);
        return NB_STEPPED_ON;
    }
    return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
}

bool nb_vote_is_won(const struct nb_mesh *m)
{
    return m->cause == NB_CAUSE_NONE && is_complete(m) && is_last(m);
}

/* ---- giving up -------------------------------------------------------------------------------------- */

/* Those of which `is_missing` is true. */
static struct nb_name_list name_missing(const struct nb_mesh *m,
                                        bool (*is_missing)(const struct nb_mesh *, int))
{
    struct nb_name_list list = {.first = -1};

    for (int r = 0; r < m->comm->nnodes; r++)
        if (is_missing(m, r))
            nb_name_list_add(&list, &m->comm->peer[r]);
    nb_name_list_end(&list);
    return list;
}

static bool misses_connection(const struct nb_mesh *m, int r)
{
    return m->linked[r] && nb_mesh_missing(m, r);
}

static bool misses_vote(const struct nb_mesh *m, int r)
{
    return nb_ballot_is_shared(m, r, m->round) && !nb_ballot_is_done(m, r, m->round);
}

/* Who has not done its part so far. */
static void blame_missing(struct nb_mesh *m)
{
    static const char *const what[NB_ROUND_COUNT] = {
        [NB_ROUND_ROW] = "vote",
        [NB_ROUND_COLUMN] = "vote for its row",
        [NB_ROUND_ROW_ALL] = "second vote",
        [NB_ROUND_COLUMN_ALL] = "second vote for its row",
    };
    struct nb_name_list who = {.first = -1};

    if (!m->prepared)
        who = name_missing(m, misses_connection);
    else if (m->round > NB_ROUND_GREETED)
        who = name_missing(m, misses_vote);
    if (who.first >= 0 && !m->prepared)
        nb_reason_blame(m, NB_CAUSE_CONNECT, "not connected with %s after %lld s: %s", who.text,
                        nb_mesh_age(m), nb_mesh_missing(m, who.first));
    else if (who.first >= 0)
        nb_reason_blame(m, NB_CAUSE_VOTE + m->round, "no %s of %s after %lld s", what[m->round], who.text,
                        nb_mesh_age(m));
    else if (m->cause == NB_CAUSE_NONE)
        nb_reason_object(m, "ready only after %lld s (NIBBLE_CONNECT_TIMEOUT)", nb_mesh_age(m));
}

void nb_decline_begin(struct nb_mesh *m)
{
    const int64_t soon = now(m) + (m->end - m->begun) / 4;

    /* Others may have given up waiting for this node, while it waits for somebody else. */
    if (m->cause >= NB_CAUSE_CONNECT)
        blame_missing(m);
    nb_ballots_decline(m);
    m->deadline = soon < m->end ? soon : m->end;
}

enum nb_stepped nb_decline_step(struct nb_mesh *m)
{
    bool moved = nb_mesh_move(m);

    moved |= nb_ballots_move(m);
    if (nb_ballots_are_over(m) || now(m) >= m->deadline)
        return NB_STEPPED_DONE;
    return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
}
