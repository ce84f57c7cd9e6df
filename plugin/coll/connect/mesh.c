/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections out and in with every neighbor, and a hello on each, which is compared with this node's own. In
 * a full mesh all other nodes are neighbors, on a grid the nodes of the row and the column.
 *
 *   outgoing, one per (peer, class)                       incoming
 *     connecting -> hello sent -> confirmed by the peer     accepted -> hello read -> known as (peer, class)
 *        ^   \          |                                       |            \
 *        |    `-> lost  | ends before that                      | ends       `-> objection: malformed, or
 *        `--------------'                                       `-> forgotten    does not fit
 *
 * A peer confirms when all of its incoming connections from this node are known (vote.c). Until then a
 * connection that ends is made again: the peer may have taken it for a stranger's, or its process may have
 * paused for long. Only a peer that cannot be dialled is lost. So a late peer is no error.
 *
 * Connections without a hello are held in a list of their own, which has room for twice as many connections
 * as the group's nodes can make. When it is full the oldest connection goes. So a stranger never takes the
 * place of a node of the group for good.
 *
 * Nodes with other settings, or of another release, may compute another grid. Some nodes would then wait for
 * ever for a connection that is never made. So a node that finds that it differs from another node tells all
 * nodes why.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/log.h"
#include "base/system.h"
#include "base/version.h"
#include "coll/connect/connect.h"
#include "coll/decide/decide.h"

/* ---- messages of the handshake ----------------------------------------------------------------------- */

/* Drive a message in its direction. */
static int handshake_drive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n, bool send)
{
    void *data = n->buf;
    size_t size = sizeof(n->buf);
    int tag = 0, ret;
    bool moved = false;

    if (n->done)
        return 0;
    if (!n->posted) {
        if (!n->mhandle) {
            ret = net->reg_mr(conn, n->buf, sizeof(n->buf), NB_MEM_HOST, &n->mhandle);
            n->refused = ret != 0;
            if (ret)
                return ret;
        }
        ret = send ? net->isend(conn, n->buf, n->len, 0, n->mhandle, &n->req)
                   : net->irecv(conn, 1, &data, &size, &tag, &n->mhandle, &n->req);
        if (ret)
            return ret;
        if (!n->req)
            return 0;
        n->posted = moved = true;
    }
    ret = net->test(n->req, &n->done, send ? NULL : &n->len);
    return ret ? ret : (moved || n->done);
}

int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, true);
}

int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, false);
}

void nb_handshake_again(struct nb_handshake *n)
{
    n->posted = false;
    n->done = 0;
    n->req = NULL;
}

/* Deregister a message before its connection is closed or handed over. */
static void handshake_forget(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    if (conn && n->mhandle)
        net->dereg_mr(conn, n->mhandle);
    n->mhandle = NULL;
    n->len = 0; /* no message is under way */
    nb_handshake_again(n);
}

/* ---- the mesh ---------------------------------------------------------------------------------------- */

#define LOOK_NS (50 * (int64_t)NB_NS_PER_MS)   /* time between checks of silent connections */
#define AGAIN_NS (100 * (int64_t)NB_NS_PER_MS) /* time before a connection is made again, doubled each time */
#define AGAIN_DOUBLED 4
#define LAST_WORDS_NS (5 * (int64_t)NB_NS_PER_S) /* part of the time limit that is kept for telling reasons */

static int64_t now(const struct nb_mesh *m)
{
    return nb_clock_ns(&m->comm->ctx->clock);
}

long long nb_mesh_age(const struct nb_mesh *m)
{
    return (now(m) - m->begun) / (int64_t)NB_NS_PER_S;
}

/* ---- outgoing --------------------------------------------------------------------------------------- */

static void close_out(struct nb_mesh *m, int r, int c)
{
    const struct nb_net_ops *net = m->comm->net;
    struct nb_outgoing *o = nb_mesh_out(m, r, c);

    if (!o->conn && net->abandon)
        net->abandon(m->comm->ctx->net, o->handle);
    if (o->conn) {
        handshake_forget(net, o->conn, &o->hello);
        if (c == NB_CLASS_CONTROL) {
            handshake_forget(net, o->conn, &m->ballot[r].out);
            m->ballot[r].said = 0;
            m->ballot[r].told = 0;
        }
        net->close_send(o->conn);
    }
    o->conn = NULL;
    memcpy(o->handle, m->handle[r], sizeof(o->handle));
}

