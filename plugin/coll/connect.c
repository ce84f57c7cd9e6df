/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and connect. A node that declined CollNet alone would leave the others waiting for ever inside
 * ncclCommInitRank (NCCL compares results within a node only), so connect is a vote: first everything that may fail
 * is tried (connections, versions, settings, memory, registration), then every node tells every other yes or no
 * with the reason, and one no, or one lost peer, is a no for all.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "base/random.h"
#include "coll/internal.h"
#include "coll/setup.h"

#define PAUSE_NS 200000L /* between rounds in which nothing moved */

struct nb_coll_listen {
    uint32_t magic;
    int dev;
    uint64_t comm_id;
    uint32_t order; /* of the communicators between nodes that this GPU's process makes, from 1 */
    const struct nb_net_ops *net;
    void *conn;
};
#define LISTEN_MAGIC 0x4e424c53u

/* How many communicators between nodes the rank on this GPU has made, this one included. One that listens on several
 * devices is one. */
static uint32_t count_communicator(uint64_t comm_id)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t last;
        uint32_t n;
    } gpu[NB_NET_MAX_DEVS];
    int at = (nb_current_gpu() + 1) % NB_NET_MAX_DEVS;
    uint32_t n;

    pthread_mutex_lock(&lock);
    if (comm_id == 0 || comm_id != gpu[at].last)
        gpu[at].n++;
    gpu[at].last = comm_id;
    n = gpu[at].n;
    pthread_mutex_unlock(&lock);
    return n;
}

int nb_coll_listen(int dev, uint64_t comm_id, void *handle, struct nb_coll_listen **out)
{
    struct nb_coll_listen *l = calloc(1, sizeof(*l));
    int ret;

    *out = NULL;
    if (!l)
        return -ENOMEM;
    ret = nb_net_acquire(&l->net);
    if (ret) {
        free(l);
        return ret;
    }
    ret = l->net->listen(dev, handle, &l->conn);
    if (ret) {
        nb_net_release();
        free(l);
        return ret;
    }
    l->magic = LISTEN_MAGIC;
    l->dev = dev;
    l->comm_id = comm_id;
    l->order = count_communicator(comm_id);
    *out = l;
    return 0;
}

int nb_coll_close_listen(struct nb_coll_listen *l)
{
    int ret;

    if (!l || l->magic != LISTEN_MAGIC) {
        NB_WARN("closeListen: not a listening object of nibble: %p", (void *)l);
        return -EINVAL;
    }
    l->magic = 0;
    ret = l->net->close_listen(l->conn);
    nb_net_release();
    free(l);
    return ret;
}

/* ---- one connection while it is made ---------------------------------------------------------------- */

/* A small message on a connection: hello, then vote. */
struct note {
    uint8_t buf[256];
    void *mhandle;
    void *req;
    int posted, done;
    size_t len;
};

struct outgoing { /* to one peer, one class */
    uint8_t handle[NB_NET_HANDLE_BYTES];
    void *conn;
    struct note hello;
};

struct incoming { /* from a peer that its hello names */
    void *conn;
    struct note hello;
    int known, rank, cls;
};

struct mesh {
    struct nb_coll_comm *comm;
    struct nb_coll_listen *listen;
    struct outgoing *out;  /* [nranks][NB_CLASS_COUNT] */
    struct incoming *in;   /* in the order of acceptance */
    struct incoming **by_peer; /* [nranks][NB_CLASS_COUNT], once the hello has told */
    int nin, expected;
    struct nb_hello mine;
    uint32_t *token;       /* [nranks] shares of the group token */
    uint8_t *lost;         /* [nranks] no vote can be had from this peer */
    struct note *vote_out, *vote_in; /* [nranks] */
    char reason[NB_CTL_TEXT];        /* why this node votes no; "" = yes */
    int wanted;                      /* the no is a setting's, not a failure */
    int64_t deadline;
};

