/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vote that ends connect, and the token of the group.
 *
 *   round        with whom           meaning of a yes                      when all of them are there
 *   ROW          row (no grid: all)  this node is ready                    grid: -> COLUMN, else -> ROW_ALL
 *   COLUMN       column              all of the row are                    -> ROW_ALL
 *   ROW_ALL      row (no grid: all)  this node knows that all are          grid: -> COLUMN_ALL, else made
 *   COLUMN_ALL   column              all of the row know it                made
 *
 * One deadline holds for all rounds, and for the connections before them. A node gives up when it has waited
 * until the deadline, has lost a peer, or receives a no. It tells all nodes that it is connected with, in any
 * round (connect.h), and closes its connections.
 *
 * All waits end, so no number of rounds can guarantee that either all nodes or no node has a communicator: a
 * node may give up when the last yes is on its way to it. The last two rounds make that rare. Without them a
 * node would have its communicator with the last vote that it needs. Another node may miss that vote, because
 * a link was cut since the hellos or a node stops between two of its votes, and give up, perhaps minutes
 * later. With them, the node that misses a vote never says that it knows of all. So the other nodes do not
 * get their communicator either, and decline with it.
 *
 * The remaining case is a failure within the exchange of the last round itself, of about one round trip. If a
 * communicator exists then all the same, it fails at once: the no of the node that gave up arrives over its
 * CONTROL connection. Or it fails after NIBBLE_PEER_TIMEOUT, when it misses a stopped node before the other
 * nodes give up. Meanwhile the nodes that wait for the stopped node send heartbeats, so that their peers do
 * not take them for it. They decline when they hear of the failure.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"
#include "coll/connect/connect.h"
#include "coll/watch/watch.h"

/* ---- reasons ----------------------------------------------------------------------------------------- */

/*
 * Why a node votes no: of all reasons that it finds or receives, the one that is nearest to the cause (enum
 * nb_cause).
 *
 * A node that declines tells all other nodes why and closes its connections. So the end of a connection
 * explains little: its peer may have died, or may have gone for a reason that it has told. Connections are
 * independent, and their ends may be seen in any order. So an end is only a suspicion until this node has
 * read the messages that the peer sent before:
 *
 *   a no of the peer                    it has told why, so its end is disregarded
 *   the end of its CONTROL, no no       it is lost: it died, or could not send any more messages
 *   silence for a moment                it is lost, as far as this node can tell
 *
 * A node that has waited in vain for a second node cannot know whether the second node waits in turn for a
 * third one. The third node's neighbors do, and their reasons take a message or two more. So a node with such
 * a reason stays for a moment after it has told all nodes, to receive a better reason and to pass it on.
 *
 * For the thread that connects.
 */

/* Time for messages that are on their way. Shorter where NIBBLE_CONNECT_TIMEOUT leaves little. */
#define MOMENT_NS ((int64_t)NB_NS_PER_S / 2)
#define MOMENTS 16 /* moments in the time limit, at least */

static int64_t now(const struct nb_mesh *m)
{
    return nb_clock_ns(&m->comm->ctx->clock);
}

static int64_t moment_ns(const struct nb_mesh *m)
{
    const int64_t most = (m->end - m->begun) / MOMENTS;

    return most < MOMENT_NS ? most : MOMENT_NS;
}

/* Set the reason if its cause is nearer than the present one's. */
static void set_decline(struct nb_mesh *m, enum nb_cause cause, bool own, const char *text)
{
    if (m->cause <= cause)
        return;
    m->cause = cause;
    m->own = own;
    m->version++;
    m->reason_ns = now(m);
    snprintf(m->reason, sizeof(m->reason), "%.*s", (int)sizeof(m->reason) - 1, text);
}