void nb_mesh_dial_again(struct nb_mesh *m, int r, int c, int err)
{
    struct nb_outgoing *o = nb_mesh_out(m, r, c);
    unsigned doubled = o->attempts < AGAIN_DOUBLED ? o->attempts : AGAIN_DOUBLED;

    if (o->attempts++ == 0)
        NB_INFO(NCCL_NET, "%s: the connection with %s has ended before it was confirmed (%s), once more",
                m->comm->label, m->comm->peer[r].name, strerror(-err));
    close_out(m, r, c);
    o->again_ns = now(m) + (AGAIN_NS << doubled);
}

static bool is_starved(int err)
{
    return err == -EMFILE || err == -ENFILE;
}

/* Describe a transport's error for a reader who has not seen the transport's log. */
static const char *error_text(int err)
{
    if (is_starved(err))
        return "too many open files (raise ulimit -n there)";
    if (err == -EPROTO)
        return "another version of the transport's protocol, or another NIBBLE_NET (its log tells)";
    if (err == -EAFNOSUPPORT)
        return "one node has an IPv4 address, the other an IPv6 address (choose with NCCL_SOCKET_FAMILY)";
    return strerror(-err);
}

static void dial_failed(struct nb_mesh *m, int r, int c, int err)
{
    const char *name = m->comm->peer[r].name;

    memcpy(nb_mesh_out(m, r, c)->handle, m->handle[r], NB_NET_HANDLE_BYTES);
    switch (-err) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH: nb_decline_suspect(m, r, "cannot connect to", err); return;
    case EMFILE:
    case ENFILE: /* descriptors come back when connections are closed */
        m->starved = true;
        nb_mesh_out(m, r, c)->again_ns = now(m) + AGAIN_NS;
        break;
    default: m->ballot[r].unreachable = true;
    }
    nb_decline(m, "cannot connect to %s: %s", name, error_text(err));
}

/* Return whether the peer may still not know of this connection, so that its end is no sign of a lost
 * peer. */
static bool is_unconfirmed(const struct nb_mesh *m, int r)
{
    return !m->prepared && m->ballot[r].got == 0;
}

static bool move_out(struct nb_mesh *m, int r, int c, bool look)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1, .lazy = 1};
    struct nb_outgoing *o = nb_mesh_out(m, r, c);
    bool moved = false;
    int ret;

    if (!o->conn) {
        if (now(m) < o->again_ns)
            return false;
        cfg.settable = c != NB_CLASS_CONTROL;
        cfg.shallow = comm->nneighbors > 1 && c != NB_CLASS_CONTROL; /* for comm/ring.c */
        cfg.urgent = c == NB_CLASS_CONTROL; /* a failing node's reason leaves before its connections end */
        ret = comm->net->connect(comm->ctx->net, comm->dev, &cfg, o->handle, &o->conn);
        if (ret)
            dial_failed(m, r, c, ret);
        if (!o->conn)
            return ret != 0;
        m->mine.cls = (uint32_t)c;
        nb_hello_pack(&m->mine, o->hello.buf);
        o->hello.len = NB_HELLO_BYTES;
        moved = true;
    }
    ret = nb_handshake_send(comm->net, o->conn, &o->hello);
    if (ret == 0 && look && comm->net->lost && is_unconfirmed(m, r))
        ret = comm->net->lost(o->conn);
    if (ret < 0 && o->hello.refused)
        nb_decline(m, "cannot register a message to %s: %s", comm->peer[r].name, strerror(-ret));
    if (ret < 0)
        nb_mesh_dial_again(m, r, c, ret);
    return moved || ret;
}

/* Continue outgoing connections, CONTROL first. Over it a node can tell why it cannot make the other
 * connections. */
static bool connect_out(struct nb_mesh *m)
{
    const bool look = now(m) >= m->look_ns;
    bool moved = false;

    if (look)
        m->look_ns = now(m) + LOOK_NS;
    for (int c = NB_CLASS_COUNT; c-- > (m->declining ? NB_CLASS_CONTROL : 0);)
        for (int r = 0; r < m->comm->nnodes; r++)
            if (m->linked[r] && !m->ballot[r].unreachable)
                moved |= move_out(m, r, c, look);
    return moved;
}

/* ---- incoming --------------------------------------------------------------------------------------- */