static void object(struct mesh *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The first reason for a no is the one that is told. */
static void object(struct mesh *m, const char *fmt, ...)
{
    va_list ap;

    if (m->reason[0])
        return;
    va_start(ap, fmt);
    vsnprintf(m->reason, sizeof(m->reason), fmt, ap);
    va_end(ap);
}

static int64_t now(void)
{
    return (int64_t)nb_now_ns();
}

static void pause_briefly(void)
{
    struct timespec ts = {0, PAUSE_NS};
    nanosleep(&ts, NULL);
}

/* Drive a note: > 0 moved, 0, or < 0 when its connection is lost. */
static int note_send(const struct nb_net_ops *net, void *conn, struct note *n)
{
    int ret, moved = 0;

    if (n->done)
        return 0;
    if (!n->posted) {
        if (!n->mhandle) {
            ret = net->reg_mr(conn, n->buf, sizeof(n->buf), NB_MEM_HOST, &n->mhandle);
            if (ret)
                return ret;
        }
        ret = net->isend(conn, n->buf, n->len, 0, n->mhandle, &n->req);
        if (ret)
            return ret;
        if (!n->req)
            return 0;
        n->posted = moved = 1;
    }
    ret = net->test(n->req, &n->done, NULL);
    return ret ? ret : (moved || n->done);
}

static int note_receive(const struct nb_net_ops *net, void *conn, struct note *n)
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
        ret = net->irecv(conn, 1, &data, &size, &tag, &n->mhandle, &n->req);
        if (ret)
            return ret;
        if (!n->req)
            return 0;
        n->posted = moved = 1;
    }
    ret = net->test(n->req, &n->done, &n->len);
    return ret ? ret : (moved || n->done);
}

static void note_forget(const struct nb_net_ops *net, void *conn, struct note *n)
{
    if (conn && n->mhandle)
        net->dereg_mr(conn, n->mhandle);
    n->mhandle = NULL;
}

/* ---- phase 1: connections and hellos ---------------------------------------------------------------- */

static void lose(struct mesh *m, int rank, int err, const char *what)
{
    if (m->lost[rank])
        return;
    m->lost[rank] = 1;
    object(m, "%s node %d: %s", what, rank, strerror(-err));
}

static int connect_out(struct mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_net_conn_cfg cfg = {.streams = 1, .traffic_class = -1, .lazy = 1};
    int moved = 0, ret;

    for (int r = 0; r < comm->nranks; r++) {
        for (int c = 0; c < NB_CLASS_COUNT && r != comm->rank && !m->lost[r]; c++) {
            struct outgoing *o = &m->out[r * NB_CLASS_COUNT + c];
            if (!o->conn) {
                cfg.shallow = comm->nranks > 2 && c != NB_CLASS_CONTROL; /* for fair.c */
                ret = comm->net->connect(comm->dev, &cfg, o->handle, &o->conn);
                if (ret)
                    lose(m, r, ret, "cannot connect to");
                if (!o->conn)
                    continue;
                m->mine.cls = (uint32_t)c;
                nb_hello_pack(&m->mine, o->hello.buf);
                o->hello.len = NB_HELLO_BYTES;
                moved = 1;
            }
            ret = note_send(comm->net, o->conn, &o->hello);
            if (ret < 0)
                lose(m, r, ret, "cannot greet");
            else
                moved |= ret;
        }
    }
    return moved;
}

/* Compare what a peer says of itself with what we are. */
static void check_hello(struct mesh *m, const struct nb_hello *h)
{
    const struct nb_hello *me = &m->mine;

    if (h->wire_version != me->wire_version || h->nclasses != me->nclasses)
        object(m, "node %u (%s) runs nibble %s with wire version %u, this node (%s) %s with %u", h->rank, h->host,
               h->version, h->wire_version, me->host, me->version, me->wire_version);
    else if (h->settings != me->settings)
        object(m, "node %u (%s) has other settings than node %u (%s): compare their NIBBLE_* variables", h->rank,
               h->host, me->rank, me->host);
    else if (h->comm_id != me->comm_id && h->comm_id && me->comm_id)
        object(m, "node %u (%s) is connecting communicator 0x%llx, this node 0x%llx", h->rank, h->host,
               (unsigned long long)h->comm_id, (unsigned long long)me->comm_id);
}