void nb_decline_blame(struct nb_mesh *m, enum nb_cause cause, const char *fmt, ...)
{
    char text[sizeof(m->reason)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    set_decline(m, cause, true, text);
}

/* Take over the reason of another node's no. */
static void reason_adopt(struct nb_mesh *m, enum nb_cause cause, const char *text)
{
    set_decline(m, cause, false, text);
}

/* ---- suspicions ------------------------------------------------------------------------------------- */

void nb_decline_suspect(struct nb_mesh *m, int rank, const char *what, int err)
{
    struct nb_suspicion *s = &m->ballot[rank].suspicion;

    m->ballot[rank].unreachable = true;
    if (!s->what)
        *s = (struct nb_suspicion){.what = what, .err = err, .since_ns = now(m)};
}

/* Turn suspicions that stay unexplained into a reason. Return true when something moved. */
static bool reason_weigh(struct nb_mesh *m)
{
    bool moved = false;

    for (int r = 0; r < m->comm->nnodes; r++) {
        const struct nb_ballot *b = &m->ballot[r];
        struct nb_suspicion *s = &m->ballot[r].suspicion;

        if (!s->what)
            continue;
        if (!b->no && !b->ended && now(m) - s->since_ns < moment_ns(m))
            continue;
        if (!b->no)
            nb_decline_blame(m, NB_CAUSE_LOST, "%s %s: %s", s->what, m->comm->peer[r].name,
                             strerror(-s->err));
        s->what = NULL;
        moved = true;
    }
    return moved;
}

/* Return whether the reason has stood for as long as a message may be on its way. */
static bool reason_is_old(const struct nb_mesh *m)
{
    return now(m) - m->reason_ns >= moment_ns(m);
}

/* Return whether this node has the nearest cause that it can expect from nodes that have said no. */
static bool reason_is_final(const struct nb_mesh *m)
{
    if (m->cause == NB_CAUSE_SURE)
        return true;
    for (int r = 0; r < m->comm->nnodes; r++)
        if (m->ballot[r].suspicion.what)
            return false;
    return m->cause == NB_CAUSE_LOST || reason_is_old(m);
}

/* ---- ballots ----------------------------------------------------------------------------------------- */

/*
 * Votes over CONTROL while a group is made: a yes in each round that two nodes share, and a no at any time
 * (struct nb_vote). Yeses wait for their turn, a no goes at once. A node with a reason tells it to all nodes
 * that it is connected with, and each receiver does the same. So it reaches all nodes in two hops, whatever
 * they wait for, and their logs show the reason nearest to the cause (enum nb_cause).
 *
 * For the thread that connects.
 */

/*
 * See connect.h. Yeses of a peer come in the order of rounds. A row and a column share no connection, so each
 * connection carries three:
 *
 *   number   round                    in the row   in the column
 *   0        GREETED                  yes          yes
 *   1        ROW, COLUMN              ROW          COLUMN
 *   2        ROW_ALL, COLUMN_ALL      ROW_ALL      COLUMN_ALL
 *
 * Messages behind the third yes belong to the communicator, which may already exist at the peer. Then this
 * node has to show that it lives, although it still waits for another peer's third yes, and to learn when the
 * peer fails. So from there on both use the rings that will be the communicator's (comm/ring.h). They send
 * and take heartbeats and read a no and an ABORT, and all other messages stay in the ring. Heartbeats begin
 * when both have said all three: only then the peer knows the token by which it tells them from votes.
 */

#define YESES 3

static bool is_in_column(const struct nb_mesh *m, int rank)
{
    const struct nb_coll_comm *comm = m->comm;

    return nb_on_grid(comm) && nb_grid_same_column(comm->grid, comm->rank, rank);
}

/* Return the number of a round's yes. */
static unsigned number_of(enum nb_round round)
{
    return round == NB_ROUND_GREETED ? 0 : round <= NB_ROUND_COLUMN ? 1 : 2;
}

static enum nb_round round_of(const struct nb_mesh *m, int rank, unsigned number)
{
    static const enum nb_round row[YESES] = {NB_ROUND_GREETED, NB_ROUND_ROW, NB_ROUND_ROW_ALL};
    static const enum nb_round column[YESES] = {NB_ROUND_GREETED, NB_ROUND_COLUMN, NB_ROUND_COLUMN_ALL};

    return (is_in_column(m, rank) ? column : row)[number];
}

/* Return whether this node shares the round with node `rank`. */
static bool ballot_is_shared(const struct nb_mesh *m, int rank, enum nb_round round)
{
    return m->comm->peer[rank].linked && round_of(m, rank, number_of(round)) == round;
}

/* Allow this round's yes to all peers that share the round. */
static void ballots_open(struct nb_mesh *m, enum nb_round round)
{
    for (int r = 0; r < m->comm->nnodes; r++)
        if (ballot_is_shared(m, r, round))
            m->ballot[r].due = (uint8_t)(number_of(round) + 1);
}

/* Return whether the message's buffer is free. A message that the transport refuses for a while is under
 * way. */
static bool is_idle(const struct nb_handshake *n)
{
    return !n->len || n->done;
}

/* Return whether this node has sent its yes of round `round` to peer `rank`, and received the peer's. */
static bool ballot_is_done(const struct nb_mesh *m, int rank, enum nb_round round)
{
    const struct nb_ballot *b = &m->ballot[rank];
    const unsigned number = number_of(round);

    return b->got > number && (b->said > number + 1 || (b->said == number + 1 && is_idle(&b->out)));
}

/* ---- sending ---------------------------------------------------------------------------------------- */

static bool all_have_come(const struct nb_mesh *m, int rank)
{
    for (int c = 0; c < NB_CLASS_COUNT; c++)
        if (!nb_mesh_in(m, rank, c))
            return false;
    return true;
}

static void pack_yes(struct nb_mesh *m, int rank, struct nb_handshake *out)
{
    const struct nb_coll_comm *comm = m->comm;
    struct nb_vote v = {.yes = 1, .rank = (uint32_t)comm->rank};

    v.round = round_of(m, rank, m->ballot[rank].said);
    if (v.round == NB_ROUND_COLUMN)
        v.token = m->row_token[nb_grid_row(comm->grid, comm->rank)];
    if (v.round == NB_ROUND_ROW || v.round == NB_ROUND_COLUMN) {
        const struct nb_reckon_facts *facts = v.round == NB_ROUND_ROW ? &m->facts : &m->row_facts;
        v.mbps = facts->mbps;
        v.codec = facts->codec;
        v.workers = facts->workers;
        v.buffer = (uint32_t)nb_min64(facts->buffer, UINT16_MAX);
        v.measured = (uint32_t)nb_min64(facts->measured, UINT16_MAX);
    }
    nb_vote_pack(&v, out->buf);
}

static void pack_no(struct nb_mesh *m, struct nb_handshake *out)
{
    const int rank = m->comm->rank;
    struct nb_vote v = {.rank = (uint32_t)rank, .round = m->cause};
    char text[NB_CTL_TEXT + 96];

    if (!m->own)
        snprintf(text, sizeof(text), "%s", m->reason);
    else if (m->cause == NB_CAUSE_SURE)
        snprintf(text, sizeof(text), "node %d (%.40s) declines: %s", rank, m->mine.host, m->reason);
    else
        snprintf(text, sizeof(text), "%.*s, says node %d", (int)sizeof(v.reason) - 20, m->reason, rank);
    memcpy(v.reason, text, sizeof(v.reason) - 1);
    nb_vote_pack(&v, out->buf);
}

/* Tell peer `r`, which may have its communicator, that this node lives. If the connection has ended, the
 * engine will examine it when this communicator is made, because the peer may have closed. */
static bool show_life(struct nb_mesh *m, int r)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_peer *peer = &comm->peer[r];

    if (m->declining || m->ballot[r].got < YESES || m->ballot[r].said < YESES || peer->life.lost)
        return false;
    nb_control_alive(comm, peer, nb_clock_ns(&comm->ctx->clock)); /* skipped when the ring is full */
    return nb_tx_progress(comm, peer, &peer->tx[NB_CLASS_CONTROL]) > 0;
}