static void close_in(struct nb_mesh *m, struct nb_incoming *in)
{
    const struct nb_net_ops *net = m->comm->net;

    handshake_forget(net, in->conn, &in->hello);
    if (in->rank >= 0 && in->cls == NB_CLASS_CONTROL)
        handshake_forget(net, in->conn, &m->ballot[in->rank].in);
    net->close_recv(in->conn);
    free(in);
}

void nb_mesh_drop(struct nb_mesh *m, struct nb_incoming *in)
{
    m->by_peer[in->rank * NB_CLASS_COUNT + in->cls] = NULL;
    if (in->cls == NB_CLASS_CONTROL)
        m->ballot[in->rank].got = 0;
    close_in(m, in);
}

/* Link this node with all nodes, because it differs from one of them and the group is declined (see the
 * file's head). */
static void reach_all(struct nb_mesh *m)
{
    m->differs = true;
    for (int r = 0; r < m->comm->nnodes; r++)
        m->linked[r] = r != m->comm->rank;
}

/* Compare a peer's hello with this node's own. */
static void check_hello(struct nb_mesh *m, const struct nb_hello *h)
{
    const struct nb_hello *me = &m->mine;
    /* 0: the node declines because of its settings, and will say which */
    const bool differ = h->settings && me->settings && h->settings != me->settings;

    if (h->wire_version != me->wire_version || h->nclasses != me->nclasses)
        nb_decline(m, "node %u (%s) runs nibble %s with wire version %u, this node (%s) %s with %u", h->rank,
                   h->host, h->version, h->wire_version, me->host, me->version, me->wire_version);
    else if (differ && strcmp(h->version, me->version) != 0)
        nb_decline(m, "node %u (%s) runs nibble %s, node %u (%s) %s: install the same on all nodes", h->rank,
                   h->host, h->version, me->rank, me->host, me->version);
    else if (differ)
        nb_decline(m, "node %u (%s) has other settings than node %u (%s): compare their NIBBLE_* variables",
                   h->rank, h->host, me->rank, me->host);
    else if (h->comm_id != me->comm_id && h->comm_id && me->comm_id)
        nb_decline(m, "node %u (%s) is connecting communicator 0x%llx, this node 0x%llx", h->rank, h->host,
                   (unsigned long long)h->comm_id, (unsigned long long)me->comm_id);
    if (h->wire_version != me->wire_version || differ)
        reach_all(m);
}

/* Return true when a second connection with the hello of a known one takes its place. */
static bool replaces(struct nb_mesh *m, const struct nb_hello *h)
{
    if (m->token[h->rank] != h->token_share)
        nb_decline(m, "two processes say they are node %u", h->rank);
    else if (m->prepared)
        nb_decline_blame(m, NB_CAUSE_LOST, "the connection with %s has broken", m->comm->peer[h->rank].name);
    else
        return true;
    return false;
}

/* Read the hello of an incoming connection. Return true when the connection becomes the connection of a peer
 * and class, false when it must be closed. */
static bool identify(struct nb_mesh *m, struct nb_incoming *in)
{
    struct nb_coll_comm *comm = m->comm;
    const char *from = comm->net->peer_name(in->conn), *why = "";
    struct nb_incoming **place;
    struct nb_hello h;

    if (nb_hello_parse(in->hello.buf, in->hello.len, &h, &why)) {
        nb_decline(m, "malformed greeting from %s: %s", from, why);
        return false;
    }
    if (h.nnodes != (uint32_t)comm->nnodes || h.rank >= h.nnodes || h.rank == (uint32_t)comm->rank ||
        h.cls >= NB_CLASS_COUNT) {
        nb_decline(m, "%s says it is node %u of %u", from, h.rank, h.nnodes);
        return false;
    }
    place = &m->by_peer[h.rank * NB_CLASS_COUNT + h.cls];
    if (*place && !replaces(m, &h))
        return false;
    check_hello(m, &h);
    if (*place)
        nb_mesh_drop(m, *place);
    *place = in;
    in->rank = (int)h.rank;
    in->cls = (int)h.cls;
    if (h.cls == NB_CLASS_CONTROL)
        m->ballot[h.rank].ended = false;
    m->token[h.rank] = h.token_share;
    snprintf(comm->peer[h.rank].name, sizeof(comm->peer[h.rank].name), "node %u (%.40s, %.48s)", h.rank,
             h.host, from);
    return true;
}