static void identify(struct mesh *m, struct incoming *in)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_hello h;
    const char *why = "";

    in->known = -1;
    if (nb_hello_parse(in->hello.buf, in->hello.len, &h, &why)) {
        object(m, "malformed greeting from %s: %s", comm->net->peer_name(in->conn), why);
        return;
    }
    if (h.nranks != (uint32_t)comm->nranks || h.rank >= h.nranks || h.rank == (uint32_t)comm->rank ||
        h.cls >= NB_CLASS_COUNT) {
        object(m, "%s says it is node %u of %u", comm->net->peer_name(in->conn), h.rank, h.nranks);
        return;
    }
    if (m->by_peer[h.rank * NB_CLASS_COUNT + h.cls]) {
        object(m, "two connections say they are node %u", h.rank);
        return;
    }
    check_hello(m, &h);
    in->known = 1;
    in->rank = (int)h.rank;
    in->cls = (int)h.cls;
    m->by_peer[h.rank * NB_CLASS_COUNT + h.cls] = in;
    m->token[h.rank] = h.group_token;
    snprintf(comm->peer[h.rank].name, sizeof(comm->peer[h.rank].name), "node %u (%.40s, %.48s)", h.rank, h.host,
             comm->net->peer_name(in->conn));
}

static int accept_in(struct mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    int moved = 0, ret;

    while (m->nin < m->expected) {
        struct incoming *in = &m->in[m->nin];
        ret = comm->net->accept(m->listen->conn, &in->conn);
        if (ret)
            object(m, "cannot accept connections: %s", strerror(-ret));
        if (ret || !in->conn)
            break;
        m->nin++;
        moved = 1;
    }
    for (int i = 0; i < m->nin; i++) {
        struct incoming *in = &m->in[i];
        if (in->known)
            continue;
        ret = note_receive(comm->net, in->conn, &in->hello);
        if (ret < 0) {
            in->known = -1;
            object(m, "lost %s before its greeting: %s", comm->net->peer_name(in->conn), strerror(-ret));
        } else {
            moved |= ret;
            if (in->hello.done)
                identify(m, in);
        }
    }
    return moved;
}

static struct incoming *find_in(struct mesh *m, int rank, int cls)
{
    return m->by_peer[rank * NB_CLASS_COUNT + cls];
}

/* Peers that are neither lost nor wholly connected. */
static int incomplete(struct mesh *m)
{
    int n = 0;

    for (int r = 0; r < m->comm->nranks; r++) {
        int whole = 1;
        if (r == m->comm->rank || m->lost[r])
            continue;
        for (int c = 0; c < NB_CLASS_COUNT; c++)
            whole &= m->out[r * NB_CLASS_COUNT + c].hello.done && find_in(m, r, c) != NULL;
        n += !whole;
    }
    return n;
}

static void make_mesh(struct mesh *m)
{
    while (incomplete(m)) {
        int moved = connect_out(m);
        moved |= accept_in(m);
        if (now() > m->deadline) {
            for (int r = 0; r < m->comm->nranks; r++)
                for (int c = 0; c < NB_CLASS_COUNT; c++)
                    if (r != m->comm->rank && !m->lost[r] &&
                        (!m->out[r * NB_CLASS_COUNT + c].hello.done || !find_in(m, r, c)))
                        lose(m, r, -ETIMEDOUT, "not connected within NIBBLE_CONNECT_TIMEOUT to");
            return;
        }
        if (!moved)
            pause_briefly();
    }
}

/* ---- phase 2: the vote ------------------------------------------------------------------------------ */

static void read_vote(struct mesh *m, int rank, int *yes)
{
    struct nb_vote v;
    const char *why = "";

    if (nb_vote_parse(m->vote_in[rank].buf, m->vote_in[rank].len, &v, &why)) {
        *yes = 0;
        object(m, "malformed vote from %s: %s", m->comm->peer[rank].name, why);
    } else if (!v.yes) {
        *yes = 0;
        object(m, "%s declines: %s", m->comm->peer[rank].name, v.reason);
    }
}

