/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections out and in with every neighbor (all other nodes in a full mesh; on a grid those of the row and
 * the column), and a hello on each, which is compared with what this node is.
 *
 *   outgoing, one per (peer, class)            incoming, in the order of acceptance
 *     connecting -> hello sent                   accepted -> hello read -> known as (peer, class)
 *          \            \                             \             \
 *           `-> peer lost `-> peer lost                `-> objection  `-> objection: malformed, or does not fit
 *
 * The mesh is complete when every peer that is to be connected has all its outgoing hellos sent and is known
 * on as many incoming connections, or is lost. A lost peer and an objection make this node vote no (vote.c).
 *
 * Nodes with other settings, or of another release, may compute another grid: some would wait for ever for a
 * connection that nobody makes. So a node that greets without being a neighbor is greeted, too, and a node
 * that finds that it differs from another one connects with all. There will be no communicator, but all learn
 * why, and at once.
 */
#include "coll/mesh.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/fault.h"
#include "base/random.h"
#include "base/version.h"

void nb_mesh_object(struct nb_mesh *m, const char *fmt, ...)
{
    va_list ap;

    if (m->reason[0] && !m->vague)
        return;
    m->vague = 0;
    va_start(ap, fmt);
    vsnprintf(m->reason, sizeof(m->reason), fmt, ap);
    va_end(ap);
}

static int64_t now(const struct nb_mesh *m)
{
    return nb_clock_ns(&m->comm->ctx->clock);
}

/* ---- notes ------------------------------------------------------------------------------------------ */

/* Drive a note in the direction that it has. */
static int handshake_drive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n, int send)
{
    void *data = n->buf;
    size_t size = sizeof(n->buf);
    int tag = 0, ret, moved = 0;

    if (n->done)
        return 0;
    if (!n->posted) {
        if (!n->mhandle) {
            ret = net->reg_mr(conn, n->buf, sizeof(n->buf), NB_MEM_HOST, &n->mhandle);
            if (ret)
                return ret;
        }
        ret = send ? net->isend(conn, n->buf, n->len, 0, n->mhandle, &n->req)
                   : net->irecv(conn, 1, &data, &size, &tag, &n->mhandle, &n->req);
        if (ret)
            return ret;
        if (!n->req)
            return 0;
        n->posted = moved = 1;
    }
    ret = net->test(n->req, &n->done, send ? NULL : &n->len);
    return ret ? ret : (moved || n->done);
}

int nb_handshake_send(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, 1);
}

int nb_handshake_receive(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    return handshake_drive(net, conn, n, 0);
}

static void handshake_forget(const struct nb_net_ops *net, void *conn, struct nb_handshake *n)
{
    if (conn && n->mhandle)
        net->dereg_mr(conn, n->mhandle);
    n->mhandle = NULL;
}

/* ---- connections and hellos ------------------------------------------------------------------------- */

void nb_mesh_lose(struct nb_mesh *m, int rank, int err, const char *what)
{
    if (m->lost[rank])
        return;
    m->lost[rank] = 1;
    nb_mesh_object(m, "%s node %d: %s", what, rank, strerror(-err));
}

static int connect_out(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1, .lazy = 1};
    int moved = 0, ret;

    for (int r = 0; r < comm->nnodes; r++) {
        for (int c = 0; c < NB_CLASS_COUNT && m->linked[r] && !m->lost[r]; c++) {
            struct nb_outgoing *o = &m->out[r * NB_CLASS_COUNT + c];
            if (!o->conn) {
                cfg.shallow = comm->nneighbors > 1 && c != NB_CLASS_CONTROL; /* for fair.c */
                cfg.urgent = c == NB_CLASS_CONTROL; /* why a node fails leaves before its connections end */
                ret = comm->net->connect(comm->ctx->net, comm->dev, &cfg, o->handle, &o->conn);
                if (ret)
                    nb_mesh_lose(m, r, ret, "cannot connect to");
                if (!o->conn)
                    continue;
                m->mine.cls = (uint32_t)c;
                nb_hello_pack(&m->mine, o->hello.buf);
                o->hello.len = NB_HELLO_BYTES;
                moved = 1;
            }
            ret = nb_handshake_send(comm->net, o->conn, &o->hello);
            if (ret < 0)
                nb_mesh_lose(m, r, ret, "cannot greet");
            else
                moved |= ret;
        }
    }
    return moved;
}

/* There will be no communicator, see above. Enough to wait for those that are merely late. */
static void reach_all(struct nb_mesh *m)
{
    int64_t soon = now(m) + m->comm->ctx->params->connect_timeout * (int64_t)NB_NS_PER_S / 4;

    if (m->voting)
        return;
    m->differs = 1;
    if (soon < m->deadline)
        m->deadline = soon;
    for (int r = 0; r < m->comm->nnodes; r++)
        m->linked[r] = r != m->comm->rank;
}