/* Send the vote that is due to peer `r`. */
static bool say(struct nb_mesh *m, int r)
{
    const struct nb_outgoing *o = nb_mesh_out(m, r, NB_CLASS_CONTROL);
    struct nb_ballot *b = &m->ballot[r];
    int ret;

    if (!o->conn || !o->hello.done || b->unreachable || (b->over && b->no))
        return false;
    if (is_idle(&b->out)) {
        const bool no = m->declining && b->told != m->version;

        if (!m->declining && b->due == 0 && m->linked[r] && all_have_come(m, r))
            b->due = 1;
        if (!no && (m->declining || b->said >= b->due))
            return show_life(m, r);
        nb_handshake_again(&b->out);
        b->out.len = NB_VOTE_BYTES;
        if (no) {
            pack_no(m, &b->out);
            b->told = m->version;
        } else {
            pack_yes(m, r, &b->out);
            b->said++;
        }
    }
    ret = nb_handshake_send(m->comm->net, o->conn, &b->out);
    if (ret >= 0)
        return ret > 0;
    if (b->out.refused)
        nb_decline(m, "cannot register a message to %s: %s", m->comm->peer[r].name, strerror(-ret));
    if (!m->prepared && !b->no && (b->got == 0 || b->out.refused))
        nb_mesh_dial_again(m, r, NB_CLASS_CONTROL, ret);
    else
        nb_decline_suspect(m, r, "lost", ret);
    return true;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

/* Handle the end of peer `r`'s incoming connection. */
static void ended(struct nb_mesh *m, int r, int err)
{
    struct nb_ballot *b = &m->ballot[r];

    if (b->in.refused) {
        nb_decline(m, "cannot register a message from %s: %s", m->comm->peer[r].name, strerror(-err));
        b->over = true;
        return;
    }
    b->ended = !b->no;
    if (!b->no && !m->prepared && m->comm->net->lost) {
        /* it comes again, or the peer cannot be dialled */
        nb_mesh_drop(m, nb_mesh_in(m, r, NB_CLASS_CONTROL));
        return;
    }
    b->over = true;
    if (!b->no && b->got < YESES)
        nb_decline_blame(m, NB_CAUSE_LOST, "lost %s before its vote: %s", m->comm->peer[r].name,
                         strerror(-err));
}

/* Take over the reason of an abort: the peers' communicator has failed, and this node will not have one. */
static void adopt_failure(struct nb_mesh *m, const struct nb_ctl *abort)
{
    const struct nb_coll_comm *comm = m->comm;
    char text[sizeof(comm->peer[0].name) + NB_CTL_TEXT + 16];

    if (abort->a < (uint64_t)comm->nnodes && abort->a != (uint64_t)comm->rank)
        snprintf(text, sizeof(text), "%s has failed: %s", comm->peer[abort->a].name, abort->text);
    else
        snprintf(text, sizeof(text), "%s", abort->text);
    reason_adopt(m, NB_CAUSE_LOST, text);
}

static void read_vote(struct nb_mesh *m, int r)
{
    struct nb_ballot *b = &m->ballot[r];
    const char *name = m->comm->peer[r].name, *why = "";
    struct nb_vote v;

    if (nb_vote_parse(b->in.buf, b->in.len, &v, &why)) {
        b->over = true;
        nb_decline(m, "malformed vote from %s: %s", name, why);
    } else if (!v.yes) {
        b->no = true;
        reason_adopt(m, (enum nb_cause)v.round, v.reason[0] ? v.reason : name);
    } else if (v.rank != (uint32_t)r || v.round != round_of(m, r, b->got)) {
        b->over = true;
        nb_decline(m, "malformed vote from %s: it names node %u and round %u", name, v.rank, v.round);
    } else {
        const struct nb_reckon_facts facts = {v.mbps, v.codec, v.workers, v.buffer, v.measured};

        b->got++;
        if (v.round == NB_ROUND_COLUMN)
            m->row_token[nb_grid_row(m->comm->grid, r)] = v.token;
        if (v.round == NB_ROUND_ROW)
            nb_reckon_slowest(&m->row_facts, &facts);
        else if (v.round == NB_ROUND_COLUMN)
            nb_reckon_slowest(&m->other_facts, &facts);
    }
}

/* Return whether this node expects a message from peer `r`. */
static bool is_awaited(const struct nb_mesh *m, int r)
{
    const struct nb_ballot *b = &m->ballot[r];

    return nb_mesh_in(m, r, NB_CLASS_CONTROL) && !b->over && (m->declining || b->suspicion.what || !b->no);
}

/* Read a message behind the last yes. Return false when it belongs to the communicator and stays in the
 * ring. */
static bool read_behind(struct nb_mesh *m, int r, const uint8_t *message, size_t len)
{
    struct nb_ballot *b = &m->ballot[r];
    const char *why = "";
    struct nb_vote v;
    struct nb_ctl ctl;

    if (nb_ctl_parse(message, len, m->comm->token, &ctl, &why) == 0) {
        if (ctl.kind == NB_CTL_ABORT && (!m->declining || b->suspicion.what))
            adopt_failure(m, &ctl);
        b->no |= ctl.kind == NB_CTL_ABORT;
        return m->declining || ctl.kind == NB_CTL_ABORT || ctl.kind == NB_CTL_ALIVE;
    }
    if (nb_vote_parse(message, len, &v, &why) == 0 && !v.yes) {
        b->no = true;
        reason_adopt(m, (enum nb_cause)v.round, v.reason[0] ? v.reason : m->comm->peer[r].name);
        return true;
    }
    b->over = true;
    nb_decline(m, "malformed message from %s behind its votes: %s", m->comm->peer[r].name, why);
    return true;
}

/* Receive from peer `r` after its last yes: the messages of its communicator, if it has one. */
static bool hear_behind(struct nb_mesh *m, int r)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_peer *peer = &comm->peer[r];
    struct nb_rx *rx = &peer->rx[NB_CLASS_CONTROL];
    const int ret = nb_rx_progress(comm, peer, rx);
    bool moved = ret > 0;

    while (rx->taken < rx->arrived && !m->ballot[r].over &&
           read_behind(m, r, rx->mem + nb_rx_at(rx) * rx->buffer_bytes, rx->len[nb_rx_at(rx)])) {
        nb_rx_take(rx);
        moved = true;
    }
    if (ret >= 0 || rx->taken < rx->arrived || m->ballot[r].over)
        return moved;
    if (!m->declining && !m->ballot[r].no)
        nb_decline_blame(m, NB_CAUSE_LOST, "lost %s: %s", peer->name, strerror(-ret));
    ended(m, r, ret);
    return true;
}