/* 1 when all nodes voted yes. Peers that never connected cannot be asked: their absence is a no. */
static int vote(struct mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    struct nb_vote mine = {.yes = m->reason[0] == 0, .rank = (uint32_t)comm->rank};
    int yes = (int)mine.yes;
    int64_t deadline = now() + nb_params()->connect_timeout * (int64_t)NB_NS_PER_S;

    memcpy(mine.reason, m->reason, sizeof(mine.reason));
    for (;;) {
        int open = 0, moved = 0;
        for (int r = 0; r < comm->nranks; r++) {
            struct outgoing *o = &m->out[r * NB_CLASS_COUNT + NB_CLASS_CONTROL];
            struct incoming *in = find_in(m, r, NB_CLASS_CONTROL);
            struct note *vo = &m->vote_out[r], *vi = &m->vote_in[r];
            int ret;
            if (r == comm->rank)
                continue;
            if (o->conn && o->hello.done && !vo->done) {
                if (!vo->len) {
                    nb_vote_pack(&mine, vo->buf);
                    vo->len = NB_VOTE_BYTES;
                }
                ret = note_send(comm->net, o->conn, vo);
                if (ret < 0) {
                    vo->done = 1;
                    lose(m, r, ret, "cannot vote with");
                    yes = 0;
                } else {
                    moved |= ret;
                }
                open += !vo->done;
            }
            if (in && !vi->done) {
                ret = note_receive(comm->net, in->conn, vi);
                if (ret < 0) {
                    vi->done = 1;
                    lose(m, r, ret, "no vote from");
                    yes = 0;
                } else {
                    moved |= ret;
                    if (vi->done)
                        read_vote(m, r, &yes);
                }
                open += !vi->done;
            }
            yes &= in != NULL && !m->lost[r];
        }
        if (!open)
            return yes && !m->reason[0];
        if (!yes && now() > deadline)
            return 0; /* whatever the rest would say */
        if (!moved)
            pause_briefly();
    }
}

/* ---- connect ---------------------------------------------------------------------------------------- */

/* What is known of this communicator, for NIBBLE_COMMS and the log. */
static void describe(struct mesh *m, struct nb_comm_facts *facts)
{
    struct nb_coll_comm *comm = m->comm;

    memset(facts, 0, sizeof(*facts));
    nb_queue_description(comm->queue, &facts->nranks, facts->name, sizeof(facts->name));
    facts->nnodes = (uint32_t)comm->nranks;
    facts->local = facts->nranks % facts->nnodes ? 0 : facts->nranks / facts->nnodes;
    facts->order = m->listen->order;
    nb_comm_rule_text(facts, comm->traits, sizeof(comm->traits));
}

/* Settings that decline this communicator: all nodes have the same. */
static void ask_settings(struct mesh *m)
{
    struct nb_comm_facts facts;
    char error[256];

    nb_comm_rules_parse(nb_params()->comms, &m->comm->rules, error, sizeof(error)); /* checked at init */
    describe(m, &facts);
    if (m->reason[0])
        return;
    if (!nb_params()->enable)
        object(m, "NIBBLE_ENABLE=0");
    else if (!nb_comm_rules_ask(&m->comm->rules, &facts))
        object(m, "NIBBLE_COMMS excludes it (%.120s)", m->comm->traits);
    m->wanted = m->reason[0] != 0;
}

/* Everything that may fail on this node alone, tried before the vote. */
static void try_locally(struct mesh *m)
{
    struct nb_coll_comm *comm = m->comm;
    int ret;

    ask_settings(m);
    if (nb_fault("connect"))
        object(m, "fault injected at connect");
    comm->engine = nb_engine_acquire();
    if (!comm->engine)
        object(m, "cannot start the engine");
    if (comm->device_error)
        object(m, "cannot use its device: %s", strerror(-comm->device_error));
    ret = nb_fault("alloc") ? -ENOMEM : nb_setup_memory(comm);
    if (ret)
        object(m, "cannot allocate staging memory (NIBBLE_STAGING_MAX_MB): %s", strerror(-ret));
    if (m->reason[0])
        return;
    for (int r = 0; r < comm->nranks; r++) {
        for (int c = 0; c < NB_CLASS_COUNT && r != comm->rank; c++) {
            struct incoming *in = find_in(m, r, c);
            comm->peer[r].tx[c].conn = m->out[r * NB_CLASS_COUNT + c].conn;
            comm->peer[r].rx[c].conn = in ? in->conn : NULL;
        }
    }
    ret = nb_fault("regmr") ? -EIO : nb_setup_register(comm);
    if (ret)
        object(m, "cannot register staging memory: %s", strerror(-ret));
}