/* Compare what a peer says of itself with what we are. */
static void check_hello(struct nb_mesh *m, const struct nb_hello *h)
{
    const struct nb_hello *me = &m->mine;

    if (h->wire_version != me->wire_version || h->nclasses != me->nclasses)
        nb_mesh_object(m, "node %u (%s) runs nibble %s with wire version %u, this node (%s) %s with %u",
                       h->rank, h->host, h->version, h->wire_version, me->host, me->version,
                       me->wire_version);
    else if (h->settings != me->settings)
        nb_mesh_object(m,
                       "node %u (%s) has other settings than node %u (%s): compare their NIBBLE_* variables",
                       h->rank, h->host, me->rank, me->host);
    else if (h->comm_id != me->comm_id && h->comm_id && me->comm_id)
        nb_mesh_object(m, "node %u (%s) is connecting communicator 0x%llx, this node 0x%llx", h->rank,
                       h->host, (unsigned long long)h->comm_id, (unsigned long long)me->comm_id);
    if (h->wire_version != me->wire_version || h->settings != me->settings) {
        reach_all(m);
    } else if (!m->reason[0] && !m->comm->peer[h->rank].linked) { /* it reaches all, too */
        nb_mesh_object(m, "node %u (%s) greets node %u (%s), which shares no row or column with it", h->rank,
                       h->host, me->rank, me->host);
        m->vague = 1;
    }
}

static void identify(struct nb_mesh *m, struct nb_incoming *in)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_hello h;
    const char *why = "";

    in->known = -1;
    if (nb_hello_parse(in->hello.buf, in->hello.len, &h, &why)) {
        nb_mesh_object(m, "malformed greeting from %s: %s", comm->net->peer_name(in->conn), why);
        return;
    }
    if (h.nnodes != (uint32_t)comm->nnodes || h.rank >= h.nnodes || h.rank == (uint32_t)comm->rank ||
        h.cls >= NB_CLASS_COUNT) {
        nb_mesh_object(m, "%s says it is node %u of %u", comm->net->peer_name(in->conn), h.rank, h.nnodes);
        return;
    }
    if (m->by_peer[h.rank * NB_CLASS_COUNT + h.cls]) {
        nb_mesh_object(m, "two connections say they are node %u", h.rank);
        return;
    }
    check_hello(m, &h);
    in->known = 1;
    in->rank = (int)h.rank;
    in->cls = (int)h.cls;
    m->by_peer[h.rank * NB_CLASS_COUNT + h.cls] = in;
    m->linked[h.rank] = 1; /* if it was not, there is a reason for a no by now, which it has to hear */
    m->token[h.rank] = h.group_token;
    snprintf(comm->peer[h.rank].name, sizeof(comm->peer[h.rank].name), "node %u (%.40s, %.48s)", h.rank,
             h.host, comm->net->peer_name(in->conn));
}

static int accept_in(struct nb_mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    int moved = 0, ret;

    while (m->nin < m->most_in) {
        struct nb_incoming *in = &m->in[m->nin];
        ret = comm->net->accept(m->listener, &in->conn);
        if (ret)
            nb_mesh_object(m, "cannot accept connections: %s", strerror(-ret));
        if (ret || !in->conn)
            break;
        m->nin++;
        moved = 1;
    }
    for (int i = 0; i < m->nin; i++) {
        struct nb_incoming *in = &m->in[i];
        if (in->known)
            continue;
        ret = nb_handshake_receive(comm->net, in->conn, &in->hello);
        if (ret < 0) {
            in->known = -1;
            nb_mesh_object(m, "lost %s before its greeting: %s", comm->net->peer_name(in->conn),
                           strerror(-ret));
        } else {
            moved |= ret;
            if (in->hello.done)
                identify(m, in);
        }
    }
    return moved;
}

/* Peers that are neither lost nor wholly connected. */
static int incomplete(struct nb_mesh *m)
{
    int n = 0;

    for (int r = 0; r < m->comm->nnodes; r++) {
        int whole = 1;
        if (!m->linked[r] || m->lost[r])
            continue;
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            whole &= m->out[r * NB_CLASS_COUNT + c].hello.done && nb_mesh_in(m, r, c) != NULL;
        n += !whole;
    }
    return n;
}

enum nb_stepped nb_mesh_step(struct nb_mesh *m)
{
    int moved;

    if (!incomplete(m))
        return NB_STEPPED_DONE;
    moved = connect_out(m);
    moved |= accept_in(m);
    if (now(m) > m->deadline) {
        for (int r = 0; r < m->comm->nnodes; r++)
            for (int c = 0; c < NB_CLASS_COUNT; c++)
                if (m->linked[r] && !m->lost[r] &&
                    (!m->out[r * NB_CLASS_COUNT + c].hello.done || !nb_mesh_in(m, r, c)))
                    nb_mesh_lose(m, r, -ETIMEDOUT, "not connected within NIBBLE_CONNECT_TIMEOUT to");
        return NB_STEPPED_DONE;
    }
    return moved ? NB_STEPPED_ON : NB_STEPPED_IDLE;
}