static bool hear(struct nb_mesh *m, int r)
{
    bool moved = false;

    while (is_awaited(m, r)) {
        struct nb_ballot *b = &m->ballot[r];
        int ret;

        if (b->got == YESES)
            return hear_behind(m, r) || moved;
        ret = nb_handshake_receive(m->comm->net, nb_mesh_in(m, r, NB_CLASS_CONTROL)->conn, &b->in);

        if (ret < 0) {
            ended(m, r, ret);
            return true;
        }
        moved |= ret > 0;
        if (!b->in.done)
            break;
        read_vote(m, r);
        nb_handshake_again(&b->in);
    }
    return moved;
}

/* ---- all -------------------------------------------------------------------------------------------- */

bool nb_ballots_move(struct nb_mesh *m)
{
    bool moved = false;

    /* Read every no that is here before this node sends anything. */
    for (int r = 0; r < m->comm->nnodes; r++)
        moved |= hear(m, r);
    moved |= reason_weigh(m);
    if (m->cause != NB_CAUSE_NONE && !m->declining)
        return true;
    for (int r = 0; r < m->comm->nnodes; r++)
        moved |= say(m, r);
    return moved;
}

/* Decline the group for the reason. From here on this node sends only the reason. */
static void ballots_decline(struct nb_mesh *m)
{
    m->declining = true;
}