/* One token for the group: the same on all nodes, different for every group. */
static uint32_t group_token(const struct mesh *m)
{
    uint64_t h = nb_hash64(m->token, (size_t)m->comm->nranks * sizeof(*m->token), m->mine.comm_id);
    return (uint32_t)(h ^ (h >> 32));
}

/* The notes' registrations end; the connections go to the communicator (won) or are closed. */
static void dissolve(struct mesh *m, int won)
{
    const struct nb_net_ops *net = m->comm->net;
    int n = m->comm->nranks;

    for (int i = 0; i < m->nin; i++) {
        struct incoming *in = &m->in[i];
        note_forget(net, in->conn, &in->hello);
        if (in->known == 1 && in->cls == NB_CLASS_CONTROL)
            note_forget(net, in->conn, &m->vote_in[in->rank]);
    }
    for (int i = 0; i < n * NB_CLASS_COUNT; i++) {
        note_forget(net, m->out[i].conn, &m->out[i].hello);
        if (i % NB_CLASS_COUNT == NB_CLASS_CONTROL)
            note_forget(net, m->out[i].conn, &m->vote_out[i / NB_CLASS_COUNT]);
    }
    if (!won) {
        nb_setup_unregister(m->comm);
        for (int i = 0; i < m->nin; i++)
            net->close_recv(m->in[i].conn);
        for (int i = 0; i < n * NB_CLASS_COUNT; i++) {
            if (m->out[i].conn)
                net->close_send(m->out[i].conn);
            else if (net->abandon && i / NB_CLASS_COUNT != m->comm->rank)
                net->abandon(m->out[i].handle);
        }
        for (int r = 0; r < n; r++)
            for (int c = 0; c < NB_CLASS_COUNT; c++)
                m->comm->peer[r].tx[c].conn = m->comm->peer[r].rx[c].conn = NULL;
    }
}

static void mesh_free(struct mesh *m)
{
    free(m->out);
    free(m->in);
    free(m->by_peer);
    free(m->token);
    free(m->lost);
    free(m->vote_out);
    free(m->vote_in);
}

static int mesh_init(struct mesh *m, struct nb_coll_comm *comm, struct nb_coll_listen *listen, void *const *handles)
{
    size_t n = (size_t)comm->nranks;
    int ret;

    m->comm = comm;
    m->listen = listen;
    m->out = calloc(n * NB_CLASS_COUNT, sizeof(*m->out));
    m->in = calloc(n * NB_CLASS_COUNT, sizeof(*m->in));
    m->by_peer = calloc(n * NB_CLASS_COUNT, sizeof(*m->by_peer));
    m->token = calloc(n, sizeof(*m->token));
    m->lost = calloc(n, 1);
    m->vote_out = calloc(n, sizeof(*m->vote_out));
    m->vote_in = calloc(n, sizeof(*m->vote_in));
    if (!m->out || !m->in || !m->by_peer || !m->token || !m->lost || !m->vote_out || !m->vote_in)
        return -ENOMEM;
    m->expected = (comm->nranks - 1) * NB_CLASS_COUNT;
    m->deadline = now() + nb_params()->connect_timeout * (int64_t)NB_NS_PER_S;
    for (size_t i = 0; i < n * NB_CLASS_COUNT; i++)
        if (i / NB_CLASS_COUNT != (size_t)comm->rank)
            memcpy(m->out[i].handle, handles[i / NB_CLASS_COUNT], NB_NET_HANDLE_BYTES);
    m->mine.wire_version = NB_WIRE_VERSION;
    m->mine.nclasses = NB_CLASS_COUNT;
    m->mine.rank = (uint32_t)comm->rank;
    m->mine.nranks = (uint32_t)comm->nranks;
    m->mine.comm_id = comm->comm_id;
    m->mine.settings = nb_params_hash() ^ (nb_fault("hash") ? 1 : 0);
    snprintf(m->mine.version, sizeof(m->mine.version), "%s", PACKAGE_VERSION);
    gethostname(m->mine.host, sizeof(m->mine.host) - 1);
    ret = nb_random(&m->mine.group_token, sizeof(m->mine.group_token));
    m->token[comm->rank] = m->mine.group_token;
    return ret;
}