bool nb_mesh_answer(struct nb_mesh *m)
{
    int vague = m->vague, moved;
    char reason[sizeof(m->reason)];

    if (m->nin == m->most_in && !incomplete(m))
        return false;
    memcpy(reason, m->reason, sizeof(reason));
    moved = accept_in(m);
    moved |= connect_out(m);
    memcpy(m->reason, reason, sizeof(reason));
    m->vague = vague;
    return moved != 0;
}

/* ---- begin and end ---------------------------------------------------------------------------------- */

int nb_mesh_init(struct nb_mesh *m, struct nb_coll_comm *comm, void *listener, void *const *handles)
{
    size_t n = (size_t)comm->nnodes;
    int ret;

    memset(m, 0, sizeof(*m));
    m->comm = comm;
    m->listener = listener;
    m->linked = calloc(n, 1);
    m->out = calloc(n * NB_CLASS_COUNT, sizeof(*m->out));
    m->in = calloc(n * NB_CLASS_COUNT, sizeof(*m->in));
    m->by_peer = calloc(n * NB_CLASS_COUNT, sizeof(*m->by_peer));
    m->token = calloc(n, sizeof(*m->token));
    m->row_token = calloc((size_t)comm->grid.rows, sizeof(*m->row_token));
    m->lost = calloc(n, 1);
    m->vote_out = calloc(n, sizeof(*m->vote_out));
    m->vote_in = calloc(n, sizeof(*m->vote_in));
    if (!m->linked || !m->out || !m->in || !m->by_peer || !m->token || !m->row_token || !m->lost ||
        !m->vote_out || !m->vote_in)
        return -ENOMEM;
    for (int i = 0; i < comm->nneighbors; i++)
        m->linked[comm->neighbors[i]->rank] = 1;
    /* Of those, nnear of each class; but others may come, see above. */
    m->most_in = (comm->nnodes - 1) * NB_CLASS_COUNT;
    m->deadline = now(m) + m->comm->ctx->params->connect_timeout * (int64_t)NB_NS_PER_S;
    for (size_t i = 0; i < n * NB_CLASS_COUNT; i++)
        if (i / NB_CLASS_COUNT != (size_t)comm->rank)
            memcpy(m->out[i].handle, handles[i / NB_CLASS_COUNT], NB_NET_HANDLE_BYTES);
    m->mine.wire_version = NB_WIRE_VERSION;
    m->mine.nclasses = NB_CLASS_COUNT;
    m->mine.rank = (uint32_t)comm->rank;
    m->mine.nnodes = (uint32_t)comm->nnodes;
    m->mine.comm_id = comm->comm_id;
    m->mine.settings = nb_params_hash(comm->ctx->params) ^ (nb_fault(comm->ctx, "hash") ? 1 : 0);
    snprintf(m->mine.version, sizeof(m->mine.version), "%s", nb_version());
    gethostname(m->mine.host, sizeof(m->mine.host) - 1);
    ret = nb_random(&m->mine.group_token, sizeof(m->mine.group_token));
    m->token[comm->rank] = m->mine.group_token;
    return ret;
}

void nb_mesh_dissolve(struct nb_mesh *m, int won)
{
    const struct nb_net_ops *net = m->comm->net;
    int n = m->comm->nnodes;

    for (int i = 0; i < m->nin; i++) {
        struct nb_incoming *in = &m->in[i];
        handshake_forget(net, in->conn, &in->hello);
        if (in->known == 1 && in->cls == NB_CLASS_CONTROL)
            handshake_forget(net, in->conn, &m->vote_in[in->rank]);
    }
    for (int i = 0; i < n * NB_CLASS_COUNT; i++) {
        handshake_forget(net, m->out[i].conn, &m->out[i].hello);
        if (i % NB_CLASS_COUNT == NB_CLASS_CONTROL)
            handshake_forget(net, m->out[i].conn, &m->vote_out[i / NB_CLASS_COUNT]);
    }
    /* Won: what stays are the connections with the nodes of the row and column. Another one came after those
     * that were waited for, or of a stranger who says he is a node that this one is not connected with. */
    for (int i = 0; i < m->nin; i++)
        if (!won || m->in[i].known != 1 || !m->comm->peer[m->in[i].rank].linked)
            net->close_recv(m->in[i].conn);
    for (int i = 0; i < n * NB_CLASS_COUNT; i++) {
        if (won && m->comm->peer[i / NB_CLASS_COUNT].linked)
            continue;
        if (m->out[i].conn)
            net->close_send(m->out[i].conn);
        else if (net->abandon && m->linked[i / NB_CLASS_COUNT]) /* the others were never connected with */
            net->abandon(m->comm->ctx->net, m->out[i].handle);
    }
    if (won)
        return;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            m->comm->peer[r].tx[c].conn = m->comm->peer[r].rx[c].conn = NULL;
}

void nb_mesh_free(struct nb_mesh *m)
{
    free(m->linked);
    free(m->out);
    free(m->in);
    free(m->by_peer);
    free(m->token);
    free(m->row_token);
    free(m->lost);
    free(m->vote_out);
    free(m->vote_in);
}