/* Return whether a peer may still be told the reason. It may live although it is silent, but this node waits
 * for such a peer only while the reason is new. */
static bool is_there(const struct nb_mesh *m, const struct nb_ballot *b)
{
    return !b->over || (!b->no && !reason_is_old(m));
}

/* Return whether this node has told all peers that it can reach, and cannot receive a reason nearer to the
 * cause. */
static bool ballots_are_over(const struct nb_mesh *m)
{
    if (!reason_is_final(m))
        return false;
    for (int r = 0; r < m->comm->nnodes; r++) {
        const struct nb_ballot *b = &m->ballot[r];

        if (!m->linked[r] || b->unreachable)
            continue;
        if (is_there(m, b) && (b->told != m->version || !is_idle(&b->out)))
            return false;
        /* A peer that is the cause itself, or has heard of it, keeps its reason. */
        if (m->cause != NB_CAUSE_SURE && !b->over && !b->no && !m->deaf)
            return false;
    }
    return true;
}

/* ---- the vote ---------------------------------------------------------------------------------------- */

/* ---- rounds ----------------------------------------------------------------------------------------- */

/* Return a token from shares, in order. It is the same on all nodes and different for every group. */
static uint32_t fold(const struct nb_mesh *m, const uint32_t *share, int n)
{
    uint64_t h = nb_hash64(share, (size_t)n * sizeof(*share), m->mine.comm_id);
    return (uint32_t)(h ^ (h >> 32));
}