static void announce(struct nb_coll_comm *comm)
{
    static const char *const schedule[] = {"auto", "direct", "two-hop"};

    NB_INFO(NCCL_INIT | NCCL_NET,
            "%s: connected over %s, schedule %s, device %s, wire units of %zu bytes, %u credits a peer and class, "
            "staging %.1f MiB",
            comm->label, comm->net->name, schedule[nb_params()->schedule], comm->device->ops->name, comm->unit,
            comm->peer[comm->rank == 0].rx[NB_CLASS_CONTRIB].slots, (double)comm->staging / (1 << 20));
    nb_comm_log_plan(comm);
}

int nb_coll_connect(void *const *handles, int nranks, int rank, struct nb_coll_listen *listen,
                    struct nb_coll_comm **out)
{
    struct mesh m;
    struct nb_coll_comm *comm;
    int ret = -EINVAL, won = 0;

    *out = NULL;
    memset(&m, 0, sizeof(m));
    if (!listen || listen->magic != LISTEN_MAGIC) {
        NB_WARN("connect: not a listening object of nibble: %p", (void *)listen);
        return -EINVAL;
    }
    if (!handles || nranks < 2 || nranks > NB_MAX_NODES || rank < 0 || rank >= nranks) {
        NB_WARN("connect: rank %d of %d nodes is out of range (2 to %d nodes)", rank, nranks, NB_MAX_NODES);
        nb_coll_close_listen(listen);
        return -EINVAL;
    }
    for (int r = 0; r < nranks; r++) {
        if (!handles[r]) {
            NB_WARN("connect: the handle of node %d is NULL", r);
            nb_coll_close_listen(listen);
            return -EINVAL;
        }
    }
    comm = nb_setup_comm(listen->dev, listen->comm_id, listen->net, nranks, rank);
    if (!comm || mesh_init(&m, comm, listen, handles)) {
        NB_WARN("connect: out of memory");
        ret = -ENOMEM;
        goto err;
    }
    make_mesh(&m);
    try_locally(&m);
    won = vote(&m);
    comm->token = group_token(&m);
    if (!won) {
        if (!m.reason[0])
            object(&m, "a peer was lost");
        if (m.wanted)
            NB_INFO(NCCL_INIT | NCCL_NET, "%s: not compressed, NCCL uses its own algorithms: %s", comm->label, m.reason);
        else
            NB_WARN("%s: CollNet is declined on all nodes, NCCL uses its own algorithms: %s", comm->label, m.reason);
        ret = -ECONNREFUSED;
        goto err;
    }
    dissolve(&m, 1);
    mesh_free(&m);
    nb_net_acquire(&comm->net); /* cannot fail: the listen comm holds it */
    comm->fault_ref = nb_fault("ref");
    comm->magic = NB_COMM_MAGIC;
    for (int r = 0; r < nranks; r++)
        comm->peer[r].heard_ns = now();
    comm->tick_ns = comm->moved_ns = now();
    announce(comm);
    nb_watch_open(comm);
    nb_engine_add(comm->engine, comm);
    *out = comm;
    return 0;
err:
    if (comm && m.expected) /* else there was no memory to begin with */
        dissolve(&m, 0);
    mesh_free(&m);
    if (comm) {
        if (comm->engine)
            nb_engine_release(comm->engine);
        nb_setup_free(comm);
    }
    nb_coll_close_listen(listen); /* NCCL forgets its pointer after a failure */
    return ret;
}