static bool accept_new(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    const int most = 2 * comm->nnodes * NB_CLASS_COUNT;
    struct nb_incoming **end = &m->unknown;
    bool moved = false;

    while (*end)
        end = &(*end)->next;
    while (!m->deaf) {
        struct nb_incoming *in;
        void *conn = NULL;
        int ret = comm->net->accept(m->listener, &conn);

        if (ret) {
            m->deaf = true;
            m->starved |= is_starved(ret);
            nb_decline(m, "cannot accept connections: %s", error_text(ret));
        }
        if (!conn)
            break;
        in = calloc(1, sizeof(*in));
        if (!in) {
            comm->net->close_recv(conn);
            nb_decline(m, "cannot accept connections: %s", strerror(ENOMEM));
            break;
        }
        in->conn = conn;
        in->rank = -1;
        *end = in;
        end = &in->next;
        if (m->nunknown++ == most) {
            in = m->unknown;
            m->unknown = in->next;
            m->nunknown--;
            close_in(m, in);
        }
        moved = true;
    }
    return moved;
}

static bool accept_in(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    bool moved = accept_new(m);

    for (struct nb_incoming **at = &m->unknown; *at;) {
        struct nb_incoming *in = *at;
        int ret = nb_handshake_receive(comm->net, in->conn, &in->hello);
        bool stays = false;

        moved |= ret != 0;
        if (ret >= 0 && !in->hello.done) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        m->nunknown--;
        if (ret >= 0)
            stays = identify(m, in);
        else if (in->hello.refused)
            nb_decline(m, "cannot register a message from %s: %s", comm->net->peer_name(in->conn),
                       strerror(-ret));
        else
            NB_INFO(NCCL_NET, "%s: a connection from %s has ended without a greeting: %s", comm->label,
                    comm->net->peer_name(in->conn), strerror(-ret));
        if (!stays)
            close_in(m, in);
    }
    return moved;
}

/* ---- both ------------------------------------------------------------------------------------------- */

/* Close connections for which CONTROL needs the descriptors, so that this node can tell the other nodes that
 * descriptors have run out. */
static void close_unneeded(struct nb_mesh *m)
{
    m->starved = false;
    if (m->prepared)
        return;
    for (int r = 0; r < m->comm->nnodes; r++) {
        for (int c = 0; c < NB_CLASS_CONTROL; c++) {
            if (nb_mesh_in(m, r, c))
                nb_mesh_drop(m, nb_mesh_in(m, r, c));
            if (m->linked[r])
                close_out(m, r, c);
        }
    }
}

bool nb_mesh_move(struct nb_mesh *m)
{
    bool moved;

    if (m->declining && m->starved)
        close_unneeded(m);
    moved = connect_out(m);
    return accept_in(m) || moved;
}

const char *nb_mesh_missing(const struct nb_mesh *m, int rank)
{
    const struct nb_ballot *b = &m->ballot[rank];
    int made = 0, come = 0;

    for (int c = 0; c < NB_CLASS_COUNT; c++) {
        made += nb_mesh_out(m, rank, c)->hello.done;
        come += nb_mesh_in(m, rank, c) != NULL;
    }
    if (come == 0)
        return made == NB_CLASS_COUNT ? "it has not greeted" : "it was not reached and has not greeted";
    if (made < NB_CLASS_COUNT)
        return "it has greeted, but was not reached";
    if (come < NB_CLASS_COUNT)
        return "only some of its connections have come";
    if (b->got == 0)
        return "it has not confirmed the connections with it";
    return b->said == 0 || (b->out.posted && !b->out.done) ? "it does not read" : NULL;
}

/* ---- begin and end ---------------------------------------------------------------------------------- */

/* Name a peer by its address, until its hello names its host. */
static void name_peer(struct nb_mesh *m, int r)
{
    struct nb_peer *peer = &m->comm->peer[r];
    char address[64];

    if (!m->comm->net->handle_name)
        return;
    m->comm->net->handle_name(m->handle[r], address, sizeof(address));
    snprintf(peer->name, sizeof(peer->name), "node %d (%.64s)", r, address);
}