/* Return the share of a row, from the shares of its nodes. */
static uint32_t fold_row(const struct nb_mesh *m, int row)
{
    const struct nb_grid grid = m->comm->grid;
    uint32_t share[NB_MAX_NODES];

    for (int c = 0; c < grid.columns; c++)
        share[c] = m->token[nb_grid_node(grid, row, c)];
    return fold(m, share, grid.columns);
}

static void open_round(struct nb_mesh *m, enum nb_round round)
{
    m->round = round;
    ballots_open(m, round);
}

/* Return the longest round trip to a neighbor in units of 0.1 ms, 0: unknown. */
static uint32_t round_trip(const struct nb_mesh *m)
{
    const struct nb_coll_comm *comm = m->comm;
    uint64_t longest = 0;

    for (int i = 0; comm->net->round_trip_us && i < comm->nneighbors; i++) {
        void *conn = nb_mesh_out(m, comm->neighbors[i]->rank, NB_CLASS_CONTRIB)->conn;

        if (conn)
            longest = nb_max64(longest, comm->net->round_trip_us(conn));
    }
    return (uint32_t)((longest + 50) / 100);
}

void nb_vote_begin(struct nb_mesh *m)
{
    /* Votes of other nodes may be here already. */
    m->facts.measured = round_trip(m);
    nb_reckon_slowest(&m->row_facts, &m->facts);
    open_round(m, NB_ROUND_ROW);
}

static bool is_complete(const struct nb_mesh *m)
{
    for (int r = 0; r < m->comm->nnodes; r++)
        if (ballot_is_shared(m, r, m->round) && !ballot_is_done(m, r, m->round))
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
        comm->token = m->row_token[row] = fold_row(m, row);
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
    if (is_complete(m) && is_last(m)) /* even when late: every node stayed until it knew of all */
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

/* Name the nodes of which `is_missing` is true. */
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
    return ballot_is_shared(m, r, m->round) && !ballot_is_done(m, r, m->round);
}

/* Blame the nodes that have not done their part so far. */
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
        nb_decline_blame(m, NB_CAUSE_CONNECT, "not connected with %s after %lld s: %s", who.text,
                         nb_mesh_age(m), nb_mesh_missing(m, who.first));
    else if (who.first >= 0)
        nb_decline_blame(m, NB_CAUSE_VOTE + m->round, "no %s of %s after %lld s", what[m->round], who.text,
                         nb_mesh_age(m));
    else if (m->cause == NB_CAUSE_NONE)
        nb_decline(m, "ready only after %lld s (NIBBLE_CONNECT_TIMEOUT)", nb_mesh_age(m));
}

void nb_decline_begin(struct nb_mesh *m)
{
    const int64_t soon = now(m) + (m->end - m->begun) / 4;

    /* Other nodes may have given up waiting for this node, while it waits for another one. */
    if (m->cause >= NB_CAUSE_CONNECT)
        blame_missing(m);
    ballots_decline(m);
    m->deadline = soon < m->end ? soon : m->end;
}

enum nb_stepped nb_decline_step(struct nb_mesh *m)
{
    bool moved = nb_mesh_move(m);

    moved |= nb_ballots_move(m);
    if (ballots_are_over(m) || now(m) >= m->deadline)
        return NB_STEPPED_DONE;
    return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
}