int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles)
{
    const int64_t limit = comm->ctx->params->connect_timeout * (int64_t)NB_NS_PER_S;
    size_t n = (size_t)comm->nnodes;
    int ret;

    memset(m, 0, sizeof(*m));
    m->comm = comm;
    m->listener = listener;
    m->cause = NB_CAUSE_NONE;
    m->linked = calloc(n, 1);
    m->handle = calloc(n, sizeof(*m->handle));
    m->out = calloc(n * NB_CLASS_COUNT, sizeof(*m->out));
    m->by_peer = calloc(n * NB_CLASS_COUNT, sizeof(struct nb_incoming *));
    m->ballot = calloc(n, sizeof(*m->ballot));
    m->token = calloc(n, sizeof(*m->token));
    m->row_token = calloc((size_t)comm->grid.rows, sizeof(*m->row_token));
    if (!m->linked || !m->handle || !m->out || !m->by_peer || !m->ballot || !m->token || !m->row_token)
        return -ENOMEM;
    for (int i = 0; i < comm->nneighbors; i++)
        m->linked[comm->neighbors[i]->rank] = 1;
    m->facts = nb_facts_of_node(comm);
    m->row_facts = m->facts;
    m->other_facts = (struct nb_reckon_facts){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0};
    m->begun = now(m);
    m->end = m->begun + limit;
    m->deadline = m->end - (limit / 8 < LAST_WORDS_NS ? limit / 8 : LAST_WORDS_NS);
    for (int r = 0; r < comm->nnodes; r++) {
        if (r == comm->rank)
            continue;
        memcpy(m->handle[r], handles[r], NB_NET_HANDLE_BYTES);
        name_peer(m, r);
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            memcpy(nb_mesh_out(m, r, c)->handle, m->handle[r], NB_NET_HANDLE_BYTES);
    }
    m->mine.wire_version = NB_WIRE_VERSION;
    m->mine.nclasses = NB_CLASS_COUNT;
    m->mine.rank = (uint32_t)comm->rank;
    m->mine.nnodes = (uint32_t)comm->nnodes;
    m->mine.comm_id = comm->comm_id;
    m->mine.settings = nb_params_hash(comm->ctx->params) ^ (nb_fault(comm->ctx, "hash") ? 1 : 0);
    if (comm->ctx->params->bad_setting[0]) { /* it does not know which nodes take it for a neighbor */
        m->mine.settings = 0;
        reach_all(m);
        nb_decline(m, "%s", comm->ctx->params->bad_setting);
    }
    snprintf(m->mine.version, sizeof(m->mine.version), "%s", nb_version_with_commit());
    if (comm->ctx->host)
        snprintf(m->mine.host, sizeof(m->mine.host), "%s", comm->ctx->host);
    else
        gethostname(m->mine.host, sizeof(m->mine.host) - 1);
    ret = comm->ctx->random ? comm->ctx->random(comm->ctx, &m->mine.token_share, sizeof(m->mine.token_share))
                            : nb_random(&m->mine.token_share, sizeof(m->mine.token_share));
    m->token[comm->rank] = m->mine.token_share;
    return ret;
}

/* Hand the connections with a neighbor over to the communicator. */
static void hand_over(struct nb_mesh *m, int r)
{
    const struct nb_net_ops *net = m->comm->net;

    for (int c = 0; c < NB_CLASS_COUNT; c++) {
        struct nb_incoming *in = nb_mesh_in(m, r, c);
        struct nb_outgoing *o = nb_mesh_out(m, r, c);
        handshake_forget(net, in->conn, &in->hello);
        handshake_forget(net, o->conn, &o->hello);
        if (c == NB_CLASS_CONTROL) {
            handshake_forget(net, in->conn, &m->ballot[r].in);
            handshake_forget(net, o->conn, &m->ballot[r].out);
        }
        free(in);
        m->by_peer[r * NB_CLASS_COUNT + c] = NULL;
        o->conn = NULL;
    }
}

void nb_mesh_dissolve(struct nb_mesh *m, bool won)
{
    const int n = m->comm->nnodes;

    for (int r = 0; r < n; r++) {
        if (won && m->comm->peer[r].linked) {
            hand_over(m, r);
            continue;
        }
        for (int c = 0; c < NB_CLASS_COUNT; c++) {
            if (nb_mesh_in(m, r, c))
                nb_mesh_drop(m, nb_mesh_in(m, r, c));
            if (m->linked[r]) /* this node dialled linked nodes only */
                close_out(m, r, c);
            m->comm->peer[r].tx[c].conn = m->comm->peer[r].rx[c].conn = NULL;
        }
    }
    while (m->unknown) {
        struct nb_incoming *in = m->unknown;
        m->unknown = in->next;
        close_in(m, in);
    }
}

void nb_mesh_free(struct nb_mesh *m)
{
    free(m->linked);
    free(m->handle);
    free(m->out);
    free(m->by_peer);
    free(m->ballot);
    free(m->token);
    free(m->row_token);
}
